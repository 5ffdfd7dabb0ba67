// A deterministic communicator: the bits of a reduction follow from the inputs alone. The same vectors are reduced with other
// chunks, by other algorithms, whole and in pieces as buckets would, over other transports and in shared memory, for sizes 2 to 9, and
// every result is compared with that of one algorithm over loopback, and that with the reference, which reduces in rank order.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "comm/communicator.h"
#include "comm/host/transport_communicator.h"
#include "comm/schedule/schedule.h"
#include "comm/symmetric_buffer.h"
#include "comm/world/world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/reference_testing.h"
#include "tests/ranks.h"
#include "tests/worlds.h"
#include "transport/store/store_memory.h"

namespace lockstep {
namespace {

using ::lockstep::testing::LoopbackWorld;
using ::testing::HasSubstr;

constexpr size_t kCount = 1003;

TransportCommunicatorOptions Deterministic(size_t chunk_bytes) {
  TransportCommunicatorOptions options;
  options.deterministic = true;
  options.chunk_bytes = chunk_bytes;
  return options;
}

// Numbers of very different sizes and both signs, so that every other order of adding gives other bits of a wide dtype.
std::vector<char> Input(DType dtype, int rank) {
  const DType part = RealOf(dtype);
  std::mt19937 random(17 * rank + 5);
  std::vector<char> input(kCount * SizeOf(dtype));
  for (size_t at = 0; at < input.size(); at += SizeOf(part)) {
    const double mantissa = 1 + random() / 0x1p32;
    const double value = std::ldexp(random() % 2 == 0 ? mantissa : -mantissa, static_cast<int>(random() % 12) - 6);
    const uint64_t code = kernels::ReferenceEncode(part, value);
    std::memcpy(input.data() + at, &code, SizeOf(part));
  }
  return input;
}
// One reduction of part of the inputs.
struct Reduction {
  Collective collective = Collective::kAllReduce;
  Algorithm algorithm = Algorithm::kAuto;
  DType dtype = DType::kF32;
  ReduceOp op = ReduceOp::kSum;
};

std::string ToString(const Reduction& r) {
  return absl::StrCat(Name(r.collective), " of ", Name(r.dtype), " ", Name(r.op), " by ", Name(r.algorithm));
}

// Carries it out in pieces of so many elements, the first `count` of this rank's input; pieces of a reduce-scatter are whole
// blocks for each rank. What this rank got of the vector stands where it belongs in what is returned, the rest is 0.
std::vector<char> Reduce(Communicator& self, const Reduction& r, size_t count, size_t piece, char* input_memory,
                         char* output_memory) {
  const size_t element = SizeOf(r.dtype);
  const std::vector<char> input = Input(r.dtype, self.rank().value());
  std::vector<char> result(input.size());
  const bool scatters = r.collective == Collective::kReduceScatter;
  if (scatters) piece -= piece % self.size();
  for (size_t begin = 0; begin < count; begin += piece) {
    CollectiveRequest request;
    request.collective = r.collective;
    request.algorithm = r.algorithm;
    request.dtype = r.dtype;
    request.op = r.op;
    request.factor = 1 + 0.3 * self.rank().value();  // of a premultiplied sum
    request.root = Rank(self.size() - 1);
    request.count = std::min(piece, count - begin);
    if (scatters) request.count -= request.count % self.size();
    if (request.count == 0) break;
    request.input = input_memory;
    request.output = output_memory;
    std::memcpy(input_memory, input.data() + begin * element, request.count * element);
    const absl::Status status = self.Run(request);
    EXPECT_THAT(status, IsOk()) << ToString(r);
    const bool gets = r.collective != Collective::kReduce || self.rank() == request.root;
    if (!status.ok() || !gets) continue;
    const size_t block = scatters ? request.count / self.size() : request.count;
    const size_t at = begin + (scatters ? self.rank().value() * block : 0);
    std::memcpy(result.data() + at * element, output_memory, block * element);
  }
  return result;
}

// Rank 0's result of an all-reduce; that of the other ranks must be the same.
std::vector<char> AllReduce(LoopbackWorld* world, DType dtype, ReduceOp op) {
  std::vector<std::vector<char>> outputs(world->size());
  world->Run([&](Communicator& self) {
    std::vector<char> input(kCount * SizeOf(dtype)), output(kCount * SizeOf(dtype));
    outputs[self.rank().value()] = Reduce(self, {Collective::kAllReduce, Algorithm::kAuto, dtype, op}, kCount, kCount,
                                          input.data(), output.data());
  });
  for (const std::vector<char>& output : outputs) EXPECT_EQ(output, outputs[0]);
  return outputs[0];
}

// Where ranks are, and in which memory their vectors lie.
struct Ground {
  const char* name;
  const char* transport;
  bool hosts_of_two;
  bool symmetric;  // in memory of the communicator's allocator
};

bool SharesMemory(const Ground& ground) { return std::string(ground.transport) != "tcp" && !ground.hosts_of_two; }

// How many elements of a call the algorithm can carry out there, at most; 0: none.
size_t PieceMax(const Ground& ground, const Reduction& r) {
  const bool narrow = SizeOf(r.dtype) < sizeof(float);
  if (!ReducesInRankOrder(r.collective, r.algorithm) || (narrow && !RoundsOnce(r.collective, r.algorithm))) return 0;
  if (Has(r.algorithm, algorithms::kDirect)) {
    // What a premultiplied sum multiplies first goes to memory of a rank's own, where it does not fit the output.
    const bool in_own = r.op == ReduceOp::kPremulSum && r.collective != Collective::kAllReduce;
    return ground.symmetric && SharesMemory(ground) && !in_own ? kCount : 0;
  }
  if (UsesSharedMemory(r.algorithm) && !SharesMemory(ground)) return 0;
  return Has(r.algorithm, algorithms::kInline) ? kShareBytesMax / SizeOf(r.dtype) : kCount;
}

// What loopback leaves of a reduction of all inputs.
struct Expected {
  DType dtype;
  ReduceOp op;
  std::vector<char> bits;
};

class DeterminismOn : public ::testing::TestWithParam<Ground> {
 protected:
  // All collectives and algorithms, on one rank; in `memory`, of kMemoryBytes.
  static constexpr size_t kOutputAt = 16'384;
  static constexpr size_t kMemoryBytes = 2 * kOutputAt;
  static_assert(kCount * 2 * sizeof(double) <= kOutputAt, "the input is before the output");
  void Compare(Communicator& self, const Expected& expected, char* memory, std::set<Algorithm>* carried_out) {
    for (const Collective collective : {Collective::kAllReduce, Collective::kReduce, Collective::kReduceScatter}) {
      Reduction r{collective, Algorithm::kAuto, expected.dtype, expected.op};
      ExpectBits(self, r, kCount, kCount, expected.bits, memory);
      for (const Algorithm algorithm : AlgorithmsFor(collective)) {
        r.algorithm = algorithm;
        const size_t piece_max = PieceMax(GetParam(), r);
        if (piece_max < static_cast<size_t>(self.size())) continue;  // of inline, whose pieces are for all ranks
        const size_t count = std::min(kCount, 20 * piece_max);
        for (const size_t piece : {piece_max, std::min(piece_max, size_t{100})}) {
          ExpectBits(self, r, count, piece, expected.bits, memory);
        }
        carried_out->insert(algorithm);
      }
    }
  }

