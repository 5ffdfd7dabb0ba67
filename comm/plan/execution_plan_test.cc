// Where shared-memory plans lay a step's operands, in all ranks' windows: schedules are carried out on real memory, rank after
// rank from barrier to barrier, with blocks of all sizes. Plans of messages are tested with their executor.

#include "comm/plan/execution_plan.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "comm/plan/prepared_schedule.h"
#include "comm/schedule/block_layout.h"
#include "comm/schedule/schedule.h"
#include "comm/schedule/stage.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::ElementsAreArray;

using Element = int64_t;

void Add(void* const* targets, size_t target_count, const void* const* sources, size_t source_count, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    Element sum = 0;
    for (size_t k = 0; k < source_count; ++k) sum += static_cast<const Element*>(sources[k])[i];
    for (size_t t = 0; t < target_count; ++t) static_cast<Element*>(targets[t])[i] = sum;
  }
}

// All ranks of one collective. Buffers are as large as they have to be, and outputs hold -1 before.
class World {
 public:
  World(Collective collective, Algorithm algorithm, BlockLayout layout, int size, int root, bool in_place)
      : collective_(collective), layout_(std::move(layout)), root_(root), in_place_(in_place), ranks_(size) {
    for (int rank = 0; rank < size; ++rank) Make(rank, algorithm);
  }

  void Run() {
    while (true) {
      for (size_t rank = 0; rank < ranks_.size(); ++rank) RunToBarrier(static_cast<int>(rank));
      if (ranks_[0].at == ranks_[0].plan->schedule().steps()) return;
      Barrier();
    }
  }
  // Empty where the rank has no output.
  std::vector<Element> Output(int rank) const {
    const Buffer& output = ranks_[rank].windows[static_cast<int>(Window::kOutput)];
    return std::vector<Element>(output.begin, output.begin + output.count);
  }
  std::vector<Element> Expected(int rank) const {
    std::vector<Element> expected;
    for (int64_t i = Begin(rank, Window::kOutput); i < End(rank, Window::kOutput); ++i) {
      expected.push_back(ExpectedAt(rank, i));
    }
    return expected;
  }

 private:
  struct Buffer {
    Element* begin = nullptr;
    int64_t count = 0;
  };
  struct Rank {
    std::unique_ptr<const ExecutionPlan> plan;
    std::vector<Element> memory[3];
    Buffer windows[3];
    int at = 0;
  };

  // What rank r gives to element i of the vector, or has there.
  static Element Value(int rank, int64_t i) { return 1000 * (rank + 1) + i; }

  bool Has(int rank, Window window) const {
    const bool at_root = window == Window::kInput
                             ? collective_ == Collective::kBroadcast || collective_ == Collective::kScatter
                             : collective_ == Collective::kReduce || collective_ == Collective::kGather;
    return !at_root || rank == root_;
  }
  int64_t Begin(int rank, Window window) const {
    return Has(rank, window) && IsOwnBlock(collective_, window) ? layout_.Offset(rank) : 0;
  }
  int64_t End(int rank, Window window) const {
    if (!Has(rank, window)) return 0;
    return IsOwnBlock(collective_, window) ? layout_.Offset(rank + 1) : layout_.count();
  }
  Element ExpectedAt(int rank, int64_t i) const {
    int block = 0;
    while (layout_.Offset(block + 1) <= i) ++block;
    switch (collective_) {
      case Collective::kBroadcast:
      case Collective::kScatter:
        return Value(root_, i);
      case Collective::kAllGather:
      case Collective::kGather:
        return Value(block, i);
      case Collective::kAllToAll:
        return Value(block, layout_.Offset(rank) + i - layout_.Offset(block));
      case Collective::kAllReduce:
      case Collective::kReduce:
      case Collective::kReduceScatter:
      case Collective::kBarrier:
        break;
    }
    Element sum = 0;
    for (size_t r = 0; r < ranks_.size(); ++r) sum += Value(static_cast<int>(r), i);
    return sum;
  }

