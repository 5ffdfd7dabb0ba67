#include "reducer/ready_set.h"

#include <string>
#include <vector>

#include "absl/types/optional.h"
#include "reducer/reducer_testing.h"

namespace lockstep {
namespace testing {
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

class TestMarks : private Parameters, public ReadySet {
 public:
  explicit TestMarks(int count, const Rules& rules = {}, const Order& delayed = {}, absl::optional<size_t> ignored = {})
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

TEST(ReadySet, AreReadyAtOnceAndInOrder) {
  TestMarks marks(3);
  for (const Order& order : {Order{2, 0, 1}, {1, 2, 0}}) {
    marks.BeginUnknown();
    EXPECT_THAT(marks.unused(), IsEmpty());
    marks.MarkAll(order);
    EXPECT_THAT(marks.End(), NothingIsLeft());
    EXPECT_EQ(marks.order(), order);
  }
}

TEST(ReadySet, TwiceIsRefusedWithAHintAndTheEndSaysSo) {
  TestMarks marks(2);
  marks.BeginUnknown();
  marks.MarkAll({1});
  EXPECT_THAT(marks.Mark(1),
              FailedPrecondition("parameter 1 'p1' (f32[2]) was marked ready twice", "set static_graph"));
  marks.MarkAll({0});
  EXPECT_THAT(marks.End(),
              RestIs({}, {},
                     AllOf(StartsWith("a mark was refused (mark_ready: parameter 1 'p1' (f32[2]) was marked"),
                           EndsWith("set static_graph)"))));
  EXPECT_THAT(marks.order(), ElementsAre(1, 0));
  EXPECT_EQ(marks.Backward({0, 1}).complaint, "") << "nothing of it is left in the next backward";
}

TEST(ReadySet, ThatAreRefusedAreToldOfUnlessTheyComeAgain) {
  const absl::Status wrong = absl::InvalidArgumentError("mark_ready: wrong dtype");
  const absl::Status wrong_again = absl::InvalidArgumentError("mark_ready: wrong shape");
  for (const ReadySet::Rules& rules : {kPlain, kFindUnused, kStaticGraph}) {
    TestMarks marks(4, rules);
    // A static graph is counted in the first backward of which nothing was refused.
    for (int step = 0; step < 2; ++step) {
      marks.BeginUnknown();
      marks.Refuse(3, wrong);
      marks.Refuse(2, wrong);
      marks.Refuse(2, wrong_again);
      for (const size_t index : {3, 1, 0}) LOCKSTEP_EXPECT_OK(marks.Mark(index));
      const Rest rest = marks.End();
      EXPECT_THAT(rest.missing, ElementsAre(2));
      EXPECT_THAT(rest.unused, IsEmpty());
      EXPECT_EQ(rest.complaint, "a mark was refused (mark_ready: wrong dtype)");
    }
    EXPECT_EQ(marks.counting(), rules.static_graph);
    EXPECT_EQ(marks.Backward({0, 1, 2, 3}).complaint, "");
    EXPECT_FALSE(marks.counting());
    // Behind an accepted mark, too: it shows that the gradient went on.
    marks.BeginUnknown();
    marks.MarkAll({3, 2, 1, 0});
    marks.Refuse(1, wrong);
    EXPECT_THAT(marks.End(), RestIs({}, {}, "a mark was refused (mark_ready: wrong dtype)"));
  }
}

TEST(ReadySet, OfManyRefusedTwentyAreTold) {
  TestMarks marks(25);
  marks.BeginUnknown();
  for (size_t i = 0; i < 24; ++i) marks.Refuse(i, absl::InvalidArgumentError(absl::StrCat("bad ", i)));
  EXPECT_THAT(marks.End().complaint,
              AllOf(HasSubstr("a mark was refused (bad 19); and 4 more were; no gradient came for parameter 24 'p24'"),
                    Not(HasSubstr("bad 20"))));
}

TEST(ReadySet, ThatDoNotComeAreMissing) {
  TestMarks marks(4);
  EXPECT_THAT(marks.Backward({2}),
              RestIs({}, {0, 1, 3},
                     "no gradient came for parameter 0 'p0' (f32[2]), parameter 1 'p1' (f32[2]), parameter 3 'p3' "
                     "(f32[2]) (set find_unused_parameters if that is meant)"));
  // Nothing of it is left in the next backward.
  EXPECT_EQ(marks.Backward({0, 1, 2, 3}).complaint, "");
}

TEST(ReadySet, OfManyMissingTwentyAreNamed) {
  const Rest rest = TestMarks(25).Backward({});
  EXPECT_EQ(rest.missing.size(), 25);
  EXPECT_THAT(rest.complaint,
              AllOf(HasSubstr("'p19'"), Not(HasSubstr("'p20'")), HasSubstr("(f32[2]), and 5 more (set")));
}

TEST(ReadySet, OfIgnoredParametersAreNotExpected) {
  for (const ReadySet::Rules& rules : {kPlain, kFindUnused, kStaticGraph}) {
    TestMarks marks(3, rules, {}, /*ignored=*/1);
    for (int step = 0; step < 2; ++step) {
      const Rest rest = marks.Backward({2, 0});
      EXPECT_THAT(rest.unused, IsEmpty());
      EXPECT_THAT(rest.missing, IsEmpty());
      EXPECT_EQ(rest.complaint, "");
    }
  }
}

TEST(MarksFindUnused, TakesWhatDoesNotComeForUnused) {
  TestMarks marks(4, kFindUnused);
  for (int step = 0; step < 2; ++step) {
    EXPECT_THAT(marks.Backward({3, 1}), RestIs({0, 2}, {}, ""));
    EXPECT_THAT(marks.order(), ElementsAre(3, 1));
  }
}

TEST(MarksFindUnused, KnowsWhatItWasTold) {
  TestMarks marks(5, kFindUnused, {}, /*ignored=*/4);
  // Ignored ones may be named, and any more than once.
  LOCKSTEP_EXPECT_OK(marks.Begin(Order{2, 0, 4, 2}));
  EXPECT_THAT(marks.unused(), ElementsAre(0, 2));
  marks.MarkAll({1});
  EXPECT_THAT(marks.Mark(2), FailedPrecondition("parameter 2 'p2' (f32[2]) was said to be unused"));
  // They are known already; and what was neither said nor marked is a mistake.
  EXPECT_THAT(
      marks.End(),
      RestIs({}, {3},
             "a mark was refused (mark_ready: parameter 2 'p2' (f32[2]) was said to be unused in this backward); "
             "no gradient came for parameter 3 'p3' (f32[2])"));
  EXPECT_THAT(marks.order(), ElementsAre(1));
}

TEST(MarksFindUnused, ARefusedBeginChangesNothing) {
  TestMarks marks(2, kFindUnused);
  marks.BeginUnknown();
  marks.MarkAll({0});
  EXPECT_THAT(marks.Begin(Order{1, 2}),
              StatusIs(absl::StatusCode::kInvalidArgument, "unused parameter 2 is out of range: there are 2"));
  EXPECT_THAT(marks.unused(), IsEmpty());
  EXPECT_THAT(marks.Mark(0), FailedPrecondition("twice"));
  EXPECT_THAT(marks.order(), ElementsAre(0));
}

TEST(ReadySet, UnusedAreNamedOnlyWhereTheRulesHaveThem) {
  // Naming none is naming, too.
  for (const Order& unused : {Order(), {1}}) {
    EXPECT_THAT(TestMarks(2).Begin(unused), FailedPrecondition("set find_unused"));
    EXPECT_THAT(TestMarks(2, {/*find_unused=*/true, /*static_graph=*/true}).Begin(unused),
                FailedPrecondition("from its first backward"));
  }
}

TEST(MarksStaticGraph, CountsOnceAndIsReadyAtTheLastMarkThen) {
  TestMarks marks(4, kStaticGraph);
  ASSERT_TRUE(marks.counting());
  marks.BeginUnknown();
  marks.MarkAll({1, 3, 1, 0, 1}, Effect::kWaits);
  // In the order of last marks.
  EXPECT_THAT(marks.End(), RestIs({2}, {}, "", /*ready=*/{3, 0, 1}));
  EXPECT_FALSE(marks.counting());
  for (int step = 0; step < 2; ++step) {
    marks.BeginUnknown();
    EXPECT_THAT(marks.unused(), ElementsAre(2));
    marks.MarkAll({1, 1}, Effect::kWaits);
    marks.MarkAll({0, 1, 3});
    EXPECT_THAT(marks.End(), NothingIsLeft());
    EXPECT_THAT(marks.order(), ElementsAre(0, 1, 3));
  }
}

TEST(MarksStaticGraph, ComplainsOfEveryOtherCount) {
  TestMarks marks(4, kStaticGraph);
  marks.Backward({0, 1, 1, 2});
  marks.BeginUnknown();
  LOCKSTEP_EXPECT_OK(marks.Mark(0));
  EXPECT_THAT(marks.Mark(0), FailedPrecondition("marked more than the 1 time(s) of the first backward"));
  EXPECT_THAT(marks.Mark(3), FailedPrecondition("'p3' (f32[2]) was not used in the first backward"));
  LOCKSTEP_EXPECT_OK(marks.Mark(1));
  const Rest rest = marks.End();
  EXPECT_THAT(rest.missing, ElementsAre(1, 2));
  EXPECT_EQ(
      rest.complaint,
      "a mark was refused (mark_ready: the graph changed: parameter 0 'p0' (f32[2]) was marked more than the 1 time(s) "
      "of the first backward); "
      "a mark was refused (mark_ready: the graph changed: parameter 3 'p3' (f32[2]) was not used in the first "
      "backward); "
      "the graph changed: no gradient came for parameter 1 'p1' (f32[2]) after 1 of 2 marks, "
      "parameter 2 'p2' (f32[2])");
  EXPECT_EQ(marks.Backward({1, 2, 0, 1}).complaint, "") << "the counts are still those of the first backward";
}

TEST(ReadySet, AWindowHasWhatWasUsedInAnyOfItsBackwards) {
  TestMarks marks(3, kFindUnused);
  marks.Backward({0});
  marks.Backward({1});
  EXPECT_TRUE(marks.used_in_window(0));
  EXPECT_TRUE(marks.used_in_window(1));
  EXPECT_FALSE(marks.used_in_window(2));
  marks.EndWindow();
  for (const size_t index : {0, 1, 2}) EXPECT_FALSE(marks.used_in_window(index));
}

TEST(ReadySet, ADelayedParameterWaitsForItsTaker) {
  TestMarks marks(3, {}, /*delayed=*/{1});
  EXPECT_EQ(marks.Backward({2, 0}).complaint, "") << "delayed parameters are not expected";
  marks.BeginUnknown();
  marks.MarkAll({1, 1}, Effect::kWaits);
  marks.MarkAll({0, 2});
  marks.End();
  EXPECT_THAT(marks.order(), ElementsAre(0, 2));
  // Its window is its own.
  marks.EndWindow();
  EXPECT_TRUE(marks.used_in_window(1));
  marks.TakeDelayed(1);
  EXPECT_FALSE(marks.used_in_window(1));
}

TEST(ReadySet, ADelayedParameterIsNeverUnusedNorCounted) {
  TestMarks found(3, kFindUnused, /*delayed=*/{1});
  EXPECT_THAT(found.Backward({0}).unused, ElementsAre(2));
  LOCKSTEP_EXPECT_OK(found.Begin(Order{1, 2}));
  EXPECT_THAT(found.unused(), ElementsAre(2));
  LOCKSTEP_EXPECT_OK(found.Mark(1));

  TestMarks fixed(3, kStaticGraph, /*delayed=*/{1});
  EXPECT_THAT(fixed.Backward({0, 1, 2}).ready, ElementsAre(0, 2));
  EXPECT_EQ(fixed.Backward({0, 2}).complaint, "");
  EXPECT_EQ(fixed.Backward({1, 0, 1, 2, 1}).complaint, "");
}

TEST(ReadySet, TellWhetherAStaticGraphWouldDo) {
  TestMarks marks(3, kFindUnused);
  EXPECT_FALSE(marks.can_be_static());
  marks.Backward({0, 2});
  EXPECT_FALSE(marks.can_be_static()) << "one backward is not two that are alike";
  marks.Backward({2, 0});
  EXPECT_TRUE(marks.can_be_static());
  marks.Backward({2});
  EXPECT_FALSE(marks.can_be_static());
  marks.Backward({2});
  EXPECT_FALSE(marks.can_be_static()) << "they have varied";
}

}  // namespace
}  // namespace testing
}  // namespace lockstep
