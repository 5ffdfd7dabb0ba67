#include "transport/shm/handshake.h"

#include <limits>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "transport/net/little_endian.h"

namespace lockstep {
namespace {

constexpr uint32_t kHelloMagic = 0x484d534c;   // "LSMH"
constexpr uint32_t kAnswerMagic = 0x414d534c;  // "LSMA"
constexpr size_t kHelloFixedBytes = 40;
constexpr size_t kAnswerFixedBytes = 16;
constexpr size_t kAnswerTextBytesMax = 2048;
constexpr size_t kNoticeBytes = 24;
constexpr uint32_t kRankMax = std::numeric_limits<int>::max();

absl::Status OtherVersion(uint16_t version) {
  return absl::FailedPreconditionError(
      absl::StrCat("speaks version ", version, " of the shared-memory protocol, we ", kShmProtocolVersion));
}

}  // namespace

std::string ShmAddress::ToString() const {
  return absl::StrCat(name, "/", absl::Hex(nonce, absl::kZeroPad16), "/", absl::Hex(user_namespace));
}

absl::StatusOr<ShmAddress> ShmAddress::Parse(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, '/');
  ShmAddress address;
  if (parts.size() != 3 || parts[0].empty() || parts[0].size() > 100 || parts[1].size() != 16 ||
      !absl::SimpleHexAtoi(parts[1], &address.nonce) || !absl::SimpleHexAtoi(parts[2], &address.user_namespace)) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' is no address of shared memory"));
  }
  address.name = std::string(parts[0]);
  return address;
}

std::string EncodeHello(const ShmHello& hello) {
  LOCKSTEP_CHECK(hello.job_id.size() <= kShmJobIdBytesMax) << hello.job_id.size() << " bytes of job id";
  std::string bytes;
  AppendLittleEndian(&bytes, kHelloMagic, kShmProtocolVersion, uint16_t{0}, hello.world_id, hello.nonce,
                     static_cast<uint32_t>(hello.source.value()), static_cast<uint32_t>(hello.target.value()),
                     hello.chunk_bytes, static_cast<uint32_t>(hello.job_id.size()));
  LOCKSTEP_CHECK(bytes.size() == kHelloFixedBytes);
  return bytes + hello.job_id;
}

absl::StatusOr<ShmHello> DecodeHello(absl::string_view bytes) {
  LittleEndianReader decoder(bytes);
  const absl::Status malformed = absl::InvalidArgumentError("what it says is no hello");
  if (decoder.Take<uint32_t>() != kHelloMagic) return malformed;
  const uint16_t version = decoder.Take<uint16_t>();
  if (decoder.complete() && version != kShmProtocolVersion) return OtherVersion(version);
  ShmHello hello;
  uint16_t zero;
  uint32_t source, target, job_id_bytes;
  decoder.TakeAll(&zero, &hello.world_id, &hello.nonce, &source, &target, &hello.chunk_bytes, &job_id_bytes);
  if (!decoder.complete() || source > kRankMax || target > kRankMax || job_id_bytes != decoder.left().size() ||
      job_id_bytes > kShmJobIdBytesMax) {
    return malformed;
  }
  hello.source = Rank(static_cast<int>(source));
  hello.target = Rank(static_cast<int>(target));
  hello.job_id = std::string(decoder.left());
  return hello;
}

absl::Status JudgeHello(const ShmHello& hello, const ShmExpectation& expected) {
  const auto differs = [](auto... what) { return absl::FailedPreconditionError(absl::StrCat(what...)); };
  if (hello.nonce != expected.nonce) return differs("the hello does not know this rank's nonce");
  if (hello.job_id != expected.job_id) return differs("we belong to another job than '", hello.job_id, "'");
  if (hello.world_id != expected.world_id) {
    return differs("we belong to another world of job '", hello.job_id, "': one of us is left from an earlier one");
  }
  if (hello.target != expected.rank) {
    return differs("we are rank ", expected.rank.value(), ", not rank ", hello.target.value());
  }
  if (hello.source.value() >= expected.size || hello.source == expected.rank) {
    return differs("we are in a world of ", expected.size, " ranks and expect no connection from rank ",
                   hello.source.value());
  }
  if (hello.chunk_bytes != expected.chunk_bytes) {
    return differs("our chunk size is ", expected.chunk_bytes, " bytes, not ", hello.chunk_bytes);
  }
  return absl::OkStatus();
}

std::string EncodeAnswer(const absl::Status& answer) {
  const absl::string_view text = answer.message().substr(0, kAnswerTextBytesMax);
  std::string bytes;
  AppendLittleEndian(&bytes, kAnswerMagic, kShmProtocolVersion, uint16_t{0}, static_cast<uint32_t>(answer.code()),
                     static_cast<uint32_t>(text.size()));
  LOCKSTEP_CHECK(bytes.size() == kAnswerFixedBytes);
  absl::StrAppend(&bytes, text);
  return bytes;
}

absl::Status DecodeAnswer(absl::string_view bytes) {
  LittleEndianReader decoder(bytes);
  const absl::Status malformed = absl::FailedPreconditionError("whoever listens there is no Lockstep peer");
  uint16_t version, zero;
  uint32_t magic, code, text_bytes;
  decoder.TakeAll(&magic, &version, &zero, &code, &text_bytes);
  if (magic != kAnswerMagic) return malformed;
  if (!decoder.complete() || text_bytes != decoder.left().size()) return malformed;
  if (version != kShmProtocolVersion) return OtherVersion(version);
  if (code > static_cast<uint32_t>(absl::StatusCode::kUnauthenticated)) return malformed;
  return absl::Status(static_cast<absl::StatusCode>(code), decoder.left());
}

std::string EncodeNotice(const ShmNotice& notice) {
  std::string bytes;
  AppendLittleEndian(&bytes, static_cast<uint32_t>(notice.kind), notice.channel, notice.geometry.cells,
                     notice.geometry.ring_bytes, notice.bytes);
  LOCKSTEP_CHECK(bytes.size() == kNoticeBytes);
  return bytes;
}

absl::StatusOr<ShmNotice> DecodeNotice(absl::string_view bytes) {
  LittleEndianReader decoder(bytes);
  ShmNotice notice;
  uint32_t kind;
  decoder.TakeAll(&kind, &notice.channel, &notice.geometry.cells, &notice.geometry.ring_bytes, &notice.bytes);
  notice.kind = static_cast<ShmNoticeKind>(kind);
  const bool known = kind >= 1 && kind <= static_cast<uint32_t>(ShmNoticeKind::kMapped);
  const bool fits = notice.kind != ShmNoticeKind::kMailbox || notice.geometry.valid();
  if (decoder.complete() && decoder.left().empty() && known && fits) return notice;
  return absl::InvalidArgumentError("what it says is no notice");
}

}  // namespace lockstep
