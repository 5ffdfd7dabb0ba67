#include "reducer/plan/agreement.h"

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "base/error_info.h"
#include "comm/host/self_communicator.h"
#include "reducer/plan/plan_testing.h"

namespace lockstep::testing {
namespace {

std::vector<Parameter> SomeTable() {
  return {MakeParameter("embedding", DType::kF32, {10, 4}), MakeParameter("weight", DType::kF32, {4, 4}),
          MakeParameter("bias", DType::kBF16, {4})};
}

// What a rank brings along.
struct Argument {
  absl::Status local;
  std::string settings = "average: before; hook: none";
  std::vector<Parameter> table = SomeTable();
};

class Agreement : public RanksTest {
 protected:
  // What each rank is told, and that the communicator can still be used.
  std::vector<absl::Status> Agree(const std::vector<Argument>& arguments) {
    std::vector<absl::Status> results(size());
    RunWorld(size(), [&](Communicator& communicator) {
      const Argument& mine = arguments[communicator.rank().value()];
      results[communicator.rank().value()] = AgreeOnParameters(communicator, mine.local, mine.settings, mine.table);
      LOCKSTEP_EXPECT_OK(AgreeOnParameters(communicator, absl::OkStatus(), "", SomeTable()));
    });
    return results;
  }

  std::vector<Argument> Arguments() const { return std::vector<Argument>(size()); }
};

INSTANTIATE_TEST_SUITE_P(Ranks, Agreement, ::testing::Values(2, 3, 4), RanksTest::NameOf);

TEST_P(Agreement, IsReachedByEqualRanks) { EXPECT_THAT(Agree(Arguments()), Each(IsOk())); }

// Which differences there are: FirstDifference.IsASentenceAboutTheFirstOne.
TEST_P(Agreement, TellsAllRanksTheSameFirstDifference) {
  const struct {
    void (*change)(Argument&);
    std::string says;  // behind it: "<value> on rank <last>"
  } cases[] = {
      {[](Argument& a) {
         a.table[1].strides = {1, 4};
       },
       "the layout of parameter 1 'weight' differs: row-major on rank 0, strides [1, 4] on rank "},
      {[](Argument& a) { a.settings = "average: after; hook: none"; }, ", after on rank "},
  };
  const int last = size() - 1;
  for (const auto& difference : cases) {
    std::vector<Argument> arguments = Arguments();
    difference.change(arguments[last]);
    const std::vector<absl::Status> results = Agree(arguments);
    EXPECT_THAT(results, Each(FailedPrecondition(absl::StrCat(difference.says, last))));
    const bool of_table = absl::StartsWith(difference.says, "the layout");
    const std::string info = absl::StrCat("failed_rank=", last, of_table ? " parameter=1" : "");
    for (const absl::Status& result : results) EXPECT_EQ(ToText(GetErrorInfo(result)), info);
  }
}

TEST_P(Agreement, TellsTheSettingsOfEachGroupOfRanks) {
  std::vector<Argument> arguments = Arguments();
  for (int rank = 0; rank < size(); rank += 2) arguments[rank].settings = "average: after: all; hook: none";
  const char* const says[] = {"after: all on rank 0, before on rank 1", "after: all on ranks 0, 2, before on rank 1",
                              "after: all on ranks 0, 2, before on ranks 1, 3"};
  EXPECT_THAT(Agree(arguments), Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                                              absl::StrCat("the options differ: average: ", says[size() - 2]))));
  arguments = Arguments();
  for (int rank = 1; rank < size(); ++rank)
    arguments[rank].settings = absl::StrCat("average: before; hook: h", rank / 2);
  const char* const groups[] = {"h0 on rank 1", "h0 on rank 1, h1 on rank 2", "h0 on rank 1, h1 on ranks 2-3"};
  EXPECT_THAT(Agree(arguments),
              Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                            absl::StrCat("the options differ: hook: none on rank 0, ", groups[size() - 2]))));
}

