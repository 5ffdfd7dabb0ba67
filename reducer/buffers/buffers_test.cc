// How tensors are brought from one rank to all: by BroadcastCoalesced, in place, and by a BufferSet, in fresh memory or in place.

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/device/tensor_view.h"
#include "comm/host/self_communicator.h"
#include "reducer/buffers/broadcast.h"
#include "reducer/buffers/buffers.h"
#include "reducer/plan/plan_testing.h"

namespace lockstep::testing {
namespace {

struct Layout {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
};

// Tensors on the host with memory of their own, full of bytes that tell rank, step, tensor and place.
class Tensors {
 public:
  Tensors(const std::vector<Layout>& layouts, int rank, int step = 0) {
    for (const Layout& layout : layouts) {
      // Nothing behind the last element.
      int64_t extent = 1;
      for (size_t d = 0; d < layout.shape.size(); ++d) {
        extent *= layout.strides.empty() ? layout.shape[d] : 1;
        if (!layout.strides.empty()) extent += (layout.shape[d] - 1) * layout.strides[d];
      }
      memory_.push_back(Bytes(rank, step, memory_.size(), extent * SizeOf(layout.dtype)));
      views_.push_back(
          TensorView::Create(memory_.back().data(), layout.dtype, layout.shape, layout.strides, DeviceId()).value());
    }
  }

  const std::vector<TensorView>& views() const { return views_; }

  // EXPECTs that the views hold what the rank had at this step.
  static void ExpectFrom(int rank, int step, absl::Span<const TensorView> views) {
    for (size_t i = 0; i < views.size(); ++i) {
      const std::vector<char> expected = Bytes(rank, step, i, views[i].bytes());
      EXPECT_TRUE(expected.empty() || std::memcmp(expected.data(), views[i].data(), expected.size()) == 0)
          << "tensor " << i << " " << views[i].ToString();
    }
  }
  void ExpectFrom(int rank) const { ExpectFrom(rank, 0, views_); }

 private:
  static std::vector<char> Bytes(int rank, int step, size_t tensor, size_t bytes) {
    std::vector<char> pattern(bytes);
    for (size_t i = 0; i < bytes; ++i) {
      pattern[i] = static_cast<char>(101 * rank + 57 * step + 31 * tensor + i % 251);
    }
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

// A running mean and variance, a count, something channels-last, and things without elements.
std::vector<Layout> Usual() {
  return {
      {DType::kF32, {65}, {}}, {DType::kF32, {65}, {}},
      {DType::kI64, {}, {}},   {DType::kBF16, {2, 3, 4, 5}, {60, 1, 15, 3}},
      {DType::kF32, {0}, {}},  {DType::kBool, {3}, {}},
  };
}

TEST(BufferSet, HandsTheRootsBuffersToEveryRankInFreshMemory) {
  for (int size = 2; size <= 4; ++size) {
    RunWorld(size, [&](Communicator& communicator) {
      const int rank = communicator.rank().value();
      const Tensors buffers(Usual(), rank);
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto set,
                                    BufferSet::Create(&communicator, absl::OkStatus(), buffers.views()));
      for (int root = 0; root < size; ++root) {
        LOCKSTEP_ASSERT_OK_AND_ASSIGN(const FreshBuffers fresh,
                                      set->Broadcast(absl::OkStatus(), buffers.views(), Rank(root)));
        ASSERT_EQ(fresh.views().size(), buffers.views().size());
        Tensors::ExpectFrom(root, 0, fresh.views());
        Tensors::ExpectFrom(rank, 0, buffers.views());
        for (size_t i = 0; i < fresh.views().size(); ++i) {
          EXPECT_EQ(fresh.views()[i].ToString(), buffers.views()[i].ToString());
          EXPECT_EQ(reinterpret_cast<uintptr_t>(fresh.views()[i].data()) % 256, 0) << "tensor " << i;
          // What lies before the next one was sent too.
          const char* at = static_cast<const char*>(fresh.views()[i].data()) + fresh.views()[i].bytes();
          while (i + 1 < fresh.views().size() && at < fresh.views()[i + 1].data()) EXPECT_EQ(*at++, 0);
        }
      }
    });
  }
}

// Two forward passes before the first backward pass: what the first one saw stays.
TEST(BufferSet, LeavesWhatItHandedOutBefore) {
  RunWorld(2, [&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto set,
                                  BufferSet::Create(&communicator, absl::OkStatus(), Tensors(Usual(), rank).views()));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(FreshBuffers first,
                                  set->Broadcast(absl::OkStatus(), Tensors(Usual(), rank, 1).views(), Rank(0)));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const FreshBuffers second,
                                  set->Broadcast(absl::OkStatus(), Tensors(Usual(), rank, 2).views(), Rank(1)));
    set.reset();
    const FreshBuffers moved = std::move(first);
    Tensors::ExpectFrom(0, 1, moved.views());
    Tensors::ExpectFrom(1, 2, second.views());
  });
}

TEST(BufferSet, OfNothingIsNothing) {
  RunWorld(2, [&](Communicator& communicator) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto set, BufferSet::Create(&communicator, absl::OkStatus(), {}));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const FreshBuffers fresh, set->Broadcast(absl::OkStatus(), {}, Rank(1)));
    EXPECT_TRUE(fresh.views().empty());
    LOCKSTEP_EXPECT_OK(set->BroadcastInPlace(absl::OkStatus(), {}, Rank(1)));
  });
}

