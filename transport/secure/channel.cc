#include "transport/secure/channel.h"

#include <malloc.h>
#include <openssl/err.h>
#include <openssl/rand.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "transport/net/little_endian.h"
#include "transport/net/socket.h"
#include "transport/secure/hkdf.h"
#include "transport/secure/openssl.h"
#include "transport/secure/secret.h"

namespace lockstep {
namespace {

constexpr absl::string_view kMagic = "LKSP";
constexpr size_t kPskBytes = 48;                        // as long as the hash of the cipher suite
constexpr unsigned char kCipherSuite[] = {0x13, 0x02};  // TLS_AES_256_GCM_SHA384
constexpr size_t kRecordHeaderBytes = 5;
constexpr auto kNoDescriptorsLevel = static_cast<SecurityLevel>(0xff);

// Store and control channel protect all they carry, at whichever level: theirs is kAuthenticate at kEncrypt, too.
bool IsSetUp(Purpose purpose) { return purpose == Purpose::kStore || purpose == Purpose::kControl; }

// What a preamble's level stands for.
std::string LevelText(Purpose purpose, char level) {
  if (static_cast<unsigned char>(level) > 2) return "an unknown one";
  const bool either = IsSetUp(purpose) && level == static_cast<char>(SecurityLevel::kAuthenticate);
  return either ? "authenticate or encrypt" : kSecurityLevelNames[static_cast<int>(level)];
}

std::string Preamble(Purpose purpose, SecurityLevel level) {
  std::string preamble(kMagic);
  preamble.push_back(static_cast<char>(kSecurityVersion & 0xff));
  preamble.push_back(static_cast<char>(kSecurityVersion >> 8));
  preamble.push_back(static_cast<char>(purpose));
  preamble.push_back(static_cast<char>(level));
  return preamble;
}

std::string Identity(Purpose purpose, SecurityLevel level) {
  return absl::StrCat("lockstep ", kSecurityVersion, " ", Name(purpose), " ", Name(level));
}

// True for what earlier versions began connections with: the store's, TCP's and shared memory's hellos begin with a magic, the control
// channel's has it behind a length and a type.
bool FromOldProtocol(absl::string_view bytes) {
  for (absl::string_view magic : {"LKST", "LKS1", "LKSA", "LSMH", "LSMA"}) {
    if (absl::StartsWith(bytes, magic)) return true;
  }
  return absl::StartsWith(bytes.substr(std::min<size_t>(bytes.size(), 5)), "LST");
}

}  // namespace

const char* Name(Purpose purpose) {
  switch (purpose) {
    case Purpose::kStore:
      return "store";
    case Purpose::kControl:
      return "control";
    case Purpose::kData:
      return "data";
    case Purpose::kLocal:
      return "local";
    case Purpose::kFabric:
      return "fabric";
  }
  return "unknown purpose";
}

const char* Text(Refusal refusal) {
  switch (refusal) {
    case Refusal::kNotOurs:
      return "does not speak Lockstep's protocol";
    case Refusal::kOldProtocol:
      return "speaks an earlier version of Lockstep's protocol, which has no authentication";
    case Refusal::kOtherVersion:
      return "speaks another version of Lockstep's protocol";
    case Refusal::kOtherPurpose:
      return "is for something else";
    case Refusal::kOtherLevel:
      return "has another security level";
    case Refusal::kNoSecret:
      return "does not have the secret";
    case Refusal::kBroken:
      return "broke the handshake's protocol";
    case Refusal::kTooLong:
      return "sent more than a handshake needs";
    case Refusal::kSilent:
      return "was not through with the handshake in time";
    case Refusal::kGaveUp:
      return "closed the connection before it was through with the handshake";
    case Refusal::kUnfinished:
      return "was not through with the handshake when the listener ended";
    case Refusal::kCrowded:
      return "made way for others that wait for a handshake";
    case Refusal::kOtherUser:
      return "belongs to another user";
    case Refusal::kOtherWorld:
      return "has no place in this world";
    case Refusal::kCount:
      break;
  }
  return "was not refused";
}

// One end of a TLS connection over memory.
struct Channel::Tls {
  Tls(Purpose purpose, Side side, const Credentials& credentials);
  ~Tls() {
    SSL_free(ssl);
    OPENSSL_cleanse(psk, sizeof(psk));
  }

