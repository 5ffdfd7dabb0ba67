// What the control channel keeps in the store: the coordinator's address, and how a set-up failed. Any store may return any text.

#include <algorithm>

#include "tests/fuzz/fuzz.h"
#include "transport/control/control_protocol.h"
#include "transport/secure/secret.h"

namespace lockstep {
namespace {

using Code = absl::StatusCode;

constexpr int kRanksMax = 1 << 20;  // of a world, as control_protocol.cc has it

void ReadCoordinatorRecord(absl::string_view text) {
  const fuzz::Allocations allocations;
  const auto record = control::DecodeCoordinatorRecord(text);
  LOCKSTEP_CHECK(allocations.bytes() <= 16 * text.size() + 4096) << allocations.bytes() << " bytes allocated";
  fuzz::CheckCode(record.status(), {Code::kInvalidArgument, Code::kFailedPrecondition});
  if (!record.ok()) return;
  const std::string encoded = control::EncodeCoordinatorRecord(*record);
  const auto again = control::DecodeCoordinatorRecord(encoded);
  LOCKSTEP_CHECK(again.ok() && again->address == record->address && again->world == record->world &&
                 again->pid == record->pid && again->attempt == record->attempt && again->host == record->host);
  LOCKSTEP_CHECK((again->secret == nullptr) == (record->secret == nullptr));
  LOCKSTEP_CHECK(record->secret == nullptr || again->secret->bytes() == record->secret->bytes());
}

void ReadFailureRecord(absl::string_view text) {
  const fuzz::Allocations allocations;
  const auto record = control::DecodeFailureRecord(text);
  // Of the ranks of the largest world, in a list that grows.
  LOCKSTEP_CHECK(allocations.bytes() <= 16 * text.size() + 4096 + 4 * sizeof(int) * kRanksMax)
      << allocations.bytes() << " bytes allocated";
  fuzz::CheckCode(record.status(), {Code::kInvalidArgument});
  if (!record.ok()) return;
  LOCKSTEP_CHECK(!record->status.ok());
  LOCKSTEP_CHECK(static_cast<int>(record->status.code()) == record->status.raw_code()) << record->status.raw_code();
  LOCKSTEP_CHECK(std::is_sorted(record->untold.begin(), record->untold.end())) << "the ranks are not sorted";
  LOCKSTEP_CHECK(std::adjacent_find(record->untold.begin(), record->untold.end()) == record->untold.end());
  LOCKSTEP_CHECK(record->untold.empty() || (record->untold.front() >= 0 && record->untold.back() < kRanksMax));
  const std::string encoded = control::EncodeFailureRecord(*record);
  const auto again = control::DecodeFailureRecord(encoded);
  LOCKSTEP_CHECK(again.ok() && again->seconds == record->seconds && again->attempt == record->attempt &&
                 again->untold == record->untold && again->status.code() == record->status.code())
      << encoded;
}

}  // namespace

std::vector<std::string> fuzz::Seeds() {
  control::CoordinatorRecord coordinator;
  coordinator.address = *SocketAddress::Parse("10.0.0.7:4411");
  coordinator.world = 42;
  coordinator.pid = 71;
  coordinator.host = "a host";
  control::CoordinatorRecord v6 = coordinator;
  v6.address = *SocketAddress::Parse("[::1]:4411");
  v6.secret = Secret::FromBytes(std::string(Secret::kBytes, 's')).value();
  control::FailureRecord failure;
  failure.seconds = 1764200000;
  failure.attempt = 2;
  failure.untold = {1, 2, 3, 7};
  failure.status = absl::DeadlineExceededError("rank 0 (host a, pid 5) could not set up the world");
  return {control::EncodeCoordinatorRecord(coordinator), control::EncodeCoordinatorRecord(v6),
          control::EncodeFailureRecord(failure)};
}

}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  lockstep::ReadCoordinatorRecord(text);
  lockstep::ReadFailureRecord(text);
  return 0;
}
