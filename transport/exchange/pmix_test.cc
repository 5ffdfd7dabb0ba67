// With a fake of libpmix, which is in the process before ours looks for one. A process has one connection, so one test has all of it
// that does not fail for good.

#include "transport/exchange/pmix.h"

#include <dlfcn.h>
#include <unistd.h>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using Code = absl::StatusCode;
using ::testing::AllOf;
using ::testing::HasSubstr;

Deadline Soon() { return Deadline::AfterMs(10000); }

void* LoadFake() {
  void* const fake = dlopen("transport/exchange/libfake_pmix.so", RTLD_NOW);
  EXPECT_NE(fake, nullptr) << dlerror();
  return fake;
}

// How the fake behaves from now on.
void Behave(const char* how) {
  const auto behave = reinterpret_cast<void (*)(const char*)>(dlsym(LoadFake(), "FakeBehave"));
  ASSERT_NE(behave, nullptr);
  behave(how);
}

void ExitAfterInitHasHung() {
  Behave("hang");
  EXPECT_THAT(OpenPmix(Deadline::AfterMs(50)), StatusIs(Code::kDeadlineExceeded, "PMIx_Init has not ended in time"));
  Behave("");
  EXPECT_THAT(OpenPmix(Soon()), StatusIs(Code::kFailedPrecondition, HasSubstr("PMIx_Init has not ended in time")));
  auto* const inits = reinterpret_cast<int (*)()>(dlsym(LoadFake(), "FakeInits"));
  EXPECT_EQ(inits(), 1);
  _exit(testing::Test::HasFailure() ? 1 : 0);
}

// The library may still be at it, so no second one is begun.
TEST(Pmix, AnInitThatHasHungIsNotRepeated) {
  LoadFake();
  EXPECT_EXIT(ExitAfterInitHasHung(), testing::ExitedWithCode(0), "");
}

TEST(Pmix, TellsTheLauncherAtExit) {
  LoadFake();
  const auto open = [] { exit(OpenPmix(Soon()).ok() ? 0 : 1); };
  EXPECT_EXIT(open(), testing::ExitedWithCode(0), "PMIx_Finalize");
}

TEST(Pmix, ExchangesOnceItsLibraryIsRight) {
  LoadFake();

  Behave("old");
  EXPECT_THAT(OpenPmix(Soon()), StatusIs(Code::kNotFound, AllOf(HasSubstr("PMIx 1.2.5"), HasSubstr("from version 2"))));
  Behave("refuse");
  EXPECT_THAT(OpenPmix(Soon()), StatusIs(Code::kUnavailable, "PMIx_Init: UNREACHABLE (-25)"));
  Behave("");

  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Exchange* const exchange, OpenPmix(Soon()));
  EXPECT_THAT(OpenPmix(Soon()), IsOkAndHolds(exchange));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const PmixJob job, AskPmixForJob(Soon()));
  EXPECT_EQ(job.rank, 0);
  EXPECT_EQ(job.size, 4);
  EXPECT_EQ(job.local_rank, 1);
  EXPECT_EQ(job.local_size, 2);
  EXPECT_THAT(exchange->Put("lockstep-0", "abc", Soon()), IsOk());
  EXPECT_THAT(exchange->Fence(Soon()), IsOk());
  EXPECT_THAT(exchange->Get("lockstep-0", Soon()), IsOkAndHolds("abc"));
  EXPECT_THAT(exchange->Get("lockstep-1", Soon()),
              StatusIs(Code::kUnavailable, AllOf(HasSubstr("PMIx_Get of lockstep-1"), HasSubstr("(-46)"))));

  Behave("hang");
  EXPECT_THAT(exchange->Fence(Deadline::AfterMs(50)), StatusIs(Code::kDeadlineExceeded, HasSubstr("PMIx_Fence")));
  Behave("");
  EXPECT_THAT(
      exchange->Fence(Soon()),
      StatusIs(Code::kFailedPrecondition, AllOf(HasSubstr("an earlier call has failed"), HasSubstr("PMIx_Fence"))));
}

}  // namespace
}  // namespace lockstep
