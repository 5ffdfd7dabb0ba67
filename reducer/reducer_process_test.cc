// Ranks that are processes: one is killed or stopped in the middle of its backwards, or runs out of inputs before the others. Method:
// every process takes step after step without a pause, so that whenever the signal comes, it comes in the middle of one.

#include <signal.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/deadline.h"
#include "base/device/tensor_view.h"
#include "base/status.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "comm/communicator.h"
#include "comm/world/world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reducer/plan/parameter.h"
#include "reducer/reducer.h"
#include "tests/processes.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr int kParameters = 6;
constexpr int64_t kElements = 200'000;
constexpr float kTolerance = 1e-6F;  // a third is not exact

// Only a stopped rank is found by its silence; one that is merely held up on a busy machine is not silent for so long.
constexpr milliseconds kPatience(30'000);
constexpr milliseconds kPeerTimeout(3000);

Deadline Soon() { return Deadline::AfterMs(40'000); }

// A model of six vectors in buckets of two. In step s rank r has gradients (r + 1) * (s % 7 + 1).
class Trainer {
 public:
  absl::Status Begin(const WorldOptions& options) {
    LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<World> world, World::Create(options));
    Communicator* const communicator = world->communicator();
    if (reducer_ != nullptr) {
      LOCKSTEP_RETURN_IF_ERROR(reducer_->ChangeCommunicator(communicator));
    } else {
      LOCKSTEP_RETURN_IF_ERROR(Create(communicator));
    }
    world_ = std::move(world);
    weights_[0] = 0;  // one rank may have ended a step that another one has not
    return absl::OkStatus();
  }

  // DATA_LOSS for a wrong average.
  absl::Status Step() {
    const auto value = static_cast<float>(step_ % 7 + 1);
    const void* const replicas[] = {weights_.data()};
    BackwardOptions options;
    options.replicas = replicas;
    LOCKSTEP_RETURN_IF_ERROR(reducer_->BeginBackward(options));
    for (size_t index = gradients_.size(); index-- > 0;) {
      gradients_[index].assign(kElements, value * static_cast<float>(world_->communicator()->rank().value() + 1));
      LOCKSTEP_RETURN_IF_ERROR(reducer_->MarkReady(index, View(gradients_[index]), nullptr));
    }
    LOCKSTEP_RETURN_IF_ERROR(reducer_->EndBackward(nullptr));
    ++step_;
    expected_ = value * static_cast<float>(world_->communicator()->size() + 1) / 2;
    weights_[0] += gradients_[0][0];
    return absl::OkStatus();
  }

  void Drift() { weights_[0] += 1; }

  absl::Status CheckAverages() const {
    for (const std::vector<float>& gradient : gradients_) {
      for (const float value : gradient) {
        if (std::abs(value - expected_) > kTolerance * expected_)
          return absl::DataLossError(absl::StrCat("an average is ", value, ", not ", expected_));
      }
    }
    return absl::OkStatus();
  }

  // This rank's share of an epoch: so many steps, and the others' with zeros. The weight that all end with.
  absl::StatusOr<float> RunEpoch(int steps) {
    step_ = 0;
    weights_[0] = 0;
    for (int i = 0; i < steps; ++i) LOCKSTEP_RETURN_IF_ERROR(Step());
    LOCKSTEP_RETURN_IF_ERROR(reducer_->Join({View(weights_)}));
    return weights_[0];
  }

 private:
  static TensorView View(std::vector<float>& memory) {
    return TensorView::Vector(memory.data(), DType::kF32, static_cast<int64_t>(memory.size())).value();
  }

  absl::Status Create(Communicator* communicator) {
    std::vector<Parameter> table(kParameters);
    for (size_t i = 0; i < table.size(); ++i) {
      table[i].name = absl::StrCat("p", i);
      table[i].shape = {kElements};
    }
    ReducerOptions options;
    options.bucket_caps_bytes = {2 * kElements * sizeof(float)};
    options.uneven_inputs = true;
    options.replicas.resize(1);
    options.replicas[0].shape = {1};
    options.on_drift = [](const absl::Status& drift) { return drift; };
    LOCKSTEP_ASSIGN_OR_RETURN(reducer_, Reducer::Create(communicator, std::move(table), options));
    return absl::OkStatus();
  }

  std::unique_ptr<World> world_;
  std::vector<std::vector<float>> gradients_ = std::vector<std::vector<float>>(kParameters);
  std::vector<float> weights_ = {0};
  int step_ = 0;
  float expected_ = 0;
  std::unique_ptr<Reducer> reducer_;  // ends before the world that it is on
};

// Commands, each answered with "ok", a value, or a status as text:
//   world RANK SIZE JOB   makes a world, and goes over to it with the reducer that there is
//   steps COUNT           so many, each checked
//   run                   steps until one fails; says "running" on the way
//   epoch STEPS           steps, then joins
//   drift                 has another weight than the others from now on
//   end
LOCKSTEP_RANK_FUNCTION(TrainingRank) {
  int peer_timeout_ms = 0;
  if (!absl::SimpleAtoi(self.arguments()[1], &peer_timeout_ms)) return absl::InvalidArgumentError("timeout");
  Trainer trainer;
  for (;;) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::string command, self.Receive(Soon()));
    const std::vector<std::string> words = absl::StrSplit(command, ' ');
    std::string answer = "ok";
    absl::Status result;
    int count = 0;
    if (words[0] == "world") {
      WorldOptions options;
      if (!absl::SimpleAtoi(words[1], &options.rank) || !absl::SimpleAtoi(words[2], &options.size)) {
        return absl::InvalidArgumentError(command);
      }
      options.job_id = words[3];
      options.local_rank = options.rank;
      options.local_size = options.size;
      options.store_url = self.arguments()[0];
      options.setup_timeout = milliseconds(20'000);
      options.timeout = milliseconds(30'000);
      options.peer_timeout = milliseconds(peer_timeout_ms);
      result = trainer.Begin(options);
    } else if (words[0] == "steps") {
      if (!absl::SimpleAtoi(words[1], &count)) return absl::InvalidArgumentError(command);
      for (int i = 0; i < count && result.ok(); ++i) {
        result = trainer.Step();
        if (result.ok()) result = trainer.CheckAverages();
      }
    } else if (words[0] == "run") {
      const Deadline deadline = Soon();
      for (int round = 0; result.ok() && !deadline.passed(); ++round) {
        if (round == 3) LOCKSTEP_RETURN_IF_ERROR(self.Send("running"));
        result = trainer.Step();
      }
    } else if (words[0] == "epoch") {
      if (!absl::SimpleAtoi(words[1], &count)) return absl::InvalidArgumentError(command);
      const absl::StatusOr<float> weight = trainer.RunEpoch(count);
      result = weight.status();
      if (weight.ok()) answer = absl::StrCat(*weight);
    } else if (words[0] == "drift") {
      trainer.Drift();
    } else {
      return absl::OkStatus();
    }
    LOCKSTEP_RETURN_IF_ERROR(self.Send(result.ok() ? answer : result.ToString()));
  }
}

class ReducerProcesses : public ::testing::Test {
 protected:
  void Start(int size, milliseconds peer_timeout) {
    const ::testing::TestInfo& test = *::testing::UnitTest::GetInstance()->current_test_info();
    ProcessGroup::Options options;
    options.size = size;
    options.arguments = {absl::StrCat("file://", ::testing::TempDir(), "/", test.name(), "-store"),
                         absl::StrCat(peer_timeout.count())};
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(group_, ProcessGroup::Start("TrainingRank", options));
  }
  void Tell(const std::vector<int>& ranks, const std::string& command) {
    for (const int rank : ranks) LOCKSTEP_EXPECT_OK(group_->Send(rank, command));
  }
  void Expect(const std::vector<int>& ranks, const ::testing::Matcher<const std::string&>& answer) {
    for (const int rank : ranks) {
      const absl::StatusOr<std::string> got = group_->Receive(rank, Soon());
      LOCKSTEP_ASSERT_OK(got);
      EXPECT_THAT(*got, answer) << "process " << rank;
    }
  }
  // The processes become the ranks of a world, in this order.
  void MakeWorld(const std::vector<int>& ranks, const std::string& job) {
    for (size_t i = 0; i < ranks.size(); ++i) {
      LOCKSTEP_EXPECT_OK(group_->Send(ranks[i], absl::StrCat("world ", i, " ", ranks.size(), " ", job)));
    }
    Expect(ranks, "ok");
  }

  std::unique_ptr<ProcessGroup> group_;
};

// In a bucket's all-reduce, or between two steps.
::testing::Matcher<const std::string&> Lost(int rank) {
  return ::testing::AllOf(HasSubstr(absl::StrCat("rank ", rank, " (host ")),
                          HasSubstr(absl::StrCat("failed_rank=", rank)),
                          ::testing::AnyOf(::testing::ContainsRegex("bucket [0-9]+: all_reduce.*collective=all_reduce"),
                                           HasSubstr("begin_backward: ")));
}

TEST_F(ReducerProcesses, GoOnWithoutOneThatWasKilledInABackward) {
  Start(3, kPatience);
  MakeWorld({0, 1, 2}, "all");
  Tell({0, 1, 2}, "steps 5");
  Expect({0, 1, 2}, "ok");
  Tell({0, 1, 2}, "run");
  Expect({0, 1, 2}, "running");
  LOCKSTEP_ASSERT_OK(group_->Signal(1, SIGKILL));
  Expect({0, 2}, Lost(1));
  MakeWorld({0, 2}, "survivors");
  Tell({0, 2}, "steps 5");
  Expect({0, 2}, "ok");
  Tell({0, 2}, "end");
  LOCKSTEP_EXPECT_OK(group_->Wait(0, Soon()));
  LOCKSTEP_EXPECT_OK(group_->Wait(2, Soon()));
}

TEST_F(ReducerProcesses, ThatDriftAreNamed) {
  Start(3, kPatience);
  MakeWorld({0, 1, 2}, "all");
  Tell({0, 1, 2}, "steps 5");
  Expect({0, 1, 2}, "ok");
  Tell({1}, "drift");
  Expect({1}, "ok");
  Tell({0, 1, 2}, "steps 5");
  Expect({0, 1, 2},
         ::testing::AllOf(HasSubstr("DATA_LOSS: begin_backward: replicas differ"), HasSubstr("failed_rank=1")));
  Tell({0, 1, 2}, "end");
  for (const absl::Status& end : group_->WaitAll(Soon())) LOCKSTEP_EXPECT_OK(end);
}

// The one that was stopped wakes up later, in the middle of a step that the others have given up; theirs must be right all the same.
TEST_F(ReducerProcesses, GoOnWithoutOneThatWasStoppedInABackward) {
  Start(3, kPeerTimeout);
  MakeWorld({0, 1, 2}, "all");
  Tell({0, 1, 2}, "run");
  Expect({0, 1, 2}, "running");
  LOCKSTEP_ASSERT_OK(group_->Signal(2, SIGSTOP));
  Expect({0, 1}, Lost(2));
  MakeWorld({1, 0}, "survivors");
  Tell({0, 1}, "steps 20");
  LOCKSTEP_ASSERT_OK(group_->Signal(2, SIGCONT));
  Expect({0, 1}, "ok");
  EXPECT_THAT(group_->Receive(2, Soon()), IsOkAndHolds(::testing::Not("ok")));
  // It may come back: all change over to a world of three again.
  MakeWorld({0, 1, 2}, "again");
  Tell({0, 1, 2}, "epoch 3");
  Expect({0, 1, 2}, ::testing::Not(HasSubstr(" ")));
  Tell({0, 1, 2}, "end");
  for (const absl::Status& end : group_->WaitAll(Soon())) LOCKSTEP_EXPECT_OK(end);
}

// Steps of all three: averages 2 and 4; of the ranks 1 and 2: (2 + 3) / 3 * 3 = 5 and * 4; of rank 2 alone: 3 / 3 * 5.
TEST_F(ReducerProcesses, RunOutOfInputsOneAfterTheOther) {
  Start(3, kPatience);
  MakeWorld({0, 1, 2}, "all");
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (const int rank : {0, 1, 2}) {
      const int steps[] = {2, 4, 5};
      LOCKSTEP_EXPECT_OK(group_->Send(rank, absl::StrCat("epoch ", steps[rank])));
    }
    for (const int rank : {0, 1, 2}) {
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::string answer, group_->Receive(rank, Soon()));
      double weight = 0;
      ASSERT_TRUE(absl::SimpleAtod(answer, &weight)) << answer;
      EXPECT_NEAR(weight, 2 + 4 + 5 + 20.0 / 3 + 5, 1e-4);
    }
  }
  Tell({0, 1, 2}, "end");
  for (const absl::Status& end : group_->WaitAll(Soon())) LOCKSTEP_EXPECT_OK(end);
}

}  // namespace
}  // namespace lockstep