  // Of the SSL whose callback was called.
  static Tls* Of(SSL* ssl) { return static_cast<Tls*>(SSL_get_app_data(ssl)); }
  // The key as OpenSSL wants it; the caller's. Null without memory.
  SSL_SESSION* Session() const;

  const std::string identity;
  unsigned char psk[kPskBytes];
  SSL* ssl;
  BIO* arrived;  // ssl's
  BIO* to_send;  // ssl's
};

namespace {

// For an object of OpenSSL's that keeps keys in itself.
void HideFromCoreFiles(void* object) { LeaveOutOfCoreFiles(object, malloc_usable_size(object)); }

// Contexts are the same for all connections and live as long as the process.
template <typename Configure>
SSL_CTX* NewContext(const SSL_METHOD* method, Configure configure) {
  SSL_CTX* const context = SSL_CTX_new_ex(OpenSslLibrary(), nullptr, method);
  LOCKSTEP_CHECK(context != nullptr);
  LOCKSTEP_CHECK(SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1);
  LOCKSTEP_CHECK(SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) == 1);
  LOCKSTEP_CHECK(SSL_CTX_set_ciphersuites(context, "TLS_AES_256_GCM_SHA384") == 1);
  LOCKSTEP_CHECK(SSL_CTX_set1_groups_list(context, "X25519") == 1);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_clear_options(context, SSL_OP_ENABLE_MIDDLEBOX_COMPAT);
  // The world's secret is said over a channel: nothing of it is left in buffers.
  SSL_CTX_set_options(context, SSL_OP_CLEANSE_PLAINTEXT);
  configure(context);
  return context;
}

}  // namespace

Channel::Tls::Tls(Purpose purpose, Side side, const Credentials& credentials)
    : identity(Identity(purpose, credentials.level)) {
  LeaveOutOfCoreFiles(this, sizeof(*this));
  HkdfExpand(credentials.secret->bytes(), identity, psk, sizeof(psk));
  // In a forked child, where the secret is gone: a key that nobody has, rather than one that all such children have.
  if (!credentials.secret->usable()) LOCKSTEP_CHECK(RAND_bytes_ex(OpenSslLibrary(), psk, sizeof(psk), 0) == 1);
  static SSL_CTX* const client = NewContext(TLS_client_method(), [](SSL_CTX* context) {
    // A server that does not know the key answers with a certificate, which is refused, as nobody is trusted.
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
    SSL_CTX_set_psk_use_session_callback(
        context, [](SSL* ssl, const EVP_MD*, const unsigned char** id, size_t* id_bytes, SSL_SESSION** session) {
          const Tls* const self = Of(ssl);
          *session = self->Session();
          *id = reinterpret_cast<const unsigned char*>(self->identity.data());
          *id_bytes = self->identity.size();
          return *session != nullptr ? 1 : 0;
        });
  });
  static SSL_CTX* const server = NewContext(TLS_server_method(), [](SSL_CTX* context) {
    SSL_CTX_set_verify(context, SSL_VERIFY_NONE, nullptr);
    SSL_CTX_set_num_tickets(context, 0);
    SSL_CTX_set_psk_find_session_callback(
        context, [](SSL* ssl, const unsigned char* id, size_t id_bytes, SSL_SESSION** session) {
          const Tls* const self = Of(ssl);
          const bool known = absl::string_view(reinterpret_cast<const char*>(id), id_bytes) == self->identity;
          *session = known ? self->Session() : nullptr;
          return 1;
        });
  });
  ssl = SSL_new(side == Side::kConnects ? client : server);
  arrived = BIO_new(BIO_s_mem());
  to_send = BIO_new(BIO_s_mem());
  LOCKSTEP_CHECK(ssl != nullptr && arrived != nullptr && to_send != nullptr);
  // It keeps what follows from the key, and is as good for a handshake: the early secret (RFC 8446, 7.1). So does the session.
  HideFromCoreFiles(ssl);
  SSL_set_app_data(ssl, this);
  SSL_set_bio(ssl, arrived, to_send);
  if (side == Side::kConnects) {
    SSL_set_connect_state(ssl);
  } else {
    SSL_set_accept_state(ssl);
  }
}

