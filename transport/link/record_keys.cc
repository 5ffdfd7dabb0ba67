#include "transport/link/record_keys.h"

#include <string.h>

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "base/check.h"
#include "base/log.h"
#include "transport/secure/hkdf.h"

namespace lockstep {
namespace {

// The faster one that there is. Says once which, and why.
CipherBackend Backend() {
  static const CipherBackend backend = [] {
    const absl::StatusOr<std::string> ipsec_mb = CipherBackendVersion(CipherBackend::kIpsecMb);
    if (ipsec_mb.ok()) {
      LOCKSTEP_LOG(kInfo) << "records are sealed by " << *ipsec_mb;
      return CipherBackend::kIpsecMb;
    }
    LOCKSTEP_LOG(kInfo) << "records are sealed by OpenSSL: " << ipsec_mb.status().message();
    return CipherBackend::kOpenSsl;
  }();
  return backend;
}

}  // namespace

RecordSecret RecordSecret::Of(const Channel& channel, absl::string_view context) {
  RecordSecret secret;
  channel.Export("EXPORTER-lockstep-records", context, secret.bytes_.data(), kBytes);
  return secret;
}

RecordSecret::~RecordSecret() { explicit_bzero(bytes_.data(), kBytes); }

void RecordSecret::Expand(absl::string_view label, void* out, size_t bytes) const {
  HkdfExpand(absl::string_view(bytes_.data(), kBytes), label, out, bytes);
}

DirectionKey RecordSecret::Key() const {
  DirectionKey key;
  Expand("key", key.key.data(), key.key.size());
  Expand("iv", key.nonce_base.data(), key.nonce_base.size());
  return key;
}

void RecordSecret::Step() {
  RecordSecret next;
  Expand("next", next.bytes_.data(), kBytes);
  bytes_ = next.bytes_;
}

RecordSequence::RecordSequence(SecurityLevel level, const RecordSecret& secret, uint64_t records_per_key)
    : mode_(level == SecurityLevel::kEncrypt ? CipherMode::kEncrypt : CipherMode::kAuthenticate),
      records_per_key_(records_per_key),
      secret_(secret) {
  LOCKSTEP_CHECK(level != SecurityLevel::kNone && records_per_key > 0);
  MakeCipher();
}

void RecordSequence::MakeCipher() {
  auto cipher = RecordCipher::Create(Backend(), mode_, secret_.Key());
  LOCKSTEP_CHECK(cipher.ok()) << cipher.status();  // this one has worked before
  cipher_ = *std::move(cipher);
}

void RecordSequence::Step() {
  if (++number_ % records_per_key_ != 0) return;
  ++key_;
  secret_.Step();
  MakeCipher();
}

}  // namespace lockstep
