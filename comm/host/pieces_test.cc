// Collectives on vectors in pieces: for every collective, algorithm, kind of cut and dtype the result has the bits of the same call on
// contiguous memory. Ranks may cut differently, and some not at all.

#include "comm/pieces.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/device/tensor_view.h"
#include "base/ref.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "comm/communicator.h"
#include "comm/plan/collectives.h"
#include "comm/schedule/schedule.h"
#include "comm/symmetric_buffer.h"
#include "comm/world/world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/flatten.h"
#include "tests/ranks.h"
#include "tests/worlds.h"
#include "transport/store/store_memory.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

enum class Cut { kWhole, kElements, kMixed, kHalves };
constexpr Cut kCuts[] = {Cut::kWhole, Cut::kElements, Cut::kMixed, Cut::kHalves};

// Sizes of pieces, in elements, that add up to `count`.
std::vector<size_t> Sizes(Cut cut, size_t count) {
  std::vector<size_t> sizes;
  std::mt19937 random(7);
  for (size_t left = count; left > 0; left -= sizes.back()) {
    const size_t next = cut == Cut::kWhole      ? left
                        : cut == Cut::kElements ? 1
                        : cut == Cut::kHalves   ? (count + 1) / 2
                        : random() % 3 == 0     ? 1000 + random() % 5000
                                                : 1 + random() % 40;
    sizes.push_back(std::min(left, next));
  }
  return sizes;
}

// A vector of plain pieces in some memory, the last one first and none next to another.
class Scattered {
 public:
  // The bytes that it takes, whatever the cut.
  static size_t Room(const std::vector<char>& contiguous) { return 3 * contiguous.size() + 64; }

  Scattered(DType dtype, Cut cut, const std::vector<char>& contiguous, char* memory) : pieces_(MakeRef<Pieces>(dtype)) {
    char* at = memory + Room(contiguous);
    const char* from = contiguous.data();
    for (const size_t elements : Sizes(cut, contiguous.size() / SizeOf(dtype))) {
      const size_t bytes = elements * SizeOf(dtype);
      at -= bytes + SizeOf(dtype);
      std::memcpy(at, from, bytes);
      pieces_->AddPlain(at, elements);
      from += bytes;
    }
  }
  const Ref<Pieces>& pieces() const { return pieces_; }
  std::vector<char> contiguous() const {
    std::vector<char> all(pieces_->bytes());
    pieces_->Read(0, all.size(), all.data());
    return all;
  }

 private:
  const Ref<Pieces> pieces_;
};

std::vector<char> Values(DType dtype, size_t count, int rank) {
  std::vector<char> values(count * SizeOf(dtype));
  std::vector<float> floats(count);
  for (size_t i = 0; i < count; ++i) floats[i] = static_cast<float>((i * 37 + rank * 11) % 101) / 8 - 5;
  if (dtype == DType::kI32) {
    for (size_t i = 0; i < count; ++i) reinterpret_cast<int32_t*>(values.data())[i] = static_cast<int32_t>(floats[i]);
  } else {
    const TensorView view = *TensorView::Vector(floats.data(), DType::kF32, static_cast<int64_t>(count));
    kernels::ReadElements(view, 0, count, values.data(), dtype, 1);
  }
  return values;
}

// Ranks, threads of this process, that share memory; or by messages over loopback, in small chunks.
class PiecesTest : public ::testing::TestWithParam<bool> {
 protected:
  void Run(int size, const std::function<void(Communicator&)>& body) {
    if (!GetParam()) {
      TransportCommunicatorOptions options;
      options.chunk_bytes = 1000;
      testing::LoopbackWorld(size, {}, options).Run(body);
      return;
    }
    MemoryStore store;
    std::vector<std::unique_ptr<World>> worlds;
    for (WorldOrError& world : CreateWorlds(&store, size)) {
      LOCKSTEP_ASSERT_OK(world);
      worlds.push_back(*std::move(world));
    }
    testing::RunRanks(size, [&](int rank) { body(*worlds[rank]->communicator()); });
  }
};

