// Plans that outlive a job: exported, and imported by one that is to add up in the same order.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_matchers.h"
#include "comm/communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reducer/plan/bucket_plan.h"
#include "reducer/plan/parameter.h"
#include "reducer/reducer.h"
#include "reducer/reducer_replan_testing.h"
#include "reducer/reducer_testing.h"
#include "tests/ranks.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::LoopbackWorld;
using testing::MixedTable;
using testing::Replica;
using testing::ShortTimeout;
using testing::StepUntil;
using testing::Vectors;
using testing::Zigzag;

ReducerOptions Caps(std::vector<size_t> caps) {
  ReducerOptions options;
  options.bucket_caps_bytes = std::move(caps);
  return options;
}

std::unique_ptr<Reducer> Create(Communicator& communicator, const std::vector<Parameter>& table,
                                ReducerOptions options) {
  auto reducer = Reducer::Create(&communicator, table, std::move(options));
  LOCKSTEP_EXPECT_OK(reducer);
  return *std::move(reducer);
}

TransportCommunicatorOptions Deterministic() {
  TransportCommunicatorOptions options = ShortTimeout();
  options.deterministic = true;
  return options;
}

class ExportedPlan : public ::testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
};

INSTANTIATE_TEST_SUITE_P(Ranks, ExportedPlan, ::testing::Values(1, 2, 3),
                         [](const auto& info) { return absl::StrCat(info.param); });

TEST_P(ExportedPlan, GivesTheSameBucketsAndTheSameBits) {
  std::vector<std::string> plans(size());
  std::vector<std::string> texts(size());
  std::vector<std::string> bits(size());
  LoopbackWorld first(size(), {}, Deterministic());
  first.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    Replica replica(MixedTable(), rank);
    const std::vector<size_t> order = Zigzag(replica.table().size());
    const auto reducer = Create(communicator, replica.table(), Caps({64, 500}));
    StepUntil(*reducer, 2, 0, [&](int step) { return replica.RunStep(*reducer, step, order); });
    LOCKSTEP_EXPECT_OK(replica.RunStep(*reducer, 1000000, order));
    plans[rank] = ToString(reducer->plan());
    texts[rank] = reducer->ExportPlan();
    bits[rank] = replica.Bytes();
  });
  EXPECT_THAT(texts, Each(texts[0]));
  EXPECT_THAT(bits, Each(bits[0]));

  LoopbackWorld second(size(), {}, Deterministic());
  second.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    Replica replica(MixedTable(), rank);
    ReducerOptions options = Caps({64, 500});
    options.plan = texts[0];
    const auto reducer = Create(communicator, replica.table(), options);
    EXPECT_EQ(ToString(reducer->plan()), plans[0]);
    EXPECT_EQ(reducer->plan_version(), 1);
    EXPECT_EQ(reducer->ExportPlan(), texts[0]);
    LOCKSTEP_EXPECT_OK(replica.RunStep(*reducer, 1000000));
    EXPECT_EQ(replica.Bytes(), bits[0]);
    // It stays.
    for (int step = 0; step < 50; ++step) LOCKSTEP_EXPECT_OK(replica.RunStep(*reducer, step));
    EXPECT_EQ(reducer->plan_version(), 1);
    LOCKSTEP_EXPECT_OK(reducer->RequestReplan());
    StepUntil(*reducer, 2, 50, [&](int step) { return replica.RunStep(*reducer, step); });
    EXPECT_NE(reducer->ExportPlan(), texts[0]);
  });
}

TEST(ImportedPlan, ThatCannotBeIsAnErrorOnAllRanks) {
  const std::vector<Parameter> table = Vectors(3, 10);
  LoopbackWorld world(2, {}, ShortTimeout());
  std::string good;
  world.Run([&](Communicator& communicator) {
    const auto reducer = Create(communicator, table, Caps({0}));
    if (communicator.rank().value() == 0) good = reducer->ExportPlan();
  });
  const auto create = [&](Communicator& communicator, const std::vector<Parameter>& parameters,
                          const std::string& plan) {
    ReducerOptions options = Caps({0});
    options.plan = plan;
    return Reducer::Create(&communicator, parameters, options).status();
  };
  const std::string missing = absl::StrReplaceAll(good, {{"bucket 1\n", ""}});
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    EXPECT_THAT(create(communicator, table, "{}"),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("bucket plan, line 1")));
    EXPECT_THAT(create(communicator, Vectors(3, 11), good),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("another table of parameters")));
    EXPECT_THAT(create(communicator, table, missing),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'p1' (f32[10]) is in no bucket")));
    // On one rank alone: the other hears of it.
    const absl::Status status = create(communicator, table, rank == 1 ? missing : good);
    if (rank == 1) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is in no bucket")));
    } else {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                   AllOf(HasSubstr("rank 1"), HasSubstr("is in no bucket"))));
    }
    // Two good ones that differ.
    const std::string swapped = absl::StrReplaceAll(good, {{"bucket 2\nbucket 1\n", "bucket 1\nbucket 2\n"}});
    EXPECT_THAT(create(communicator, table, rank == 1 ? swapped : good),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("rank 1")));
    LOCKSTEP_EXPECT_OK(create(communicator, table, swapped));
  });
}

}  // namespace
}  // namespace lockstep
