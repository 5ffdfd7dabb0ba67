// Collectives whose buffers lie in memory of the communicator's allocator: the same results as by messages, and what they
// promise besides.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "base/deadline.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
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

struct Call {
  CollectiveRequest request;
  size_t input_bytes = 0;   // of this rank
  size_t output_bytes = 0;  // of this rank
};

// A call of `count` elements in blocks for the collectives that have them; `counts` stay with the caller.
Call MakeCall(Collective collective, DType dtype, ReduceOp op, size_t count, Rank root, const Communicator& self,
              const std::vector<int64_t>& counts = {}) {
  Call call;
  call.request.collective = collective;
  call.request.dtype = dtype;
  call.request.op = op;
  call.request.root = root;
  call.request.count = count;
  call.request.counts = counts;
  const size_t element = SizeOf(dtype);
  const size_t block = counts.empty() ? count / self.size() : counts[self.rank().value()];
  call.input_bytes = (IsOwnBlock(collective, Window::kInput) ? block : count) * element;
  call.output_bytes = (IsOwnBlock(collective, Window::kOutput) ? block : count) * element;
  return call;
}

// Small whole numbers, so that every order of adding gives the same bits.
void Fill(DType dtype, int rank, char* data, size_t bytes) {
  for (size_t i = 0; i < bytes / SizeOf(dtype); ++i) {
    const int value = static_cast<int>((i * 7 + static_cast<size_t>(rank) * 3) % 5);
    if (dtype == DType::kF32) {
      const float number = static_cast<float>(value);
      std::memcpy(data + 4 * i, &number, 4);
    } else {
      std::memset(data + SizeOf(dtype) * i, value, 1);
      std::memset(data + SizeOf(dtype) * i + 1, 0, SizeOf(dtype) - 1);
    }
  }
}

std::string LastRecord(const Communicator& self) {
  const std::string records = self.FlightRecords();
  const size_t end = records.find_last_not_of('\n');
  const size_t begin = records.rfind('\n', end);
  return records.substr(begin + 1, end - begin);
}

// The call on buffers of its own, by messages; then, with the same input, in shared memory at other places on every rank.
void ExpectTheSame(Communicator& self, const SymmetricBuffer& buffer, Call call, bool in_place) {
  std::vector<char> input(call.input_bytes), ordinary(std::max<size_t>(call.output_bytes, call.input_bytes), 'x');
  Fill(call.request.dtype, self.rank().value(), input.data(), input.size());
  const Collective collective = call.request.collective;
  const size_t bytes = std::max(call.input_bytes, call.output_bytes);
  // In place a block lies where it belongs in the whole.
  int64_t before = 0;
  for (int r = 0; r < self.rank().value(); ++r) {
    before += call.request.counts.empty() ? call.request.count / self.size() : call.request.counts[r];
  }
  const size_t offset = before * SizeOf(call.request.dtype);
  call.request.input = input.data();
  call.request.output = ordinary.data();
  call.request.algorithm = AlgorithmsFor(collective)[0];
  ASSERT_FALSE(UsesSharedMemory(call.request.algorithm));
  ASSERT_THAT(self.Run(call.request), IsOk());

  char* const base = buffer.data() + 64 * static_cast<size_t>(self.rank().value());
  char* shared_input = base + kBytes / 2;
  char* shared_output = base;
  if (in_place) {
    shared_input = base + (IsOwnBlock(collective, Window::kInput) ? offset : 0);
    shared_output = base + (IsOwnBlock(collective, Window::kOutput) ? offset : 0);
  }
  std::memset(base, 'x', bytes);
  std::copy(input.begin(), input.end(), shared_input);
  call.request.input = shared_input;
  call.request.output = shared_output;
  call.request.algorithm = Algorithm::kDirect;
  ASSERT_THAT(self.Run(call.request), IsOk());
  EXPECT_THAT(LastRecord(self), HasSubstr("direct"));
  const bool at_root = !HasRoot(collective) || call.request.root == self.rank();
  const bool writes = at_root || collective == Collective::kBroadcast || collective == Collective::kScatter;
  if (!writes) return;
  EXPECT_TRUE(std::equal(shared_output, shared_output + call.output_bytes, ordinary.begin()));
  if (!in_place) {
    EXPECT_TRUE(std::equal(input.begin(), input.end(), shared_input)) << "the input was changed";
  }
}

constexpr Collective kCollectives[] = {Collective::kAllReduce,     Collective::kBroadcast, Collective::kReduce,
                                       Collective::kAllGather,     Collective::kGather,    Collective::kScatter,
                                       Collective::kReduceScatter, Collective::kAllToAll};

TEST(Direct, GivesWhatMessagesGive) {
  for (const int size : {2, 3, 4}) {
    Ranks ranks(size);
    ranks.Run([&](Communicator& self) {
      const auto buffer = Allocate(self);
      ASSERT_NE(buffer, nullptr);
      ASSERT_TRUE(buffer->shared());
      for (const Collective collective : kCollectives) {
        for (const DType dtype : {DType::kF32, DType::kI64}) {
          for (const size_t block : {1, 13, 4099}) {
            for (const bool in_place : {false, true}) {
              if (in_place && collective == Collective::kAllToAll) continue;
              SCOPED_TRACE(::testing::Message() << Name(collective) << " of " << block << " x " << size << " "
                                                << Name(dtype) << (in_place ? " in place" : ""));
              const Rank root(static_cast<int>(block) % size);
              ExpectTheSame(self, *buffer, MakeCall(collective, dtype, ReduceOp::kSum, block * size, root, self),
                            in_place);
            }
          }
        }
      }
    });
  }
}

