#include "reducer/ready_set.h"

#include <string>
#include <vector>

#include "absl/types/optional.h"
#include "reducer/reducer_testing.h"

namespace lockstep::testing {
namespace {

using ::testing::EndsWith;
using ::testing::Field;
using ::testing::StartsWith;
using Effect = ReadySet::Effect;
using Rest = ReadySet::Rest;

constexpr ReadySet::Rules kPlain;
constexpr ReadySet::Rules kFindUnused = {/*find_unused=*/true, /*static_graph=*/false};
constexpr ReadySet::Rules kStaticGraph = {/*find_unused=*/false, /*static_graph=*/true};

// Parameters of two elements each: "p0", "p1", ... The ignored one, if there is one, is not expected.
struct Parameters {
  explicit Parameters(int count, absl::optional<size_t> ignored) : table(Vectors(count, 2)) {
    if (ignored.has_value()) table[*ignored].ignored = true;
  }
  std::vector<Parameter> table;
};

class TestReadySet : private Parameters, public ReadySet {
 public:
  explicit TestReadySet(int count, const Rules& rules = {}, const Order& delayed = {},
                        absl::optional<size_t> ignored = {})
      : Parameters(count, ignored), ReadySet(table, delayed, rules) {}

  void BeginUnknown() { LOCKSTEP_EXPECT_OK(Begin(absl::nullopt)); }
  // EXPECTs that each mark is taken and does that.
  void MarkAll(const Order& order, Effect effect = Effect::kReady) {
    for (const size_t index : order) EXPECT_THAT(Mark(index), IsOkAndHolds(effect));
  }
  // A backward in which these are marked, in this order.
  Rest Backward(const Order& marked) {
    BeginUnknown();
    for (const size_t index : marked) LOCKSTEP_EXPECT_OK(Mark(index));
    return End();
  }
};

// `complaint` is a text or a matcher for one.
template <typename Complaint>
auto RestIs(const Order& unused, const Order& missing, const Complaint& complaint, const Order& ready = {}) {
  return AllOf(Field("ready", &Rest::ready, ready), Field("unused", &Rest::unused, unused),
               Field("missing", &Rest::missing, missing), Field("complaint", &Rest::complaint, complaint));
}
auto NothingIsLeft() { return RestIs({}, {}, ""); }

TEST(ReadySet, HasMarksReadyAtOnceAndInOrder) {
  TestReadySet ready_set(3);
  for (const Order& order : {Order{2, 0, 1}, {1, 2, 0}}) {
    ready_set.BeginUnknown();
    EXPECT_THAT(ready_set.unused(), IsEmpty());
    ready_set.MarkAll(order);
    EXPECT_THAT(ready_set.End(), NothingIsLeft());
    EXPECT_EQ(ready_set.order(), order);
  }
}

TEST(ReadySet, TwiceIsRefusedWithAHintAndTheEndSaysSo) {
  TestReadySet ready_set(2);
  ready_set.BeginUnknown();
  ready_set.MarkAll({1});
  EXPECT_THAT(ready_set.Mark(1),
              FailedPrecondition("parameter 1 'p1' (f32[2]) was marked ready twice", "set static_graph"));
  ready_set.MarkAll({0});
  EXPECT_THAT(ready_set.End(),
              RestIs({}, {},
                     AllOf(StartsWith("a mark was refused (mark_ready: parameter 1 'p1' (f32[2]) was marked"),
                           EndsWith("set static_graph)"))));
  EXPECT_THAT(ready_set.order(), ElementsAre(1, 0));
  EXPECT_EQ(ready_set.Backward({0, 1}).complaint, "") << "nothing of it is left in the next backward";
}

TEST(ReadySet, ThatAreRefusedAreToldOfUnlessTheyComeAgain) {
  const absl::Status wrong = absl::InvalidArgumentError("mark_ready: wrong dtype");
  const absl::Status wrong_again = absl::InvalidArgumentError("mark_ready: wrong shape");
  for (const ReadySet::Rules& rules : {kPlain, kFindUnused, kStaticGraph}) {
    TestReadySet ready_set(4, rules);
    // A static graph is counted in the first backward of which nothing was refused.
    for (int step = 0; step < 2; ++step) {
      ready_set.BeginUnknown();
      ready_set.Refuse(3, wrong);
      ready_set.Refuse(2, wrong);
      ready_set.Refuse(2, wrong_again);
      for (const size_t index : {3, 1, 0}) LOCKSTEP_EXPECT_OK(ready_set.Mark(index));
      const Rest rest = ready_set.End();
      EXPECT_THAT(rest.missing, ElementsAre(2));
      EXPECT_THAT(rest.unused, IsEmpty());
      EXPECT_EQ(rest.complaint, "a mark was refused (mark_ready: wrong dtype)");
    }
    EXPECT_EQ(ready_set.counting(), rules.static_graph);
    EXPECT_EQ(ready_set.Backward({0, 1, 2, 3}).complaint, "");
    EXPECT_FALSE(ready_set.counting());
    // Behind an accepted mark, too: it shows that the gradient went on.
    ready_set.BeginUnknown();
    ready_set.MarkAll({3, 2, 1, 0});
    ready_set.Refuse(1, wrong);
    EXPECT_THAT(ready_set.End(), RestIs({}, {}, "a mark was refused (mark_ready: wrong dtype)"));
  }
}

TEST(ReadySet, TellsOfTwentyRefusedMarks) {
  TestReadySet ready_set(25);
  ready_set.BeginUnknown();
  for (size_t i = 0; i < 24; ++i) ready_set.Refuse(i, absl::InvalidArgumentError(absl::StrCat("bad ", i)));
  EXPECT_THAT(ready_set.End().complaint,
              AllOf(HasSubstr("a mark was refused (bad 19); and 4 more were; no gradient came for parameter 24 'p24'"),
                    Not(HasSubstr("bad 20"))));
}

TEST(ReadySet, MissesWhatDoesNotCome) {
  TestReadySet ready_set(4);
  EXPECT_THAT(ready_set.Backward({2}),
              RestIs({}, {0, 1, 3},
                     "no gradient came for parameter 0 'p0' (f32[2]), parameter 1 'p1' (f32[2]), parameter 3 'p3' "
                     "(f32[2]) (set find_unused_parameters if that is meant)"));
  // Nothing of it is left in the next backward.
  EXPECT_EQ(ready_set.Backward({0, 1, 2, 3}).complaint, "");
}

TEST(ReadySet, ExpectsNoIgnoredParameters) {
  for (const ReadySet::Rules& rules : {kPlain, kFindUnused, kStaticGraph}) {
    TestReadySet ready_set(3, rules, {}, /*ignored=*/1);
    for (int step = 0; step < 2; ++step) {
      const Rest rest = ready_set.Backward({2, 0});
      EXPECT_THAT(rest.unused, IsEmpty());
      EXPECT_THAT(rest.missing, IsEmpty());
      EXPECT_EQ(rest.complaint, "");
    }
  }
}

TEST(ReadySetFindUnused, TakesWhatDoesNotComeForUnused) {
  TestReadySet ready_set(4, kFindUnused);
  for (int step = 0; step < 2; ++step) {
    EXPECT_THAT(ready_set.Backward({3, 1}), RestIs({0, 2}, {}, ""));
    EXPECT_THAT(ready_set.order(), ElementsAre(3, 1));
  }
}

TEST(ReadySetFindUnused, KnowsWhatItWasTold) {
  TestReadySet ready_set(5, kFindUnused, {}, /*ignored=*/4);
  // Ignored ones may be named, and any more than once.
  LOCKSTEP_EXPECT_OK(ready_set.Begin(Order{2, 0, 4, 2}));
  EXPECT_THAT(ready_set.unused(), ElementsAre(0, 2));
  ready_set.MarkAll({1});
  EXPECT_THAT(ready_set.Mark(2), FailedPrecondition("parameter 2 'p2' (f32[2]) was said to be unused"));
  // They are known already; and what was neither said nor marked is a mistake.
  EXPECT_THAT(
      ready_set.End(),
      RestIs({}, {3},
             "a mark was refused (mark_ready: parameter 2 'p2' (f32[2]) was said to be unused in this backward); "
             "no gradient came for parameter 3 'p3' (f32[2])"));
  EXPECT_THAT(ready_set.order(), ElementsAre(1));
}

TEST(ReadySetFindUnused, ARefusedBeginChangesNothing) {
  TestReadySet ready_set(2, kFindUnused);
  ready_set.BeginUnknown();
  ready_set.MarkAll({0});
  EXPECT_THAT(ready_set.Begin(Order{1, 2}),
              StatusIs(absl::StatusCode::kInvalidArgument, "unused parameter 2 is out of range: there are 2"));
  EXPECT_THAT(ready_set.unused(), IsEmpty());
  EXPECT_THAT(ready_set.Mark(0), FailedPrecondition("twice"));
  EXPECT_THAT(ready_set.order(), ElementsAre(0));
}

TEST(ReadySet, UnusedAreNamedOnlyWhereTheRulesHaveThem) {
  // Naming none is naming, too.
  for (const Order& unused : {Order(), {1}}) {
    EXPECT_THAT(TestReadySet(2).Begin(unused), FailedPrecondition("set find_unused"));
    EXPECT_THAT(TestReadySet(2, {/*find_unused=*/true, /*static_graph=*/true}).Begin(unused),
                FailedPrecondition("from its first backward"));
  }
}

TEST(ReadySetStaticGraph, CountsOnceAndIsReadyAtTheLastMarkThen) {
  TestReadySet ready_set(4, kStaticGraph);
  ASSERT_TRUE(ready_set.counting());
  ready_set.BeginUnknown();
  ready_set.MarkAll({1, 3, 1, 0, 1}, Effect::kWaits);
  // In the order of last ready_set.
  EXPECT_THAT(ready_set.End(), RestIs({2}, {}, "", /*ready=*/{3, 0, 1}));
  EXPECT_FALSE(ready_set.counting());
  for (int step = 0; step < 2; ++step) {
    ready_set.BeginUnknown();
    EXPECT_THAT(ready_set.unused(), ElementsAre(2));
    ready_set.MarkAll({1, 1}, Effect::kWaits);
    ready_set.MarkAll({0, 1, 3});
    EXPECT_THAT(ready_set.End(), NothingIsLeft());
    EXPECT_THAT(ready_set.order(), ElementsAre(0, 1, 3));
  }
}

// A parameter without a mark may have been used.
TEST(ReadySet, ABackwardThatIsCutShortFindsNothingUnused) {
  TestReadySet finding(4, kFindUnused);
  LOCKSTEP_EXPECT_OK(finding.Begin(absl::nullopt));
  finding.MarkAll({3});
  LOCKSTEP_EXPECT_OK(finding.MarkUnused(1));
  EXPECT_THAT(finding.End(/*accumulates=*/false, /*cut_short=*/true), RestIs({}, {0, 2}, Not(IsEmpty())));

  TestReadySet counting(3, kStaticGraph);
  counting.BeginUnknown();
  counting.MarkAll({2, 2}, Effect::kWaits);
  EXPECT_THAT(counting.End(/*accumulates=*/false, /*cut_short=*/true), RestIs({}, {0, 1, 2}, Not(IsEmpty())));
  EXPECT_TRUE(counting.counting());
  counting.BeginUnknown();
  counting.MarkAll({2, 1}, Effect::kWaits);
  EXPECT_THAT(counting.End(), RestIs({0}, {}, "", /*ready=*/{2, 1}));
}

TEST(ReadySetStaticGraph, ComplainsOfEveryOtherCount) {
  TestReadySet ready_set(4, kStaticGraph);
  ready_set.Backward({0, 1, 1, 2});
  ready_set.BeginUnknown();
  LOCKSTEP_EXPECT_OK(ready_set.Mark(0));
  EXPECT_THAT(ready_set.Mark(0), FailedPrecondition("marked more than the 1 time(s) of the first backward"));
  EXPECT_THAT(ready_set.Mark(3), FailedPrecondition("'p3' (f32[2]) was not used in the first backward"));
  LOCKSTEP_EXPECT_OK(ready_set.Mark(1));
  const Rest rest = ready_set.End();
  EXPECT_THAT(rest.missing, ElementsAre(1, 2));
  EXPECT_EQ(
      rest.complaint,
      "a mark was refused (mark_ready: the graph changed: parameter 0 'p0' (f32[2]) was marked more than the 1 time(s) "
      "of the first backward); "
      "a mark was refused (mark_ready: the graph changed: parameter 3 'p3' (f32[2]) was not used in the first "
      "backward); "
      "the graph changed: no gradient came for parameter 1 'p1' (f32[2]) after 1 of 2 marks, "
      "parameter 2 'p2' (f32[2])");
  EXPECT_EQ(ready_set.Backward({1, 2, 0, 1}).complaint, "") << "the counts are still those of the first backward";
}

TEST(ReadySet, AWindowHasWhatWasUsedInAnyOfItsBackwards) {
  TestReadySet ready_set(3, kFindUnused);
  ready_set.Backward({0});
  ready_set.Backward({1});
  EXPECT_TRUE(ready_set.used_in_window(0));
  EXPECT_TRUE(ready_set.used_in_window(1));
  EXPECT_FALSE(ready_set.used_in_window(2));
  ready_set.EndWindow();
  for (const size_t index : {0, 1, 2}) EXPECT_FALSE(ready_set.used_in_window(index));
}

TEST(ReadySet, ADelayedParameterWaitsForItsTaker) {
  TestReadySet ready_set(3, {}, /*delayed=*/{1});
  EXPECT_EQ(ready_set.Backward({2, 0}).complaint, "") << "delayed parameters are not expected";
  ready_set.BeginUnknown();
  ready_set.MarkAll({1, 1}, Effect::kWaits);
  ready_set.MarkAll({0, 2});
  ready_set.End();
  EXPECT_THAT(ready_set.order(), ElementsAre(0, 2));
  // Its window is its own.
  ready_set.EndWindow();
  EXPECT_TRUE(ready_set.used_in_window(1));
  ready_set.TakeDelayed(1);
  EXPECT_FALSE(ready_set.used_in_window(1));
}

TEST(ReadySet, ADelayedParameterIsNeverUnusedNorCounted) {
  TestReadySet found(3, kFindUnused, /*delayed=*/{1});
  EXPECT_THAT(found.Backward({0}).unused, ElementsAre(2));
  LOCKSTEP_EXPECT_OK(found.Begin(Order{1, 2}));
  EXPECT_THAT(found.unused(), ElementsAre(2));
  LOCKSTEP_EXPECT_OK(found.Mark(1));

  TestReadySet fixed(3, kStaticGraph, /*delayed=*/{1});
  EXPECT_THAT(fixed.Backward({0, 1, 2}).ready, ElementsAre(0, 2));
  EXPECT_EQ(fixed.Backward({0, 2}).complaint, "");
  EXPECT_EQ(fixed.Backward({1, 0, 1, 2, 1}).complaint, "");
}

TEST(ReadySet, TellsWhetherAStaticGraphWouldDo) {
  TestReadySet ready_set(3, kFindUnused);
  EXPECT_FALSE(ready_set.can_be_static());
  ready_set.Backward({0, 2});
  EXPECT_FALSE(ready_set.can_be_static()) << "one backward is not two that are alike";
  ready_set.Backward({2, 0});
  EXPECT_TRUE(ready_set.can_be_static());
  ready_set.Backward({2});
  EXPECT_FALSE(ready_set.can_be_static());
  ready_set.Backward({2});
  EXPECT_FALSE(ready_set.can_be_static()) << "they have varied";
}

}  // namespace
}  // namespace lockstep::testing
