// A rank of an implementation that misbehaves on purpose. Usage: fake_runner FOLDER BYTES_MAX RANK SIZE [HOW]. Rank 1
// does what HOW says, the others behave:
//   good, wrong (sums that are off by one), fails (reports an error), dies, hangs, refuses (before it says hello),
//   silent (never says hello), deaf (hangs, and ignores SIGTERM), forks (a child that hangs, and behaves)
// Where RANK is "-" it forks all ranks, each into a process group of its own, as MPI's launchers do.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "bench/compare/runner.h"

namespace {

struct Fake {
  std::string how;
  int calls = 0;
  lockstep_runner runner = {};
};

// With a deadline too: nothing of a test may stay for ever.
void Hang() {
  alarm(120);
  for (;;) pause();
}

int AllReduce(void* context, float* data, size_t count) {
  Fake* const fake = static_cast<Fake*>(context);
  lockstep_runner_barrier(&fake->runner);
  const int size = fake->runner.size;
  // Knows what the others have: the same value everywhere, or the pattern that is checked.
  const bool timed = data[0] == static_cast<float>(fake->runner.rank + 1) && (count < 2 || data[1] == data[0]);
  const int sum_of_timed = size * (size + 1) / 2;
  const int sum_of_offsets = 3 * size * (size - 1) / 2;
  for (size_t i = 0; i < count; ++i) {
    data[i] = static_cast<float>(timed ? sum_of_timed : size * static_cast<int>(i % 251) + sum_of_offsets);
  }
  if (fake->runner.rank != 1) return 0;
  if (fake->how == "wrong") data[count / 2] += 1;
  // Once the comparison is under way.
  if (!timed || ++fake->calls < 3) return 0;
  if (fake->how == "fails") {
    std::snprintf(fake->runner.error, sizeof(fake->runner.error), "out of\nink");
    return -1;
  }
  if (fake->how == "dies") {
    std::fprintf(stderr, "last words\n");
    std::abort();
  }
  if (fake->how == "hangs" || fake->how == "deaf") Hang();
  return 0;
}

int RunRank(char** argv, int rank, const std::string& how) {
  Fake fake;
  fake.how = how;
  fake.runner.folder = argv[1];
  fake.runner.bytes_max = std::stoull(argv[2]);
  fake.runner.rank = rank;
  fake.runner.size = std::stoi(argv[4]);
  fake.runner.allreduce = &AllReduce;
  fake.runner.context = &fake;
  if (rank == 1 && how == "silent") Hang();
  if (rank == 1 && how == "deaf") signal(SIGTERM, SIG_IGN);
  // A child in its group, which it leaves behind.
  if (rank == 1 && how == "forks" && fork() == 0) Hang();
  if (rank == 1 && how == "refuses") {
    std::snprintf(fake.runner.error, sizeof(fake.runner.error), "no paper");
    return lockstep_runner_refuse(&fake.runner);
  }
  return lockstep_runner_serve(&fake.runner);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  const std::string how = argc > 5 ? argv[5] : "good";
  if (std::strcmp(argv[3], "-") != 0) return RunRank(argv, std::stoi(argv[3]), how);
  for (int rank = 0; rank < std::stoi(argv[4]); ++rank) {
    if (fork() != 0) continue;
    setpgid(0, 0);
    _exit(RunRank(argv, rank, how));
  }
  int status = 0;
  while (wait(&status) > 0) continue;
  return 0;
}
