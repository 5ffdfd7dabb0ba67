// A collective on a communicator that has carried out its like before allocates nothing, on no thread: over every transport, and in
// memory of the communicator's allocator. Method: the ranks are threads of this process, whose allocations are all counted but those
// of the control channel's threads, which beat whatever the collectives do. How far pools grow, and when, depends on the
// threads, but they are bounded: so rounds of calls are repeated until many in a row have gone by without an allocation. By
// itself because it replaces the global allocation functions.

#include <sys/prctl.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/deadline.h"
#include "base/mutex.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "comm/communicator.h"
#include "comm/schedule/schedule.h"
#include "comm/symmetric_buffer.h"
#include "comm/work.h"
#include "comm/world/world.h"
#include "gtest/gtest.h"
#include "tests/communicator_testing.h"
#include "tests/ranks.h"
#include "tests/worlds.h"
#include "transport/store/store_memory.h"

namespace {

std::atomic<int64_t> allocations{0};

void Count() {
  char name[16] = {};
  (void)prctl(PR_GET_NAME, name);
  if (std::strcmp(name, "lockstep-ctl") != 0 && std::strcmp(name, "lockstep-coord") != 0) ++allocations;
}

void* Checked(void* memory) {
  if (memory == nullptr) std::abort();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) {
  Count();
  return Checked(std::malloc(bytes));
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  Count();
  const auto align = static_cast<std::size_t>(alignment);
  return Checked(std::aligned_alloc(align, (bytes + align - 1) / align * align));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace lockstep {
namespace {

constexpr int kRanks = 3;
constexpr size_t kCount = 30'000;
constexpr int kQuietRounds = 10, kRoundsMax = 500;
// Makes many rounds last longer than shared memory's pause between two looks at its peers' connections.
constexpr std::chrono::milliseconds kRoundPause(10);

constexpr char kLoopback[] = "loopback", kTcp[] = "tcp", kShm[] = "shm", kSymmetric[] = "symmetric";

// Where all ranks wait for each other, again and again.
class Barrier {
 public:
  void Await() {
    MutexLock lock(&mu_);
    const int64_t barrier = barriers_;
    if (++here_ == kRanks) {
      here_ = 0;
      ++barriers_;
      changed_.SignalAll();
    }
    while (barriers_ == barrier) LOCKSTEP_CHECK(changed_.WaitUntil(&mu_, CommTestDeadline())) << "a rank is missing";
  }

 private:
  Mutex mu_;
  CondVar changed_;
  int here_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t barriers_ ABSL_GUARDED_BY(mu_) = 0;
};

class AllocationTest : public ::testing::TestWithParam<const char*> {
 protected:
  // Some calls of one rank; returns how many failed. (A matcher would allocate.)
  using Round = std::function<int()>;
  // Of a rank, with memory for an input and output of kCount floats each for every call in flight.
  using MakeRound = std::function<Round(Communicator& self, float* memory)>;
  static constexpr int kInFlight = 4;

  void SetUp() override {
    const absl::string_view kind = GetParam();
    if (kind == kLoopback) {
      loopback_ = std::make_unique<testing::LoopbackWorld>(kRanks);
      for (int rank = 0; rank < kRanks; ++rank) communicators_.push_back(loopback_->communicator(rank));
      return;
    }
    for (WorldOrError& world : CreateWorlds(
             &store_, kRanks, [&](int, WorldOptions* options) { options->transport = kind == kTcp ? "tcp" : "shm"; })) {
      LOCKSTEP_ASSERT_OK(world.status());
      communicators_.push_back((*world)->communicator());
      worlds_.push_back(*std::move(world));
    }
  }

  void ExpectQuietInTheEnd(const MakeRound& make) {
    Barrier barrier;
    int quiet = 0, rounds = 0;
    testing::RunRanks(kRanks, [&](int rank) {
      Communicator& self = *communicators_[rank];
      constexpr size_t kFloats = size_t{2} * kInFlight * kCount;
      std::unique_ptr<SymmetricBuffer> symmetric;
      std::vector<float> ordinary;
      if (absl::string_view(GetParam()) == kSymmetric) {
        LOCKSTEP_ASSERT_OK_AND_ASSIGN(symmetric, self.Allocate(kFloats * sizeof(float)));
        ASSERT_TRUE(symmetric->shared());
      } else {
        ordinary.resize(kFloats);
      }
      const Round round = make(self, symmetric ? reinterpret_cast<float*>(symmetric->data()) : ordinary.data());
      int failures = 0;
      int64_t before = 0;
      do {
        failures += round();
        std::this_thread::sleep_for(kRoundPause);
        barrier.Await();
        if (rank == 0) {
          quiet = allocations == before ? quiet + 1 : 0;
          before = allocations;
          ++rounds;
        }
        barrier.Await();
      } while (quiet < kQuietRounds && rounds < kRoundsMax);
      EXPECT_EQ(failures, 0);
    });
    EXPECT_EQ(quiet, kQuietRounds) << rounds << " rounds";
    EXPECT_GT(rounds, kQuietRounds) << "the first ones, at least, allocate";
  }

 private:
  MemoryStore store_;
  std::vector<std::unique_ptr<World>> worlds_;
  std::unique_ptr<testing::LoopbackWorld> loopback_;
  std::vector<Communicator*> communicators_;
};

CollectiveRequest RequestOf(Collective collective, float* memory, size_t count) {
  return MakeRequest(collective, DType::kF32, count, memory, memory + kCount);
}

TEST_P(AllocationTest, ABlockingCollectiveAllocatesNothingOnceWarm) {
  ExpectQuietInTheEnd([](Communicator& self, float* memory) {
    return [&self, memory] {
      int failures = 0;
      for (int call = 0; call < 5; ++call) {
        for (const Collective collective : kAllCollectives) {
          for (const size_t count : {size_t{kRanks}, kCount}) {
            if (!self.Run(RequestOf(collective, memory, count)).ok()) ++failures;
          }
        }
      }
      return failures;
    };
  });
}

// Several in flight at once, each with a handle that is kept until the next of its place is started.
TEST_P(AllocationTest, AStartedCollectiveAllocatesNothingOnceWarm) {
  ExpectQuietInTheEnd([](Communicator& self, float* memory) {
    auto works = std::make_shared<std::vector<Work>>();
    return [&self, memory, works] {
      int failures = 0;
      // More than once through any ring of pools.
      for (int call = 0; call < 50; ++call) {
        const int place = call % kInFlight;
        if (works->size() == kInFlight && !(*works)[place].Wait(CommTestDeadline()).ok()) ++failures;
        absl::StatusOr<Work> work =
            self.Start(RequestOf(Collective::kAllReduce, memory + 2 * kCount * place, call % 3 == 0 ? kCount : 1000));
        if (!work.ok()) {
          ++failures;
        } else if (works->size() < kInFlight) {
          works->push_back(*std::move(work));
        } else {
          (*works)[place] = *std::move(work);
        }
      }
      for (Work& work : *works) {
        if (!work.Wait(CommTestDeadline()).ok()) ++failures;
      }
      return failures;
    };
  });
}

TEST_P(AllocationTest, APreparedCollectiveAllocatesNothingOnceWarm) {
  ExpectQuietInTheEnd([](Communicator& self, float* memory) {
    CollectiveRequest request = RequestOf(Collective::kAllReduce, memory, kCount);
    request.op = ReduceOp::kMax;
    auto prepared = self.Prepare(request);
    LOCKSTEP_CHECK(prepared.ok()) << prepared.status();
    const std::shared_ptr<PreparedCollective> collective = *std::move(prepared);
    return [collective] {
      int failures = 0;
      for (int start = 0; start < 20; ++start) {
        if (!collective->Start().ok() || !collective->Wait(CommTestDeadline()).ok()) ++failures;
        if (!collective->Run().ok()) ++failures;
      }
      return failures;
    };
  });
}

INSTANTIATE_TEST_SUITE_P(Over, AllocationTest, ::testing::Values(kLoopback, kTcp, kShm, kSymmetric),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace lockstep
