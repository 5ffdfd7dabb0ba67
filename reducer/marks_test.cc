#include "reducer/marks.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reducer/plan/parameter.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

constexpr absl::StatusCode kRefused = absl::StatusCode::kFailedPrecondition;

std::vector<Parameter> Table(int count) {
  std::vector<Parameter> table(count);
  for (int i = 0; i < count; ++i) {
    table[i].name = absl::StrCat("p", i);
    table[i].shape = {2};
  }
  return table;
}

Marks::Rules FindUnused() { return {/*find_unused=*/true, /*static_graph=*/false}; }
Marks::Rules StaticGraph() { return {/*find_unused=*/false, /*static_graph=*/true}; }

// A backward in which these are marked, in this order.
Marks::Rest RunBackward(Marks& marks, const std::vector<size_t>& marked) {
  LOCKSTEP_EXPECT_OK(marks.Begin(absl::nullopt));
  for (const size_t index : marked) LOCKSTEP_EXPECT_OK(marks.Mark(index));
  return marks.End();
}

TEST(Marks, AreReadyAtOnceAndInOrder) {
  const std::vector<Parameter> table = Table(3);
  Marks marks(table, {}, {});
  for (const std::vector<size_t>& order : {std::vector<size_t>{2, 0, 1}, {1, 2, 0}}) {
    LOCKSTEP_EXPECT_OK(marks.Begin(absl::nullopt));
    EXPECT_THAT(marks.unused(), IsEmpty());
    for (const size_t index : order) EXPECT_THAT(marks.Mark(index), IsOkAndHolds(Marks::Effect::kReady));
    const Marks::Rest rest = marks.End();
    EXPECT_THAT(rest.ready, IsEmpty());
    EXPECT_THAT(rest.unused, IsEmpty());
    EXPECT_THAT(rest.missing, IsEmpty());
    EXPECT_EQ(rest.complaint, "");
    EXPECT_EQ(marks.order(), order);
  }
}

TEST(Marks, TwiceIsRefusedWithAHintAndTheEndSaysSo) {
  const std::vector<Parameter> table = Table(2);
  Marks marks(table, {}, {});
  LOCKSTEP_EXPECT_OK(marks.Begin(absl::nullopt));
  LOCKSTEP_EXPECT_OK(marks.Mark(1));
  EXPECT_THAT(marks.Mark(1), StatusIs(kRefused, AllOf(HasSubstr("parameter 1 'p1' (f32[2]) was marked ready twice"),
                                                      HasSubstr("set static_graph"))));
  LOCKSTEP_EXPECT_OK(marks.Mark(0));
  const Marks::Rest rest = marks.End();
  EXPECT_THAT(rest.missing, IsEmpty());
  EXPECT_THAT(rest.complaint, AllOf(StartsWith("a mark was refused (mark_ready: parameter 1 'p1' (f32[2]) was marked"),
                                    EndsWith("set static_graph)")));
  EXPECT_THAT(marks.order(), ElementsAre(1, 0));
  EXPECT_EQ(RunBackward(marks, {0, 1}).complaint, "") << "nothing of it is left in the next backward";
}

TEST(Marks, ThatAreRefusedAreToldOfUnlessTheyComeAgain) {
  const std::vector<Parameter> table = Table(4);
  const absl::Status wrong = absl::InvalidArgumentError("mark_ready: wrong dtype");
  const absl::Status wrong_again = absl::InvalidArgumentError("mark_ready: wrong shape");
  for (const Marks::Rules& rules : {Marks::Rules(), FindUnused(), StaticGraph()}) {
    Marks marks(table, {}, rules);
    // A static graph is counted in the first backward of which nothing was refused.
    for (int step = 0; step < 2; ++step) {
      LOCKSTEP_EXPECT_OK(marks.Begin(absl::nullopt));
      marks.Refuse(3, wrong);
      marks.Refuse(2, wrong);
      marks.Refuse(2, wrong_again);
      for (const size_t index : {3, 1, 0}) LOCKSTEP_EXPECT_OK(marks.Mark(index));
      const Marks::Rest rest = marks.End();
      EXPECT_THAT(rest.missing, ElementsAre(2));
      EXPECT_THAT(rest.unused, IsEmpty());
      EXPECT_EQ(rest.complaint, "a mark was refused (mark_ready: wrong dtype)");
    }
    EXPECT_EQ(marks.counting(), rules.static_graph);
    EXPECT_EQ(RunBackward(marks, {0, 1, 2, 3}).complaint, "");
    EXPECT_FALSE(marks.counting());
    // Behind an accepted mark, too: it shows that the gradient went on.
    LOCKSTEP_EXPECT_OK(marks.Begin(absl::nullopt));
    for (const size_t index : {3, 2, 1, 0}) LOCKSTEP_EXPECT_OK(marks.Mark(index));
    marks.Refuse(1, wrong);
    const Marks::Rest rest = marks.End();
    EXPECT_THAT(rest.missing, IsEmpty());
    EXPECT_EQ(rest.complaint, "a mark was refused (mark_ready: wrong dtype)");
  }
}

