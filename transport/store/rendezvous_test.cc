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
#include "transport/exchange/exchange.h"
#include "transport/exchange/pmix.h"

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
  EXPECT_THAT(From({{"PMIX_NAMESPACE", "job"}})->notes,
              ElementsAre("PMIx skipped: PMIX_NAMESPACE=job is set, PMIX_RANK is missing"));
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
  EXPECT_EQ(Text(From(kOurs, RankAndSize(3, 8))), "options: 3/8, local 1/2, tcp://host:29400 (LOCKSTEP_STORE)");
  EXPECT_EQ(
      Text(From({{"LOCKSTEP_LOCAL_WORLD_SIZE", "2"}, {"LOCKSTEP_LOCAL_RANK", "1"}, {"LOCKSTEP_STORE", "tcp://host:1"}},
                RankAndSize(3, 8))),
      "options: 3/8, local 1/2, tcp://host:1 (LOCKSTEP_STORE)");
  EXPECT_EQ(From(kOurs, RankAndSize(0, 4))->job_id, "job 7");
  // torchrun's address belongs to torchrun's ranks.
  EXPECT_THAT(From(kTorchrun, RankAndSize(0, 4)), Invalid({"rank 0 of 4 (by options)", "set LOCKSTEP_STORE"}));
  RendezvousOptions local;
  local.local_rank = 0;
  EXPECT_EQ(Text(From(kTorchrun, local)),
            "torchrun: 3/8, local 0/-1, tcp://node0:30611 (MASTER_ADDR and MASTER_PORT + 1111)");
}

