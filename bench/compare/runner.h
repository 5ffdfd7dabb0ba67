/* What every implementation in bench:compare has in common: how it is asked, how its all-reduce is timed, and how it is checked.
 *
 * A runner is one rank of one implementation, a process that lives as long as its comparison. It sets its library up, fills in a
 * lockstep_runner and calls lockstep_runner_serve, which returns the process's exit status. All timing is here, so it is the same for
 * everybody; what differs is one function, `allreduce`. C99 and C++, without dependencies: a peer's runner is compiled on the machine
 * where that peer is installed.
 *
 * The driver (runners.py) has made a folder with a file of zeros, "page", which the ranks of one implementation map. It talks to rank 0,
 * over that process's standard input and output. Rank 0 prints "ready" once all ranks have set their libraries up. Then the driver
 * writes a command, rank 0 copies it into the page, every rank carries it out and leaves its answer there, and rank 0 prints "ready":
 *
 *   command            answer of each rank
 *   run BYTES CALLS    SECONDS WALL_SECONDS             of one call; and with what is done before it
 *   again BYTES CALLS  the same                         the vector is not rewritten, and calls are timed together
 *   check BYTES        ELEMENTS                         that are wrong after one call
 *   sockets            CONGESTION_CONTROL BYTES_SENT
 *   quit               none: the ranks end
 *
 * Instead of an answer a rank may leave "error TEXT", and then it ends. Between commands ranks sleep, so implementations do not disturb
 * each other.
 *
 * Not thread-safe: the thread that serves is the one that calls the library. A library's threads are its own affair. */

#ifndef BENCH_COMPARE_RUNNER_H_
#define BENCH_COMPARE_RUNNER_H_

#ifndef _GNU_SOURCE
#error "runner.h needs _GNU_SOURCE (sched_setaffinity)"
#endif

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* At most this many ranks. */
#define LOCKSTEP_RUNNER_RANKS_MAX 63
/* From here on there is a barrier before each timed call: rewriting takes long enough for one to be late. */
#define LOCKSTEP_RUNNER_BARRIER_BYTES 65536
/* A command that takes longer ends the process (SIGALRM). The driver gives up sooner, and kills; this is for runners
 * whose driver was killed itself. */
#define LOCKSTEP_RUNNER_PATIENCE_S 300

/* The file "page". Each rank writes its own entry alone. */
struct lockstep_runner_page {
  struct {
    uint64_t entered;  /* how many barriers the rank has entered */
    uint64_t answered; /* how many commands */
    char answer[496];
  } ranks[LOCKSTEP_RUNNER_RANKS_MAX];
  uint64_t note;     /* free use by an implementation: a port, say */
  uint32_t commands; /* by rank 0: how many there were; a futex */
  char command[124];
};

struct lockstep_runner {
  /* To be set before lockstep_runner_serve. */
  const char* folder;
  int rank;
  int size;
  size_t bytes_max;
  /* Sums `count` floats over all ranks in place. Not 0: failed, and `error` may say why. */
  int (*allreduce)(void* context, float* data, size_t count);
  void* context;
  /* Where the vector of this rank lies; NULL: plain memory, allocated here. */
  float* data;
  /* Not 0: `allreduce` moves bytes and sums nothing. The driver does not ask to check it. */
  int moves_only;
  char error[400];

  /* Used by the functions below; zero at first. */
  struct lockstep_runner_page* page;
  uint64_t barriers;
  int spins;          /* polls before a waiting rank gives its core away */
  int64_t clock_cost; /* nanoseconds that reading the clock adds to what is timed */
};

static inline int64_t lockstep_runner_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline int lockstep_runner_fail(struct lockstep_runner* runner, const char* attempt) {
  snprintf(runner->error, sizeof(runner->error), "%s: %s", attempt, strerror(errno));
  return -1;
}

/* Returns when every rank has called it this many times. */
static inline void lockstep_runner_barrier(struct lockstep_runner* runner) {
  const uint64_t barrier = ++runner->barriers;
  /* The release is paired with the acquire below: who sees that a rank has entered sees what that rank wrote before. */
  __atomic_store_n(&runner->page->ranks[runner->rank].entered, barrier, __ATOMIC_RELEASE);
  for (int rank = 0; rank < runner->size; ++rank) {
    int polls = 0;
    while (__atomic_load_n(&runner->page->ranks[rank].entered, __ATOMIC_ACQUIRE) < barrier) {
      if (++polls >= runner->spins) sched_yield();
    }
  }
}

