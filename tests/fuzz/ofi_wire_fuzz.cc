// Notices of the libfabric transport and what is in them: hellos, handshakes, answers, grants, refusals.

#include "tests/fuzz/fuzz.h"
#include "transport/ofi/wire.h"

namespace lockstep {
namespace {

OfiHandshake HandshakeOf(uint32_t source, uint32_t target) {
  OfiHandshake handshake;
  handshake.token = 0x123456789abcdef0;
  handshake.world_id = 42;
  handshake.source = source;
  handshake.world_size = 3;
  handshake.target = target;
  handshake.chunk_bytes = 65536;
  handshake.job_id = "job";
  handshake.provider = "tcp;ofi_rxm";
  return handshake;
}
OfiHandshake Own() { return HandshakeOf(1, 2); }

void CheckAllocated(const fuzz::Allocations& allocations, absl::string_view input) {
  LOCKSTEP_CHECK(allocations.bytes() <= 4 * input.size() + 256) << allocations.bytes() << " bytes allocated";
}

void CheckRefusal(const OfiRefusal& refusal) {
  fuzz::CheckCode(OfiRefusalStatus(refusal, Own()), {absl::StatusCode::kFailedPrecondition});
  LOCKSTEP_CHECK(!OfiRefusalStatus(refusal, Own()).ok());
  unsigned char bytes[kOfiRefusalBytes];
  EncodeOfiRefusal(refusal, bytes);
  const OfiRefusal again = DecodeOfiRefusal(bytes);
  LOCKSTEP_CHECK(again.verdict == refusal.verdict && again.detail == refusal.detail);
}

void ReadHello(absl::string_view input) {
  OfiHello hello;
  const fuzz::Allocations allocations;
  const bool ours = DecodeOfiHello(input, &hello);
  CheckAllocated(allocations, input);
  if (!ours || hello.version != kOfiProtocolVersion) return;
  LOCKSTEP_CHECK(hello.address.size() <= kOfiAddressBytesMax && EncodeOfiHello(hello) == input);
}

void ReadHandshake(uint32_t source, absl::string_view input) {
  OfiHandshake handshake;
  const fuzz::Allocations allocations;
  const bool ours = DecodeOfiHandshake(input, &handshake);
  CheckAllocated(allocations, input);
  if (!ours) return;
  LOCKSTEP_CHECK(EncodeOfiHandshake(handshake) == input);
  const OfiRefusal refusal = CheckOfiHandshake(handshake, source, Own());
  if (refusal.verdict != OfiVerdict::kAccepted) return CheckRefusal(refusal);
  const OfiHandshake own = Own();
  LOCKSTEP_CHECK(handshake.source == source && source < own.world_size && source != own.source &&
                 handshake.target == own.source && handshake.world_size == own.world_size &&
                 handshake.job_id == own.job_id && handshake.world_id == own.world_id &&
                 handshake.chunk_bytes == own.chunk_bytes && handshake.provider == own.provider);
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
  ReadHello(payload);
  ReadHandshake(notice.number, payload);
  OfiAnswer answer;
  if (DecodeOfiAnswer(payload, &answer)) LOCKSTEP_CHECK(EncodeOfiAnswer(answer) == payload);
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
  notice.number = 2;
  notice.expected = 4;
  unsigned char bytes[kOfiNoticeBytes];
  EncodeOfiNotice(notice, bytes);
  const std::string head(reinterpret_cast<const char*>(bytes), kOfiNoticeBytes);
  OfiHello hello;
  hello.address = std::string("\x02\x00\x11\x3b\x0a\x00\x00\x07", 8);
  hello.flight = "flight";
  OfiHello newer = hello;
  newer.version = kOfiProtocolVersion + 1;
  unsigned char grant[kOfiGrantBytes];
  EncodeOfiGrant({1 << 20, 7, 65536, 16}, grant);
  unsigned char refusal[kOfiRefusalBytes];
  EncodeOfiRefusal({OfiVerdict::kOtherRank, 2}, refusal);
  return {head,
          head + EncodeOfiHello(hello),
          head + EncodeOfiHello(newer),
          head + EncodeOfiHandshake(HandshakeOf(2, 1)),
          head + EncodeOfiAnswer({{OfiVerdict::kAccepted, 0}, 5}),
          head + std::string(reinterpret_cast<const char*>(grant), kOfiGrantBytes),
          head + std::string(reinterpret_cast<const char*>(refusal), kOfiRefusalBytes)};
}

}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  lockstep::ReadNotice(absl::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