 private:
  static void ExpectBits(Communicator& self, const Reduction& r, size_t count, size_t piece,
                         const std::vector<char>& expected, char* memory) {
    const size_t element = SizeOf(r.dtype);
    const std::vector<char> result = Reduce(self, r, count, piece, memory, memory + kOutputAt);
    if (r.collective == Collective::kReduce && self.rank() != Rank(self.size() - 1)) return;
    const bool scatters = r.collective == Collective::kReduceScatter;
    if (scatters) piece -= piece % self.size();
    for (size_t begin = 0; begin < count; begin += piece) {
      const size_t length = std::min(piece, count - begin);
      const size_t block = scatters ? length / self.size() : length;
      const size_t at = (begin + (scatters ? self.rank().value() * block : 0)) * element;
      ASSERT_EQ(std::memcmp(result.data() + at, expected.data() + at, block * element), 0)
          << ToString(r) << ", in pieces of " << piece << " from " << begin << " on, rank " << self.rank() << " of "
          << self.size();
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Grounds, DeterminismOn,
                         ::testing::Values(Ground{"Tcp", "tcp", false, false}, Ground{"Shm", "shm", false, false},
                                           Ground{"ShmSymmetric", "shm", false, true},
                                           Ground{"HostsOfTwo", "auto", true, false}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(DeterminismOn, EveryAlgorithmAndReductionGivesTheBitsOfLoopback) {
  const Ground& ground = GetParam();
  std::set<Algorithm> carried_out;
  for (int size = 2; size <= 9; ++size) {
    std::vector<Expected> expected;
    for (const DType dtype : kFloatAndComplexDTypes) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kPremulSum, ReduceOp::kProd}) {
        if (dtype != DType::kF32 && (op == ReduceOp::kPremulSum || op == ReduceOp::kProd)) continue;
        LoopbackWorld world(size, {}, Deterministic(4096));
        expected.push_back({dtype, op, AllReduce(&world, dtype, op)});
      }
    }
    MemoryStore store;
    const std::vector<WorldOrError> worlds = CreateWorlds(&store, size, [&](int rank, WorldOptions* options) {
      options->transport = ground.transport;
      options->deterministic = true;
      options->chunk_bytes = size % 2 == 0 ? 1024 : 0;
      if (ground.hosts_of_two) options->host_id = std::to_string(rank / 2);
    });
    for (const WorldOrError& world : worlds) ASSERT_THAT(world.status(), IsOk());
    testing::RunRanks(size, [&](int rank) {
      Communicator& self = *(*worlds[rank])->communicator();
      std::vector<char> ordinary(ground.symmetric ? 0 : kMemoryBytes);
      std::unique_ptr<SymmetricBuffer> symmetric;
      if (ground.symmetric) {
        LOCKSTEP_ASSERT_OK_AND_ASSIGN(symmetric, self.Allocate(kMemoryBytes));
        ASSERT_TRUE(symmetric->shared());
      }
      std::set<Algorithm> algorithms;
      for (const Expected& of : expected) {
        Compare(self, of, ground.symmetric ? symmetric->data() : ordinary.data(), &algorithms);
      }
      if (rank == 0) carried_out.insert(algorithms.begin(), algorithms.end());
    });
  }
  std::set<Algorithm> all;
  for (const Collective collective : {Collective::kAllReduce, Collective::kReduce, Collective::kReduceScatter}) {
    for (const Algorithm algorithm : AlgorithmsFor(collective)) {
      const bool here =
          Has(algorithm, algorithms::kDirect) ? ground.symmetric : SharesMemory(ground) || !UsesSharedMemory(algorithm);
      if (here && ReducesInRankOrder(collective, algorithm)) all.insert(algorithm);
    }
  }
  for (Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot, Algorithm::kChain}) {
    EXPECT_EQ(all.count(algorithm), 1) << Name(algorithm);
  }
  EXPECT_EQ(carried_out, all);
}

// Of an average: of inputs that are scaled, each rounded to the dtype. (In shared memory they are scaled as they are folded, by
// messages before; nobody is to see the difference.)
TEST(Determinism, TheResultIsTheFoldInRankOrder) {
  for (int size = 2; size <= 9; ++size) {
    LoopbackWorld world(size, {}, Deterministic(4096));
    for (const DType dtype : kFloatAndComplexDTypes) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
        std::vector<std::vector<char>> inputs;
        std::vector<const void*> terms;
        for (int rank = 0; rank < size; ++rank) inputs.push_back(Input(dtype, rank));
        for (std::vector<char>& input : inputs) {
          if (op == ReduceOp::kAvg) kernels::ReferenceScale(dtype, input.data(), input.data(), kCount, 1.0 / size);
          terms.push_back(input.data());
        }
        const auto fold = [&] {
          std::vector<char> folded(inputs[0].size());
          kernels::ReferenceReduceMany(dtype, ReduceOp::kSum, folded.data(), terms.data(), terms.size(), kCount);
          return folded;
        };
        const std::vector<char> expected = fold();
        EXPECT_EQ(AllReduce(&world, dtype, op), expected) << size << " ranks, " << Name(dtype) << " " << Name(op);
        std::reverse(terms.begin(), terms.end());
        if (size > 2 && dtype == DType::kF32) {
          EXPECT_NE(fold(), expected) << "the inputs must tell orders apart";
        }
      }
    }
  }
}
TEST(Determinism, AnAlgorithmThatCannotKeepItIsRefused) {
  LoopbackWorld world(3, {}, Deterministic(4096));
  world.Run([](Communicator& self) {
    std::vector<float> data(10, 1.0f);
    CollectiveRequest request = MakeRequest(Collective::kAllReduce, DType::kF32, data.size(), data.data(), data.data());
    for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kRecursiveDoubling, Algorithm::kHalvingDoubling}) {
      request.algorithm = algorithm;
      EXPECT_THAT(self.Run(request), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("in rank order")));
    }
    request.algorithm = Algorithm::kChain;
    EXPECT_THAT(self.Run(request), IsOk());
    request.dtype = DType::kBF16;
    EXPECT_THAT(self.Run(request), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("chain")));
    // What reduces nothing may go as it likes.
    request.collective = Collective::kAllGather;
    request.algorithm = Algorithm::kRing;
    request.count = 9;
    std::vector<char> output(100);
    request.output = output.data();
    EXPECT_THAT(self.Run(request), IsOk());
  });
}

}  // namespace
}  // namespace lockstep