  void Make(int rank, Algorithm algorithm) {
    const int size = static_cast<int>(ranks_.size());
    auto schedule = BuildSchedule(collective_, algorithm, lockstep::Rank(rank), size, lockstep::Rank(root_));
    LOCKSTEP_ASSERT_OK(schedule);
    ExecutionPlan::Options options;
    options.schedule = std::make_shared<const PreparedSchedule>(*std::move(schedule));
    options.input = options.output = layout_;
    options.element_bytes = sizeof(Element);
    options.chunk_bytes = 1 << 20;
    options.reduce_many = &Add;
    Rank& made = ranks_[rank];
    made.plan = std::make_unique<const ExecutionPlan>(std::move(options));
    const int64_t scratch = static_cast<int64_t>(made.plan->scratch_bytes() / sizeof(Element));
    for (const Window window : {Window::kInput, Window::kOutput, Window::kScratch}) {
      const int64_t count = window == Window::kScratch ? scratch : End(rank, window) - Begin(rank, window);
      std::vector<Element>& memory = made.memory[static_cast<int>(window)];
      memory.assign(count, -1);
      made.windows[static_cast<int>(window)] = {memory.data(), count};
    }
    Buffer& input = made.windows[static_cast<int>(Window::kInput)];
    Buffer& output = made.windows[static_cast<int>(Window::kOutput)];
    if (in_place_ && Has(rank, Window::kInput) && Has(rank, Window::kOutput)) {
      Buffer& larger = IsOwnBlock(collective_, Window::kOutput) ? input : output;
      Buffer& other = &larger == &input ? output : input;
      other.begin = larger.begin + (other.count < larger.count ? layout_.Offset(rank) : 0);
    }
    for (int64_t i = 0; i < input.count; ++i) input.begin[i] = Value(rank, Begin(rank, Window::kInput) + i);
  }

  Element* Address(int rank, const Operand& operand, size_t offset, int64_t elements) {
    const int owner = operand.rank == Operand::kOwn ? rank : operand.rank;
    const Buffer& buffer = ranks_[owner].windows[static_cast<int>(operand.window)];
    const int64_t begin = static_cast<int64_t>(offset / sizeof(Element));
    EXPECT_TRUE(begin >= 0 && begin + elements <= buffer.count) << "element " << begin << " of rank " << owner;
    return buffer.begin + begin;
  }

  void RunToBarrier(int rank) {
    Rank& own = ranks_[rank];
    for (; own.at < own.plan->schedule().steps(); ++own.at) {
      const Step& step = own.plan->schedule().step(own.at);
      const ExecutionPlan::StepLayout& layout = own.plan->step(own.at);
      if (step.kind == Step::Kind::kBarrier || step.kind == Step::Kind::kShare) return;
      std::vector<void*> targets = {Address(rank, step.target, layout.target_offset, layout.elements)};
      if (step.kind == Step::Kind::kCopy) {
        const Element* const source = Address(rank, step.source, layout.source_offset, layout.elements);
        if (layout.elements > 0) std::memmove(targets[0], source, layout.elements * sizeof(Element));
        continue;
      }
      ASSERT_EQ(step.kind, Step::Kind::kReduceMany);
      for (size_t k = 0; k < step.more_targets.size(); ++k) {
        targets.push_back(Address(rank, step.more_targets[k], layout.more_target_offsets[k], layout.elements));
      }
      std::vector<const void*> terms;
      for (size_t k = 0; k < step.terms.size(); ++k) {
        terms.push_back(Address(rank, step.terms[k], layout.term_offsets[k], layout.elements));
      }
      own.plan->ReduceMany(targets.data(), targets.size(), terms.data(), terms.size(), layout.elements);
    }
  }

  void Barrier() {
    for (size_t giver = 0; giver < ranks_.size(); ++giver) {
      const Rank& from = ranks_[giver];
      const Step& given = from.plan->schedule().step(from.at);
      if (given.kind != Step::Kind::kShare || given.source.blocks == 0) continue;
      const ExecutionPlan::StepLayout& layout = from.plan->step(from.at);
      const auto rank = static_cast<int>(giver);
      const Element* const source = Address(rank, given.source, layout.source_offset, layout.elements);
      ASSERT_LE(layout.elements * sizeof(Element), kShareBytesMax);
      for (size_t taker = 0; taker < ranks_.size(); ++taker) {
        const Rank& to = ranks_[taker];
        const size_t offset = to.plan->step(to.at).target_offset + giver * to.plan->scratch_block_bytes();
        Element* const target =
            Address(static_cast<int>(taker), to.plan->schedule().step(to.at).target, offset, layout.elements);
        if (layout.elements > 0) std::memcpy(target, source, layout.elements * sizeof(Element));
      }
    }
    for (Rank& rank : ranks_) ++rank.at;
  }

  const Collective collective_;
  const BlockLayout layout_;
  const int root_;
  const bool in_place_;
  std::vector<Rank> ranks_;
};