TEST(Direct, EveryOp) {
  Ranks ranks(3);
  ranks.Run([&](Communicator& self) {
    const auto buffer = Allocate(self);
    ASSERT_NE(buffer, nullptr);
    for (const ReduceOp op : {ReduceOp::kProd, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kAnd, ReduceOp::kOr,
                              ReduceOp::kXor, ReduceOp::kAvg, ReduceOp::kPremulSum}) {
      for (const DType dtype : {DType::kF32, DType::kI32, DType::kU8}) {
        if (!self.Supports(Collective::kAllReduce, dtype, op).ok()) continue;
        SCOPED_TRACE(::testing::Message() << Name(op) << " of " << Name(dtype));
        Call call = MakeCall(Collective::kAllReduce, dtype, op, 3001, Rank(0), self);
        call.request.factor = 2;
        if (op == ReduceOp::kAvg && dtype == DType::kF32) continue;  // thirds are not exact
        for (const bool in_place : {false, true}) ExpectTheSame(self, *buffer, call, in_place);
      }
    }
  });
}

TEST(Direct, BlocksMayDiffer) {
  Ranks ranks(3);
  const std::vector<int64_t> counts = {5, 0, 1711}, none_empty = {5, 1, 1711};
  ranks.Run([&](Communicator& self) {
    const auto buffer = Allocate(self);
    ASSERT_NE(buffer, nullptr);
    for (const Collective collective : {Collective::kAllGather, Collective::kReduceScatter}) {
      for (const bool in_place : {false, true}) {
        SCOPED_TRACE(Name(collective));
        ExpectTheSame(self, *buffer, MakeCall(collective, DType::kI32, ReduceOp::kSum, 1716, Rank(0), self, counts),
                      in_place);
      }
    }
    for (const Collective collective : {Collective::kGather, Collective::kScatter}) {
      SCOPED_TRACE(Name(collective));
      ExpectTheSame(self, *buffer, MakeCall(collective, DType::kI32, ReduceOp::kSum, 1717, Rank(2), self, none_empty),
                    false);
    }
  });
}

CollectiveRequest AllReduceOf(float* values, size_t count) {
  return MakeRequest(Collective::kAllReduce, DType::kF32, count, values, values);
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

TEST(Inline, CarriesAFewBytesOfOrdinaryMemory) {
  for (const int size : {2, 3, 4}) {
    Ranks ranks(size);
    ranks.Run([&](Communicator& self) {
      const float rank = static_cast<float>(self.rank().value());
      const int sum_of_ranks = size * (size - 1) / 2;
      for (int round = 0; round < 50; ++round) {
        float values[6] = {rank, 1, 2, 3, 4, static_cast<float>(round)};
        ASSERT_THAT(self.Run(AllReduceOf(values, 6)), IsOk());
        EXPECT_EQ(values[0], static_cast<float>(sum_of_ranks));
        EXPECT_EQ(values[5], static_cast<float>(size * round));
        CollectiveRequest barrier;
        ASSERT_THAT(self.Run(barrier), IsOk());
        Call call = MakeCall(Collective::kBroadcast, DType::kF32, ReduceOp::kSum, 2, Rank(round % size), self);
        float pair[2] = {rank, 5};
        call.request.input = call.request.output = pair;
        ASSERT_THAT(self.Run(call.request), IsOk());
        EXPECT_EQ(pair[0], static_cast<float>(round % size));
        call =
            MakeCall(Collective::kAllGather, DType::kF32, ReduceOp::kSum, 2 * static_cast<size_t>(size), Rank(0), self);
        std::vector<float> all(2 * size);
        const float mine[2] = {rank, -rank};
        call.request.input = mine;
        call.request.output = all.data();
        ASSERT_THAT(self.Run(call.request), IsOk());
        for (int r = 0; r < size; ++r) EXPECT_EQ(all[2 * r + 1], static_cast<float>(-r));
        call = MakeCall(Collective::kReduce, DType::kF32, ReduceOp::kMax, 1, Rank(round % size), self);
        float most = 0;
        call.request.input = &rank;
        call.request.output = &most;
        ASSERT_THAT(self.Run(call.request), IsOk());
        EXPECT_EQ(most, self.rank().value() == round % size ? static_cast<float>(size - 1) : 0);
      }
      EXPECT_THAT(self.FlightRecords(), HasSubstr("inline"));
    });
  }
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

TEST(Direct, DeterministicBitsAreThoseOfMessages) {
  constexpr size_t kCount = 5000;
  for (const int size : {2, 3, 4}) {
    Ranks ranks(size, [](int, WorldOptions* options) { options->deterministic = true; });
    ranks.Run([&](Communicator& self) {
      const auto buffer = Allocate(self);
      ASSERT_NE(buffer, nullptr);
      std::vector<float> ordinary(kCount);
      auto* const values = reinterpret_cast<float*>(buffer->data());
      for (size_t i = 0; i < kCount; ++i) {
        values[i] = ordinary[i] = 1.0F / static_cast<float>(i + 3 + 1000 * self.rank().value());
      }
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
        CollectiveRequest request = AllReduceOf(values, kCount);
        request.op = op;
        ASSERT_THAT(self.Run(request), IsOk());
        request.input = request.output = ordinary.data();
        ASSERT_THAT(self.Run(request), IsOk());
        EXPECT_EQ(std::memcmp(values, ordinary.data(), kCount * sizeof(float)), 0);
      }
    });
  }
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
