// A rank of an implementation that misbehaves on purpose. Usage: fake_runner FOLDER BYTES_MAX HOW. Rank 1 does what HOW
// says, the others behave:
//   good, wrong (sums that are off by one), fails (reports an error), dies, hangs, refuses (before it is ready),
//   silent (never ready), deaf (hangs, and ignores SIGTERM), forks (a child that hangs, and behaves)

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
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
  const bool again = data[0] == 0 && (count < 2 || data[1] == 0);
  for (size_t i = 0; i < count && !again; ++i) {
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

}  // namespace

int main(int argc, char** argv) {
  Fake fake;
  if (argc != 4 || lockstep_runner_begin(&fake.runner, argc, argv) != 0) return 2;
  const int rank = fake.runner.rank;
  const std::string how = fake.how = argv[3];
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