SSL_SESSION* Channel::Tls::Session() const {
  SSL_SESSION* const session = SSL_SESSION_new();
  HideFromCoreFiles(session);
  const SSL_CIPHER* const cipher = SSL_CIPHER_find(ssl, kCipherSuite);
  if (session != nullptr && cipher != nullptr && SSL_SESSION_set1_master_key(session, psk, sizeof(psk)) == 1 &&
      SSL_SESSION_set_cipher(session, cipher) == 1 && SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1) {
    return session;
  }
  SSL_SESSION_free(session);
  return nullptr;
}

Channel::Channel(Purpose purpose, Side side, const Credentials& credentials)
    : purpose_(purpose), side_(side), credentials_(credentials) {
  LOCKSTEP_CHECK((credentials.level == SecurityLevel::kNone) == (credentials.secret == nullptr));
  if (IsSetUp(purpose) && secured()) credentials_.level = SecurityLevel::kAuthenticate;
}

Channel::~Channel() = default;

std::string Channel::Start() {
  std::string to_send;
  if (side_ == Side::kListens) return to_send;
  to_send = Preamble(purpose_, credentials_.level);
  if (secured()) {
    tls_ = std::make_unique<Tls>(purpose_, side_, credentials_);
    (void)SSL_do_handshake(tls_->ssl);
    ERR_clear_error();
    Drain(&to_send);
  }
  return to_send;
}

size_t Channel::wanted() const {
  if (state_ == State::kPreamble) return kPreambleBytes - preamble_.size();
  const size_t piece = record_left_ > 0 ? record_left_ : kRecordHeaderBytes - header_have_;
  return state_ == State::kHandshake ? std::max<size_t>(1, std::min(piece, kHandshakeBytesMax - taken_)) : piece;
}

absl::Status Channel::Receive(absl::string_view arrived, std::string* plain, std::string* to_send) {
  LOCKSTEP_CHECK(state_ != State::kRefused);
  if (state_ != State::kReady) taken_ += arrived.size();
  if (state_ == State::kPreamble) LOCKSTEP_RETURN_IF_ERROR(TakePreamble(&arrived, to_send));
  if (arrived.empty()) return absl::OkStatus();
  if (state_ == State::kHandshake && taken_ > kHandshakeBytesMax) return Refuse(Refusal::kTooLong, "");
  if (tls_ == nullptr) {
    plain->append(arrived.data(), arrived.size());
    return absl::OkStatus();
  }
  NoteRecords(arrived);
  LOCKSTEP_CHECK(BIO_write(tls_->arrived, arrived.data(), static_cast<int>(arrived.size())) ==
                 static_cast<int>(arrived.size()));
  if (state_ == State::kHandshake) LOCKSTEP_RETURN_IF_ERROR(Shake(to_send));
  if (state_ == State::kHandshake) return absl::OkStatus();
  const absl::Status status = Open(plain);
  Drain(to_send);  // an answer to a request for new keys, or an alert
  return status;
}