TEST(DetermineWorld, AWorldOfSomeOfTheJobsProcessesIgnoresTheJobsLocalRanks) {
  const Variables one_host = With(kOurs, {{"LOCKSTEP_LOCAL_WORLD_SIZE", "8"}, {"LOCKSTEP_LOCAL_RANK", "3"}});
  EXPECT_EQ(Text(From(one_host, RankAndSize(1, 2))), "options: 1/2, local -1/2, tcp://host:29400 (LOCKSTEP_STORE)");
  EXPECT_EQ(Text(From(one_host, RankAndSize(3, 4))), "options: 3/4, local -1/4, tcp://host:29400 (LOCKSTEP_STORE)");
  EXPECT_EQ(Text(From(one_host, RankAndSize(0, 8))), "options: 0/8, local -1/8, tcp://host:29400 (LOCKSTEP_STORE)");
  EXPECT_EQ(Text(From(one_host, RankAndSize(0, 1))), "options: 0/1, local -1/1, tcp://host:29400 (LOCKSTEP_STORE)");
  // More than the job, or a job on several hosts.
  EXPECT_EQ(Text(From(one_host, RankAndSize(3, 16))), "options: 3/16, local -1/-1, tcp://host:29400 (LOCKSTEP_STORE)");
  EXPECT_EQ(Text(From(kOurs, RankAndSize(1, 4))), "options: 1/4, local -1/-1, tcp://host:29400 (LOCKSTEP_STORE)");
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
  EXPECT_THAT(From(kOurs, half), Invalid({"option rank=1 is set, option world_size is missing"}));
  half = {};
  half.size = 2;
  EXPECT_THAT(From(kOurs, half), Invalid({"option world_size=2 is set, option rank is missing"}));
  EXPECT_THAT(From({}, RankAndSize(0, 0)), Invalid({"option world_size=0"}));
  EXPECT_THAT(From({}, RankAndSize(2, 2)), Invalid({"option rank=2", "from 0 to 1 with option world_size=2"}));
  EXPECT_THAT(From({}, RankAndSize(-1, 2)), Invalid({"option rank=-1"}));
  RendezvousOptions options = RankAndSize(0, 2);
  options.store_url = "udp://x:1";
  EXPECT_THAT(From({}, options), Invalid({"option store_url", "'udp://x:1'", "file:///path"}));
  options.store_url = "tcp://x:1";
  options.local_rank = 2;
  EXPECT_THAT(From({}, options), Invalid({"option local_rank=2"}));
  options.local_rank = 0;
  options.local_size = -3;
  EXPECT_THAT(From({}, options), Invalid({"option local_world_size=-3"}));
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

TEST(DetermineWorld, UnderOpenMpiRanksMeetByPmix) {
  const Variables pmix = {{"PMIX_NAMESPACE", "prterun-1"}, {"PMIX_RANK", "3"}};
  const auto world = From(With(kOpenMpi, pmix));
  EXPECT_EQ(Text(world), "Open MPI: 3/8, local 1/2,  ()");
  EXPECT_EQ(world->exchange, ExchangeKind::kPmix);
  // What is there before it, and what says more.
  EXPECT_EQ(From(With(With(kOpenMpi, pmix), {{"LOCKSTEP_STORE", "tcp://host:1"}}))->exchange, ExchangeKind::kNone);
  RendezvousOptions options;
  options.has_store = true;
  EXPECT_EQ(From(With(kOpenMpi, pmix), options)->exchange, ExchangeKind::kNone);
  EXPECT_EQ(From(With(With(kOpenMpi, pmix), {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}))->exchange,
            ExchangeKind::kNone);
  // A connection that is another process's, or none.
  EXPECT_THAT(From(With(With(kOpenMpi, pmix), {{"PMIX_RANK", "2"}})),
              Invalid({"by Open MPI", "PMIX_RANK", "set LOCKSTEP_STORE"}));
  EXPECT_THAT(From(With(kOpenMpi, {{"PMIX_RANK", "3"}})), Invalid({"PMIX_NAMESPACE", "set LOCKSTEP_STORE"}));
}

TEST(DetermineWorld, UnderPmiRanksMeetByItsDescriptor) {
  EXPECT_EQ(From(With(kPmi, {{"PMI_FD", "6"}}))->exchange, ExchangeKind::kPmi1);
  EXPECT_THAT(From(kPmi), Invalid({"by PMI", "PMI_FD is not set", "set LOCKSTEP_STORE"}));
}

const Variables kStep = {{"SLURM_PROCID", "3"},
                         {"SLURM_NTASKS", "8"},
                         {"SLURM_LOCALID", "1"},
                         {"SLURM_NODEID", "1"},
                         {"SLURM_JOB_ID", "100"},
                         {"SLURM_STEP_ID", "2"},
                         {"SLURM_STEP_NODELIST", "n[07-09],x"},
                         {"SLURM_STEP_TASKS_PER_NODE", "2(x4)"}};
const Variables kSlurmPmi = {{"PMI_RANK", "3"}, {"PMI_SIZE", "8"}, {"PMI_FD", "11"}, {"PMI_JOBID", "100.2"}};

TEST(DetermineWorld, UnderSrunRanksMeetOnTheFirstNode) {
  const auto world = From(kStep);
  EXPECT_EQ(Text(world), "Slurm: 3/8, local 1/2, tcp://n07:23102 (SLURM_JOB_ID, SLURM_STEP_ID, SLURM_STEP_NODELIST)");
  EXPECT_EQ(world->job_id, "100.2");
  EXPECT_EQ(world->job_source, "SLURM_JOB_ID, SLURM_STEP_ID");
  EXPECT_EQ(From(With(kStep, {{"SLURM_RESTART_COUNT", "1"}}))->job_id, "100.2.1");
  EXPECT_EQ(From(With(kStep, {{"LOCKSTEP_JOB_ID", "mine"}}))->job_id, "mine");
}

TEST(DetermineWorld, OutsideOfAStepSlurmHasNoPlaceToMeet) {
  EXPECT_THAT(From(Without(kStep, "SLURM_STEP_ID")),
              Invalid({"rank 3 of 8 (by Slurm)", "SLURM_STEP_ID is not set: srun starts ranks", "set LOCKSTEP_STORE"}));
  EXPECT_THAT(From(With(kStep, {{"SLURM_STEP_ID", "4294967290"}})),
              Invalid({"SLURM_STEP_ID=4294967290 is no step of ranks: srun starts ranks", "set LOCKSTEP_STORE"}));
  EXPECT_THAT(From(With(kStep, {{"SLURM_PROCID", "0"}})), Invalid({"rank 0 is on node 1", "set LOCKSTEP_STORE"}));
  EXPECT_THAT(From(With(kStep, {{"SLURM_STEP_NODELIST", "n[1-"}})), Invalid({"SLURM_STEP_NODELIST", "'n[1-'"}));
  EXPECT_THAT(From(With(kStep, {{"SLURM_JOB_ID", "x"}})), Invalid({"SLURM_JOB_ID=x"}));
  const auto world = From(With(kStep, {{"SLURM_STEP_TASKS_PER_NODE", "2"}}));
  EXPECT_EQ(world->local_size, -1);
  EXPECT_THAT(world->notes, ElementsAre(AllOf(HasSubstr("Slurm: local rank ignored"), HasSubstr("has no node 1"))));
}

TEST(DetermineWorld, SrunsPmi2IsUsedWhereNoMpiNeedsIt) {
  Environment environment = Make(With(kStep, kSlurmPmi));
  auto world = DetermineWorld({}, environment);
  EXPECT_EQ(Text(world), "PMI: 3/8, local 1/2,  ()");
  EXPECT_EQ(world->exchange, ExchangeKind::kPmi2);
  environment.has_mpi = true;
  world = DetermineWorld({}, environment);
  EXPECT_EQ(Text(world), "PMI: 3/8, local 1/2, tcp://n07:23102 (SLURM_JOB_ID, SLURM_STEP_ID, SLURM_STEP_NODELIST)");
  EXPECT_EQ(world->exchange, ExchangeKind::kNone);
  EXPECT_EQ(world->job_id, "100.2");
  // Hydra in a Slurm job: its own variables beside Slurm's.
  environment = Make(With(With(kStep, kSlurmPmi), kPmi));
  environment.has_mpi = true;
  EXPECT_EQ(DetermineWorld({}, environment)->exchange, ExchangeKind::kPmi1);
}

TEST(DetermineWorld, PmixSaysWhoThisIs) {
  const Variables pmix = {{"PMIX_NAMESPACE", "slurm.pmix.3.0"}, {"PMIX_RANK", "5"}};
  Environment environment = Make(With(kStep, pmix));
  absl::StatusOr<PmixJob> job = PmixJob{5, 6, 1, 2};
  environment.pmix_job = [&] { return job; };
  auto world = DetermineWorld({}, environment);
  EXPECT_EQ(Text(world), "PMIx: 5/6, local 1/2,  ()");
  EXPECT_EQ(world->exchange, ExchangeKind::kPmix);
  job = PmixJob{5, 6, -1, -1};
  EXPECT_EQ(Text(DetermineWorld({}, environment)), "PMIx: 5/6, local -1/-1,  ()");
  job = PmixJob{5, 6, 1, 7};
  world = DetermineWorld({}, environment);
  EXPECT_EQ(Text(world), "PMIx: 5/6, local -1/-1,  ()");
  EXPECT_THAT(world->notes, ElementsAre(AllOf(HasSubstr("PMIx: local rank ignored"), HasSubstr("local size=7"))));
  for (const PmixJob& silent : {PmixJob{-1, 6, 1, 2}, PmixJob{5, -1, 1, 2}}) {
    job = silent;
    EXPECT_THAT(DetermineWorld({}, environment),
                StatusIs(absl::StatusCode::kUnavailable, "PMIx does not say rank and size"));
  }
  // Without the library, Slurm's variables do; where there are none, nobody says who this is.
  job = absl::NotFoundError("no libpmix");
  world = DetermineWorld({}, environment);
  EXPECT_EQ(world->source, "Slurm");
  EXPECT_THAT(world->notes, ElementsAre(AllOf(HasSubstr("PMIx skipped"), HasSubstr("no libpmix"))));
  environment.lookup = Make(pmix).lookup;
  EXPECT_THAT(DetermineWorld({}, environment),
              StatusIs(absl::StatusCode::kNotFound, AllOf(HasSubstr("PMIX_RANK=5"), HasSubstr("no libpmix"))));
  environment.lookup = Make(With(kStep, pmix)).lookup;
  job = absl::UnavailableError("no server");
  EXPECT_THAT(DetermineWorld({}, environment),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("PMIX_RANK=5"), HasSubstr("no server"), HasSubstr("set LOCKSTEP_RANK"))));
  // Who says it before is not asked about.
  environment.pmix_job = [] {
    ADD_FAILURE();
    return absl::UnknownError("");
  };
  environment.lookup = Make(With(kTorchrun, pmix)).lookup;
  EXPECT_EQ(DetermineWorld({}, environment)->source, "torchrun");
}

