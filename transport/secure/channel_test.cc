#include "transport/secure/channel.h"

#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/net/socket.h"

namespace lockstep {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using Side = Channel::Side;

Credentials Secured(char fill, SecurityLevel level = SecurityLevel::kAuthenticate) {
  Credentials credentials;
  credentials.level = level;
  if (level != SecurityLevel::kNone) {
    credentials.secret = Secret::FromBytes(std::string(Secret::kBytes, fill)).value();
    credentials.source = "the test";
  }
  return credentials;
}

// What one end has got.
struct End {
  End(Purpose purpose, Side side, const Credentials& credentials) : channel(purpose, side, credentials) {}

  // Takes what the other end has sent; what stands in `to_send` is for it.
  absl::Status Take(const std::string& arrived) { return status = channel.Receive(arrived, &plain, &to_send); }

  Channel channel;
  std::string plain;
  std::string to_send;
  absl::Status status;
};

// Passes bytes on, `piece` at a time, until neither end has anything to say or one has refused.
void Talk(End* connects, End* listens, size_t piece = 100'000) {
  connects->to_send += connects->channel.Start();
  listens->to_send += listens->channel.Start();
  while (!connects->to_send.empty() || !listens->to_send.empty()) {
    for (auto [from, to] : {std::pair(connects, listens), std::pair(listens, connects)}) {
      std::string bytes = std::move(from->to_send);
      from->to_send.clear();
      for (; !bytes.empty() && to->status.ok(); bytes.erase(0, piece)) (void)to->Take(bytes.substr(0, piece));
    }
  }
}

constexpr SecurityLevel kLevels[] = {SecurityLevel::kNone, SecurityLevel::kAuthenticate, SecurityLevel::kEncrypt};
constexpr Purpose kPurposes[] = {Purpose::kStore, Purpose::kControl, Purpose::kData, Purpose::kLocal, Purpose::kFabric};

TEST(ChannelTest, BothEndsAreReadyAndSpeak) {
  for (const SecurityLevel level : kLevels) {
    for (const Purpose purpose : kPurposes) {
      for (const size_t piece : {1, 7, 100'000}) {
        End connects(purpose, Side::kConnects, Secured('s', level));
        End listens(purpose, Side::kListens, Secured('s', level));
        Talk(&connects, &listens, piece);
        LOCKSTEP_ASSERT_OK(connects.status);
        LOCKSTEP_ASSERT_OK(listens.status);
        ASSERT_TRUE(connects.channel.ready() && listens.channel.ready());

        const std::string big(70'000, 'x');
        connects.channel.Send("hello", &connects.to_send);
        listens.channel.Send(big, &listens.to_send);
        EXPECT_EQ(listens.to_send.find("xxxxxxxx") != std::string::npos, level == SecurityLevel::kNone);
        LOCKSTEP_ASSERT_OK(listens.Take(connects.to_send));
        LOCKSTEP_ASSERT_OK(connects.Take(listens.to_send));
        EXPECT_EQ(listens.plain, "hello");
        EXPECT_EQ(connects.plain, big);
      }
    }
  }
}

// Whoever reads no more than wanted() takes nothing of what comes behind.
TEST(ChannelTest, WantedEndsWithThePiece) {
  for (const SecurityLevel level : kLevels) {
    End connects(Purpose::kData, Side::kConnects, Secured('s', level));
    End listens(Purpose::kData, Side::kListens, Secured('s', level));
    const auto take = [](End* end, std::string* stream) {
      while (!stream->empty() && !end->channel.ready()) {
        const size_t bytes = std::min(stream->size(), end->channel.wanted());
        ASSERT_GT(bytes, 0u);
        LOCKSTEP_ASSERT_OK(end->Take(stream->substr(0, bytes)));
        stream->erase(0, bytes);
      }
    };
    std::string to_listener = connects.channel.Start();
    take(&listens, &to_listener);
    std::string to_connecting = std::move(listens.to_send);
    to_connecting += level == SecurityLevel::kNone ? "behind" : "";
    take(&connects, &to_connecting);
    ASSERT_TRUE(connects.channel.ready());
    EXPECT_EQ(to_connecting, level == SecurityLevel::kNone ? "behind" : "");
    EXPECT_EQ(connects.plain, "");
    connects.channel.Send("hello", &connects.to_send);
    to_listener = std::move(connects.to_send);
    take(&listens, &to_listener);
    ASSERT_TRUE(listens.channel.ready());
    if (level == SecurityLevel::kNone) continue;
    to_listener += "records of another kind";
    while (listens.plain.empty()) {
      const size_t bytes = listens.channel.wanted();
      LOCKSTEP_ASSERT_OK(listens.Take(to_listener.substr(0, bytes)));
      to_listener.erase(0, bytes);
    }
    EXPECT_EQ(listens.plain, "hello");
    EXPECT_EQ(to_listener, "records of another kind");
  }
}

TEST(ChannelTest, BothEndsExportTheSame) {
  End connects(Purpose::kData, Side::kConnects, Secured('s'));
  End listens(Purpose::kData, Side::kListens, Secured('s'));
  Talk(&connects, &listens);
  const auto exported = [](const End& end, const std::string& label, const std::string& context) {
    std::string bytes(48, '\0');
    end.channel.Export(label, context, &bytes[0], bytes.size());
    return bytes;
  };
  EXPECT_EQ(exported(connects, "label", "context"), exported(listens, "label", "context"));
  EXPECT_NE(exported(connects, "label", "context"), exported(listens, "label", "other"));
  EXPECT_NE(exported(connects, "label", "context"), exported(listens, "other", "context"));
  End again(Purpose::kData, Side::kConnects, Secured('s'));
  End other(Purpose::kData, Side::kListens, Secured('s'));
  Talk(&again, &other);
  EXPECT_NE(exported(connects, "label", "context"), exported(again, "label", "context"));
}

TEST(ChannelTest, AListenerWithoutDescriptorsSaysSoToWhoeverConnects) {
  for (const SecurityLevel level : kLevels) {
    End connects(Purpose::kStore, Side::kConnects, Secured('s', level));
    (void)connects.channel.Start();
    EXPECT_THAT(connects.Take(NoDescriptorsPreamble(Purpose::kStore)),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("Too many open files")));
    End listens(Purpose::kStore, Side::kListens, Secured('s', level));
    EXPECT_THAT(listens.Take(NoDescriptorsPreamble(Purpose::kStore)), StatusIs(absl::StatusCode::kPermissionDenied));
  }
}

TEST(ChannelTest, AnotherSecretIsRefusedByBoth) {
  End connects(Purpose::kStore, Side::kConnects, Secured('s'));
  End listens(Purpose::kStore, Side::kListens, Secured('t'));
  Talk(&connects, &listens);
  EXPECT_THAT(connects.status,
              StatusIs(absl::StatusCode::kPermissionDenied,
                       "the listener does not have the secret: ours is from the test; all ranks need the same"));
  EXPECT_THAT(listens.status, StatusIs(absl::StatusCode::kPermissionDenied, "it does not have the secret"));
  EXPECT_EQ(connects.channel.refusal(), Refusal::kNoSecret);
  EXPECT_EQ(listens.channel.refusal(), Refusal::kNoSecret);
}

TEST(ChannelTest, DifferencesOfThePreambleAreNamed) {
  for (const SecurityLevel a : kLevels) {
    for (const SecurityLevel b : kLevels) {
      if (a == b) continue;
      End connects(Purpose::kData, Side::kConnects, Secured('s', a));
      End listens(Purpose::kData, Side::kListens, Secured('s', b));
      Talk(&connects, &listens);
      EXPECT_EQ(connects.channel.refusal(), Refusal::kOtherLevel);
      EXPECT_EQ(listens.channel.refusal(), Refusal::kOtherLevel);
      EXPECT_THAT(connects.status.message(), HasSubstr(absl::StrCat(Name(b), ", not ", Name(a))));
      EXPECT_THAT(listens.status.message(), HasSubstr(absl::StrCat(Name(a), ", not ", Name(b))));
      EXPECT_THAT(listens.status.message(), HasSubstr("LOCKSTEP_SECURITY"));
    }
  }
  End encrypts(Purpose::kControl, Side::kConnects, Secured('s', SecurityLevel::kEncrypt));
  End authenticates(Purpose::kControl, Side::kListens, Secured('s', SecurityLevel::kAuthenticate));
  Talk(&encrypts, &authenticates);
  EXPECT_TRUE(encrypts.channel.ready() && authenticates.channel.ready());
  End connects(Purpose::kStore, Side::kConnects, Secured('s'));
  End listens(Purpose::kControl, Side::kListens, Secured('s'));
  Talk(&connects, &listens);
  EXPECT_THAT(connects.status.message(), HasSubstr("is for something else: control, not store"));
  EXPECT_THAT(listens.status.message(), HasSubstr("is for something else: store, not control"));
}

// A relay that makes the preambles agree gains nothing: the key says the same.
TEST(ChannelTest, ARewrittenPreambleDoesNotHelp) {
  const auto through = [](Purpose from, SecurityLevel from_level, Purpose to, SecurityLevel to_level) {
    End connects(from, Side::kConnects, Secured('s', from_level));
    End listens(to, Side::kListens, Secured('s', to_level));
    std::string sent = connects.channel.Start();
    sent[6] = static_cast<char>(to);
    sent[7] = static_cast<char>(to_level);
    (void)listens.Take(sent);
    return listens.channel.refusal();
  };
  const auto authenticate = SecurityLevel::kAuthenticate;
  EXPECT_EQ(through(Purpose::kStore, authenticate, Purpose::kControl, authenticate), Refusal::kNoSecret);
  EXPECT_EQ(through(Purpose::kData, SecurityLevel::kEncrypt, Purpose::kData, authenticate), Refusal::kNoSecret);
  EXPECT_EQ(through(Purpose::kStore, authenticate, Purpose::kStore, authenticate), Refusal::kCount);
}

TEST(ChannelTest, OldVersionsAreNamed) {
  const std::string hellos[] = {std::string("LKST\1\0\0\0", 8), std::string("LKS1\2\0\0\0\0\0\0\0", 12), "LSMH....",
                                std::string("\x40\0\0\0\1LSTC", 9)};
  for (const std::string& hello : hellos) {
    End listens(Purpose::kStore, Side::kListens, Secured('s'));
    (void)listens.Take(hello + "........");
    EXPECT_EQ(listens.channel.refusal(), Refusal::kOldProtocol) << hello;
    EXPECT_EQ(listens.to_send.size(), kPreambleBytes);
  }
  End connects(Purpose::kStore, Side::kConnects, Secured('s'));
  EXPECT_THAT(connects.Take(std::string("LKST\1\0\1\0", 8)),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("earlier version")));
  End next(Purpose::kStore, Side::kListens, Secured('s'));
  EXPECT_THAT(next.Take(std::string("LKSP\2\0\1\1", 8)),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("2, not 1")));
}

