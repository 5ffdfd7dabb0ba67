// Plans that outlive a job: exported, and imported by one that is to add up in the same order.

#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "reducer/reducer_testing.h"

namespace lockstep::testing {
namespace {

TransportCommunicatorOptions Deterministic() {
  TransportCommunicatorOptions options = ShortTimeout();
  options.deterministic = true;
  return options;
}

class ExportedPlan : public RanksTest {};

INSTANTIATE_TEST_SUITE_P(Ranks, ExportedPlan, ::testing::Values(1, 2, 3), RanksTest::NameOf);

TEST_P(ExportedPlan, GivesTheSameBucketsAndTheSameBits) {
  std::vector<std::string> plans(size());
  std::vector<std::string> texts(size());
  std::vector<std::string> bits(size());
  LoopbackWorld first(size(), {}, Deterministic());
  ReducerOptions options = Caps({64, 500});
  first.Run([&](Communicator& communicator) {
    Worker worker(communicator, MixedTable(), options);
    const Order order = Zigzag(worker.table().size());
    StepUntil(worker.reducer(), 2, 0, [&](int step) { return worker.Step(step, order); });
    LOCKSTEP_EXPECT_OK(worker.Step(1000000, order));
    plans[worker.rank()] = ToString(worker.plan());
    texts[worker.rank()] = worker.reducer().ExportPlan();
    bits[worker.rank()] = worker.Bytes();
  });
  EXPECT_THAT(texts, Each(texts[0]));
  EXPECT_THAT(bits, Each(bits[0]));

  LoopbackWorld second(size(), {}, Deterministic());
  options.plan = texts[0];
  second.Run([&](Communicator& communicator) {
    Worker worker(communicator, MixedTable(), options);
    EXPECT_EQ(ToString(worker.plan()), plans[0]);
    EXPECT_EQ(worker.reducer().plan_version(), 1);
    EXPECT_EQ(worker.reducer().ExportPlan(), texts[0]);
    LOCKSTEP_EXPECT_OK(worker.Step(1000000));
    EXPECT_EQ(worker.Bytes(), bits[0]);
    // It stays.
    for (int step = 0; step < 50; ++step) LOCKSTEP_EXPECT_OK(worker.Step(step));
    EXPECT_EQ(worker.reducer().plan_version(), 1);
    LOCKSTEP_EXPECT_OK(worker.reducer().RequestReplan());
    StepUntil(worker.reducer(), 2, 50, [&](int step) { return worker.Step(step); });
    EXPECT_NE(worker.reducer().ExportPlan(), texts[0]);
  });
}

TEST(ImportedPlan, ThatCannotBeIsAnErrorOnAllRanks) {
  const std::vector<Parameter> table = Vectors(3, 10);
  LoopbackWorld world(2, {}, ShortTimeout());
  std::vector<std::string> exported(2);
  world.Run([&](Communicator& communicator) {
    Worker worker(communicator, table, Caps({0}));
    exported[worker.rank()] = worker.reducer().ExportPlan();
  });
  const std::string& good = exported[0];
  const auto create = [](Communicator& communicator, const std::vector<Parameter>& parameters,
                         const std::string& plan) {
    ReducerOptions options = Caps({0});
    options.plan = plan;
    return Reducer::Create(&communicator, parameters, options).status();
  };
  const std::string missing = absl::StrReplaceAll(good, {{"bucket 1\n", ""}});
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    EXPECT_THAT(create(communicator, table, "{}"), InvalidArgument("bucket plan, line 1"));
    EXPECT_THAT(create(communicator, Vectors(3, 11), good), InvalidArgument("another table of parameters"));
    EXPECT_THAT(create(communicator, table, missing), InvalidArgument("'p1' (f32[10]) is in no bucket"));
    // On one rank alone: the other hears of it.
    const absl::Status status = create(communicator, table, rank == 1 ? missing : good);
    if (rank == 1) {
      EXPECT_THAT(status, InvalidArgument("is in no bucket"));
    } else {
      EXPECT_THAT(status, FailedPrecondition("rank 1", "is in no bucket"));
    }
    // Two good ones that differ.
    const std::string swapped = absl::StrReplaceAll(good, {{"bucket 2\nbucket 1\n", "bucket 1\nbucket 2\n"}});
    EXPECT_THAT(create(communicator, table, rank == 1 ? swapped : good), FailedPrecondition("rank 1"));
    LOCKSTEP_EXPECT_OK(create(communicator, table, swapped));
  });
}

}  // namespace
}  // namespace lockstep::testing