struct Call {
  Collective collective;
  Algorithm algorithm;
  DType dtype;
  ReduceOp op = ReduceOp::kSum;
  size_t count = 0;
  bool in_place = false;

  std::string ToString() const {
    return absl::StrCat(Name(collective), " by ", Name(algorithm), " of ", count, " ", Name(dtype), " ", Name(op),
                        in_place ? " in place" : "");
  }
};

// What the rank has of the output afterwards, computed on contiguous memory (no cut) or on pieces; in `shared` if the call is direct.
absl::StatusOr<std::vector<char>> Carry(Communicator& self, const Call& call, const Cut* cut, char* shared = nullptr) {
  const int rank = self.rank().value();
  CollectiveRequest request = MakeRequest(call.collective, call.dtype, call.count, nullptr, nullptr);
  request.op = call.op;
  request.factor = call.op == ReduceOp::kPremulSum ? 0.25 : 1;
  request.root = Rank(1);
  request.algorithm = call.algorithm;
  const bool at_root = rank == 1 || !HasRoot(call.collective);
  const bool reads = at_root || call.collective == Collective::kReduce || call.collective == Collective::kGather;
  const bool writes = at_root || call.collective == Collective::kBroadcast || call.collective == Collective::kScatter;
  const size_t block = call.count / self.size();
  const size_t in_count = IsOwnBlock(call.collective, Window::kInput) ? block : call.count;
  const size_t out_count = IsOwnBlock(call.collective, Window::kOutput) ? block : call.count;
  std::vector<char> input = Values(call.dtype, in_count, rank);
  std::vector<char> output = call.in_place ? input : std::vector<char>(out_count * SizeOf(call.dtype));
  std::vector<char> own(Scattered::Room(input) + Scattered::Room(output));
  char* const memory = shared == nullptr ? own.data() : shared;
  if (cut == nullptr) {
    char* const result = memory + Scattered::Room(input);
    std::copy(input.begin(), input.end(), memory);
    std::copy(output.begin(), output.end(), result);
    if (writes) request.output = result;
    if (reads) request.input = call.in_place && writes ? result : memory;
    LOCKSTEP_RETURN_IF_ERROR(self.Run(request));
    return writes ? std::vector<char>(result, result + output.size()) : std::vector<char>();
  }
  const Scattered from(call.dtype, *cut, input, memory);
  const Scattered to(call.dtype, *cut, output, memory + Scattered::Room(input));
  request.shared_pieces = shared != nullptr;
  if (writes) request.output_pieces = to.pieces();
  if (reads) request.input_pieces = call.in_place && writes ? to.pieces() : from.pieces();
  LOCKSTEP_RETURN_IF_ERROR(self.Run(request));
  return writes ? to.contiguous() : std::vector<char>();
}

TEST_P(PiecesTest, EveryCollectiveHasTheBitsOfContiguousMemory) {
  int carried = 0;
  for (const int size : {2, 3}) {
    Run(size, [&](Communicator& self) {
      for (const Collective collective :
           {Collective::kAllReduce, Collective::kBroadcast, Collective::kReduce, Collective::kAllGather,
            Collective::kReduceScatter, Collective::kGather, Collective::kScatter}) {
        for (const Algorithm algorithm : AlgorithmsFor(collective)) {
          if (Has(algorithm, algorithms::kDirect)) continue;
          for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI32}) {
            for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kPremulSum}) {
              if (op != ReduceOp::kSum && !HasReduction(collective)) continue;
              if (op == ReduceOp::kPremulSum && dtype == DType::kI32) continue;
              for (const size_t blocks : {1, 11, 5003}) {
                for (const bool in_place : {false, true}) {
                  if (in_place && IsByRank(collective)) continue;
                  const Call call = {collective, algorithm, dtype, op, blocks * size, in_place};
                  const absl::StatusOr<std::vector<char>> expected = Carry(self, call, nullptr);
                  if (absl::IsInvalidArgument(expected.status())) continue;  // an algorithm that is not for this world
                  LOCKSTEP_ASSERT_OK(expected) << call.ToString();
                  for (const Cut cut : kCuts) {
                    // Rank 1 cuts otherwise than the others.
                    const Cut mine = self.rank().value() == 1 ? Cut::kMixed : cut;
                    const absl::StatusOr<std::vector<char>> found = Carry(self, call, &mine);
                    LOCKSTEP_ASSERT_OK(found) << call.ToString();
                    ASSERT_EQ(*found == *expected, true) << call.ToString() << ", cut " << static_cast<int>(cut);
                    if (self.rank() == Rank(0)) ++carried;
                  }
                }
              }
            }
          }
        }
      }
    });
  }
  EXPECT_GT(carried, 500);
}

