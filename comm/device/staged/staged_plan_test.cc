#include "comm/device/staged/staged_plan.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "comm/plan/call_plan.h"
#include "comm/schedule/schedule.h"
#include "gtest/gtest.h"
#include "tests/communicator_testing.h"

namespace lockstep {
namespace {

constexpr Collective kMoving[] = {Collective::kAllReduce, Collective::kBroadcast,     Collective::kReduce,
                                  Collective::kAllGather, Collective::kReduceScatter, Collective::kGather,
                                  Collective::kScatter,   Collective::kAllToAll};

CollectiveCase CaseOf(Collective collective, size_t count, bool unequal, int size) {
  CollectiveCase c;
  c.collective = collective;
  c.count = count;
  c.unequal = unequal;
  c.root = size - 1;
  return c;
}

// How often each byte of a buffer is copied.
std::vector<int> Covered(size_t bytes) { return std::vector<int>(bytes, 0); }
void Cover(const std::vector<StagedCopy>& copies, size_t slot_bytes, std::vector<int>* covered) {
  for (const StagedCopy& copy : copies) {
    ASSERT_GT(copy.bytes, 0u);
    ASSERT_LE(copy.slot_offset + copy.bytes, slot_bytes);
    ASSERT_LE(copy.device_offset + copy.bytes, covered->size());
    for (size_t i = 0; i < copy.bytes; ++i) ++(*covered)[copy.device_offset + i];
  }
}
bool AllOnce(const std::vector<int>& covered) {
  return std::all_of(covered.begin(), covered.end(), [](int times) { return times == 1; });
}

// The pieces of all ranks are collectives that fit together, and what they move is every byte once.
TEST(StagedPlan, PiecesCoverEveryBufferOnceForAnyWorldCountAndSlot) {
  for (const Collective collective : kMoving) {
    for (int size = 1; size <= 6; ++size) {
      for (const size_t count : {0, 1, 5, 64, 100, 700}) {
        for (const bool unequal : {false, true}) {
          for (const size_t slot_bytes : {StagedPlan::SlotBytesMin(size), size_t{1000}, size_t{1} << 20}) {
            if (unequal && !IsByRank(collective)) continue;
            const CollectiveCase c = CaseOf(collective, count, unequal, size);
            SCOPED_TRACE(absl::StrCat(ToString(c), ", ", size, " ranks, slots of ", slot_bytes));
            const CaseReference reference(c, size);
            std::vector<char> slot(slot_bytes);
            size_t pieces = 0;
            std::vector<StagedPlan> plans;
            for (int rank = 0; rank < size; ++rank) {
              const CaseRun run(reference, Rank(rank));
              plans.emplace_back(run.request(), Rank(rank), size, slot_bytes);
              pieces = std::max(pieces, plans.back().pieces());
              EXPECT_EQ(plans[rank].ranks_know_pieces(), collective != Collective::kAllToAll || !unequal);
              if (plans[rank].ranks_know_pieces()) {
                EXPECT_EQ(plans[rank].pieces(), plans[0].pieces());
              }
            }
            std::vector<std::vector<int64_t>> sent(size), received(size);
            for (int rank = 0; rank < size; ++rank) {
              const bool at_root = rank == c.root;
              const bool from_root = collective == Collective::kBroadcast || collective == Collective::kScatter;
              const bool to_root = collective == Collective::kReduce || collective == Collective::kGather;
              std::vector<int> in = Covered(from_root && !at_root ? 0 : reference.input(rank).size());
              std::vector<int> out = Covered(to_root && !at_root ? 0 : reference.expected(rank).size());
              for (size_t i = 0; i < pieces; ++i) {
                StagedPiece piece;
                plans[rank].MakePiece(i, slot.data(), &piece);
                Cover(piece.in, slot_bytes, &in);
                Cover(piece.out, slot_bytes, &out);
                EXPECT_THAT(CheckRequest(piece.request, Rank(rank), size), IsOk());
                EXPECT_EQ(piece.request.device, DeviceId());
                sent[rank].insert(sent[rank].end(), piece.counts.begin(), piece.counts.end());
                received[rank].insert(received[rank].end(), piece.output_counts.begin(), piece.output_counts.end());
              }
              EXPECT_TRUE(AllOnce(in)) << "rank " << rank;
              EXPECT_TRUE(AllOnce(out)) << "rank " << rank;
            }
            // What one rank sends to another in a piece is what that expects in it.
            const size_t blocks = IsByRank(collective) ? size : 1;
            for (int rank = 0; rank < size; ++rank) {
              for (size_t at = 0; at < sent[rank].size(); ++at) {
                if (collective == Collective::kAllToAll) {
                  const size_t other = at % blocks;
                  EXPECT_EQ(sent[rank][at], received[other][at - other + rank]);
                } else {
                  EXPECT_EQ(sent[rank][at], sent[0][at]);
                }
              }
            }
          }
        }
      }
    }
  }
}

TEST(StagedPlan, ABarrierIsOnePieceOfNothing) {
  CollectiveRequest request;
  request.count = 12345;  // which a barrier has no use for
  const StagedPlan plan(request, Rank(1), 3, 1000);
  EXPECT_EQ(plan.pieces(), 1u);
  StagedPiece piece;
  char slot[1000];
  plan.MakePiece(0, slot, &piece);
  EXPECT_TRUE(piece.in.empty());
  EXPECT_TRUE(piece.out.empty());
}

TEST(StagedPlan, PiecesOfLongVectorsBeginAtCacheLines) {
  CollectiveRequest request;
  request.collective = Collective::kAllReduce;
  request.dtype = DType::kU8;
  request.count = 1'000'000;
  const StagedPlan plan(request, Rank(0), 2, 100'001);
  StagedPiece piece;
  std::vector<char> slot(100'001);
  for (size_t i = 0; i < plan.pieces(); ++i) {
    plan.MakePiece(i, slot.data(), &piece);
    ASSERT_EQ(piece.in.size(), 1u);
    EXPECT_EQ(piece.in[0].device_offset % 64, 0u);
  }
}

}  // namespace
}  // namespace lockstep