absl::Status Channel::TakePreamble(absl::string_view* arrived, std::string* to_send) {
  const std::string own = Preamble(purpose_, credentials_.level);
  while (!arrived->empty() && preamble_.size() < kPreambleBytes) {
    preamble_.push_back(arrived->front());
    arrived->remove_prefix(1);
  }
  const size_t have = preamble_.size();
  if (have == 0) return absl::OkStatus();
  // An unauthenticated peer is told apart by its first byte; who speaks an older protocol of ours gets all of its eight to say so.
  const bool begun = have >= kPreambleBytes || preamble_[0] != own[0];
  if (have < kPreambleBytes && !begun) return absl::OkStatus();
  if (side_ == Side::kListens) to_send->append(own);
  if (preamble_ == own) {
    state_ = secured() ? State::kHandshake : State::kReady;
    // Not before: a connection that says nothing costs nothing.
    if (secured() && side_ == Side::kListens) tls_ = std::make_unique<Tls>(purpose_, side_, credentials_);
    return absl::OkStatus();
  }
  if (!absl::StartsWith(preamble_, kMagic) || have < kPreambleBytes) {
    return Refuse(FromOldProtocol(preamble_) ? Refusal::kOldProtocol : Refusal::kNotOurs, "");
  }
  if (preamble_[4] != own[4] || preamble_[5] != own[5]) {
    const auto low = static_cast<unsigned char>(preamble_[4]);
    const auto high = static_cast<unsigned char>(preamble_[5]);
    return Refuse(Refusal::kOtherVersion, absl::StrCat(low + 256 * high, ", not ", kSecurityVersion));
  }
  if (preamble_[6] != own[6]) {
    return Refuse(Refusal::kOtherPurpose,
                  absl::StrCat(Name(static_cast<Purpose>(preamble_[6])), ", not ", Name(purpose_)));
  }
  if (side_ == Side::kConnects && preamble_ == NoDescriptorsPreamble(purpose_)) {
    (void)Refuse(Refusal::kCrowded, "");
    return absl::ResourceExhaustedError(
        "Too many open files in the listener's process: it has no descriptor for this connection");
  }
  return Refuse(Refusal::kOtherLevel,
                absl::StrCat(LevelText(purpose_, preamble_[7]), ", not ", LevelText(purpose_, own[7]),
                             ": LOCKSTEP_SECURITY has to be the same on all ranks"));
}

absl::Status Channel::Refuse(Refusal refusal, absl::string_view why) {
  state_ = State::kRefused;
  refusal_ = refusal;
  const char* const peer = side_ == Side::kConnects ? "the listener " : "it ";
  return absl::PermissionDeniedError(absl::StrCat(peer, Text(refusal), why.empty() ? "" : ": ", why));
}

absl::Status Channel::RefuseSecret() {
  const bool tells = side_ == Side::kConnects;
  return Refuse(Refusal::kNoSecret,
                tells ? absl::StrCat("ours is from ", credentials_.source, "; all ranks need the same") : "");
}

absl::Status Channel::Shake(std::string* to_send) {
  ERR_clear_error();
  const size_t before = to_send->size();
  const int result = SSL_do_handshake(tls_->ssl);
  // OpenSSL's own copy, on the listening side.
  if (SSL_SESSION* const session = SSL_get_session(tls_->ssl); session != nullptr) HideFromCoreFiles(session);
  Drain(to_send);
  if (result != 1) {
    const int error = SSL_get_error(tls_->ssl, result);
    if (error == SSL_ERROR_WANT_READ) {
      if (side_ == Side::kListens && to_send->size() > before) {
        first_flight_.resize(SSL3_RANDOM_SIZE);
        (void)SSL_get_client_random(tls_->ssl, reinterpret_cast<unsigned char*>(&first_flight_[0]),
                                    first_flight_.size());
      }
      if (taken_ < kHandshakeBytesMax) return absl::OkStatus();
      return Refuse(Refusal::kTooLong, "");
    }
    const unsigned long code = ERR_peek_error();
    const int reason = ERR_GET_REASON(code);
    const std::string text = OpenSslError();
    // An alert (RFC 8446, 6.2) has come, or nothing that the key opens: whoever has the secret says nothing of the kind.
    const bool alert = reason > SSL_AD_REASON_OFFSET;
    if (alert || reason == SSL_R_BINDER_DOES_NOT_VERIFY || reason == SSL_R_CERTIFICATE_VERIFY_FAILED ||
        reason == SSL_R_NO_SHARED_CIPHER || reason == SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM ||
        reason == SSL_R_DIGEST_CHECK_FAILED || reason == SSL_R_BAD_PSK) {
      return RefuseSecret();
    }
    return Refuse(Refusal::kBroken, text);
  }
  // All of it follows from the settings above; it is what the whole rests on.
  if (SSL_session_reused(tls_->ssl) != 1 || SSL_version(tls_->ssl) != TLS1_3_VERSION) {
    return RefuseSecret();
  }
  OPENSSL_cleanse(tls_->psk, sizeof(tls_->psk));
  credentials_.secret.reset();
  state_ = State::kReady;
  return absl::OkStatus();
}

