// Collectives whose buffers lie in memory of the communicator's allocator: what they promise beside right results, which
// comm/world/world_conformance_test.cc and determinism_test.cc expect of them.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "base/deadline.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "comm/communicator.h"
#include "comm/schedule/schedule.h"
#include "comm/symmetric_buffer.h"
#include "comm/work.h"
#include "comm/world/world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ranks.h"
#include "tests/worlds.h"
#include "transport/store/store_memory.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr size_t kBytes = 1 << 20;

Deadline Soon() { return Deadline::AfterMs(60'000); }

// Worlds whose ranks, threads of this process, share memory.
class Ranks {
 public:
  explicit Ranks(int size, const std::function<void(int rank, WorldOptions*)>& change = nullptr) {
    for (WorldOrError& world : CreateWorlds(&store_, size, change)) {
      LOCKSTEP_EXPECT_OK(world);
      if (world.ok()) worlds_.push_back(*std::move(world));
    }
  }
  int size() const { return static_cast<int>(worlds_.size()); }
  void Run(const std::function<void(Communicator&)>& body) {
    testing::RunRanks(size(), [&](int rank) { body(*worlds_[rank]->communicator()); });
  }

 private:
  MemoryStore store_;
  std::vector<std::unique_ptr<World>> worlds_;
};

std::unique_ptr<SymmetricBuffer> Allocate(Communicator& self, size_t bytes = kBytes) {
  auto buffer = self.Allocate(bytes);
  LOCKSTEP_EXPECT_OK(buffer);
  return buffer.ok() ? *std::move(buffer) : nullptr;
}

// A failure reaches ranks wherever they are: this is where all are in nothing else. Not a collective, which one rank may have
// left before another.
class Assembly {
 public:
  explicit Assembly(int size) : awaited_(size) {}
  void Await() {
    --awaited_;
    for (const Deadline deadline = Soon(); awaited_ > 0 && !deadline.passed();) std::this_thread::yield();
  }

 private:
  std::atomic<int> awaited_;
};

std::string LastRecord(const Communicator& self) {
  const std::string records = self.FlightRecords();
  const size_t end = records.find_last_not_of('\n');
  const size_t begin = records.rfind('\n', end);
  return records.substr(begin + 1, end - begin);
}

CollectiveRequest AllReduceOf(float* values, size_t count) {
  return MakeRequest(Collective::kAllReduce, DType::kF32, count, values, values);
}

// None is empty: of such a one a rank could not tell where it is.
TEST(Direct, BlocksOfGathersAndScattersMayDiffer) {
  Ranks ranks(3);
  const std::vector<int64_t> counts = {5, 1, 1711};
  ranks.Run([&](Communicator& self) {
    const auto buffer = Allocate(self);
    ASSERT_NE(buffer, nullptr);
    const int rank = self.rank().value();
    auto* const input = reinterpret_cast<int32_t*>(buffer->data() + 64 * rank);
    int32_t* const output = input + 4096;
    CollectiveRequest request = MakeRequest(Collective::kGather, DType::kI32, 1717, input, output);
    request.root = Rank(2);
    request.counts = counts;
    request.algorithm = Algorithm::kDirect;
    std::fill_n(input, counts[rank], rank + 1);
    ASSERT_THAT(self.Run(request), IsOk());
    request.collective = Collective::kScatter;
    request.input = output;
    request.output = input;
    std::fill_n(input, counts[rank], 0);
    ASSERT_THAT(self.Run(request), IsOk());
    EXPECT_TRUE(std::all_of(input, input + counts[rank], [rank](int32_t value) { return value == rank + 1; }));
    if (rank != 2) return;
    for (int i = 0; i < 1717; ++i) ASSERT_EQ(output[i], i < 5 ? 1 : i < 6 ? 2 : 3) << i;
  });
}

TEST(Direct, ManyInFlightPreparedAndInGroups) {
  constexpr int kCalls = 20;
  constexpr size_t kCount = 500;
  Ranks ranks(3);
  ranks.Run([&](Communicator& self) {
    const auto buffer = Allocate(self);
    ASSERT_NE(buffer, nullptr);
    auto* const values = reinterpret_cast<float*>(buffer->data());
    std::vector<float> ordinary(kCalls * kCount, 1);
    std::fill_n(values, kCalls * kCount, 1);
    // Calls in shared memory and by messages in turns.
    std::vector<Work> works;
    for (int i = 0; i < kCalls; ++i) {
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work shared, self.Start(AllReduceOf(values + i * kCount, kCount)));
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work own, self.Start(AllReduceOf(ordinary.data() + i * kCount, kCount)));
      works.push_back(std::move(shared));
      works.push_back(std::move(own));
    }
    for (Work& work : works) ASSERT_THAT(work.Wait(Soon()), IsOk());
    // In a group, waited for together.
    ASSERT_THAT(self.StartGroup(), IsOk());
    for (int i = 0; i < kCalls; ++i) ASSERT_THAT(self.Run(AllReduceOf(values + i * kCount, kCount)), IsOk());
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work group, self.EndGroup());
    ASSERT_THAT(group.Wait(Soon()), IsOk());
    // Prepared.
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<PreparedCollective> prepared,
                                  self.Prepare(AllReduceOf(values, kCalls * kCount)));
    ASSERT_THAT(prepared->Run(), IsOk());
    ASSERT_THAT(prepared->Start(), IsOk());
    ASSERT_THAT(prepared->Wait(Soon()), IsOk());
    for (size_t i = 0; i < kCalls * kCount; ++i) {
      ASSERT_EQ(values[i], 81) << i;
      ASSERT_EQ(ordinary[i], 3) << i;
    }
  });
}