TEST(DetermineWorld, SrunsPmixIsNotAskedWhereRanksDoNotMeetByIt) {
  const Variables pmix = {{"PMIX_NAMESPACE", "slurm.pmix.3.0"}, {"PMIX_RANK", "3"}};
  const Variables store = {{"LOCKSTEP_STORE", "tcp://host:1"}};
  Environment environment = Make(With(With(kStep, pmix), store));
  environment.pmix_job = [] { return absl::UnavailableError("no server"); };
  EXPECT_EQ(Text(DetermineWorld({}, environment)), "Slurm: 3/8, local 1/2, tcp://host:1 (LOCKSTEP_STORE)");
  environment.lookup = Make(With(kStep, pmix)).lookup;
  RendezvousOptions options;
  options.has_store = true;
  EXPECT_EQ(Text(DetermineWorld(options, environment)), "Slurm: 3/8, local 1/2,  ()");
  options = {};
  options.store_url = "tcp://host:1";
  EXPECT_EQ(Text(DetermineWorld(options, environment)), "Slurm: 3/8, local 1/2, tcp://host:1 (option store_url)");
  environment.lookup = Make(With(pmix, {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}})).lookup;
  EXPECT_EQ(Text(DetermineWorld({}, environment)), "Slurm: 0/1, local -1/-1,  ()");
  // Slurm's variables do not fit what another launcher started inside of its step.
  environment.lookup = Make(With(With(kStep, store), {{"PMIX_NAMESPACE", "prterun-1"}, {"PMIX_RANK", "5"}})).lookup;
  EXPECT_THAT(DetermineWorld({}, environment), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("no server")));
}

