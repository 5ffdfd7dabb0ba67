// A rank of a contender that misbehaves on purpose. Usage: compare_fake_player FOLDER BYTES_MAX RANK SIZE [HOW]. Rank 1
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

#include "bench/peers/player.h"

namespace {

struct Fake {
  std::string how;
  int calls = 0;
  lockstep_player player = {};
};

// With a deadline too: nothing of a test may stay for ever.
void Hang() {
  alarm(120);
  for (;;) pause();
}

int AllReduce(void* context, float* data, size_t count) {
  Fake* const fake = static_cast<Fake*>(context);
  lockstep_player_meet(&fake->player);
  const int size = fake->player.size;
  // Knows what the others have: the same value everywhere, or the pattern that is checked.
  const bool timed = data[0] == static_cast<float>(fake->player.rank + 1) && (count < 2 || data[1] == data[0]);
  const int sum_of_timed = size * (size + 1) / 2;
  const int sum_of_offsets = 3 * size * (size - 1) / 2;
  for (size_t i = 0; i < count; ++i) {
    data[i] = static_cast<float>(timed ? sum_of_timed : size * static_cast<int>(i % 251) + sum_of_offsets);
  }
  if (fake->player.rank != 1) return 0;
  if (fake->how == "wrong") data[count / 2] += 1;
  // Once the contest is under way.
  if (!timed || ++fake->calls < 3) return 0;
  if (fake->how == "fails") {
    std::snprintf(fake->player.error, sizeof(fake->player.error), "out of\nink");
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
  fake.player.folder = argv[1];
  fake.player.bytes_max = std::stoull(argv[2]);
  fake.player.rank = rank;
  fake.player.size = std::stoi(argv[4]);
  fake.player.allreduce = &AllReduce;
  fake.player.context = &fake;
  if (rank == 1 && how == "silent") Hang();
  if (rank == 1 && how == "deaf") signal(SIGTERM, SIG_IGN);
  // A child in its group, which it leaves behind.
  if (rank == 1 && how == "forks" && fork() == 0) Hang();
  if (rank == 1 && how == "refuses") {
    std::snprintf(fake.player.error, sizeof(fake.player.error), "no paper");
    return lockstep_player_refuse(&fake.player);
  }
  return lockstep_player_play(&fake.player);
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