// Of direct algorithms all buffers lie in memory that the ranks share.
TEST_P(PiecesTest, DirectCollectivesHaveTheBitsOfContiguousMemory) {
  if (!GetParam()) GTEST_SKIP() << "messages";
  for (const int size : {2, 3}) {
    Run(size, [&](Communicator& self) {
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<SymmetricBuffer> buffer, self.Allocate(2 << 20));
      for (const Collective collective :
           {Collective::kAllReduce, Collective::kBroadcast, Collective::kReduce, Collective::kAllGather,
            Collective::kReduceScatter, Collective::kGather, Collective::kScatter}) {
        for (const size_t blocks : {1, 11, 5003}) {
          for (const bool in_place : {false, true}) {
            if (in_place && IsByRank(collective)) continue;
            for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
              if (op != ReduceOp::kSum && !HasReduction(collective)) continue;
              const Call call = {collective, Algorithm::kDirect, DType::kF32, op, blocks * size, in_place};
              const absl::StatusOr<std::vector<char>> expected = Carry(self, call, nullptr, buffer->data());
              LOCKSTEP_ASSERT_OK(expected);
              LOCKSTEP_ASSERT_OK(self.Run({}));
              for (const Cut cut : {Cut::kWhole, Cut::kMixed, Cut::kHalves}) {
                const Cut mine = self.rank().value() == 1 ? Cut::kMixed : cut;
                const absl::StatusOr<std::vector<char>> found = Carry(self, call, &mine, buffer->data());
                LOCKSTEP_ASSERT_OK(found) << call.ToString();
                ASSERT_EQ(*found == *expected, true) << call.ToString() << ", cut " << static_cast<int>(cut);
                // A barrier: memory of the call may be used for the next.
                LOCKSTEP_ASSERT_OK(self.Run({}));
              }
            }
          }
        }
      }
    });
  }
}

absl::StatusOr<CollectiveRequest> RequestOf(Communicator& self, const Call& call, const TensorView& input,
                                            const TensorView& output) {
  switch (call.collective) {
    case Collective::kBroadcast:
      return BroadcastRequest(self, output, Rank(1));
    case Collective::kAllGather:
      return AllGatherRequest(self, input, output);
    case Collective::kReduceScatter:
      return ReduceScatterRequest(self, input, output, call.op);
    default:
      return AllReduceRequest(input, output, call.op);
  }
}