TEST(Marks, OfManyRefusedTwentyAreTold) {
  const std::vector<Parameter> table = Table(25);
  Marks marks(table, {}, {});
  LOCKSTEP_EXPECT_OK(marks.Begin(absl::nullopt));
  for (size_t i = 0; i < 24; ++i) marks.Refuse(i, absl::InvalidArgumentError(absl::StrCat("bad ", i)));
  EXPECT_THAT(marks.End().complaint,
              AllOf(HasSubstr("a mark was refused (bad 19); and 4 more were; no gradient came for parameter 24 'p24'"),
                    Not(HasSubstr("bad 20"))));
}

TEST(Marks, ThatDoNotComeAreMissing) {
  const std::vector<Parameter> table = Table(4);
  Marks marks(table, {}, {});
  const Marks::Rest rest = RunBackward(marks, {2});
  EXPECT_THAT(rest.missing, ElementsAre(0, 1, 3));
  EXPECT_THAT(rest.unused, IsEmpty());
  EXPECT_EQ(rest.complaint,
            "no gradient came for parameter 0 'p0' (f32[2]), parameter 1 'p1' (f32[2]), parameter 3 'p3' (f32[2]) "
            "(set find_unused_parameters if that is meant)");
  // Nothing of it is left in the next backward.
  EXPECT_EQ(RunBackward(marks, {0, 1, 2, 3}).complaint, "");
}

TEST(Marks, OfManyMissingTwentyAreNamed) {
  const std::vector<Parameter> table = Table(25);
  Marks marks(table, {}, {});
  const Marks::Rest rest = RunBackward(marks, {});
  EXPECT_EQ(rest.missing.size(), 25);
  EXPECT_THAT(rest.complaint,
              AllOf(HasSubstr("'p19'"), Not(HasSubstr("'p20'")), HasSubstr("(f32[2]), and 5 more (set")));
}

TEST(Marks, OfIgnoredParametersAreNotExpected) {
  std::vector<Parameter> table = Table(3);
  table[1].ignored = true;
  for (const Marks::Rules& rules : {Marks::Rules(), FindUnused(), StaticGraph()}) {
    Marks marks(table, {}, rules);
    for (int step = 0; step < 2; ++step) {
      const Marks::Rest rest = RunBackward(marks, {2, 0});
      EXPECT_THAT(rest.unused, IsEmpty());
      EXPECT_THAT(rest.missing, IsEmpty());
      EXPECT_EQ(rest.complaint, "");
    }
  }
}

TEST(MarksFindUnused, TakesWhatDoesNotComeForUnused) {
  const std::vector<Parameter> table = Table(4);
  Marks marks(table, {}, FindUnused());
  for (int step = 0; step < 2; ++step) {
    const Marks::Rest rest = RunBackward(marks, {3, 1});
    EXPECT_THAT(rest.unused, ElementsAre(0, 2));
    EXPECT_THAT(rest.missing, IsEmpty());
    EXPECT_EQ(rest.complaint, "");
    EXPECT_THAT(marks.order(), ElementsAre(3, 1));
  }
}