TEST(BufferSet, TellsTheOthersWhyARankCannotTakePart) {
  RunWorld(2, [&](Communicator& communicator) {
    const bool odd = communicator.rank() == Rank(0);
    const absl::Status local = odd ? absl::InvalidArgumentError("data is NULL") : absl::OkStatus();
    const absl::Status result = BufferSet::Create(&communicator, local, {}).status();
    if (odd) {
      EXPECT_EQ(result, local);
    } else {
      EXPECT_THAT(result, FailedPrecondition("rank 0 cannot take part: data is NULL"));
    }
  });
}

// A rank with other buffers than it agreed on, as a root and not, in place and not; then a good broadcast.
TEST(BufferSet, FailsOnTheRankWhoseBuffersChangedAndOnTheOthersIfItIsTheRoot) {
  const std::vector<Layout> agreed = {{DType::kF32, {4}, {}}, {DType::kF32, {2, 3}, {}}};
  const struct {
    std::vector<Layout> changed;
    const char* says;
  } cases[] = {
      {{agreed[0]}, "there are 1, and 2 were agreed on"},
      {{agreed[0], {DType::kF32, {3, 2}, {}}}, "tensor 1 is f32[3, 2] on host, and f32[2, 3] on host was agreed on"},
      {{{DType::kI32, {4}, {}}, agreed[1]}, "tensor 0 is i32[4] on host, and f32[4] on host was agreed on"},
      {{agreed[0], {DType::kF32, {2, 3}, {1, 2}}}, "tensor 1 is f32[2, 3] strides [1, 2] on host"},
  };
  constexpr int kOdd = 1;
  for (const auto& bad : cases) {
    for (int root = 0; root < 3; ++root) {
      for (const bool in_place : {false, true}) {
        RunWorld(3, [&](Communicator& communicator) {
          const int rank = communicator.rank().value();
          const Tensors good(agreed, rank);
          const Tensors changed(bad.changed, rank);
          LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto set,
                                        BufferSet::Create(&communicator, absl::OkStatus(), good.views()));
          const Tensors& given = rank == kOdd ? changed : good;
          const absl::Status result = in_place ? set->BroadcastInPlace(absl::OkStatus(), given.views(), Rank(root))
                                               : set->Broadcast(absl::OkStatus(), given.views(), Rank(root)).status();
          if (rank == kOdd) {
            EXPECT_THAT(result, InvalidArgument("buffers: ", bad.says));
          } else if (root == kOdd) {
            EXPECT_THAT(result, FailedPrecondition("rank 1, the root"));
          } else {
            LOCKSTEP_EXPECT_OK(result);
          }
          const bool written = in_place && rank != kOdd && root != kOdd;
          Tensors::ExpectFrom(written ? root : rank, 0, given.views());
          LOCKSTEP_ASSERT_OK_AND_ASSIGN(const FreshBuffers fresh,
                                        set->Broadcast(absl::OkStatus(), Tensors(agreed, rank, 5).views(), Rank(2)));
          Tensors::ExpectFrom(2, 5, fresh.views());
        });
      }
    }
  }
}

TEST(BufferSet, RefusesARootThatIsNoRank) {
  SelfCommunicator communicator(16);
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto set, BufferSet::Create(&communicator, absl::OkStatus(), {}));
  for (const int root : {-1, 1, 1000}) {
    EXPECT_THAT(set->Broadcast(absl::OkStatus(), {}, Rank(root)).status(),
                InvalidArgument("is not a rank of a world of 1"));
  }
}

TEST(BufferSet, EndsWithAnErrorWhenARankIsGone) {
  LoopbackWorld world(3, {}, ShortTimeout());
  std::vector<std::unique_ptr<BufferSet>> sets(3);
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(sets[rank],
                                  BufferSet::Create(&communicator, absl::OkStatus(), Tensors(Usual(), rank).views()));
  });
  world.network().Disconnect(Rank(1));
  RunRanks(3, [&](int rank) {
    if (rank == 1) return;
    EXPECT_FALSE(sets[rank]->Broadcast(absl::OkStatus(), Tensors(Usual(), rank).views(), Rank(1)).ok());
  });
}

}  // namespace
}  // namespace lockstep::testing