// What Carry returns, of a list of tensors as one call. All are in place, or none is (0), or every second one (2).
absl::StatusOr<std::vector<char>> CarryList(Communicator& self, const Call& call, Cut cut, size_t in_place) {
  const int rank = self.rank().value();
  const bool by_rank = IsByRank(call.collective);
  const size_t in_blocks = call.collective == Collective::kReduceScatter ? self.size() : 1;
  const size_t out_blocks = call.collective == Collective::kAllGather ? self.size() : 1;
  const size_t block_bytes = call.count / (by_rank ? self.size() : 1) * SizeOf(call.dtype);
  const std::vector<char> values = Values(call.dtype, call.count / (by_rank ? self.size() : 1) * in_blocks, rank);
  std::vector<char> results(block_bytes * out_blocks);
  std::deque<std::vector<char>> memory;
  std::vector<char*> outputs;
  std::vector<size_t> sizes = Sizes(cut, block_bytes / SizeOf(call.dtype));
  sizes.insert(sizes.begin() + 1, 0);
  std::vector<CollectiveRequest> calls;
  size_t at = 0;
  for (const size_t elements : sizes) {
    const size_t bytes = elements * SizeOf(call.dtype);
    char* const whole = memory.emplace_back(std::max(in_blocks, out_blocks) * bytes).data();
    const bool here = call.collective == Collective::kBroadcast || (in_place > 0 && calls.size() % in_place == 0);
    char* const part = here ? whole + (by_rank ? rank * bytes : 0) : memory.emplace_back(bytes).data();
    char* const input = out_blocks > 1 ? part : whole;
    outputs.push_back(out_blocks > 1 ? whole : part);
    for (size_t b = 0; b < in_blocks && bytes > 0; ++b) {
      std::memcpy(input + b * bytes, values.data() + b * block_bytes + at, bytes);
    }
    at += bytes;
    const auto view = [&](char* data, size_t blocks) {
      return *TensorView::Vector(data, call.dtype, static_cast<int64_t>(blocks * elements));
    };
    LOCKSTEP_ASSIGN_OR_RETURN(CollectiveRequest request,
                              RequestOf(self, call, view(input, in_blocks), view(outputs.back(), out_blocks)));
    request.factor = call.op == ReduceOp::kPremulSum ? 0.25 : 1;
    request.algorithm = call.algorithm;
    calls.push_back(request);
  }
  LOCKSTEP_ASSIGN_OR_RETURN(calls, CoalescedRequests(self, std::move(calls)));
  LOCKSTEP_RETURN_IF_ERROR(self.Run(calls[0]));
  at = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const size_t bytes = sizes[i] * SizeOf(call.dtype);
    for (size_t b = 0; b < out_blocks && bytes > 0; ++b) {
      std::memcpy(results.data() + b * block_bytes + at, outputs[i] + b * bytes, bytes);
    }
    at += bytes;
  }
  return results;
}

TEST_P(PiecesTest, AListOfTensorsHasTheBitsOfItsVector) {
  int carried = 0;
  for (const int size : {2, 3}) {
    Run(size, [&](Communicator& self) {
      for (const Collective collective :
           {Collective::kAllReduce, Collective::kBroadcast, Collective::kAllGather, Collective::kReduceScatter}) {
        for (const Algorithm algorithm : AlgorithmsFor(collective)) {
          if (Has(algorithm, algorithms::kDirect)) continue;
          for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI32}) {
            for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kPremulSum}) {
              if (op != ReduceOp::kSum && !HasReduction(collective)) continue;
              if (op == ReduceOp::kPremulSum && dtype == DType::kI32) continue;
              for (const size_t blocks : {1, 5003}) {
                const Call call = {collective, algorithm, dtype, op, blocks * size};
                const absl::StatusOr<std::vector<char>> expected = Carry(self, call, nullptr);
                if (absl::IsInvalidArgument(expected.status())) continue;  // an algorithm that is not for this world
                LOCKSTEP_ASSERT_OK(expected) << call.ToString();
                for (const size_t in_place : {0, 1, 2}) {
                  const Cut cut = self.rank().value() == 1 ? Cut::kMixed : Cut::kHalves;
                  const absl::StatusOr<std::vector<char>> found = CarryList(self, call, cut, in_place);
                  LOCKSTEP_ASSERT_OK(found) << call.ToString();
                  ASSERT_EQ(*found == *expected, true) << call.ToString() << ", in place " << in_place;
                  if (self.rank() == Rank(0)) ++carried;
                }
              }
            }
          }
        }
      }
    });
  }
  EXPECT_GT(carried, 500);
}

TEST_P(PiecesTest, AListInMemoryOfTheAllocatorIsReducedThere) {
  if (!GetParam()) GTEST_SKIP() << "messages";
  Run(2, [&](Communicator& self) {
    constexpr int64_t kCount = 5000;
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<SymmetricBuffer> buffer,
                                  self.Allocate(4 * kCount * sizeof(float)));
    float* const memory = reinterpret_cast<float*>(buffer->data());
    std::fill_n(memory, 4 * kCount, static_cast<float>(self.rank().value()));
    std::vector<CollectiveRequest> calls;
    for (float* const tensor : {memory + 2 * kCount, memory}) {
      const TensorView view = *TensorView::Vector(tensor, DType::kF32, kCount);
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(calls.emplace_back(), AllReduceRequest(view, view, ReduceOp::kSum));
    }
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(calls, CoalescedRequests(self, std::move(calls)));
    LOCKSTEP_ASSERT_OK(self.Run(calls[0]));
    EXPECT_THAT(self.FlightRecords(), HasSubstr("(10000 f32 sum, direct)"));
    EXPECT_THAT(std::vector<float>(memory, memory + kCount), ::testing::Each(1));
  });
}