TEST(ChannelTest, UnauthenticatedPeersAreToldApartEarly) {
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(1, '\x16'), std::string(100, '\0')}) {
    End listens(Purpose::kData, Side::kListens, Secured('s'));
    EXPECT_THAT(listens.Take(bytes),
                StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("does not speak Lockstep's protocol")));
  }
  // The right preamble, and then no TLS.
  End listens(Purpose::kData, Side::kListens, Secured('s'));
  EXPECT_THAT(listens.Take(std::string("LKSP\1\0\3\1", 8) + std::string(64, 'x')),
              StatusIs(absl::StatusCode::kPermissionDenied));
  EXPECT_THAT(listens.channel.refusal(), AnyOf(Refusal::kBroken, Refusal::kNoSecret));
}

// A record that declares more than a handshake needs is taken up to the bound and no further.
TEST(ChannelTest, TakesNoMoreThanAHandshakeNeeds) {
  End listens(Purpose::kData, Side::kListens, Secured('s'));
  LOCKSTEP_ASSERT_OK(listens.Take(std::string("LKSP\1\0\3\1", 8)));
  LOCKSTEP_ASSERT_OK(listens.Take("\x16\x03\x01\x3f\xff"));
  size_t taken = 13;
  while (listens.status.ok() && taken < 100'000) {
    const size_t bytes = listens.channel.wanted();
    (void)listens.Take(std::string(bytes, '\0'));
    taken += bytes;
  }
  EXPECT_FALSE(listens.status.ok());
  EXPECT_LE(taken, kHandshakeBytesMax);
}