const Variables kKubeflow = {{"PET_NNODES", "4"},
                             {"PET_NODE_RANK", "2"},
                             {"PET_NPROC_PER_NODE", "1"},
                             {"PET_MASTER_ADDR", "job-node-0-0.job"},
                             {"PET_MASTER_PORT", "29500"}};

TEST(DetermineWorld, KubeflowCountsNodes) {
  EXPECT_EQ(Text(From(kKubeflow)),
            "Kubeflow: 2/4, local -1/1, tcp://job-node-0-0.job:30611 (PET_MASTER_ADDR and PET_MASTER_PORT + 1111)");
  EXPECT_EQ(Text(From(Without(kKubeflow, "PET_NPROC_PER_NODE"))).substr(0, 27), "Kubeflow: 2/4, local -1/-1,");
  const Variables several = With(kKubeflow, {{"PET_NPROC_PER_NODE", "8"}, {"LOCAL_RANK", "3"}});
  EXPECT_EQ(Text(From(several)).substr(0, 27), "Kubeflow: 19/32, local 3/8,");
  // torchrun, which these are for, tells its processes more.
  EXPECT_EQ(From(With(several, kTorchrun))->source, "torchrun");
  // A pod's variables are of its node; mpirun's, in the pod, of the process.
  EXPECT_EQ(From(With(With(kKubeflow, kOpenMpi), {{"LOCKSTEP_STORE", "tcp://h:1"}}))->source, "Open MPI");
  EXPECT_EQ(From(With(With(kKubeflow, kPmi), {{"LOCKSTEP_STORE", "tcp://h:1"}}))->source, "PMI");
  EXPECT_EQ(From({{"PET_NPROC_PER_NODE", "8"}})->source, "single process");
  EXPECT_THAT(From(Without(kKubeflow, "PET_NODE_RANK"))->notes,
              ElementsAre("Kubeflow skipped: PET_NNODES=4 is set, PET_NODE_RANK is missing"));
}