// f32 gradients, one of them with gaps, one of another layout, and rows that this rank does not have, sent as bf16 times 1/n: as if they
// had been flattened.
TEST_P(PiecesTest, ConvertedPiecesHaveTheBitsOfAFlatVector) {
  constexpr int64_t kRows = 70;
  constexpr int64_t kColumns = 30;
  constexpr size_t kNothing = 500;
  constexpr size_t kPlain = 9001;
  constexpr size_t kCount = 2 * kRows * kColumns + kNothing + kPlain;
  for (const DType target : {DType::kF32, DType::kF16}) {  // f16 has not all values of bf16
    for (const int size : {2, 3}) {
      Run(size, [&](Communicator& self) {
        const int rank = self.rank().value();
        for (const Algorithm algorithm : AlgorithmsFor(Collective::kAllReduce)) {
          const auto views_of = [](DType dtype, std::vector<char>* memory) {
            memory->resize(SizeOf(dtype) * (4 * kRows * kColumns + kPlain));
            char* const gaps = memory->data();
            char* const turned = gaps + SizeOf(dtype) * 2 * kRows * kColumns;
            char* const plain = turned + SizeOf(dtype) * 2 * kRows * kColumns;
            return std::vector<TensorView>{
                *TensorView::Create(gaps, dtype, {kRows, kColumns}, {2 * kColumns, 2}, DeviceId()),
                *TensorView::Create(turned, dtype, {kRows, kColumns}, {1, kRows}, DeviceId()),
                *TensorView::Vector(plain, dtype, kPlain)};
          };
          std::vector<char> gradients;
          std::vector<char> averages;
          std::vector<char> flat_averages;
          const std::vector<TensorView> inputs = views_of(DType::kF32, &gradients);
          const std::vector<TensorView> outputs = views_of(target, &averages);
          const std::vector<TensorView> flat_outputs = views_of(target, &flat_averages);
          const std::vector<char> values = Values(DType::kF32, gradients.size() / sizeof(float), rank);
          std::memcpy(gradients.data(), values.data(), values.size());
          const double factor = 1.0 / size;

          const auto input = MakeRef<Pieces>(DType::kBF16, factor);
          const auto output = MakeRef<Pieces>(DType::kBF16);
          std::vector<kernels::ViewPiece> in;
          std::vector<kernels::ViewPiece> out;
          size_t offset = 0;
          for (size_t k = 0; k < inputs.size(); ++k) {
            LOCKSTEP_ASSERT_OK(input->Add(inputs[k]));
            LOCKSTEP_ASSERT_OK(output->Add(outputs[k]));
            in.push_back({&inputs[k], offset});
            out.push_back({&flat_outputs[k], offset});
            offset += inputs[k].elements();
            if (k > 0) continue;
            input->AddNothing(kNothing, /*of_all_ranks=*/false);
            output->AddNothing(kNothing, /*of_all_ranks=*/false);
            offset += kNothing;
          }
          std::vector<char> flat(kCount * SizeOf(DType::kBF16));
          LOCKSTEP_ASSERT_OK(kernels::FlattenViews(in, flat.data(), DType::kBF16, factor));
          CollectiveRequest request =
              MakeRequest(Collective::kAllReduce, DType::kBF16, kCount, flat.data(), flat.data());
          request.algorithm = algorithm;
          const absl::Status expected = self.Run(request);
          if (absl::IsInvalidArgument(expected)) continue;
          LOCKSTEP_ASSERT_OK(expected);
          LOCKSTEP_ASSERT_OK(kernels::UnflattenViews(out, flat.data(), DType::kBF16, 1));

          request.input = request.output = nullptr;
          request.input_pieces = input;
          request.output_pieces = output;
          LOCKSTEP_ASSERT_OK(self.Run(request));
          EXPECT_TRUE(averages == flat_averages) << Name(algorithm) << " into " << Name(target);
        }
      });
    }
  }
}