TEST_P(Agreement, RankZeroMayBeTheOddOneOut) {
  std::vector<Argument> tables = Arguments(), settings = Arguments();
  tables[0].table[1].shape = {8, 2};
  settings[0].settings = "average: after; hook: none";
  const std::vector<absl::Status> results = Agree(tables);
  EXPECT_THAT(results, Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                                     "the shape of parameter 1 'weight' differs: [8, 2] on rank 0, [4, 4] on rank 1")));
  for (const absl::Status& result : results) EXPECT_EQ(GetErrorInfo(result).failed_rank, size() == 2 ? 1 : 0);
  for (const absl::Status& result : Agree(settings)) {
    EXPECT_EQ(GetErrorInfo(result).failed_rank, size() == 2 ? 1 : 0);
  }
}

TEST_P(Agreement, ARankWithABadArgumentKeepsItsErrorAndTheOthersHearOfIt) {
  for (int bad = 0; bad < size(); ++bad) {
    std::vector<Argument> arguments = Arguments();
    arguments[bad].local = absl::InvalidArgumentError("parameter 7 'x' is odd");
    const std::vector<absl::Status> results = Agree(arguments);
    for (int rank = 0; rank < size(); ++rank) {
      if (rank == bad) {
        EXPECT_THAT(results[rank], StatusIs(absl::StatusCode::kInvalidArgument, "parameter 7 'x' is odd"));
      } else {
        EXPECT_THAT(results[rank], StatusIs(absl::StatusCode::kFailedPrecondition,
                                            absl::StrCat("rank ", bad, " cannot take part: parameter 7 'x' is odd")));
      }
    }
  }
}

TEST_P(Agreement, ABadArgumentComesWithAnyTable) {
  // An empty table, say, or one that could not even be written down.
  std::vector<Argument> arguments = Arguments();
  arguments[size() - 1].local = absl::InvalidArgumentError("empty");
  arguments[size() - 1].table.clear();
  const std::vector<absl::Status> results = Agree(arguments);
  EXPECT_THAT(results[size() - 1], StatusIs(absl::StatusCode::kInvalidArgument, "empty"));
  EXPECT_THAT(results[0], FailedPrecondition("cannot take part: empty"));
}

TEST_P(Agreement, EveryRankMayBeBad) {
  std::vector<Argument> arguments = Arguments();
  for (int rank = 0; rank < size(); ++rank) {
    arguments[rank].local = absl::InvalidArgumentError(absl::StrCat("bad in way ", rank));
  }
  const std::vector<absl::Status> results = Agree(arguments);
  for (int rank = 0; rank < size(); ++rank) {
    EXPECT_THAT(results[rank], StatusIs(absl::StatusCode::kInvalidArgument, absl::StrCat("bad in way ", rank)));
  }
}

TEST_P(Agreement, TextsOfAnyLengthAreToldInPart) {
  std::vector<Argument> arguments = Arguments();
  arguments[1].local = absl::InvalidArgumentError(std::string(100000, 'x'));
  for (Argument& argument : arguments) argument.settings = std::string(5000, 's');
  const std::vector<absl::Status> results = Agree(arguments);
  EXPECT_EQ(results[1].message().size(), 100000);
  EXPECT_THAT(results[0], FailedPrecondition("rank 1 cannot take part: xxx"));
}

TEST_P(Agreement, SettingsThatDifferFarBehindAreADifferenceToo) {
  std::vector<Argument> arguments = Arguments();
  const std::string beginning(5000, 's');
  for (Argument& argument : arguments) argument.settings = beginning;
  arguments[1].settings += "t";
  EXPECT_THAT(Agree(arguments), Each(FailedPrecondition("the options differ: behind sss")));
}

TEST_P(Agreement, EndsWithAnErrorWhenTheCommunicatorIsOver) {
  LoopbackWorld world(size(), {}, ShortTimeout());
  world.communicator(0)->Abort("test");
  EXPECT_THAT(AgreeOnParameters(*world.communicator(0), absl::OkStatus(), "", SomeTable()), Aborted("test"));
}

TEST(AgreementOfOne, IsItsOwnArgument) {
  SelfCommunicator communicator(16);
  LOCKSTEP_EXPECT_OK(AgreeOnParameters(communicator, absl::OkStatus(), "settings", SomeTable()));
  EXPECT_THAT(AgreeOnParameters(communicator, absl::InvalidArgumentError("bad"), "settings", SomeTable()),
              StatusIs(absl::StatusCode::kInvalidArgument, "bad"));
}

}  // namespace
}  // namespace lockstep::testing
