// NcclCommunicator when something fails once it is there: NCCL, a launch, a deadline, the host communicator. Over a
// fake of NCCL.

#include <chrono>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/device/device.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "comm/communicator.h"
#include "comm/device/nccl/nccl_testing.h"
#include "comm/work.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/communicator_testing.h"
#include "tests/gate.h"
#include "transport/nccl/nccl_abi.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

using NcclFailureTest = NcclTest;

TEST_F(NcclFailureTest, ALateErrorOfNcclsEndsEverythingOnEveryRankOnce) {
  Create(3);
  const CaseReference reference(Small(), size());
  OnRanks([&](Communicator& self) {
    // Rank 2 does not take part, so that the others are in flight.
    if (self.rank() == Rank(2)) {
      fakes_.nccl->FailLater(1, nccl::kInternalError);
      AwaitFailure(self);
    } else {
      CaseRun run(reference, self.rank(), memory());
      EXPECT_THAT(self.Run(run.request()),
                  StatusIs(AnyOf(Code::kInternal, Code::kAborted),
                           HasSubstr("NCCL 2.31.0: words for the result (ncclInternalError): the last error")));
    }
    EXPECT_THAT(self.status(), StatusIs(AnyOf(Code::kInternal, Code::kAborted), HasSubstr("(ncclInternalError)")));
    CaseRun later(reference, self.rank(), memory());
    ExpectErrorOf(Collective::kAllReduce, self.Run(later.request()), self.status());
  });
  ExpectAbortedOnce();
}

TEST_F(NcclFailureTest, ALaunchThatFailsEndsEverythingOnEveryRank) {
  Create(3);
  fakes_.nccl->Fail("ncclAllReduce", nccl::kInvalidUsage, 2);
  const CaseReference reference(Small(), size());
  OnRanks([&](Communicator& self) {
    CaseRun run(reference, self.rank(), memory());
    EXPECT_THAT(self.Run(run.request()), StatusIs(AnyOf(Code::kFailedPrecondition, Code::kAborted),
                                                  AllOf(HasSubstr("all_reduce #1 (100 f32 sum, auto): NCCL 2.31.0"),
                                                        HasSubstr("(ncclInvalidUsage)"))));
  });
  ExpectAbortedOnce();
}

TEST_F(NcclFailureTest, AnOperationsDeadlineEndsItOnEveryRank) {
  Create(2);
  const CaseReference reference(Small(), size());
  OnRanks([&](Communicator& self) {
    if (self.rank() == Rank(1)) {
      AwaitFailure(self);
      EXPECT_THAT(self.status(),
                  StatusIs(Code::kAborted, AllOf(HasSubstr("rank 0 aborted"), HasSubstr("within 40 ms"))));
    } else {
      CaseRun run(reference, self.rank(), memory());
      CollectiveRequest request = run.request();
      request.timeout = milliseconds(40);
      EXPECT_THAT(self.Run(request),
                  StatusIs(Code::kDeadlineExceeded,
                           "all_reduce #1 (100 f32 sum, auto): did not finish within 40 ms on cuda:0"));
      EXPECT_THAT(self.FlightRecords(), HasSubstr("all_reduce #1 (100 f32 sum, auto) 400 B failed"));
    }
  });
  ExpectAbortedOnce();
}

// In checked mode ranks compare their calls on the host first: rank 0 does so with one that never calls.
TEST_F(NcclFailureTest, AFailureEndsTheComparisonOfCalls) {
  Create(2, [](int, NcclCommunicatorOptions* options) { options->checked = true; });
  const CaseReference reference(Small(), size());
  OnRanks([&](Communicator& self) {
    if (self.rank() == Rank(0)) {
      CaseRun run(reference, self.rank(), memory());
      EXPECT_THAT(self.Run(run.request()),
                  StatusIs(AnyOf(Code::kInternal, Code::kAborted), HasSubstr("(ncclInternalError)")));
      return;
    }
    // Found out by the watchdog, some time after this.
    fakes_.nccl->FailLater(1, nccl::kInternalError);
    AwaitFailure(self);
  });
  ExpectAbortedOnce();
}

TEST_F(NcclFailureTest, AFailureOfTheHostCommunicatorEndsWhatIsInFlight) {
  Create(2);
  const CaseReference reference(Small(), size());
  Gate started;
  OnRanks([&](Communicator& self) {
    const int r = self.rank().value();
    CaseRun run(reference, self.rank(), memory());
    if (r == 0) {
      absl::StatusOr<Work> work = self.Start(run.request());
      started.Open();
      ASSERT_THAT(work.status(), IsOk());
      EXPECT_THAT(work->Wait(CommTestDeadline()),
                  StatusIs(Code::kAborted, HasSubstr("rank 1 aborted the communicator: enough")));
    } else {
      EXPECT_THAT(started.Await(CommTestDeadline()), IsOk());
      world_->worlds[r]->communicator()->Abort("enough");
    }
  });
  ExpectAbortedOnce();
}

// The part's kernel is behind the other's on the stream, and so is the end of its abort.
TEST_F(NcclFailureTest, OneThatCannotEndBeforeAnotherDoesNotKeepThatFromEnding) {
  Create(2);
  const CaseReference reference(Small(), size());
  Gate enqueued, part_is_aborted;
  OnRanks([&](Communicator& self) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto part, self.Split(0, self.rank().value()));
    if (self.rank() == Rank(1)) {
      EXPECT_THAT(enqueued.Await(CommTestDeadline()), IsOk());
      part->Abort("first");
      EXPECT_THAT(part_is_aborted.Await(CommTestDeadline()), IsOk());
      self.Abort("second");
      return;
    }
    const auto stream = fakes_.device->CreateStream("shared").value();
    CaseRun first(reference, self.rank(), memory());
    CaseRun second(reference, self.rank(), memory());
    const auto ignore = [](const absl::Status&) {};
    EXPECT_THAT(self.Enqueue(first.request(), stream.get(), ignore), IsOk());
    EXPECT_THAT(part->Enqueue(second.request(), stream.get(), ignore), IsOk());
    enqueued.Open();
    // Both ranks' parts.
    const Deadline deadline = CommTestDeadline();
    while (fakes_.nccl->calls("ncclCommAbort") < 2 && !deadline.passed()) std::this_thread::yield();
    EXPECT_THAT(self.status(), IsOk());
    part_is_aborted.Open();
    EXPECT_THAT(stream->Synchronize(CommTestDeadline()), IsOk());
    EXPECT_THAT(part->status(), StatusIs(Code::kAborted, HasSubstr("first")));
    EXPECT_THAT(self.status(), StatusIs(Code::kAborted, HasSubstr("second")));
  });
}

TEST_F(NcclFailureTest, ASplitThatFailsEndsTheCommunicator) {
  Create(3);
  fakes_.nccl->Fail("ncclCommSplit", nccl::kInternalError, 2);
  OnRanks([&](Communicator& self) {
    EXPECT_THAT(self.Split(0, 0).status(), StatusIs(AnyOf(Code::kInternal, Code::kAborted),
                                                    HasSubstr("splitting NCCL's communicator by colour 0")));
  });
}

}  // namespace
}  // namespace lockstep