TEST(MarksFindUnused, KnowsWhatItWasTold) {
  std::vector<Parameter> table = Table(5);
  table[4].ignored = true;
  Marks marks(table, {}, FindUnused());
  // Ignored ones may be named, and any more than once.
  LOCKSTEP_EXPECT_OK(marks.Begin(std::vector<size_t>{2, 0, 4, 2}));
  EXPECT_THAT(marks.unused(), ElementsAre(0, 2));
  LOCKSTEP_EXPECT_OK(marks.Mark(1));
  EXPECT_THAT(marks.Mark(2), StatusIs(kRefused, HasSubstr("parameter 2 'p2' (f32[2]) was said to be unused")));
  const Marks::Rest rest = marks.End();
  // They are known already; and what was neither said nor marked is a mistake.
  EXPECT_THAT(rest.unused, IsEmpty());
  EXPECT_THAT(rest.missing, ElementsAre(3));
  EXPECT_EQ(rest.complaint,
            "a mark was refused (mark_ready: parameter 2 'p2' (f32[2]) was said to be unused in this backward); "
            "no gradient came for parameter 3 'p3' (f32[2])");
  EXPECT_THAT(marks.order(), ElementsAre(1));
}

TEST(MarksFindUnused, ARefusedBeginChangesNothing) {
  const std::vector<Parameter> table = Table(2);
  Marks marks(table, {}, FindUnused());
  LOCKSTEP_EXPECT_OK(marks.Begin(absl::nullopt));
  LOCKSTEP_EXPECT_OK(marks.Mark(0));
  EXPECT_THAT(marks.Begin(std::vector<size_t>{1, 2}),
              StatusIs(absl::StatusCode::kInvalidArgument, "unused parameter 2 is out of range: there are 2"));
  EXPECT_THAT(marks.unused(), IsEmpty());
  EXPECT_THAT(marks.Mark(0), StatusIs(kRefused, HasSubstr("twice")));
  EXPECT_THAT(marks.order(), ElementsAre(0));
}

TEST(Marks, UnusedAreNamedOnlyWhereTheRulesHaveThem) {
  const std::vector<Parameter> table = Table(2);
  // Naming none is naming, too.
  for (const std::vector<size_t>& unused : {std::vector<size_t>(), {1}}) {
    Marks plain(table, {}, {});
    EXPECT_THAT(plain.Begin(unused), StatusIs(kRefused, HasSubstr("set find_unused")));
    Marks fixed(table, {}, {/*find_unused=*/true, /*static_graph=*/true});
    EXPECT_THAT(fixed.Begin(unused), StatusIs(kRefused, HasSubstr("from its first backward")));
  }
}

TEST(MarksStaticGraph, CountsOnceAndIsReadyAtTheLastMarkThen) {
  const std::vector<Parameter> table = Table(4);
  Marks marks(table, {}, StaticGraph());
  ASSERT_TRUE(marks.counting());
  LOCKSTEP_EXPECT_OK(marks.Begin(absl::nullopt));
  for (const size_t index : {1, 3, 1, 0, 1}) {
    EXPECT_THAT(marks.Mark(index), IsOkAndHolds(Marks::Effect::kWaits));
  }
  Marks::Rest rest = marks.End();
  EXPECT_FALSE(marks.counting());
  // In the order of last marks.
  EXPECT_THAT(rest.ready, ElementsAre(3, 0, 1));
  EXPECT_THAT(rest.unused, ElementsAre(2));
  EXPECT_EQ(rest.complaint, "");
  for (int step = 0; step < 2; ++step) {
    LOCKSTEP_EXPECT_OK(marks.Begin(absl::nullopt));
    EXPECT_THAT(marks.unused(), ElementsAre(2));
    EXPECT_THAT(marks.Mark(1), IsOkAndHolds(Marks::Effect::kWaits));
    EXPECT_THAT(marks.Mark(1), IsOkAndHolds(Marks::Effect::kWaits));
    EXPECT_THAT(marks.Mark(0), IsOkAndHolds(Marks::Effect::kReady));
    EXPECT_THAT(marks.Mark(1), IsOkAndHolds(Marks::Effect::kReady));
    EXPECT_THAT(marks.Mark(3), IsOkAndHolds(Marks::Effect::kReady));
    rest = marks.End();
    EXPECT_THAT(rest.ready, IsEmpty());
    EXPECT_THAT(rest.unused, IsEmpty());
    EXPECT_EQ(rest.complaint, "");
    EXPECT_THAT(marks.order(), ElementsAre(0, 1, 3));
  }
}

