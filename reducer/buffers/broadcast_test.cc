#include "reducer/buffers/broadcast.h"

#include <string>
#include <vector>

#include "base/device/tensor_view.h"
#include "comm/host/self_communicator.h"
#include "reducer/plan/plan_testing.h"

namespace lockstep {
namespace testing {
namespace {

struct Layout {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
};

// Tensors with memory of their own, filled with bytes that tell the rank and the place.
class Tensors {
 public:
  Tensors(std::vector<Layout> layouts, int rank) {
    for (const Layout& layout : layouts) {
      int64_t extent = 1;
      for (size_t d = 0; d < layout.shape.size(); ++d) {
        extent *= layout.strides.empty() ? layout.shape[d] : 1;
        if (!layout.strides.empty()) extent += (layout.shape[d] - 1) * layout.strides[d];
      }
      memory_.push_back(Pattern(rank, memory_.size(), extent * SizeOf(layout.dtype)));
      views_.push_back(
          TensorView::Create(memory_.back().data(), layout.dtype, layout.shape, layout.strides, DeviceId()).value());
    }
  }

  const std::vector<TensorView>& views() const { return views_; }

  void ExpectFrom(int root) const {
    for (size_t i = 0; i < memory_.size(); ++i) {
      EXPECT_EQ(memory_[i], Pattern(root, i, memory_[i].size())) << views_[i].ToString();
    }
  }

 private:
  static std::vector<char> Pattern(int rank, size_t tensor, size_t bytes) {
    std::vector<char> pattern(bytes);
    for (size_t i = 0; i < bytes; ++i) pattern[i] = static_cast<char>(101 * rank + 31 * tensor + i % 251);
    return pattern;
  }

  std::vector<std::vector<char>> memory_;
  std::vector<TensorView> views_;
};

// Small ones, a large one in the middle that travels by itself, and things without elements.
std::vector<Layout> Mixed() {
  return {
      {DType::kF32, {3, 5}, {}},          {DType::kU8, {7}, {}},   {DType::kF32, {0}, {}},
      {DType::kF64, {600, 300}, {}},      {DType::kI64, {}, {}},   {DType::kBF16, {2, 3, 4, 5}, {60, 1, 15, 3}},
      {DType::kComplex64, {4, 0, 2}, {}}, {DType::kBool, {1}, {}}, {DType::kF16, {1000}, {}},
  };
}

TEST(Broadcast, OverwritesTheOtherRanksTensorsWithTheRoots) {
  for (int size = 2; size <= 4; ++size) {
    for (int root = 0; root < size; ++root) {
      RunWorld(size, [&](Communicator& communicator) {
        const Tensors tensors(Mixed(), communicator.rank().value());
        LOCKSTEP_EXPECT_OK(BroadcastCoalesced(communicator, tensors.views(), Rank(root)));
        tensors.ExpectFrom(root);
      });
    }
  }
}

TEST(Broadcast, OfOneRankChangesNothing) {
  SelfCommunicator communicator(16);
  const Tensors tensors(Mixed(), 0);
  LOCKSTEP_EXPECT_OK(BroadcastCoalesced(communicator, tensors.views(), Rank(0)));
  tensors.ExpectFrom(0);
}

TEST(Broadcast, OfNothingIsNothing) {
  RunWorld(2, [&](Communicator& communicator) {
    LOCKSTEP_EXPECT_OK(BroadcastCoalesced(communicator, {}, Rank(1)));
    const Tensors tensors({{DType::kF32, {0}, {}}, {DType::kF32, {3, 0}, {}}}, communicator.rank().value());
    LOCKSTEP_EXPECT_OK(BroadcastCoalesced(communicator, tensors.views(), Rank(1)));
  });
}

// Runs a broadcast whose last rank has something of its own, and another afterwards that must be right. The results, by rank.
std::vector<absl::Status> BroadcastWithOddRank(int size, const std::vector<Layout>& layouts, Rank root,
                                               const std::vector<Layout>& odd_layouts, Rank odd_root) {
  LoopbackWorld world(size, {}, ShortTimeout());
  std::vector<absl::Status> results(size);
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    const bool odd = rank == size - 1;
    const Tensors tensors(odd ? odd_layouts : layouts, rank);
    results[rank] = BroadcastCoalesced(communicator, tensors.views(), odd ? odd_root : root);
    tensors.ExpectFrom(rank);
    const Tensors next({{DType::kF32, {10}, {}}}, rank);
    LOCKSTEP_EXPECT_OK(BroadcastCoalesced(communicator, next.views(), Rank(1)));
    next.ExpectFrom(1);
  });
  return results;
}

TEST(Broadcast, RefusesATensorWithGapsOnItsRankAndTellsTheOthers) {
  const std::vector<Layout> good = {{DType::kF32, {2}, {}}, {DType::kF32, {2, 3}, {}}};
  const std::vector<Layout> gaps = {{DType::kF32, {2}, {}}, {DType::kF32, {2, 3}, {8, 1}}};
  const std::vector<absl::Status> results = BroadcastWithOddRank(3, good, Rank(0), gaps, Rank(0));
  EXPECT_THAT(results[2],
              InvalidArgument("broadcast: tensor 1 f32[2, 3] strides [8, 1]", "is not dense memory on the host"));
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(results[rank], FailedPrecondition("rank 2 cannot take part: broadcast: tensor 1 f32[2, 3]"));
  }
}