TEST(Direct, PartsHaveMemoryOfTheirOwn) {
  Ranks ranks(4);
  ranks.Run([&](Communicator& self) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto part, self.Split(self.rank().value() % 2, -self.rank().value()));
    const auto of_part = Allocate(*part), of_all = Allocate(self);
    ASSERT_NE(of_part, nullptr);
    ASSERT_NE(of_all, nullptr);
    EXPECT_TRUE(of_part->shared());
    auto* const values = reinterpret_cast<float*>(of_part->data());
    values[0] = static_cast<float>(self.rank().value());
    values[1000] = 1;
    ASSERT_THAT(part->Run(AllReduceOf(values, 1001)), IsOk());
    EXPECT_THAT(LastRecord(*part), HasSubstr("direct"));
    EXPECT_EQ(values[0], self.rank().value() % 2 == 0 ? 2 : 4);
    EXPECT_EQ(values[1000], 2);
    // It is memory like any other for other communicators.
    ASSERT_THAT(self.Run(AllReduceOf(values + 1000, 1000)), IsOk());
    EXPECT_THAT(LastRecord(self), Not(HasSubstr("direct")));
    EXPECT_EQ(values[1000], 8);
  });
}

TEST(Direct, BuffersComeAndGo) {
  Ranks ranks(2);
  ranks.Run([&](Communicator& self) {
    std::unique_ptr<SymmetricBuffer> last;  // one is given back while the next is in use
    for (int i = 0; i < 20; ++i) {
      auto buffer = Allocate(self, 4096 * (i + 1));
      ASSERT_NE(buffer, nullptr);
      EXPECT_EQ(buffer->bytes(), static_cast<size_t>(4096 * (i + 1)));
      EXPECT_TRUE(std::all_of(buffer->data(), buffer->data() + buffer->bytes(), [](char c) { return c == 0; }));
      auto* const values = reinterpret_cast<float*>(buffer->data());
      values[0] = 1;
      ASSERT_THAT(self.Run(AllReduceOf(values, 1024 * (i + 1))), IsOk());
      EXPECT_EQ(values[0], 2);
      last = std::move(buffer);
    }
  });
}