TEST(ChannelTest, MoreThanAHandshakeNeedsIsNotLookedAt) {
  End connects(Purpose::kFabric, Side::kConnects, Secured('s'));
  End listens(Purpose::kFabric, Side::kListens, Secured('s'));
  const std::string flight = connects.channel.Start();
  EXPECT_THAT(listens.Take(flight + std::string(kHandshakeBytesMax, 'x')),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("more than a handshake needs")));
  EXPECT_EQ(listens.channel.refusal(), Refusal::kTooLong);
  EXPECT_EQ(listens.to_send.size(), kPreambleBytes) << "not even its beginning";
}

// Each byte of each flight, each in three ways.
TEST(ChannelTest, NoAlteredHandshakeEndsWell) {
  std::vector<std::string> flights;
  {
    End connects(Purpose::kControl, Side::kConnects, Secured('s'));
    End listens(Purpose::kControl, Side::kListens, Secured('s'));
    flights.push_back(connects.channel.Start());
    (void)listens.Take(flights[0]);
    flights.push_back(listens.to_send);
    (void)connects.Take(flights[1]);
    flights.push_back(connects.to_send);
  }
  for (size_t flight = 0; flight < flights.size(); ++flight) {
    for (size_t at = 0; at < flights[flight].size(); ++at) {
      // The version in the header of a first record means nothing and is not looked at (RFC 8446, 5.1).
      if (flight < 2 && at == kPreambleBytes + 2) continue;
      for (const char flip : {'\x01', '\x80', '\xff'}) {
        End connects(Purpose::kControl, Side::kConnects, Secured('s'));
        End listens(Purpose::kControl, Side::kListens, Secured('s'));
        const auto altered = [&](std::string bytes, size_t index) {
          if (index == flight && at < bytes.size()) bytes[at] ^= flip;
          return bytes;
        };
        if (listens.Take(altered(connects.channel.Start(), 0)).ok() &&
            connects.Take(altered(listens.to_send, 1)).ok() && connects.channel.ready()) {
          (void)listens.Take(altered(connects.to_send, 2));
        }
        EXPECT_FALSE(connects.channel.ready() && listens.channel.ready()) << flight << " " << at;
      }
    }
  }
}

