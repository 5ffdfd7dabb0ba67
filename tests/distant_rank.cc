// One rank of a world whose hosts are far apart, for tests/distance_test.sh: distant_rank END.
//
//   END     after some steps
//   leave   all ranks destroy the world
//   die     the last rank is killed, and the error of the others must say that it died
//   stop    the last rank is stopped, and the error of the others must say that it is unresponsive
//   exit N  rank N exits without destroying the world, and the error of the others must say so
//
// Other values of END are texts: the world must not form, and the error has the text.
//
// Place and store are in the environment. Exits with 0 if all was as it should be.

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "base/types/dtype.h"
#include "comm/communicator.h"
#include "comm/schedule/schedule.h"
#include "comm/world/world.h"

namespace lockstep {
namespace {

absl::Status Step(Communicator* self, size_t count) {
  std::vector<float> data(count, 1.0f);
  LOCKSTEP_RETURN_IF_ERROR(
      self->Run(MakeRequest(Collective::kAllReduce, DType::kF32, count, data.data(), data.data())));
  for (const float value : data) {
    if (value != self->size()) return absl::DataLossError(absl::StrCat("the sum is ", value, ", not ", self->size()));
  }
  return absl::OkStatus();
}

absl::Status RunRank(absl::string_view end) {
  WorldOptions options;
  options.setup_timeout = std::chrono::minutes(2);
  options.timeout = std::chrono::minutes(2);
  const absl::StatusOr<std::unique_ptr<World>> world = World::Create(options);
  const bool exits = absl::ConsumePrefix(&end, "exit ");
  if (!exits && end != "leave" && end != "die" && end != "stop") {
    const bool as_expected =
        absl::IsFailedPrecondition(world.status()) && absl::StrContains(world.status().message(), end);
    return as_expected ? absl::OkStatus() : absl::UnknownError(world.status().ToString());
  }
  LOCKSTEP_RETURN_IF_ERROR(world.status());
  Communicator* const self = (*world)->communicator();
  absl::Status status;
  for (const size_t count : {10, 100'000, 10}) status.Update(Step(self, count));
  if (end == "leave") return status;
  int gone = self->size() - 1;
  if (exits && !absl::SimpleAtoi(end, &gone)) return absl::InvalidArgumentError("no rank");
  if (self->rank() == Rank(gone) && exits) exit(0);
  if (self->rank() == Rank(gone)) (void)raise(end == "die" ? SIGKILL : SIGSTOP);
  // That rank may be gone before the others have finished the steps that it has.
  while (status.ok()) status = Step(self, 10);
  const absl::string_view what = exits          ? ") exited: "
                                 : end == "die" ? ") died: "
                                                : ") is unresponsive: no heartbeat for ";
  const bool named = absl::IsAborted(status) && absl::StrContains(status.message(), what) &&
                     absl::StrContains(status.message(), absl::StrCat("rank ", gone, " (host "));
  return named ? absl::OkStatus() : Annotate(status, "not what it should be told");
}

// In a child, which may die.
int Main(absl::string_view end) {
  const pid_t child = fork();
  if (child == 0) {
    const absl::Status status = RunRank(end);
    if (!status.ok()) std::cerr << status << std::endl;
    return status.ok() ? 0 : 1;
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, WUNTRACED) != child) return 1;
  // A stopped child ends with its namespace.
  if (WIFSTOPPED(status) || (end == "die" && WIFSIGNALED(status))) return 0;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) { return argc == 2 ? lockstep::Main(argv[1]) : 2; }
