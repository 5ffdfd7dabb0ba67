// Plans of pieces in slots on devices, carried out in plain memory: every collective, with equal and unequal blocks, by 1 to
// 64 ranks, cut small. Messages of a round must pair up, lie in the slots or in what is spare behind them, and not touch
// what another one of the round reads or writes.

#include "comm/fabric_plan.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "base/rank.h"
#include "base/reduce_op.h"
#include "base/status_matchers.h"
#include "comm/communicator.h"
#include "comm/schedule.h"
#include "comm/staged_plan.h"
#include "gtest/gtest.h"
#include "tests/communicator_testing.h"

namespace lockstep {
namespace {

struct RankState {
  RankState(const CaseReference& reference, int rank, size_t slot_bytes)
      : run(reference, Rank(rank)),
        slot(slot_bytes + FabricSpareBytes(slot_bytes, reference.size())),
        plan(run.request(), Rank(rank), reference.size(), slot_bytes) {}

  CaseRun run;
  std::vector<char> slot;
  StagedPlan plan;
  StagedPiece piece;
  FabricPlan fabric;
};

using Range = std::pair<const char*, const char*>;

// Written ones against all others.
void ExpectApart(const std::vector<Range>& written, const std::vector<Range>& read) {
  for (size_t i = 0; i < written.size(); ++i) {
    const auto overlaps = [&](const Range& other) {
      return written[i].first < other.second && other.first < written[i].second;
    };
    EXPECT_TRUE(std::none_of(written.begin() + static_cast<ptrdiff_t>(i) + 1, written.end(), overlaps));
    EXPECT_TRUE(std::none_of(read.begin(), read.end(), overlaps));
  }
}

using Round = std::vector<FabricMessage> FabricPlan::*;

void CarryOut(std::vector<RankState>* ranks, Round sends, Round receives) {
  std::map<std::pair<int, int>, const FabricMessage*> sent;  // by source and target
  for (size_t r = 0; r < ranks->size(); ++r) {
    const RankState& self = (*ranks)[r];
    std::vector<Range> read, written;
    for (const FabricMessage& message : self.fabric.*sends) {
      EXPECT_TRUE(sent.emplace(std::make_pair(r, message.peer), &message).second) << "two to one rank";
      read.emplace_back(message.data, message.data + message.bytes);
    }
    for (const FabricMessage& message : self.fabric.*receives) {
      written.emplace_back(message.data, message.data + message.bytes);
    }
    for (const std::vector<Range>* ranges : {&read, &written}) {
      for (const auto& [begin, end] : *ranges) {
        EXPECT_TRUE(begin >= self.slot.data() && end <= self.slot.data() + self.slot.size());
      }
    }
    ExpectApart(written, read);
  }
  size_t received = 0;
  for (size_t r = 0; r < ranks->size(); ++r) {
    for (const FabricMessage& message : (*ranks)[r].fabric.*receives) {
      const auto found = sent.find({message.peer, static_cast<int>(r)});
      ASSERT_TRUE(found != sent.end()) << "rank " << message.peer << " does not send to rank " << r;
      ASSERT_EQ(found->second->bytes, message.bytes);
      if (message.bytes > 0) std::memcpy(message.data, found->second->data, message.bytes);
      ++received;
    }
  }
  EXPECT_EQ(received, sent.size());
}

// Sums of integers wrap round.
void Fold(const FabricPlan& plan) {
  if (plan.operands.empty() || plan.count == 0) return;
  std::vector<uint64_t> sum(plan.count);
  for (const void* const operand : plan.operands) {
    const auto* const values = static_cast<const uint64_t*>(operand);
    for (size_t i = 0; i < plan.count; ++i) sum[i] += values[i];
  }
  std::memcpy(plan.target, sum.data(), plan.count * sizeof(uint64_t));
}

void CarryOut(const CollectiveCase& c, int size, size_t slot_bytes) {
  SCOPED_TRACE(absl::StrCat(ToString(c), ", ", size, " ranks, slots of ", slot_bytes, " bytes"));
  const CaseReference reference(c, size);
  std::vector<RankState> ranks;
  ranks.reserve(size);
  for (int r = 0; r < size; ++r) ranks.emplace_back(reference, r, slot_bytes);
  size_t pieces = 0;
  for (const RankState& rank : ranks) pieces = std::max(pieces, rank.plan.pieces());
  for (size_t index = 0; index < pieces; ++index) {
    for (int r = 0; r < size; ++r) {
      RankState& self = ranks[r];
      char* const slot = self.slot.data();
      self.plan.MakePiece(index, slot, &self.piece);
      for (const StagedCopy& copy : self.piece.in) {
        const auto* const input = static_cast<const char*>(self.run.request().input);
        std::memcpy(slot + copy.slot_offset, input + copy.device_offset, copy.bytes);
      }
      ASSERT_THAT(MakeFabricPlan(self.piece.request, r, size, slot, slot + slot_bytes, &self.fabric), IsOk());
      if (self.fabric.own_bytes > 0) {
        std::memcpy(self.fabric.own_target, self.fabric.own_source, self.fabric.own_bytes);
      }
    }
    CarryOut(&ranks, &FabricPlan::sends, &FabricPlan::receives);
    for (const RankState& self : ranks) Fold(self.fabric);
    CarryOut(&ranks, &FabricPlan::second_sends, &FabricPlan::second_receives);
    for (const RankState& self : ranks) {
      for (const StagedCopy& copy : self.piece.out) {
        auto* const output = static_cast<char*>(self.run.request().output);
        std::memcpy(output + copy.device_offset, self.slot.data() + copy.slot_offset, copy.bytes);
      }
    }
  }
  for (int r = 0; r < size; ++r) EXPECT_EQ(ranks[r].run.Check(), "") << "rank " << r;
}

class FabricPlanTest : public ::testing::TestWithParam<Collective> {};

TEST_P(FabricPlanTest, BringsEveryRankWhatItIsToHave) {
  for (int size = 1; size <= 64; size += size < 18 ? 1 : 9) {
    for (const bool unequal : {false, true}) {
      if (unequal && !IsByRank(GetParam())) continue;
      for (const size_t slot_bytes : {StagedPlan::SlotBytesMin(64), size_t{1} << 20}) {
        CollectiveCase c;
        c.collective = GetParam();
        c.dtype = DType::kI64;
        c.root = size / 2;
        c.unequal = unequal;
        c.count = IsByRank(GetParam()) ? 37 : 1000;
        CarryOut(c, size, slot_bytes);
        c.count = IsByRank(GetParam()) ? 0 : 5;  // less than there are ranks
        CarryOut(c, size, slot_bytes);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Of, FabricPlanTest, ::testing::ValuesIn(kAllCollectives),
                         [](const auto& info) { return Name(info.param); });

}  // namespace
}  // namespace lockstep
