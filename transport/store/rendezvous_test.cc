#include "transport/store/rendezvous.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/env.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Variables = std::map<std::string, std::string>;

Environment Make(const Variables& variables, std::vector<std::string> unknown = {}) {
  Environment environment;
  environment.lookup = [variables](absl::string_view name) -> absl::optional<std::string> {
    const auto found = variables.find(std::string(name));
    if (found == variables.end()) return absl::nullopt;
    return found->second;
  };
  environment.unknown_names = std::move(unknown);
  return environment;
}

absl::StatusOr<WorldSpec> From(const Variables& variables, const RendezvousOptions& options = {}) {
  return DetermineWorld(options, Make(variables));
}

RendezvousOptions RankAndSize(int rank, int size) {
  RendezvousOptions options;
  options.rank = rank;
  options.size = size;
  return options;
}

// "torchrun: 1/4, local 1/2, tcp://a:1 (MASTER_ADDR...)", or the error.
std::string Text(const absl::StatusOr<WorldSpec>& world) {
  if (!world.ok()) return world.status().ToString();
  return absl::StrCat(world->source, ": ", world->rank.value(), "/", world->size, ", local ", world->local_rank, "/",
                      world->local_size, ", ", world->store_url, " (", world->store_source, ")",
                      world->store_served ? " served" : "");
}

testing::Matcher<const absl::StatusOr<WorldSpec>&> Invalid(std::vector<std::string> parts) {
  testing::Matcher<const std::string&> all = testing::_;
  for (const std::string& part : parts) all = AllOf(all, HasSubstr(part));
  return StatusIs(absl::StatusCode::kInvalidArgument, all);
}

const Variables kOurs = {{"LOCKSTEP_RANK", "3"},
                         {"LOCKSTEP_WORLD_SIZE", "8"},
                         {"LOCKSTEP_LOCAL_RANK", "1"},
                         {"LOCKSTEP_LOCAL_WORLD_SIZE", "2"},
                         {"LOCKSTEP_STORE", "tcp://host:29400"},
                         {"LOCKSTEP_JOB_ID", "job 7"}};