absl::Status Channel::Open(std::string* plain) {
  char piece[4096];
  for (;;) {
    ERR_clear_error();
    const int bytes = SSL_read(tls_->ssl, piece, sizeof(piece));
    if (bytes > 0) {
      plain->append(piece, static_cast<size_t>(bytes));
      OPENSSL_cleanse(piece, static_cast<size_t>(bytes));
      continue;
    }
    switch (SSL_get_error(tls_->ssl, bytes)) {
      case SSL_ERROR_WANT_READ:
        return absl::OkStatus();
      case SSL_ERROR_ZERO_RETURN:
        return absl::UnavailableError("the peer said that it ends the connection");
      default:
        return absl::DataLossError(absl::StrCat(
            "a record was altered, repeated, lost or out of order, or is not from the peer (", OpenSslError(), ")"));
    }
  }
}

void Channel::Send(absl::string_view plain, std::string* to_send) {
  LOCKSTEP_CHECK(ready());
  if (tls_ == nullptr) {
    to_send->append(plain.data(), plain.size());
    return;
  }
  if (plain.empty()) return;
  records_ += plain.size() / SSL3_RT_MAX_PLAIN_LENGTH + 1;
  if (records_ > kTlsRecordsPerKey) {
    // What is written next tells the peer first.
    (void)SSL_key_update(tls_->ssl, SSL_KEY_UPDATE_NOT_REQUESTED);
    records_ = 1;
  }
  // Into memory, so all of it; or nothing, after a record that Receive has refused.
  (void)SSL_write(tls_->ssl, plain.data(), static_cast<int>(plain.size()));
  ERR_clear_error();
  Drain(to_send);
}

void Channel::Export(absl::string_view label, absl::string_view context, void* out, size_t bytes) const {
  LOCKSTEP_CHECK(ready() && tls_ != nullptr);
  LOCKSTEP_CHECK(SSL_export_keying_material(tls_->ssl, static_cast<unsigned char*>(out), bytes, label.data(),
                                            label.size(), reinterpret_cast<const unsigned char*>(context.data()),
                                            context.size(), 1) == 1);
}

void Channel::Drain(std::string* to_send) {
  char* bytes = nullptr;
  const long count = BIO_get_mem_data(tls_->to_send, &bytes);
  if (count <= 0) return;
  to_send->append(bytes, static_cast<size_t>(count));
  (void)BIO_reset(tls_->to_send);
}

void Channel::NoteRecords(absl::string_view arrived) {
  while (!arrived.empty()) {
    const size_t bytes = record_left_ > 0 ? std::min(record_left_, arrived.size()) : 1;
    if (record_left_ > 0) {
      record_left_ -= bytes;
    } else {
      header_[header_have_++] = static_cast<unsigned char>(arrived.front());
      if (header_have_ == kRecordHeaderBytes) {
        record_left_ = size_t{header_[3]} << 8 | header_[4];
        header_have_ = 0;
      }
    }
    arrived.remove_prefix(bytes);
  }
}

std::string NoDescriptorsPreamble(Purpose purpose) { return Preamble(purpose, kNoDescriptorsLevel); }

absl::Status ShakeHands(int socket, Channel* channel, Deadline deadline) {
  std::string to_send = channel->Start();
  LOCKSTEP_RETURN_IF_ERROR(SendAll(socket, to_send.data(), to_send.size(), deadline));
  char piece[kHandshakeBytesMax];
  while (!channel->ready()) {
    const size_t bytes = channel->wanted();
    LOCKSTEP_RETURN_IF_ERROR(ReceiveAll(socket, piece, bytes, deadline));
    std::string plain;
    to_send.clear();
    const absl::Status status = channel->Receive(absl::string_view(piece, bytes), &plain, &to_send);
    if (!to_send.empty()) {
      const absl::Status sent = SendAll(socket, to_send.data(), to_send.size(), deadline);
      if (status.ok()) LOCKSTEP_RETURN_IF_ERROR(sent);
    }
    LOCKSTEP_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

}  // namespace lockstep
