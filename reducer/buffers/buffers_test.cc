#include "reducer/buffers/buffers.h"

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"
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

// A running mean and variance, a count, something channels-last, and things without elements.
std::vector<Layout> Usual() {
  return {
      {DType::kF32, {65}, {}}, {DType::kF32, {65}, {}},
      {DType::kI64, {}, {}},   {DType::kBF16, {2, 3, 4, 5}, {60, 1, 15, 3}},
      {DType::kF32, {0}, {}},  {DType::kBool, {3}, {}},
  };
}

// A model's buffers, full of bytes that tell rank, step and place.
class Buffers {
 public:
  Buffers(const std::vector<Layout>& layouts, int rank, int step = 0) {
    for (const Layout& layout : layouts) {
      int64_t elements = 1;
      for (const int64_t extent : layout.shape) elements *= extent;
      // With room for a gap behind each row, where a test has gaps.
      memory_.push_back(Bytes(rank, step, memory_.size(), 2 * elements * SizeOf(layout.dtype)));
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

TEST(BufferSet, HandsTheRootsBuffersToEveryRankInFreshMemory) {
  for (int size = 2; size <= 4; ++size) {
    RunWorld(size, [&](Communicator& communicator) {
      const int rank = communicator.rank().value();
      const Buffers buffers(Usual(), rank);
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto set,
                                    BufferSet::Create(&communicator, absl::OkStatus(), buffers.views()));
      for (int root = 0; root < size; ++root) {
        LOCKSTEP_ASSERT_OK_AND_ASSIGN(const FreshBuffers fresh,
                                      set->Broadcast(absl::OkStatus(), buffers.views(), Rank(root)));
        ASSERT_EQ(fresh.views().size(), buffers.views().size());
        Buffers::ExpectFrom(root, 0, fresh.views());
        Buffers::ExpectFrom(rank, 0, buffers.views());
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
                                  BufferSet::Create(&communicator, absl::OkStatus(), Buffers(Usual(), rank).views()));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(FreshBuffers first,
                                  set->Broadcast(absl::OkStatus(), Buffers(Usual(), rank, 1).views(), Rank(0)));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const FreshBuffers second,
                                  set->Broadcast(absl::OkStatus(), Buffers(Usual(), rank, 2).views(), Rank(1)));
    set.reset();
    const FreshBuffers moved = std::move(first);
    Buffers::ExpectFrom(0, 1, moved.views());
    Buffers::ExpectFrom(1, 2, second.views());
  });
}

TEST(BufferSet, OverwritesInPlaceWhereItIsAskedTo) {
  for (int size = 2; size <= 4; ++size) {
    RunWorld(size, [&](Communicator& communicator) {
      const Buffers buffers(Usual(), communicator.rank().value());
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto set,
                                    BufferSet::Create(&communicator, absl::OkStatus(), buffers.views()));
      LOCKSTEP_EXPECT_OK(set->BroadcastInPlace(absl::OkStatus(), buffers.views(), Rank(size - 1)));
      Buffers::ExpectFrom(size - 1, 0, buffers.views());
    });
  }
}

TEST(BufferSet, OfOneRankCopies) {
  SelfCommunicator communicator(16);
  const Buffers buffers(Usual(), 0);
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto set, BufferSet::Create(&communicator, absl::OkStatus(), buffers.views()));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const FreshBuffers fresh, set->Broadcast(absl::OkStatus(), buffers.views(), Rank(0)));
  Buffers::ExpectFrom(0, 0, fresh.views());
  EXPECT_NE(fresh.views()[0].data(), buffers.views()[0].data());
  LOCKSTEP_EXPECT_OK(set->BroadcastInPlace(absl::OkStatus(), buffers.views(), Rank(0)));
  Buffers::ExpectFrom(0, 0, buffers.views());
}

TEST(BufferSet, OfNothingIsNothing) {
  RunWorld(2, [&](Communicator& communicator) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto set, BufferSet::Create(&communicator, absl::OkStatus(), {}));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const FreshBuffers fresh, set->Broadcast(absl::OkStatus(), {}, Rank(1)));
    EXPECT_TRUE(fresh.views().empty());
    LOCKSTEP_EXPECT_OK(set->BroadcastInPlace(absl::OkStatus(), {}, Rank(1)));
  });
}

TEST(BufferSet, IsRefusedWhereRanksDiffer) {
  const struct {
    Layout odd;
    const char* says;
  } cases[] = {
      {{DType::kF32, {3, 2}, {}}, "the shape of parameter 1 'of the buffers' differs: [2, 3] on rank 0, [3, 2]"},
      {{DType::kI32, {2, 3}, {}}, "differs: f32 on rank 0, i32 on rank 1"},
      {{DType::kF32, {2, 3}, {1, 2}}, "row-major on rank 0, strides [1, 2] on rank 1"},
      {{DType::kF32, {2, 3}, {4, 1}}, "rank 1 cannot take part: buffers: tensor 1 f32[2, 3] strides [4, 1]"},
  };
  for (const auto& bad : cases) {
    RunWorld(2, [&](Communicator& communicator) {
      const bool odd = communicator.rank() == Rank(1);
      const Layout usual = {DType::kF32, {2, 3}, {}};
      const Buffers buffers({{DType::kU8, {1}, {}}, odd ? bad.odd : usual}, communicator.rank().value());
      const absl::Status result = BufferSet::Create(&communicator, absl::OkStatus(), buffers.views()).status();
      if (odd && bad.odd.strides == std::vector<int64_t>{4, 1}) {
        EXPECT_THAT(result, InvalidArgument("buffers: tensor 1 f32[2, 3] strides [4, 1] on host is not dense"));
      } else {
        EXPECT_THAT(result, FailedPrecondition(bad.says));
      }
      LOCKSTEP_EXPECT_OK(BufferSet::Create(&communicator, absl::OkStatus(), {}).status());
    });
  }
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
          const Buffers good(agreed, rank);
          const Buffers changed(bad.changed, rank);
          LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto set,
                                        BufferSet::Create(&communicator, absl::OkStatus(), good.views()));
          const Buffers& given = rank == kOdd ? changed : good;
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
          Buffers::ExpectFrom(written ? root : rank, 0, given.views());
          LOCKSTEP_ASSERT_OK_AND_ASSIGN(const FreshBuffers fresh,
                                        set->Broadcast(absl::OkStatus(), Buffers(agreed, rank, 5).views(), Rank(2)));
          Buffers::ExpectFrom(2, 5, fresh.views());
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
                                  BufferSet::Create(&communicator, absl::OkStatus(), Buffers(Usual(), rank).views()));
  });
  world.network().Disconnect(Rank(1));
  RunRanks(3, [&](int rank) {
    if (rank == 1) return;
    EXPECT_FALSE(sets[rank]->Broadcast(absl::OkStatus(), Buffers(Usual(), rank).views(), Rank(1)).ok());
  });
}

}  // namespace
}  // namespace testing
}  // namespace lockstep