const Variables kTorchrun = {{"RANK", "3"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "2"},
                             {"MASTER_ADDR", "node0"},
                             {"MASTER_PORT", "29500"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "3"},
                            {"OMPI_COMM_WORLD_SIZE", "8"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
const Variables kPmi = {{"PMI_RANK", "3"}, {"PMI_SIZE", "8"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
const Variables kSlurm = {{"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "8"}, {"SLURM_LOCALID", "1"}};

Variables With(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

Variables Without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

TEST(DetermineWorld, NobodyLaunchedUsIsAWorldOfOne) {
  const auto world = From({});
  EXPECT_EQ(Text(world), "single process: 0/1, local -1/-1,  ()");
  EXPECT_THAT(world->notes, IsEmpty());
  EXPECT_EQ(Text(From({{"LOCKSTEP_JOB_ID", "job"}, {"LOCKSTEP_RANK", ""}, {"RANK", ""}})),
            "single process: 0/1, local -1/-1,  ()");
}

TEST(DetermineWorld, OurVariables) {
  const auto world = From(kOurs);
  EXPECT_EQ(Text(world), "LOCKSTEP_*: 3/8, local 1/2, tcp://host:29400 (LOCKSTEP_STORE)");
  EXPECT_EQ(world->job_id, "job 7");
}

TEST(DetermineWorld, LocalRankAndSizeAreOptional) {
  EXPECT_EQ(Text(From(Without(kOurs, "LOCKSTEP_LOCAL_RANK"))),
            "LOCKSTEP_*: 3/8, local -1/2, tcp://host:29400 (LOCKSTEP_STORE)");
  EXPECT_EQ(Text(From(Without(kOurs, "LOCKSTEP_LOCAL_WORLD_SIZE"))),
            "LOCKSTEP_*: 3/8, local 1/-1, tcp://host:29400 (LOCKSTEP_STORE)");
}

TEST(DetermineWorld, AHalfSetFamilyOfOursNamesWhatIsThereAndWhatIsNot) {
  EXPECT_THAT(From({{"LOCKSTEP_RANK", "3"}}), Invalid({"LOCKSTEP_RANK=3 is set, LOCKSTEP_WORLD_SIZE is missing"}));
  EXPECT_THAT(From({{"LOCKSTEP_WORLD_SIZE", "8"}}),
              Invalid({"LOCKSTEP_WORLD_SIZE=8 is set, LOCKSTEP_RANK is missing"}));
  EXPECT_THAT(From({{"LOCKSTEP_LOCAL_RANK", "1"}}),
              Invalid({"LOCKSTEP_LOCAL_RANK=1 is set, LOCKSTEP_RANK, LOCKSTEP_WORLD_SIZE are missing"}));
  EXPECT_THAT(From({{"LOCKSTEP_RANK", "3"}, {"LOCKSTEP_WORLD_SIZE", ""}}), Invalid({"LOCKSTEP_WORLD_SIZE is missing"}));
  EXPECT_THAT(From({{"LOCKSTEP_STORE", "tcp://host:1"}}),
              Invalid({"LOCKSTEP_STORE=tcp://host:1 is set, LOCKSTEP_RANK, LOCKSTEP_WORLD_SIZE are missing"}));
  // Even where another family is complete: somebody meant something by it.
  EXPECT_THAT(From(With(kTorchrun, {{"LOCKSTEP_RANK", "3"}})), Invalid({"LOCKSTEP_WORLD_SIZE is missing"}));
}

TEST(DetermineWorld, WrongNumbersAreNamedWithTheirValues) {
  const struct {
    Variables changes;
    std::vector<std::string> message;
  } cases[] = {
      {{{"LOCKSTEP_WORLD_SIZE", "0"}}, {"LOCKSTEP_WORLD_SIZE=0", "1 rank or more"}},
      {{{"LOCKSTEP_WORLD_SIZE", "-8"}}, {"LOCKSTEP_WORLD_SIZE=-8", "1 rank or more"}},
      {{{"LOCKSTEP_WORLD_SIZE", "2147483648"}}, {"LOCKSTEP_WORLD_SIZE=2147483648"}},
      {{{"LOCKSTEP_WORLD_SIZE", "eight"}}, {"LOCKSTEP_WORLD_SIZE=eight", "takes a number"}},
      {{{"LOCKSTEP_RANK", "8"}}, {"LOCKSTEP_RANK=8", "from 0 to 7", "LOCKSTEP_WORLD_SIZE=8"}},
      {{{"LOCKSTEP_RANK", "-1"}}, {"LOCKSTEP_RANK=-1", "from 0 to 7"}},
      {{{"LOCKSTEP_RANK", "3.0"}}, {"LOCKSTEP_RANK=3.0", "takes a number"}},
      {{{"LOCKSTEP_RANK", " 3"}}, {"LOCKSTEP_RANK= 3", "takes a number"}},
      {{{"LOCKSTEP_RANK", "99999999999999999999"}}, {"LOCKSTEP_RANK=9999", "takes a number"}},
      {{{"LOCKSTEP_LOCAL_RANK", "2"}}, {"LOCKSTEP_LOCAL_RANK=2", "from 0 to 1", "LOCKSTEP_LOCAL_WORLD_SIZE=2"}},
      {{{"LOCKSTEP_LOCAL_RANK", "-1"}}, {"LOCKSTEP_LOCAL_RANK=-1"}},
      {{{"LOCKSTEP_LOCAL_RANK", "x"}}, {"LOCKSTEP_LOCAL_RANK=x", "takes a number"}},
      {{{"LOCKSTEP_LOCAL_WORLD_SIZE", "9"}}, {"LOCKSTEP_LOCAL_WORLD_SIZE=9", "from 1 to 8"}},
      {{{"LOCKSTEP_LOCAL_WORLD_SIZE", "0"}}, {"LOCKSTEP_LOCAL_WORLD_SIZE=0", "from 1 to 8"}},
      {{{"LOCKSTEP_STORE", "host:29400"}}, {"LOCKSTEP_STORE", "'host:29400'", "expected tcp://host:port"}},
      {{{"LOCKSTEP_STORE_SERVED", "maybe"}}, {"LOCKSTEP_STORE_SERVED=maybe", "0 or 1"}},
      {{{"LOCKSTEP_JOB_ID", std::string(257, 'j')}}, {"LOCKSTEP_JOB_ID", "257 bytes"}},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(From(With(kOurs, c.changes)), Invalid(c.message)) << c.changes.begin()->first;
  }
}

TEST(DetermineWorld, ALauncherThatServesTheStoreSaysSo) {
  EXPECT_EQ(Text(From(With(kOurs, {{"LOCKSTEP_STORE_SERVED", "1"}}))),
            "LOCKSTEP_*: 3/8, local 1/2, tcp://host:29400 (LOCKSTEP_STORE) served");
  EXPECT_EQ(Text(From(With(kOurs, {{"LOCKSTEP_STORE_SERVED", "0"}}))),
            "LOCKSTEP_*: 3/8, local 1/2, tcp://host:29400 (LOCKSTEP_STORE)");
  // It speaks of its own store, not of another that an option names.
  RendezvousOptions options;
  options.store_url = "file:///tmp/store";
  EXPECT_EQ(Text(From(With(kOurs, {{"LOCKSTEP_STORE_SERVED", "1"}}), options)),
            "LOCKSTEP_*: 3/8, local 1/2, file:///tmp/store (option store_url)");
}

TEST(DetermineWorld, TorchrunsStoreIsNextToItsOwn) {
  EXPECT_EQ(Text(From(kTorchrun)), "torchrun: 3/8, local 1/2, tcp://node0:30611 (MASTER_ADDR and MASTER_PORT + 1111)");
  EXPECT_EQ(Text(From(With(kTorchrun, {{"MASTER_PORT", "64424"}, {"MASTER_ADDR", "fe80::1"}}))),
            "torchrun: 3/8, local 1/2, tcp://[fe80::1]:65535 (MASTER_ADDR and MASTER_PORT + 1111)");
  EXPECT_EQ(Text(From(With(kTorchrun, {{"MASTER_PORT", "64425"}}))),
            "torchrun: 3/8, local 1/2, tcp://node0:63314 (MASTER_ADDR and MASTER_PORT - 1111)");
  EXPECT_EQ(Text(From(With(kTorchrun, {{"LOCKSTEP_STORE", "tcp://other:1"}}))),
            "torchrun: 3/8, local 1/2, tcp://other:1 (LOCKSTEP_STORE)");
}

TEST(DetermineWorld, TorchrunWithoutAnAddressSaysWhatToSet) {
  EXPECT_THAT(From(Without(kTorchrun, "MASTER_ADDR")), Invalid({"MASTER_ADDR is missing", "LOCKSTEP_STORE=tcp://"}));
  EXPECT_THAT(From(Without(kTorchrun, "MASTER_PORT")), Invalid({"MASTER_PORT is missing", "LOCKSTEP_STORE=tcp://"}));
  EXPECT_THAT(From(With(kTorchrun, {{"MASTER_PORT", "70000"}})), Invalid({"MASTER_PORT=70000", "from 1 to 65535"}));
  EXPECT_EQ(Text(From({{"RANK", "0"}, {"WORLD_SIZE", "1"}})), "torchrun: 0/1, local -1/-1,  ()");
}

TEST(DetermineWorld, FamiliesWithoutAnAddressNeedTheStore) {
  const Variables store = {{"LOCKSTEP_STORE", "file:///shared/store"}};
  EXPECT_EQ(Text(From(With(kOpenMpi, store))), "Open MPI: 3/8, local 1/2, file:///shared/store (LOCKSTEP_STORE)");
  EXPECT_EQ(Text(From(With(kPmi, store))), "PMI: 3/8, local 1/2, file:///shared/store (LOCKSTEP_STORE)");
  EXPECT_EQ(Text(From(With(kSlurm, store))), "Slurm: 3/8, local 1/-1, file:///shared/store (LOCKSTEP_STORE)");
  for (const auto& [family, name] :
       {std::make_pair(kOpenMpi, "Open MPI"), std::make_pair(kPmi, "PMI"), std::make_pair(kSlurm, "Slurm")}) {
    EXPECT_THAT(From(family), Invalid({"rank 3 of 8", name, "set LOCKSTEP_STORE=tcp://", "LOCKSTEP_WORLD_SIZE=1"}));
  }
  EXPECT_THAT(From(Without(kOurs, "LOCKSTEP_STORE")), Invalid({"rank 3 of 8", "set LOCKSTEP_STORE=tcp://"}));
  EXPECT_EQ(Text(From({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}})), "Slurm: 0/1, local -1/-1,  ()");
}

TEST(DetermineWorld, TheFirstCompleteFamilyWins) {
  Variables all = With(With(With(With(kSlurm, kPmi), kOpenMpi), kTorchrun), kOurs);
  const std::pair<const char*, const char*> expected[] = {{"LOCKSTEP_RANK", "LOCKSTEP_*"},
                                                          {"RANK", "torchrun"},
                                                          {"OMPI_COMM_WORLD_RANK", "Open MPI"},
                                                          {"PMI_RANK", "PMI"},
                                                          {"SLURM_PROCID", "Slurm"}};
  for (const auto& [variable, source] : expected) {
    const auto world = From(all);
    ASSERT_THAT(world, IsOk());
    EXPECT_EQ(world->source, source);
    all.erase(variable);
    for (const char* const ours : {"LOCKSTEP_WORLD_SIZE", "LOCKSTEP_LOCAL_RANK", "LOCKSTEP_LOCAL_WORLD_SIZE"}) {
      all.erase(ours);
    }
  }
}

TEST(DetermineWorld, AHalfSetForeignFamilyIsSkippedWithANote) {
  const auto world = From(With(With(Without(kTorchrun, "WORLD_SIZE"), Without(kPmi, "PMI_RANK")),
                               With(kSlurm, {{"LOCKSTEP_STORE", "tcp://host:1"}})));
  EXPECT_EQ(Text(world), "Slurm: 3/8, local 1/-1, tcp://host:1 (LOCKSTEP_STORE)");
  EXPECT_THAT(world->notes, ElementsAre("torchrun skipped: RANK=3 is set, WORLD_SIZE is missing",
                                        "PMI skipped: PMI_SIZE=8 is set, PMI_RANK is missing"));
  // In an allocation without a step Slurm tells the size only.
  const auto alone = From({{"SLURM_NTASKS", "8"}});
  EXPECT_EQ(Text(alone), "single process: 0/1, local -1/-1,  ()");
  EXPECT_THAT(alone->notes, ElementsAre("Slurm skipped: SLURM_NTASKS=8 is set, SLURM_PROCID is missing"));
}

TEST(DetermineWorld, WrongNumbersOfForeignFamiliesAreErrorsButForLocalOnes) {
  EXPECT_THAT(From(With(kTorchrun, {{"RANK", "8"}})), Invalid({"RANK=8", "WORLD_SIZE=8"}));
  EXPECT_THAT(From(With(kTorchrun, {{"WORLD_SIZE", "0"}})), Invalid({"WORLD_SIZE=0"}));
  EXPECT_THAT(From(With(kSlurm, {{"SLURM_PROCID", "x"}})), Invalid({"SLURM_PROCID=x"}));
  const auto world = From(With(kTorchrun, {{"LOCAL_RANK", "7"}}));
  EXPECT_EQ(Text(world), "torchrun: 3/8, local -1/-1, tcp://node0:30611 (MASTER_ADDR and MASTER_PORT + 1111)");
  EXPECT_THAT(world->notes, ElementsAre(AllOf(HasSubstr("torchrun: local rank ignored"), HasSubstr("LOCAL_RANK=7"))));
}

TEST(DetermineWorld, OptionsGoBeforeTheEnvironment) {
  RendezvousOptions options = RankAndSize(0, 2);
  options.store_url = "tcp://10.0.0.1:5";
  options.job_id = "mine";
  options.local_rank = 1;
  options.local_size = 2;
  const auto world = From(kOurs, options);
  EXPECT_EQ(Text(world), "options: 0/2, local 1/2, tcp://10.0.0.1:5 (option store_url)");
  EXPECT_EQ(world->job_id, "mine");
}

TEST(DetermineWorld, WhatOptionsLeaveOutComesFromOurVariables) {
  EXPECT_EQ(Text(From(kOurs, RankAndSize(0, 4))), "options: 0/4, local 1/2, tcp://host:29400 (LOCKSTEP_STORE)");
  EXPECT_EQ(From(kOurs, RankAndSize(0, 4))->job_id, "job 7");
  // torchrun's address belongs to torchrun's ranks.
  EXPECT_THAT(From(kTorchrun, RankAndSize(0, 4)), Invalid({"rank 0 of 4 (by options)", "set LOCKSTEP_STORE"}));
  RendezvousOptions local;
  local.local_rank = 0;
  EXPECT_EQ(Text(From(kTorchrun, local)),
            "torchrun: 3/8, local 0/-1, tcp://node0:30611 (MASTER_ADDR and MASTER_PORT + 1111)");
}

TEST(DetermineWorld, ACallerWithAStoreOfItsOwnNeedsNoUrl) {
  RendezvousOptions options;
  options.has_store = true;
  EXPECT_EQ(Text(From(kSlurm, options)), "Slurm: 3/8, local 1/-1,  ()");
  EXPECT_EQ(Text(From(Without(kTorchrun, "MASTER_ADDR"), options)), "torchrun: 3/8, local 1/2,  ()");
}

TEST(DetermineWorld, WrongOptionsAreNamed) {
  RendezvousOptions half;
  half.rank = 1;
  EXPECT_THAT(From(kOurs, half), Invalid({"option rank=1 is set, option size is missing"}));
  half = {};
  half.size = 2;
  EXPECT_THAT(From(kOurs, half), Invalid({"option size=2 is set, option rank is missing"}));
  EXPECT_THAT(From({}, RankAndSize(0, 0)), Invalid({"option size=0"}));
  EXPECT_THAT(From({}, RankAndSize(2, 2)), Invalid({"option rank=2", "from 0 to 1 with option size=2"}));
  EXPECT_THAT(From({}, RankAndSize(-1, 2)), Invalid({"option rank=-1"}));
  RendezvousOptions options = RankAndSize(0, 2);
  options.store_url = "udp://x:1";
  EXPECT_THAT(From({}, options), Invalid({"option store_url", "'udp://x:1'", "file:///path"}));
  options.store_url = "tcp://x:1";
  options.local_rank = 2;
  EXPECT_THAT(From({}, options), Invalid({"option local_rank=2"}));
  options = {};
  options.store_url = "tcp://x:1";
  EXPECT_THAT(From({}, options), Invalid({"option store_url is set, but neither rank nor size"}));
  options = RankAndSize(0, 1);
  options.job_id = std::string(300, 'j');
  EXPECT_THAT(From({}, options), Invalid({"option job_id", "300 bytes"}));
}

TEST(DetermineWorld, UnknownVariablesOfOursAreNoted) {
  const auto world = DetermineWorld({}, Make({}, {"LOCKSTEP_RNAK"}));
  ASSERT_THAT(world, IsOk());
  EXPECT_THAT(world->notes, ElementsAre("unknown variable LOCKSTEP_RNAK: a typing error?"));
}

TEST(DetermineWorld, ReadsOnlyVariablesThatAreListed) {
  // So that none of ours is missing from the documentation, nor warned about as unknown.
  std::vector<std::string> unlisted;
  Environment environment = Make(With(kOurs, {{"LOCKSTEP_STORE_SERVED", "1"}}));
  const auto lookup = environment.lookup;
  environment.lookup = [&](absl::string_view name) {
    bool listed = name.substr(0, 9) != "LOCKSTEP_";
    for (const char* known : EnvironmentVariables()) listed = listed || name == known;
    if (!listed) unlisted.emplace_back(name);
    return lookup(name);
  };
  ASSERT_THAT(DetermineWorld({}, environment), IsOk());
  EXPECT_THAT(unlisted, IsEmpty());
}

}  // namespace
}  // namespace lockstep