TEST(DetermineWorld, KubeflowsWrongNumbersAreNamed) {
  const auto with = [](const Variables& changes) { return From(With(kKubeflow, changes)); };
  EXPECT_THAT(with({{"PET_NPROC_PER_NODE", "8"}}),
              Invalid({"PET_NPROC_PER_NODE=8 is set, LOCAL_RANK is missing", "torchrun", "LOCKSTEP_RANK=0"}));
  EXPECT_THAT(with({{"PET_NPROC_PER_NODE", "auto"}}), Invalid({"PET_NPROC_PER_NODE=auto: takes a number", "torchrun"}));
  EXPECT_THAT(with({{"PET_NNODES", "1:4"}}), Invalid({"PET_NNODES=1:4: takes a number"}));
  for (const Variables& changes : std::vector<Variables>{{{"PET_NNODES", "0"}},
                                                         {{"PET_NODE_RANK", "4"}},
                                                         {{"PET_NODE_RANK", "-1"}},
                                                         {{"PET_NPROC_PER_NODE", "0"}, {"LOCAL_RANK", "0"}},
                                                         {{"PET_NPROC_PER_NODE", "8"}, {"LOCAL_RANK", "8"}},
                                                         {{"PET_NNODES", "9999999999"}}}) {
    EXPECT_THAT(with(changes), Invalid({absl::StrCat(changes.begin()->first, "=", changes.begin()->second), "fit"}));
  }
  EXPECT_THAT(with({{"PET_NNODES", "2000000000"}, {"PET_NPROC_PER_NODE", "2000000000"}, {"LOCAL_RANK", "0"}}),
              Invalid({"PET_NNODES=2000000000"}));
  EXPECT_THAT(From(Without(kKubeflow, "PET_MASTER_PORT")), Invalid({"PET_MASTER_PORT is missing"}));
}

TEST(DetermineWorld, TorchrunsRunIsTheJob) {
  const Variables run = With(kTorchrun, {{"TORCHELASTIC_RUN_ID", "run7"}, {"TORCHELASTIC_RESTART_COUNT", "2"}});
  EXPECT_EQ(From(kTorchrun)->job_id, "");
  // Each node counts its own restarts.
  EXPECT_EQ(From(run)->job_id, "run7");
  EXPECT_EQ(From(With(run, {{"GROUP_WORLD_SIZE", "2"}}))->job_id, "run7");
  const auto one_node = From(With(run, {{"GROUP_WORLD_SIZE", "1"}}));
  EXPECT_EQ(one_node->job_id, "run7.2");
  EXPECT_EQ(one_node->job_source, "TORCHELASTIC_RUN_ID, TORCHELASTIC_RESTART_COUNT");
  EXPECT_EQ(From(With(run, {{"LOCKSTEP_JOB_ID", "mine"}}))->job_id, "mine");
  EXPECT_EQ(From(With(run, {{"TORCHELASTIC_RUN_ID", std::string(300, 'r')}}))->job_id, std::string(256, 'r'));
  EXPECT_EQ(
      From(With(run, {{"LOCKSTEP_RANK", "3"}, {"LOCKSTEP_WORLD_SIZE", "8"}, {"LOCKSTEP_STORE", "tcp://h:1"}}))->job_id,
      "");
}

TEST(Explain, SaysWhoSaidWhat) {
  EXPECT_EQ(
      Explain(*From(kOurs)),
      "rank 3 of 8 from LOCKSTEP_RANK and LOCKSTEP_WORLD_SIZE; the ranks meet at tcp://host:29400 (LOCKSTEP_STORE); "
      "job 'job 7' (LOCKSTEP_JOB_ID)");
  EXPECT_EQ(Explain(*From(kTorchrun)),
            "rank 3 of 8 from torchrun's variables; the ranks meet at tcp://node0:30611 (MASTER_ADDR and MASTER_PORT + "
            "1111)");
  auto world = From(With(kPmi, {{"PMI_FD", "6"}}));
  world->store_url = "tcp://10.0.0.1:4411";
  EXPECT_EQ(Explain(*world), "rank 3 of 8 from PMI's variables; the ranks meet over PMI-1 at tcp://10.0.0.1:4411");
  RendezvousOptions options = RankAndSize(0, 2);
  options.has_store = true;
  EXPECT_EQ(Explain(*From({}, options)), "rank 0 of 2 from the options; the ranks meet in the caller's store");
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