TEST(Direct, ABufferMayOutliveItsWorld) {
  std::vector<std::unique_ptr<SymmetricBuffer>> buffers(2);
  {
    Ranks ranks(2);
    ranks.Run([&](Communicator& self) {
      buffers[self.rank().value()] = Allocate(self);
      reinterpret_cast<float*>(buffers[self.rank().value()]->data())[0] = 1;
      ASSERT_THAT(self.Run(AllReduceOf(reinterpret_cast<float*>(buffers[self.rank().value()]->data()), 100)), IsOk());
    });
  }
  for (const auto& buffer : buffers) EXPECT_EQ(reinterpret_cast<float*>(buffer->data())[0], 2);
}

TEST(Direct, WithoutSharedMemoryABufferIsPrivate) {
  for (const char* const transport : {"tcp", "auto"}) {
    Ranks ranks(2, [&](int rank, WorldOptions* options) {
      options->transport = transport;
      options->host_id = transport == std::string("tcp") ? "one" : std::to_string(rank);
    });
    ranks.Run([&](Communicator& self) {
      const auto buffer = Allocate(self);
      ASSERT_NE(buffer, nullptr);
      EXPECT_FALSE(buffer->shared());
      auto* const values = reinterpret_cast<float*>(buffer->data());
      values[0] = 1;
      ASSERT_THAT(self.Run(AllReduceOf(values, 100)), IsOk());
      EXPECT_EQ(values[0], 2);
    });
  }
}

TEST(Direct, SizesThatDifferAreAnErrorAndNothingElse) {
  for (const char* const transport : {"shm", "tcp"}) {
    Ranks ranks(2, [&](int, WorldOptions* options) { options->transport = transport; });
    ranks.Run([&](Communicator& self) {
      EXPECT_THAT(self.Allocate(4096 + self.rank().value()),
                  StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("different sizes: 4096, 4097 bytes")));
      EXPECT_THAT(self.Allocate(0), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0 bytes")));
      EXPECT_THAT(self.Allocate(size_t{1} << 60), StatusIs(absl::StatusCode::kResourceExhausted));
      EXPECT_NE(Allocate(self), nullptr);
    });
  }
}

TEST(Direct, MemoryOnOneRankOnlyIsAMismatchOnAll) {
  Ranks ranks(2, [](int, WorldOptions* options) { options->peer_timeout = std::chrono::milliseconds(5000); });
  std::vector<std::string> errors(2);
  Assembly assembly(2);
  ranks.Run([&](Communicator& self) {
    const auto buffer = Allocate(self);
    ASSERT_NE(buffer, nullptr);
    assembly.Await();
    std::vector<float> ordinary(1000);
    auto* const values = self.rank() == Rank(0) ? reinterpret_cast<float*>(buffer->data()) : ordinary.data();
    const absl::Status status = self.Run(AllReduceOf(values, 1000));
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                 AllOf(HasSubstr("rank 0 called"), HasSubstr("direct"), HasSubstr("rank 1 called"))));
    // The cause, which is the same on all; before it each error says what this rank called.
    errors[self.rank().value()] = std::string(self.status().message());
  });
  EXPECT_EQ(errors[0], errors[1]);
}

TEST(Direct, DifferentCallsAreAMismatchOnAll) {
  Ranks ranks(3);
  std::vector<std::string> errors(3);
  Assembly assembly(3);
  ranks.Run([&](Communicator& self) {
    const auto buffer = Allocate(self);
    ASSERT_NE(buffer, nullptr);
    assembly.Await();
    auto* const values = reinterpret_cast<float*>(buffer->data());
    const absl::Status status = self.Run(AllReduceOf(values, self.rank() == Rank(1) ? 1000 : 2000));
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition, AllOf(HasSubstr("1000"), HasSubstr("2000"))));
    // The cause, which is the same on all; before it each error says what this rank called.
    errors[self.rank().value()] = std::string(self.status().message());
  });
  EXPECT_EQ(errors[0], errors[1]);
  EXPECT_EQ(errors[0], errors[2]);
}