// Where gradients are overwritten, each is multiplied once.
TEST_P(PiecesTest, InPlaceWithAFactor) {
  Run(2, [&](Communicator& self) {
    for (const Algorithm algorithm : AlgorithmsFor(Collective::kAllReduce)) {
      std::vector<float> values(3001, static_cast<float>(self.rank().value() + 1));
      const TensorView view = *TensorView::Vector(values.data(), DType::kF32, 3001);
      CollectiveRequest request = MakeRequest(Collective::kAllReduce, DType::kF16, 3001, nullptr, nullptr);
      const auto input = MakeRef<Pieces>(DType::kF16, 0.5);
      const auto output = MakeRef<Pieces>(DType::kF16);
      LOCKSTEP_ASSERT_OK(input->Add(view));
      LOCKSTEP_ASSERT_OK(output->Add(view));
      request.input_pieces = input;
      request.output_pieces = output;
      request.algorithm = algorithm;
      const absl::Status done = self.Run(request);
      if (absl::IsInvalidArgument(done)) continue;
      LOCKSTEP_ASSERT_OK(done);
      EXPECT_THAT(values, ::testing::Each(1.5F)) << Name(algorithm);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(, PiecesTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "SharedMemory" : "Messages"; });

TEST(Pieces, NeighboursAreOnePiece) {
  std::vector<float> values(10);
  Pieces pieces(DType::kF32);
  pieces.AddPlain(values.data(), 4);
  pieces.AddPlain(values.data() + 4, 0);
  pieces.AddPlain(values.data() + 4, 6);
  EXPECT_EQ(pieces.contiguous(), values.data());
  EXPECT_EQ(pieces.bytes(), 40);
  pieces.AddPlain(values.data(), 1);
  EXPECT_EQ(pieces.contiguous(), nullptr);
  EXPECT_EQ(pieces.pieces(), 2);
  pieces.Clear();
  EXPECT_EQ(pieces.bytes(), 0);
}

TEST(Pieces, WhatIsWrittenCanBeReadAgain) {
  std::vector<double> memory(10);
  const auto keeps = [&](DType vector, DType tensor) {
    Pieces pieces(vector);
    LOCKSTEP_EXPECT_OK(pieces.Add(*TensorView::Vector(memory.data(), tensor, 10)));
    return pieces.keeps_values();
  };
  EXPECT_TRUE(keeps(DType::kF16, DType::kF16));
  EXPECT_TRUE(keeps(DType::kF16, DType::kF32));
  EXPECT_TRUE(keeps(DType::kBF16, DType::kF64));
  EXPECT_FALSE(keeps(DType::kBF16, DType::kF16));
  EXPECT_FALSE(keeps(DType::kF16, DType::kBF16));
  EXPECT_FALSE(keeps(DType::kF32, DType::kF16));
  EXPECT_TRUE(keeps(DType::kF8E4M3, DType::kF16));
  Pieces pieces(DType::kF32);
  pieces.AddNothing(3, /*of_all_ranks=*/true);
  EXPECT_TRUE(pieces.keeps_values());
  EXPECT_FALSE(pieces.plain());
  pieces.AddNothing(3, /*of_all_ranks=*/false);
  EXPECT_FALSE(pieces.keeps_values());
}

TEST(Pieces, Refusals) {
  std::vector<float> values(10);
  Pieces pieces(DType::kF32);
  EXPECT_THAT(pieces.Add(*TensorView::Vector(values.data(), DType::kI32, 10)),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(pieces.Add(*TensorView::Create(values.data(), DType::kF32, {10}, {}, DeviceId{DeviceKind::kCuda, 0})),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not memory of the host")));
  EXPECT_EQ(pieces.bytes(), 0);
}

}  // namespace
}  // namespace lockstep
