// Notices of the libfabric transport and what is in them: handshakes, grants, refusals.

#include "tests/fuzz/fuzz.h"
#include "transport/ofi/wire.h"

namespace lockstep {
namespace {

OfiHandshake Own() {
  OfiHandshake own;
  own.token = 0x12345678;
  own.world_size = 3;
  own.target = 1;
  own.chunk_bytes = 65536;
  own.world_id = 42;
  own.job_id = "job";
  own.provider = "tcp;ofi_rxm";
  own.address = std::string("\x02\x00\x11\x3b\x0a\x00\x00\x07", 8);
  return own;
}

void CheckRefusal(const OfiRefusal& refusal) {
  fuzz::CheckCode(OfiRefusalStatus(refusal, Own()), {absl::StatusCode::kFailedPrecondition});
  LOCKSTEP_CHECK(!OfiRefusalStatus(refusal, Own()).ok());
  unsigned char bytes[kOfiRefusalBytes];
  EncodeOfiRefusal(refusal, bytes);
  const OfiRefusal again = DecodeOfiRefusal(bytes);
  LOCKSTEP_CHECK(again.verdict == refusal.verdict && again.detail == refusal.detail);
}

void ReadHandshake(uint32_t source, absl::string_view input) {
  OfiHandshake handshake;
  const fuzz::Allocations allocations;
  const bool ours = DecodeOfiHandshake(input, &handshake);
  LOCKSTEP_CHECK(allocations.bytes() <= 4 * input.size() + 256) << allocations.bytes() << " bytes allocated";
  if (!ours) return;
  if (handshake.version == kOfiProtocolVersion) {
    OfiHandshake again;
    LOCKSTEP_CHECK(DecodeOfiHandshake(EncodeOfiHandshake(handshake), &again));
    LOCKSTEP_CHECK(again.token == handshake.token && again.world_size == handshake.world_size &&
                   again.target == handshake.target && again.chunk_bytes == handshake.chunk_bytes &&
                   again.world_id == handshake.world_id && again.job_id == handshake.job_id &&
                   again.provider == handshake.provider && again.address == handshake.address);
  }
  const OfiRefusal refusal = CheckOfiHandshake(handshake, source, Own(), Rank(1));
  if (refusal.verdict != OfiVerdict::kAccepted) return CheckRefusal(refusal);
  LOCKSTEP_CHECK(source < Own().world_size && source != 1 && handshake.job_id == Own().job_id &&
                 handshake.world_id == Own().world_id);
}

void ReadNotice(absl::string_view input) {
  if (input.size() < kOfiNoticeBytes || input.size() > kOfiSlotBytes) return;
  const auto* const bytes = reinterpret_cast<const unsigned char*>(input.data());
  const OfiNotice notice = DecodeOfiNotice(bytes);
  unsigned char encoded[kOfiNoticeBytes];
  EncodeOfiNotice(notice, encoded);
  LOCKSTEP_CHECK(absl::string_view(reinterpret_cast<const char*>(encoded), kOfiNoticeBytes) ==
                 input.substr(0, kOfiNoticeBytes));
  const absl::string_view payload = input.substr(kOfiNoticeBytes);
  ReadHandshake(notice.source, payload);
  if (payload.size() == kOfiRefusalBytes) CheckRefusal(DecodeOfiRefusal(bytes + kOfiNoticeBytes));
  if (payload.size() == kOfiGrantBytes) {
    unsigned char grant[kOfiGrantBytes];
    EncodeOfiGrant(DecodeOfiGrant(bytes + kOfiNoticeBytes), grant);
    LOCKSTEP_CHECK(absl::string_view(reinterpret_cast<const char*>(grant), kOfiGrantBytes) == payload);
  }
}

}  // namespace

std::vector<std::string> fuzz::Seeds() {
  OfiNotice notice;
  notice.token = Own().token;
  notice.source = 2;
  notice.number = 5;
  notice.expected = 4;
  unsigned char bytes[kOfiNoticeBytes];
  EncodeOfiNotice(notice, bytes);
  const std::string head(reinterpret_cast<const char*>(bytes), kOfiNoticeBytes);
  OfiHandshake newer = Own();
  newer.version = kOfiProtocolVersion + 1;
  unsigned char grant[kOfiGrantBytes];
  EncodeOfiGrant({1 << 20, 7, 65536, 16}, grant);
  unsigned char refusal[kOfiRefusalBytes];
  EncodeOfiRefusal({OfiVerdict::kOtherRank, 2}, refusal);
  return {head, head + EncodeOfiHandshake(Own()), head + EncodeOfiHandshake(newer),
          head + std::string(reinterpret_cast<const char*>(grant), kOfiGrantBytes),
          head + std::string(reinterpret_cast<const char*>(refusal), kOfiRefusalBytes)};
}

}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  lockstep::ReadNotice(absl::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