TEST(ChannelTest, KnowsAFirstFlightOnceItProvesTheSecret) {
  for (const char fill : {'s', 't'}) {
    End connects(Purpose::kData, Side::kConnects, Secured(fill));
    End listens(Purpose::kData, Side::kListens, Secured('s'));
    const std::string first = connects.channel.Start();
    for (const char byte : first) {
      EXPECT_EQ(listens.channel.first_flight(), "");
      (void)listens.Take(std::string(1, byte));
      if (!listens.status.ok()) break;
    }
    EXPECT_EQ(listens.channel.first_flight().size(), fill == 's' ? 32 : 0);
    EXPECT_FALSE(listens.channel.ready());
    End copied(Purpose::kData, Side::kListens, Secured('s'));
    (void)copied.Take(first);
    EXPECT_EQ(copied.channel.first_flight(), listens.channel.first_flight());
    End another(Purpose::kData, Side::kConnects, Secured('s'));
    End told(Purpose::kData, Side::kListens, Secured('s'));
    (void)told.Take(another.channel.Start());
    EXPECT_NE(told.channel.first_flight(), listens.channel.first_flight());
  }
}

// What one end said to another once is worth nothing to a third.
TEST(ChannelTest, AReplayedHandshakeIsRefused) {
  End connects(Purpose::kData, Side::kConnects, Secured('s'));
  End listens(Purpose::kData, Side::kListens, Secured('s'));
  const std::string first = connects.channel.Start();
  LOCKSTEP_ASSERT_OK(listens.Take(first));
  LOCKSTEP_ASSERT_OK(connects.Take(listens.to_send));
  connects.channel.Send("hello", &connects.to_send);
  const std::string second = connects.to_send;
  LOCKSTEP_ASSERT_OK(listens.Take(second));
  ASSERT_EQ(listens.plain, "hello");

  End replayed(Purpose::kData, Side::kListens, Secured('s'));
  LOCKSTEP_ASSERT_OK(replayed.Take(first));
  EXPECT_THAT(replayed.Take(second), StatusIs(absl::StatusCode::kPermissionDenied));
  EXPECT_EQ(replayed.plain, "");
}

