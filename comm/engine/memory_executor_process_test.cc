// Collectives in shared memory between processes, one of which is stopped and wakes up later.

#include <signal.h>

#include <algorithm>
#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "base/deadline.h"
#include "base/rank.h"
#include "base/status.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "comm/communicator.h"
#include "comm/engine/memory_testing.h"
#include "comm/schedule/schedule.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/processes.h"
#include "tests/transport_testing.h"
#include "transport/shm/shm_process_testing.h"
#include "transport/shm/shm_transport.h"
#include "transport/shm/symmetric_arena.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Several shares of work for each rank.
constexpr size_t kCount = size_t{2} << 20;

// An all-reduce in place of all of a rank's memory, which is filled with `value` first.
absl::Status StartAllReduce(MemoryRank* self, MemoryJob* job, float value) {
  float* const data = reinterpret_cast<float*>(self->data());
  std::fill_n(data, kCount, value);
  CollectiveRequest request = MakeRequest(Collective::kAllReduce, DType::kF32, kCount, data, data);
  LOCKSTEP_RETURN_IF_ERROR(self->Prepare(job, request, Algorithm::kDirect));
  self->Start(job);
  return absl::OkStatus();
}

size_t CountOf(const float* data, float value) { return std::count(data, data + kCount, value); }

// Until the job has failed.
absl::Status AwaitFailure(MemoryRank* self, const MemoryJob& job) {
  const Deadline deadline = TestDeadline();
  while (job.failures == 0 && job.ends == 0 && !deadline.passed()) {
    bool moved = self->transport().Progress();
    moved |= self->executor().Poll();
    if (!moved) self->transport().WaitForEvent(deadline);
  }
  return job.failure;
}

// Until its share of the pass has begun and is not done.
absl::Status DriveIntoThePass(MemoryRank* self) {
  const Deadline deadline = TestDeadline();
  while (!self->executor().busy()) {
    if (deadline.passed()) return absl::DeadlineExceededError("the pass did not begin");
    self->transport().Progress();
    self->executor().Poll();
  }
  return absl::OkStatus();
}

// Three ranks sum; rank 2 is stopped in the middle of its pass. The others abort, drop their memory, make a world of two with
// new memory and sum in it. Rank 2 wakes up and does the rest of its pass, in memory that nobody uses any more, until it
// finds itself alone. The others' results are as they were, and they sum again.
LOCKSTEP_RANK_FUNCTION(StoppedInAPass) {
  LOCKSTEP_ASSIGN_OR_RETURN(auto transport, ConnectInProcess(&self, self.rank(), 3));
  LOCKSTEP_ASSIGN_OR_RETURN(auto rank, MemoryRank::Create(transport.get(), kCount * sizeof(float), TestDeadline()));
  MemoryJob job;
  LOCKSTEP_RETURN_IF_ERROR(StartAllReduce(rank.get(), &job, 1));
  LOCKSTEP_RETURN_IF_ERROR(DriveIntoThePass(rank.get()));
  LOCKSTEP_RETURN_IF_ERROR(self.Send("in the pass"));
  if (self.rank() == 2) {
    LOCKSTEP_RETURN_IF_ERROR(self.Receive(TestDeadline()).status());  // stopped here
    const absl::Status failure = AwaitFailure(rank.get(), job);
    return self.Send(failure.ToString());
  }
  LOCKSTEP_RETURN_IF_ERROR(self.Receive(TestDeadline()).status());  // it is stopped
  rank->executor().FailAll(absl::AbortedError("rank 2 does not answer"));
  EXPECT_THAT(job.end, StatusIs(absl::StatusCode::kAborted));
  // Rank 0 keeps the memory, to see what becomes of it.
  const std::shared_ptr<SymmetricArena> old = self.rank() == 0 ? rank->regions()[0] : nullptr;
  const float* const old_data = reinterpret_cast<const float*>(rank->data());
  rank = nullptr;
  transport->Abort(absl::AbortedError("rank 2 does not answer"));
  // The end of rank 2's block.
  EXPECT_TRUE(old == nullptr || old_data[kCount - 1] == 1);

  LOCKSTEP_ASSIGN_OR_RETURN(auto second, ConnectInProcess(&self, self.rank(), 2));
  LOCKSTEP_ASSIGN_OR_RETURN(rank, MemoryRank::Create(second.get(), kCount * sizeof(float), TestDeadline()));
  const float* const data = reinterpret_cast<const float*>(rank->data());
  for (const float value : {10.0f, 20.0f}) {
    MemoryJob next;
    LOCKSTEP_RETURN_IF_ERROR(StartAllReduce(rank.get(), &next, value));
    EXPECT_TRUE(rank->Await(next, TestDeadline()));
    EXPECT_THAT(next.end, IsOk());
    EXPECT_EQ(CountOf(data, 2 * value), kCount);
    LOCKSTEP_RETURN_IF_ERROR(self.Send("summed"));
    // In between rank 2 wakes up, and has ended when this comes.
    LOCKSTEP_RETURN_IF_ERROR(self.Receive(TestDeadline()).status());
    EXPECT_EQ(CountOf(data, 2 * value), kCount);
  }
  EXPECT_TRUE(old == nullptr || old_data[kCount - 1] == 3) << "rank 2 did not go on";
  rank = nullptr;
  return second->Close(TestDeadline());
}

TEST(MemoryProcesses, AStoppedPeerIsGivenUpAndHarmsNobodyWhenItWakes) {
  ProcessGroup::Options options;
  options.size = 3;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto group, ProcessGroup::Start("StoppedInAPass", options));
  Introduce(group.get(), {0, 1, 2});
  for (int rank : {0, 1, 2}) EXPECT_THAT(group->Receive(rank, TestDeadline()), IsOkAndHolds("in the pass"));
  ASSERT_THAT(group->Signal(2, SIGSTOP), IsOk());
  ASSERT_THAT(group->Send(2, "go on"), IsOk());
  for (int rank : {0, 1}) ASSERT_THAT(group->Send(rank, "it is stopped"), IsOk());
  Introduce(group.get(), {0, 1});
  for (int rank : {0, 1}) EXPECT_THAT(group->Receive(rank, TestDeadline()), IsOkAndHolds("summed"));
  ASSERT_THAT(group->Signal(2, SIGCONT), IsOk());
  EXPECT_THAT(group->Receive(2, TestDeadline()),
              IsOkAndHolds(AllOf(HasSubstr("UNAVAILABLE"), HasSubstr("barrier with rank 0 over shm pid"))));
  EXPECT_THAT(group->Wait(2, TestDeadline()), IsOk());
  for (int rank : {0, 1}) ASSERT_THAT(group->Send(rank, "it has ended"), IsOk());
  for (int rank : {0, 1}) EXPECT_THAT(group->Receive(rank, TestDeadline()), IsOkAndHolds("summed"));
  for (int rank : {0, 1}) ASSERT_THAT(group->Send(rank, "end"), IsOk());
  for (int rank : {0, 1}) EXPECT_THAT(group->Wait(rank, TestDeadline()), IsOk());
}

}  // namespace
}  // namespace lockstep
