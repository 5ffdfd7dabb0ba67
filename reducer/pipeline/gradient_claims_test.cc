#include "reducer/pipeline/gradient_claims.h"

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/device/device.h"
#include "base/fork_testing.h"
#include "base/types/dtype.h"
#include "reducer/plan/plan_testing.h"

namespace lockstep::testing {
namespace {

constexpr uintptr_t kBase = uintptr_t{1} << 20;  // any address will do: nothing is read there

TensorView At(int64_t offset, int64_t bytes) {
  return TensorView::Create(reinterpret_cast<void*>(kBase + offset), DType::kF8E5M2, {bytes}, {}, DeviceId()).value();
}

const std::vector<Parameter>& Table() {
  static const auto* const table = new std::vector<Parameter>(Vectors(12, 1));
  return *table;
}

// Claims memory for a gradient that is overwritten, or whether that can be done.
bool Claim(GradientClaims& claims, size_t parameter, const TensorView& gradient) {
  return claims.Claim(parameter, gradient, gradient, nullptr, GradientClaims::Until::kRoundEnds, /*ordered=*/false)
      .ok();
}

TEST(GradientClaims, OfEarlierRoundsMayBeAnothers) {
  GradientClaims claims(Table());
  EXPECT_TRUE(Claim(claims, 0, At(0, 10)));
  EXPECT_TRUE(Claim(claims, 1, At(10, 10)));
  claims.NextRound();
  // As an allocator gives them out anew; one where it was, and one over both.
  EXPECT_TRUE(Claim(claims, 1, At(0, 10)));
  EXPECT_TRUE(Claim(claims, 0, At(10, 10)));
  EXPECT_FALSE(Claim(claims, 2, At(5, 10)));
  claims.NextRound();
  EXPECT_TRUE(Claim(claims, 2, At(5, 10)));
  EXPECT_FALSE(Claim(claims, 0, At(10, 10)));
  EXPECT_TRUE(Claim(claims, 1, At(0, 5)));
}

TEST(GradientClaims, WithGapsMayLieBetweenEachOther) {
  // The columns of a row-major matrix.
  GradientClaims claims(Table());
  const auto column = [](int64_t offset) {
    return TensorView::Create(reinterpret_cast<void*>(kBase + offset), DType::kF8E5M2, {10}, {4}, DeviceId()).value();
  };
  EXPECT_TRUE(Claim(claims, 0, column(0)));
  EXPECT_TRUE(Claim(claims, 1, column(1)));
  EXPECT_FALSE(Claim(claims, 2, column(1)));
}

// A bucket cannot leave out a view.
TEST(GradientClaims, ThatAreOverwrittenAreKnownToTheirOwnerOnce) {
  GradientClaims owner(Table()), other(Table());
  EXPECT_TRUE(Claim(owner, 3, At(0, 10)));
  const uint64_t round = owner.NextRound();
  other.Overwrite(7, At(4, 4).data());
  LOCKSTEP_EXPECT_OK(other.TakeOverwritten());
  EXPECT_THAT(owner.TakeOverwritten(), FailedPrecondition("the gradient of parameter 3 ", "for parameter 7 "));
  LOCKSTEP_EXPECT_OK(owner.TakeOverwritten());
  owner.Ended(round);
  other.Overwrite(7, At(4, 4).data());
  LOCKSTEP_EXPECT_OK(owner.TakeOverwritten());
}

TEST(GradientClaims, InAForkedChildAreItsOwn) {
  GradientClaims claims(Table());
  EXPECT_TRUE(Claim(claims, 0, At(0, 10)));
  const auto child = [] {
    GradientClaims childs(Table());
    return Claim(childs, 0, At(0, 10)) ? 0 : 1;
  };
  EXPECT_EQ(RunInForkedChild(child, Deadline::AfterMs(20000)), 0);
}

// Against a comparison of each with each: of several reducers, which read and write.
TEST(GradientClaims, AreFoundHoweverTheyMove) {
  struct Model {
    int64_t begin = 0, end = 0;
    bool writes = false, held = false;
  };
  constexpr size_t kReducers = 3;
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  std::vector<std::unique_ptr<GradientClaims>> reducers;
  for (size_t r = 0; r < kReducers; ++r) reducers.push_back(std::make_unique<GradientClaims>(Table()));
  std::vector<std::vector<std::vector<Model>>> model(
      kReducers, std::vector<std::vector<Model>>(Table().size(), std::vector<Model>(3)));
  int refused = 0;
  for (int i = 0; i < 50000; ++i) {
    const size_t reducer = random() % kReducers, parameter = random() % Table().size();
    if (random() % 16 == 0) {
      reducers[reducer]->Ended(reducers[reducer]->NextRound());
      for (auto& ranges : model[reducer]) ranges.assign(3, Model());
    }
    // Few places, so that many are where they were.
    const auto any = [&] { return At(static_cast<int64_t>(random() % 100), static_cast<int64_t>(random() % 3)); };
    const TensorView gradient = any(), target = random() % 2 == 0 ? gradient : any();
    const TensorView view =
        At(static_cast<int64_t>(random() % 100), random() % 2 == 0 ? 0 : 4);  // as large as a parameter
    const TensorView* const tensors[] = {&gradient, &target, &view};
    bool free = true;
    std::vector<Model> wanted(3);
    for (size_t t = 0; t < 3; ++t) {
      const auto begin = static_cast<int64_t>(reinterpret_cast<uintptr_t>(tensors[t]->data()) - kBase);
      const auto bytes = static_cast<int64_t>(tensors[t]->bytes());
      const bool writes = t > 0 || Overlap(gradient, target) || Overlap(gradient, view);
      wanted[t] = {begin, begin + bytes, writes, bytes > 0};
      for (size_t r = 0; r < kReducers; ++r) {
        for (size_t p = 0; p < Table().size(); ++p) {
          for (const Model& other : model[r][p]) {
            const bool overlaps = begin < other.end && other.begin < begin + bytes && bytes > 0;
            free = free && !(overlaps && other.held && (writes || other.writes) && (r != reducer || p != parameter));
          }
        }
      }
    }
    if (free) model[reducer][parameter] = wanted;
    refused += !free;
    const void* const place = view.bytes() > 0 ? view.data() : nullptr;
    ASSERT_EQ(
        reducers[reducer]->Claim(parameter, gradient, target, place, GradientClaims::Until::kRoundEnds, false).ok(),
        free)
        << "call " << i;
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace lockstep::testing