TEST(ChannelTest, RecordsThatAreAlteredRepeatedLostOrSwappedAreNoticed) {
  const auto outcome = [](const std::function<std::string(const std::string&, const std::string&)>& relay) {
    End connects(Purpose::kStore, Side::kConnects, Secured('s'));
    End listens(Purpose::kStore, Side::kListens, Secured('s'));
    Talk(&connects, &listens);
    std::string first;
    std::string second;
    connects.channel.Send("first", &first);
    connects.channel.Send("second", &second);
    return listens.Take(relay(first, second));
  };
  LOCKSTEP_EXPECT_OK(outcome([](const std::string& a, const std::string& b) { return a + b; }));
  const auto is_noticed = StatusIs(absl::StatusCode::kDataLoss, HasSubstr("altered, repeated, lost or out of order"));
  EXPECT_THAT(outcome([](const std::string& a, const std::string& b) { return b + a; }), is_noticed);
  EXPECT_THAT(outcome([](const std::string& a, const std::string& b) { return a + a + b; }), is_noticed);
  EXPECT_THAT(outcome([](const std::string&, const std::string& b) { return b; }), is_noticed);
  EXPECT_THAT(outcome([](std::string a, const std::string& b) {
                a[a.size() - 3] ^= 1;
                return a + b;
              }),
              is_noticed);
}

TEST(ChannelTest, KeysChangeLongBeforeTheirLimit) {
  End connects(Purpose::kControl, Side::kConnects, Secured('s'));
  End listens(Purpose::kControl, Side::kListens, Secured('s'));
  Talk(&connects, &listens);
  const auto say = [](End* from, End* to, size_t bytes) {
    from->to_send.clear();
    from->channel.Send(std::string(bytes, 'x'), &from->to_send);
    LOCKSTEP_ASSERT_OK(to->Take(from->to_send));
  };
  size_t usual = 0;
  int changes = 0;
  for (size_t i = 0; i < 2 * kTlsRecordsPerKey + 10; ++i) {
    ASSERT_NO_FATAL_FAILURE(say(&connects, &listens, 1));
    if (i == 0) usual = connects.to_send.size();
    changes += connects.to_send.size() > usual ? 1 : 0;  // by what tells the peer
  }
  EXPECT_EQ(changes, 2);
  EXPECT_EQ(listens.plain, std::string(2 * kTlsRecordsPerKey + 10, 'x'));
  // The other direction has keys of its own, and what is long has several records.
  ASSERT_NO_FATAL_FAILURE(say(&listens, &connects, 16384 * (kTlsRecordsPerKey / 64)));
  usual = listens.to_send.size();
  changes = 0;
  for (int i = 0; i < 64; ++i) {
    ASSERT_NO_FATAL_FAILURE(say(&listens, &connects, 16384 * (kTlsRecordsPerKey / 64)));
    changes += listens.to_send.size() > usual ? 1 : 0;
    connects.plain.clear();
  }
  EXPECT_EQ(changes, 1);
}

TEST(ChannelTest, NothingIsSaidAfterARecordThatIsNotThePeers) {
  End connects(Purpose::kStore, Side::kConnects, Secured('s'));
  End listens(Purpose::kStore, Side::kListens, Secured('s'));
  Talk(&connects, &listens);
  EXPECT_THAT(listens.Take(std::string("\x17\x03\x03\0\x20", 5) + std::string(32, 'x')),
              StatusIs(absl::StatusCode::kDataLoss));
  listens.to_send.clear();
  listens.channel.Send("hello", &listens.to_send);
  EXPECT_EQ(listens.to_send, "");
}

using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;
using Context = std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)>;
using Ssl = std::unique_ptr<SSL, decltype(&SSL_free)>;