// Every collective that the algorithm carries out, with every root. `counts` is of the blocks by rank: the first `size`.
void ExpectRight(Algorithm algorithm, absl::Span<const int64_t> counts, bool in_place) {
  const int size = static_cast<int>(counts.size());
  for (int index = 0; index < kCollectiveCount; ++index) {
    const auto collective = static_cast<Collective>(index);
    const auto schedule = BuildSchedule(collective, algorithm, Rank(0), size, Rank(0));
    if (!schedule.ok() || collective == Collective::kBarrier) continue;
    const bool is_all_to_all = collective == Collective::kAllToAll;
    if (is_all_to_all && in_place) continue;
    const int64_t count =
        algorithm == Algorithm::kInline ? 3 : std::accumulate(counts.begin(), counts.end(), int64_t{0});
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(
        BlockLayout layout, is_all_to_all          ? BlockLayout::Equal(counts[0], sizeof(Element), size)
                            : IsByRank(collective) ? BlockLayout::Explicit(counts, sizeof(Element))
                                                   : BlockLayout::Split(count, sizeof(Element), schedule->blocks));
    for (int root = 0; root < (HasRoot(collective) ? size : 1); ++root) {
      SCOPED_TRACE(Name(algorithm) + " " + Name(collective) + ", " + std::to_string(size) + " ranks, root " +
                   std::to_string(root) + (in_place ? ", in place" : ""));
      World world(collective, algorithm, layout, size, root, in_place);
      world.Run();
      for (int rank = 0; rank < size; ++rank) {
        EXPECT_THAT(world.Output(rank), ElementsAreArray(world.Expected(rank))) << "rank " << rank;
      }
    }
  }
}

TEST(ExecutionPlanInSharedMemory, FindsBlocksInTheWindowsOfAllRanks) {
  const std::vector<int64_t> counts = {3, 0, 40, 1, 2, 17};
  for (const bool in_place : {false, true}) {
    for (size_t size = 1; size <= counts.size(); ++size) {
      ExpectRight(Algorithm::kDirect, absl::MakeConstSpan(counts).first(size), in_place);
    }
  }
}

TEST(ExecutionPlanInSharedMemory, GoesInRoundsOverAStage) {
  const auto plan_of = [](Algorithm algorithm, int64_t count) {
    ExecutionPlan::Options options;
    const auto schedule = BuildSchedule(Collective::kAllReduce, algorithm, Rank(1), 4, Rank(0));
    LOCKSTEP_EXPECT_OK(schedule);
    options.schedule = std::make_shared<const PreparedSchedule>(*schedule);
    const auto layout = BlockLayout::Split(count, sizeof(double), schedule->blocks);
    LOCKSTEP_EXPECT_OK(layout);
    options.input = options.output = *layout;
    options.element_bytes = sizeof(double);
    return ExecutionPlan(std::move(options));
  };
  const int64_t piece = StagePieceBytes(4) / sizeof(double);
  EXPECT_EQ(plan_of(Algorithm::kStagedTwoShot, 4 * piece).piece_elements(), piece);
  EXPECT_EQ(plan_of(Algorithm::kStagedTwoShot, 0).rounds(), 1);
  EXPECT_EQ(plan_of(Algorithm::kStagedTwoShot, 4 * piece).rounds(), 1);
  EXPECT_EQ(plan_of(Algorithm::kStagedTwoShot, 4 * piece + 1).rounds(), 2);
  EXPECT_EQ(plan_of(Algorithm::kStagedTwoShot, 400 * piece).rounds(), 100);
  const ExecutionPlan plan = plan_of(Algorithm::kStagedTwoShot, 400 * piece);
  EXPECT_EQ(plan.scratch_bytes(), 0) << "the stage is not the rank's own";
  EXPECT_EQ(plan.step(0).target_offset, 2 * piece * sizeof(double)) << "block 2 of a slot";
  EXPECT_EQ(plan.step(0).source_offset, 200 * piece * sizeof(double));
  EXPECT_EQ(plan_of(Algorithm::kDirect, 400 * piece).rounds(), 1);
}

TEST(ExecutionPlanInSharedMemory, FindsWhatIsSharedInScratch) {
  const std::vector<int64_t> counts = {2, 0, 3, 1, 3, 2};
  for (const bool in_place : {false, true}) {
    for (size_t size = 1; size <= counts.size(); ++size) {
      ExpectRight(Algorithm::kInline, absl::MakeConstSpan(counts).first(size), in_place);
    }
  }
}

}  // namespace
}  // namespace lockstep