TEST(Broadcast, RefusesARootThatIsNoRank) {
  for (const int root : {-1, 2, 1000}) {
    RunWorld(2, [&](Communicator& communicator) {
      const Tensors tensors({{DType::kF32, {4}, {}}}, communicator.rank().value());
      EXPECT_THAT(BroadcastCoalesced(communicator, tensors.views(), Rank(root)),
                  InvalidArgument("is not a rank of a world of 2"));
      tensors.ExpectFrom(communicator.rank().value());
      LOCKSTEP_EXPECT_OK(BroadcastCoalesced(communicator, tensors.views(), Rank(1)));
      tensors.ExpectFrom(1);
    });
  }
}

TEST(Broadcast, TellsEveryRankHowItsArgumentsDifferAndWritesNothing) {
  const std::vector<Layout> layouts = {{DType::kF32, {2, 3}, {}}, {DType::kF32, {4}, {}}};
  const struct {
    std::vector<Layout> odd;
    Rank odd_root;
    const char* says;
  } cases[] = {
      {{{DType::kF32, {2, 3}, {}}}, Rank(0), "rank 0 has 2 parameters and rank 2 has 1"},
      {{}, Rank(0), "rank 0 has 2 parameters and rank 2 has 0"},
      {{layouts[0], {DType::kI32, {4}, {}}}, Rank(0), "differs: f32 on rank 0, i32 on rank 2"},
      {{layouts[0], {DType::kF32, {5}, {}}}, Rank(0), "differs: [4] on rank 0, [5] on rank 2"},
      // Equal in bytes: the copy would transpose it.
      {{{DType::kF32, {2, 3}, {1, 2}}, layouts[1]}, Rank(0), "row-major on rank 0, strides [1, 2] on rank 2"},
      {layouts, Rank(1), "the options differ: root of the broadcast: 0 on ranks 0-1, 1 on rank 2"},
  };
  for (const auto& bad : cases) {
    EXPECT_THAT(BroadcastWithOddRank(3, layouts, Rank(0), bad.odd, bad.odd_root), Each(FailedPrecondition(bad.says)));
  }
}

TEST(Broadcast, EndsWithAnErrorWhenARankIsGone) {
  LoopbackWorld world(3, {}, ShortTimeout());
  world.network().Disconnect(Rank(1));
  RunRanks(3, [&](int rank) {
    if (rank == 1) return;
    const Tensors tensors({{DType::kF32, {4}, {}}}, rank);
    EXPECT_FALSE(BroadcastCoalesced(*world.communicator(rank), tensors.views(), Rank(0)).ok());
  });
}

}  // namespace
}  // namespace testing
}  // namespace lockstep