TEST(MarksStaticGraph, ComplainsOfEveryOtherCount) {
  const std::vector<Parameter> table = Table(4);
  Marks marks(table, {}, StaticGraph());
  RunBackward(marks, {0, 1, 1, 2});
  LOCKSTEP_EXPECT_OK(marks.Begin(absl::nullopt));
  LOCKSTEP_EXPECT_OK(marks.Mark(0));
  EXPECT_THAT(marks.Mark(0), StatusIs(kRefused, HasSubstr("marked more than the 1 time(s) of the first backward")));
  EXPECT_THAT(marks.Mark(3), StatusIs(kRefused, HasSubstr("'p3' (f32[2]) was not used in the first backward")));
  LOCKSTEP_EXPECT_OK(marks.Mark(1));
  const Marks::Rest rest = marks.End();
  EXPECT_THAT(rest.missing, ElementsAre(1, 2));
  EXPECT_EQ(
      rest.complaint,
      "a mark was refused (mark_ready: the graph changed: parameter 0 'p0' (f32[2]) was marked more than the 1 time(s) "
      "of the first backward); "
      "a mark was refused (mark_ready: the graph changed: parameter 3 'p3' (f32[2]) was not used in the first "
      "backward); "
      "the graph changed: no gradient came for parameter 1 'p1' (f32[2]) after 1 of 2 marks, "
      "parameter 2 'p2' (f32[2])");
  EXPECT_EQ(RunBackward(marks, {1, 2, 0, 1}).complaint, "") << "the counts are still those of the first backward";
}

TEST(Marks, AWindowHasWhatWasUsedInAnyOfItsBackwards) {
  const std::vector<Parameter> table = Table(3);
  Marks marks(table, {}, FindUnused());
  RunBackward(marks, {0});
  RunBackward(marks, {1});
  EXPECT_TRUE(marks.used_in_window(0));
  EXPECT_TRUE(marks.used_in_window(1));
  EXPECT_FALSE(marks.used_in_window(2));
  marks.EndWindow();
  for (const size_t index : {0, 1, 2}) EXPECT_FALSE(marks.used_in_window(index));
}

TEST(Marks, ADelayedParameterWaitsForItsTaker) {
  const std::vector<Parameter> table = Table(3);
  const std::vector<size_t> delayed = {1};
  Marks marks(table, delayed, {});
  EXPECT_EQ(RunBackward(marks, {2, 0}).complaint, "") << "delayed parameters are not expected";
  LOCKSTEP_EXPECT_OK(marks.Begin(absl::nullopt));
  for (int times = 0; times < 2; ++times) EXPECT_THAT(marks.Mark(1), IsOkAndHolds(Marks::Effect::kWaits));
  LOCKSTEP_EXPECT_OK(marks.Mark(0));
  LOCKSTEP_EXPECT_OK(marks.Mark(2));
  marks.End();
  EXPECT_THAT(marks.order(), ElementsAre(0, 2));
  // Its window is its own.
  marks.EndWindow();
  EXPECT_TRUE(marks.used_in_window(1));
  marks.TakeDelayed(1);
  EXPECT_FALSE(marks.used_in_window(1));
}

TEST(Marks, ADelayedParameterIsNeverUnusedNorCounted) {
  const std::vector<Parameter> table = Table(3);
  const std::vector<size_t> delayed = {1};
  Marks found(table, delayed, FindUnused());
  EXPECT_THAT(RunBackward(found, {0}).unused, ElementsAre(2));
  LOCKSTEP_EXPECT_OK(found.Begin(std::vector<size_t>{1, 2}));
  EXPECT_THAT(found.unused(), ElementsAre(2));
  LOCKSTEP_EXPECT_OK(found.Mark(1));

  Marks fixed(table, delayed, StaticGraph());
  EXPECT_THAT(RunBackward(fixed, {0, 1, 2}).ready, ElementsAre(0, 2));
  EXPECT_EQ(RunBackward(fixed, {0, 2}).complaint, "");
  EXPECT_EQ(RunBackward(fixed, {1, 0, 1, 2, 1}).complaint, "");
}

TEST(Marks, TellWhetherAStaticGraphWouldDo) {
  const std::vector<Parameter> table = Table(3);
  Marks marks(table, {}, FindUnused());
  EXPECT_FALSE(marks.can_be_static());
  RunBackward(marks, {0, 2});
  EXPECT_FALSE(marks.can_be_static()) << "one backward is not two that are alike";
  RunBackward(marks, {2, 0});
  EXPECT_TRUE(marks.can_be_static());
  RunBackward(marks, {2});
  EXPECT_FALSE(marks.can_be_static());
  RunBackward(marks, {2});
  EXPECT_FALSE(marks.can_be_static()) << "they have varied";
}

}  // namespace
}  // namespace lockstep