// A TLS server that knows no secret and shows a certificate of its own making: what TLS falls back to where a key is unknown.
TEST(ChannelTest, AServerWithACertificateIsRefused) {
  const Key key(EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", "P-256"), EVP_PKEY_free);
  const Certificate certificate(X509_new(), X509_free);
  ASSERT_EQ(X509_set_version(certificate.get(), 2), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), 0);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 1000);
  ASSERT_EQ(X509_set_pubkey(certificate.get(), key.get()), 1);
  ASSERT_GT(X509_sign(certificate.get(), key.get(), EVP_sha256()), 0);
  const Context context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  ASSERT_EQ(SSL_CTX_use_certificate(context.get(), certificate.get()), 1);
  ASSERT_EQ(SSL_CTX_use_PrivateKey(context.get(), key.get()), 1);
  const Ssl server(SSL_new(context.get()), SSL_free);
  BIO* const arrived = BIO_new(BIO_s_mem());
  BIO* const to_send = BIO_new(BIO_s_mem());
  SSL_set_bio(server.get(), arrived, to_send);
  SSL_set_accept_state(server.get());

  End connects(Purpose::kStore, Side::kConnects, Secured('s'));
  const std::string first = connects.channel.Start();
  BIO_write(arrived, first.data() + kPreambleBytes, static_cast<int>(first.size() - kPreambleBytes));
  (void)SSL_do_handshake(server.get());
  char* bytes = nullptr;
  const long count = BIO_get_mem_data(to_send, &bytes);
  ASSERT_GT(count, 500);  // with the certificate
  EXPECT_THAT(connects.Take(first.substr(0, kPreambleBytes) + std::string(bytes, static_cast<size_t>(count))),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("does not have the secret")));
}

// The same the other way round: a client without a key.
TEST(ChannelTest, AClientWithoutAKeyIsRefused) {
  const Context context(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
  const Ssl client(SSL_new(context.get()), SSL_free);
  BIO* const to_send = BIO_new(BIO_s_mem());
  SSL_set_bio(client.get(), BIO_new(BIO_s_mem()), to_send);
  SSL_set_connect_state(client.get());
  (void)SSL_do_handshake(client.get());
  char* bytes = nullptr;
  const long count = BIO_get_mem_data(to_send, &bytes);
  End listens(Purpose::kStore, Side::kListens, Secured('s'));
  EXPECT_THAT(listens.Take(std::string("LKSP\1\0\1\1", 8) + std::string(bytes, static_cast<size_t>(count))),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("does not have the secret")));
}

TEST(ChannelTest, ShakesHandsOverASocket) {
  for (const char fill : {'s', 't'}) {
    int sockets[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, sockets), 0);
    const UniqueFd ours(sockets[0]);
    const UniqueFd theirs(sockets[1]);
    std::thread listener([&theirs] {
      Channel channel(Purpose::kStore, Side::kListens, Secured('s'));
      char piece[kHandshakeBytesMax];
      for (absl::Status status; status.ok() && !channel.ready();) {
        const size_t bytes = channel.wanted();
        status = ReceiveAll(theirs.get(), piece, bytes, Deadline::AfterMs(10'000));
        if (!status.ok()) return;
        std::string plain, to_send;
        status = channel.Receive(absl::string_view(piece, bytes), &plain, &to_send);
        (void)SendAll(theirs.get(), to_send.data(), to_send.size(), Deadline::AfterMs(10'000));
      }
    });
    Channel channel(Purpose::kStore, Side::kConnects, Secured(fill));
    const absl::Status status = ShakeHands(ours.get(), &channel, Deadline::AfterMs(10'000));
    EXPECT_EQ(status.ok(), fill == 's') << status;
    EXPECT_EQ(channel.ready(), fill == 's');
    listener.join();
  }
  // Nobody answers.
  int sockets[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, sockets), 0);
  const UniqueFd ours(sockets[0]);
  const UniqueFd theirs(sockets[1]);
  Channel channel(Purpose::kStore, Side::kConnects, Secured('s'));
  EXPECT_THAT(ShakeHands(ours.get(), &channel, Deadline::AfterMs(50)), StatusIs(absl::StatusCode::kDeadlineExceeded));
}

}  // namespace
}  // namespace lockstep