/* Maps the page. Called by lockstep_runner_serve, or before it by who needs the note. 0, or -1 with `error`. */
static inline int lockstep_runner_open_page(struct lockstep_runner* runner) {
  if (runner->page != NULL) return 0;
  if (runner->size < 1 || runner->size > LOCKSTEP_RUNNER_RANKS_MAX || runner->rank < 0 ||
      runner->rank >= runner->size) {
    snprintf(runner->error, sizeof(runner->error), "rank %d of %d; at most %d ranks can be compared", runner->rank,
             runner->size, LOCKSTEP_RUNNER_RANKS_MAX);
    return -1;
  }
  const int folder = open(runner->folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return lockstep_runner_fail(runner, "open the folder");
  const int file = openat(folder, "page", O_RDWR | O_CLOEXEC);
  close(folder);
  if (file < 0) return lockstep_runner_fail(runner, "open the page");
  void* const mapped = mmap(NULL, sizeof(struct lockstep_runner_page), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (mapped == MAP_FAILED) return lockstep_runner_fail(runner, "map the page");
  runner->page = (struct lockstep_runner_page*)mapped;
  runner->spins = (long)runner->size <= sysconf(_SC_NPROCESSORS_ONLN) ? 10000 : 1;
  return 0;
}

/* Leaves `error` for the driver, and returns the exit status for it. Also for a library that cannot be set up: instead of
 * lockstep_runner_serve. */
static inline int lockstep_runner_refuse(struct lockstep_runner* runner) {
  for (char* c = runner->error; *c != '\0'; ++c) {
    if (*c == '\n') *c = ' ';
  }
  char error[sizeof(runner->error)];
  memcpy(error, runner->error, sizeof(error));
  if (lockstep_runner_open_page(runner) != 0) {
    fprintf(stderr, "%s; %s\n", error, runner->error);
    return 1;
  }
  char* const answer = runner->page->ranks[runner->rank].answer;
  snprintf(answer + 1, sizeof(runner->page->ranks[0].answer) - 1, "rror %s",
           error[0] != '\0' ? error : "the call failed");
  __atomic_store_n(answer, 'e', __ATOMIC_RELEASE); /* last: the driver looks for the word */
  return 1;
}

/* For ranks that lockstep-run starts with FOLDER BYTES_MAX. 0, or -1 where one of that is missing. */
static inline int lockstep_runner_begin(struct lockstep_runner* runner, int argc, char** argv) {
  const char* const rank = getenv("LOCKSTEP_RANK");
  const char* const size = getenv("LOCKSTEP_WORLD_SIZE");
  if (argc < 3 || rank == NULL || size == NULL) return -1;
  runner->folder = argv[1];
  runner->bytes_max = strtoull(argv[2], NULL, 10);
  runner->rank = atoi(rank);
  runner->size = atoi(size);
  return 0;
}

/* Keeps the calling thread on one core: the rank-th that it may use, counted round and round where ranks outnumber
 * cores, so that it is never luck which ranks share a core. Threads that the library made before keep what
 * they had. */
static inline void lockstep_runner_pin(const struct lockstep_runner* runner) {
  cpu_set_t allowed;
  cpu_set_t own;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  const int place = runner->rank % CPU_COUNT(&allowed);
  int core = 0;
  for (int passed = 0; !CPU_ISSET(core, &allowed) || passed++ < place;) ++core;
  CPU_ZERO(&own);
  CPU_SET(core, &own);
  sched_setaffinity(0, sizeof(own), &own);
}

static inline int64_t lockstep_runner_measure_clock(void) {
  enum { kReads = 2000 };
  const int64_t begin = lockstep_runner_now();
  int64_t end = begin;
  for (int i = 0; i < kReads; ++i) end = lockstep_runner_now();
  return (end - begin) / kReads;
}

/* Calls are timed one by one. Before each the rank rewrites its vector, as a training step does: otherwise what a rank
 * reads in every call would stay in its cache, and shared memory would look faster than it is. Rewriting is not timed. */
static inline int lockstep_runner_run(struct lockstep_runner* runner, size_t bytes, int64_t calls, char* answer) {
  const size_t count = bytes / sizeof(float);
  const float value = (float)(runner->rank + 1);
  int64_t spent = 0;
  lockstep_runner_barrier(runner);
  const int64_t begin = lockstep_runner_now();
  for (int64_t call = 0; call < calls; ++call) {
    for (size_t i = 0; i < count; ++i) runner->data[i] = value;
    if (bytes >= LOCKSTEP_RUNNER_BARRIER_BYTES) lockstep_runner_barrier(runner);
    const int64_t call_begin = lockstep_runner_now();
    if (runner->allreduce(runner->context, runner->data, count) != 0) return -1;
    spent += lockstep_runner_now() - call_begin - runner->clock_cost;
  }
  const int64_t elapsed = lockstep_runner_now() - begin;
  const int ranks_summed = runner->size * (runner->size + 1) / 2;
  const float sum = (float)ranks_summed;
  if (!runner->moves_only && (runner->data[0] != sum || runner->data[count - 1] != sum)) {
    snprintf(runner->error, sizeof(runner->error), "wrong sums after a timed call: %g and %g where %g belongs",
             (double)runner->data[0], (double)runner->data[count - 1], (double)sum);
    return -1;
  }
  sprintf(answer, "%.12g %.12g", (double)spent / (double)calls / 1e9, (double)elapsed / (double)calls / 1e9);
  return 0;
}

/* One call after the other on the same vector, of zeros: the least that a call can cost, as in a loop that waits for a flag. Sums are
 * those of `check`. */
static inline int lockstep_runner_run_again(struct lockstep_runner* runner, size_t bytes, int64_t calls, char* answer) {
  const size_t count = bytes / sizeof(float);
  memset(runner->data, 0, bytes);
  lockstep_runner_barrier(runner);
  const int64_t begin = lockstep_runner_now();
  for (int64_t call = 0; call < calls; ++call) {
    if (runner->allreduce(runner->context, runner->data, count) != 0) return -1;
  }
  const double seconds = (double)(lockstep_runner_now() - begin) / (double)calls / 1e9;
  if (!runner->moves_only && (runner->data[0] != 0 || runner->data[count - 1] != 0)) {
    snprintf(runner->error, sizeof(runner->error), "sums of zeros are %g and %g", (double)runner->data[0],
             (double)runner->data[count - 1]);
    return -1;
  }
  sprintf(answer, "%.12g %.12g", seconds, seconds);
  return 0;
}

/* Small integers, so every order of additions gives the same; a prime period, so a block in the wrong place shows. */
static inline int lockstep_runner_check(struct lockstep_runner* runner, size_t bytes, char* answer) {
  const size_t count = bytes / sizeof(float);
  const int size = runner->size;
  size_t wrong = 0;
  for (size_t i = 0; i < count; ++i) runner->data[i] = (float)(i % 251 + (size_t)(3 * runner->rank));
  lockstep_runner_barrier(runner);
  if (runner->allreduce(runner->context, runner->data, count) != 0) return -1;
  for (size_t i = 0; i < count; ++i) {
    const size_t sum = (size_t)size * (i % 251) + (size_t)(3 * size * (size - 1) / 2);
    if (runner->data[i] != (float)sum) ++wrong;
  }
  sprintf(answer, "%llu", (unsigned long long)wrong);
  return 0;
}

/* Which of this process's TCP connections has sent most, and under which congestion control: what an implementation says
 * about its transport can be held against it. */
static inline void lockstep_runner_sockets(char* answer) {
  char most_used[17] = "none";
  uint64_t most_bytes = 0;
  struct rlimit limit;
  const int descriptors = getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < 4096 ? (int)limit.rlim_cur : 4096;
  for (int descriptor = 0; descriptor < descriptors; ++descriptor) {
    struct tcp_info info;
    char name[17] = "";
    socklen_t info_length = sizeof(info);
    socklen_t name_length = sizeof(name) - 1;
    memset(&info, 0, sizeof(info));
    if (getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &info_length) != 0 ||
        getsockopt(descriptor, IPPROTO_TCP, TCP_CONGESTION, name, &name_length) != 0) {
      continue;
    }
    if (info.tcpi_bytes_acked <= most_bytes) continue;
    most_bytes = info.tcpi_bytes_acked;
    memcpy(most_used, name, sizeof(name));
  }
  sprintf(answer, "%s %llu", most_used, (unsigned long long)most_bytes);
}

/* 0 to go on, 1 for quit, -1 with `error`. */
static inline int lockstep_runner_answer(struct lockstep_runner* runner, const char* command, char* answer) {
  unsigned long long bytes = 0;
  long long calls = 0;
  const int is_again = sscanf(command, "again %llu %lld", &bytes, &calls) == 2;
  const int is_run = is_again || sscanf(command, "run %llu %lld", &bytes, &calls) == 2;
  if (is_run || sscanf(command, "check %llu", &bytes) == 1) {
    if (bytes < sizeof(float) || bytes > runner->bytes_max || (is_run && calls < 1)) {
      snprintf(runner->error, sizeof(runner->error), "a runner of at most %llu bytes cannot do: %s",
               (unsigned long long)runner->bytes_max, command);
      return -1;
    }
    if (is_again) return lockstep_runner_run_again(runner, (size_t)bytes, calls, answer);
    return is_run ? lockstep_runner_run(runner, (size_t)bytes, calls, answer)
                  : lockstep_runner_check(runner, (size_t)bytes, answer);
  }
  if (strcmp(command, "sockets\n") == 0) {
    lockstep_runner_sockets(answer);
    return 0;
  }
  if (strcmp(command, "quit\n") == 0) return 1;
  snprintf(runner->error, sizeof(runner->error), "no such command: %s", command);
  return -1;
}

/* Returns when the `number`-th command is in the page: 0, or -1 where the driver is gone. */
static inline int lockstep_runner_await_command(struct lockstep_runner* runner, uint32_t number) {
  uint32_t* const commands = &runner->page->commands;
  if (runner->rank == 0) {
    if (fgets(runner->page->command, sizeof(runner->page->command), stdin) == NULL) return -1;
    /* The release is paired with the acquire below: who sees the number sees the command. */
    __atomic_store_n(commands, number, __ATOMIC_RELEASE);
    syscall(SYS_futex, commands, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    return 0;
  }
  while (__atomic_load_n(commands, __ATOMIC_ACQUIRE) < number) {
    syscall(SYS_futex, commands, FUTEX_WAIT, number - 1, NULL, NULL, 0);
  }
  return 0;
}

/* Answers the driver until it says quit or is gone. Returns the exit status: 0 after quit. */
static inline int lockstep_runner_serve(struct lockstep_runner* runner) {
  /* With the driver, or with the launcher that the driver ends: launchers put ranks into groups of their own. */
  prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  if (lockstep_runner_open_page(runner) != 0) return lockstep_runner_refuse(runner);
  if (runner->data == NULL) {
    void* memory = NULL;
    if (posix_memalign(&memory, 4096, runner->bytes_max) != 0) {
      snprintf(runner->error, sizeof(runner->error), "no memory for a vector of %llu bytes",
               (unsigned long long)runner->bytes_max);
      return lockstep_runner_refuse(runner);
    }
    runner->data = (float*)memory;
  }
  runner->clock_cost = lockstep_runner_measure_clock();
  for (uint32_t number = 1;; ++number) {
    lockstep_runner_barrier(runner);
    /* Not sooner: which cores the ranks may use together decides whether Lockstep polls. */
    if (number == 1) lockstep_runner_pin(runner);
    if (runner->rank == 0) dprintf(STDOUT_FILENO, "ready\n");
    alarm(0);
    if (lockstep_runner_await_command(runner, number) != 0) return 1;
    alarm(LOCKSTEP_RUNNER_PATIENCE_S);
    const int result = lockstep_runner_answer(runner, runner->page->command, runner->page->ranks[runner->rank].answer);
    if (result < 0) return lockstep_runner_refuse(runner);
    if (result > 0) return 0;
    __atomic_store_n(&runner->page->ranks[runner->rank].answered, number, __ATOMIC_RELEASE);
  }
}

#endif /* BENCH_COMPARE_RUNNER_H_ */
