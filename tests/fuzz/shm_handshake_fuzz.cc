// What processes of one host say to each other over Unix sockets: addresses, hellos, answers, notices.

#include "tests/fuzz/fuzz.h"
#include "transport/shm/handshake.h"

namespace lockstep {
namespace {

using Code = absl::StatusCode;

ShmExpectation Self() { return {{Rank(1), 3, "job", 0x1122334455667788, 65536}, 0x9d0c5e6a77b3f218}; }

ShmHello OurHello() {
  const ShmExpectation self = Self();
  return {self.job_id, self.world_id, self.nonce, Rank(0), self.rank, self.chunk_bytes};
}

void ReadHello(absl::string_view input) {
  const absl::StatusOr<ShmHello> hello = DecodeHello(input);
  fuzz::CheckCode(hello.status(), {Code::kInvalidArgument, Code::kFailedPrecondition});
  if (!hello.ok()) return;
  const absl::StatusOr<ShmHello> again = DecodeHello(EncodeHello(*hello));
  LOCKSTEP_CHECK(again.ok() && again->job_id == hello->job_id && again->world_id == hello->world_id &&
                 again->nonce == hello->nonce && again->source == hello->source && again->target == hello->target &&
                 again->chunk_bytes == hello->chunk_bytes);
  const absl::Status verdict = JudgeHello(*hello, Self());
  fuzz::CheckCode(verdict, {Code::kFailedPrecondition});
  if (!verdict.ok()) return;
  const ShmExpectation self = Self();
  LOCKSTEP_CHECK(hello->nonce == self.nonce && hello->job_id == self.job_id && hello->world_id == self.world_id &&
                 hello->target == self.rank && hello->chunk_bytes == self.chunk_bytes);
  LOCKSTEP_CHECK(hello->source.value() < self.size && hello->source != self.rank);
}

void ReadAnswer(absl::string_view input) {
  const absl::Status answer = DecodeAnswer(input);
  LOCKSTEP_CHECK(static_cast<int>(answer.code()) == answer.raw_code()) << answer.raw_code() << " is no status code";
  if (input.size() <= 1024) {
    const absl::Status again = DecodeAnswer(EncodeAnswer(answer));
    LOCKSTEP_CHECK(again == answer) << again.ToString() << ", not " << answer.ToString();
  }
}

void ReadNotice(absl::string_view input) {
  const absl::StatusOr<ShmNotice> notice = DecodeNotice(input);
  fuzz::CheckCode(notice.status(), {Code::kInvalidArgument});
  if (!notice.ok()) return;
  LOCKSTEP_CHECK(EncodeNotice(*notice) == input);
  if (notice->kind == ShmNoticeKind::kMailbox) LOCKSTEP_CHECK(notice->geometry.valid());
}

void ReadAddress(absl::string_view input) {
  const absl::StatusOr<ShmAddress> address = ShmAddress::Parse(input);
  fuzz::CheckCode(address.status(), {Code::kInvalidArgument});
  if (!address.ok()) return;
  const absl::StatusOr<ShmAddress> again = ShmAddress::Parse(address->ToString());
  LOCKSTEP_CHECK(again.ok() && again->name == address->name && again->nonce == address->nonce &&
                 again->user_namespace == address->user_namespace);
}

}  // namespace

std::vector<std::string> fuzz::Seeds() {
  std::vector<std::string> seeds = {EncodeHello(OurHello()), EncodeAnswer(absl::OkStatus()),
                                    EncodeAnswer(absl::FailedPreconditionError("we are rank 2, not rank 1")),
                                    ShmAddress{"lockstep-4f1c22aa90ee1b07", 0x9d0c5e6a77b3f218, 0xeffffffd}.ToString()};
  // Hellos that do not fit in one field each.
  std::vector<ShmHello> others(5, OurHello());
  others[0].nonce ^= 1;
  others[1].world_id ^= 1;
  others[2].target = Rank(2);
  others[3].source = Rank(3);
  others[4].chunk_bytes = 4096;
  for (const ShmHello& other : others) seeds.push_back(EncodeHello(other));
  for (const ShmNoticeKind kind :
       {ShmNoticeKind::kMailbox, ShmNoticeKind::kClosed, ShmNoticeKind::kArena, ShmNoticeKind::kMapped}) {
    seeds.push_back(EncodeNotice({kind, 7, MailboxGeometry(), 1 << 20}));
  }
  return seeds;
}

}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view input(reinterpret_cast<const char*>(data), size);
  const lockstep::fuzz::Allocations allocations;
  lockstep::ReadHello(input);
  lockstep::ReadAnswer(input);
  lockstep::ReadNotice(input);
  lockstep::ReadAddress(input);
  LOCKSTEP_CHECK(allocations.bytes() <= 64 * size + 16384) << allocations.bytes() << " bytes allocated for " << size;
  return 0;
}