TEST(Direct, CanBeAskedForByNameAndRefused) {
  Ranks ranks(2);
  ranks.Run([&](Communicator& self) {
    const auto buffer = Allocate(self);
    ASSERT_NE(buffer, nullptr);
    std::vector<float> ordinary(1000, 1);
    CollectiveRequest request = AllReduceOf(ordinary.data(), ordinary.size());
    request.algorithm = Algorithm::kDirect;
    EXPECT_THAT(self.Run(request), StatusIs(absl::StatusCode::kInvalidArgument,
                                            AllOf(HasSubstr("direct"), HasSubstr("communicator's allocator"))));
    request.algorithm = Algorithm::kInline;
    EXPECT_THAT(self.Run(request), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at most 24 bytes")));
    request.count = 6;
    EXPECT_THAT(self.Run(request), IsOk());
    EXPECT_EQ(ordinary[5], 2);
    // Memory of the allocator may go by messages, too.
    request = AllReduceOf(reinterpret_cast<float*>(buffer->data()), 1000);
    request.algorithm = Algorithm::kRing;
    EXPECT_THAT(self.Run(request), IsOk());
    EXPECT_THAT(LastRecord(self), HasSubstr("ring"));
  });
}

TEST(Inline, IsTakenForAFewBytesOfOrdinaryMemory) {
  Ranks ranks(3);
  ranks.Run([&](Communicator& self) {
    float values[6] = {static_cast<float>(self.rank().value()), 1, 2, 3, 4, 5};
    ASSERT_THAT(self.Run(AllReduceOf(values, 6)), IsOk());
    EXPECT_EQ(values[0], 3);
    EXPECT_EQ(values[5], 15);
    EXPECT_THAT(LastRecord(self), HasSubstr("inline"));
  });
}

// Who comes last does not read the clock, and who waits does.
TEST(Inline, IsTimedWhereItWaits) {
  Ranks ranks(2);
  std::atomic<Communicator*> first{nullptr};
  ranks.Run([&](Communicator& self) {
    float value = 1;
    if (self.rank() == Rank(0)) first = &self;
    const Deadline deadline = Soon();
    while (self.rank() == Rank(1) && !deadline.passed() &&
           (first == nullptr || !absl::StrContains(LastRecord(*first), "running for"))) {
      std::this_thread::yield();
    }
    ASSERT_THAT(self.Run(AllReduceOf(&value, 1)), IsOk());
    EXPECT_THAT(
        LastRecord(self),
        AllOf(HasSubstr("inline"), HasSubstr(self.rank() == Rank(0) ? "done in" : "done at once"), HasSubstr("4 B")));
  });
}

TEST(Direct, AfterAFailureANewWorldHasNewMemory) {
  std::vector<std::unique_ptr<SymmetricBuffer>> old(2);
  for (int round = 0; round < 2; ++round) {
    Ranks ranks(2);
    Assembly assembly(2);
    ranks.Run([&](Communicator& self) {
      auto buffer = Allocate(self);
      ASSERT_NE(buffer, nullptr);
      EXPECT_EQ(buffer->data()[0], 0);
      buffer->data()[0] = 7;
      assembly.Await();
      if (self.rank() == Rank(0)) {
        auto* const values = reinterpret_cast<float*>(buffer->data());
        LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work work, self.Start(AllReduceOf(values, 1000)));
        self.Abort("enough");
        EXPECT_THAT(work.Wait(Soon()), StatusIs(absl::StatusCode::kAborted, HasSubstr("enough")));
        EXPECT_THAT(self.Run(AllReduceOf(values, 1000)), StatusIs(absl::StatusCode::kAborted, HasSubstr("enough")));
      }
      old[self.rank().value()] = std::move(buffer);
    });
  }
}

}  // namespace
}  // namespace lockstep
