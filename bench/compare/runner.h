/* What every implementation in bench:compare has in common: how it is asked, how its all-reduce is timed, and how it is checked.
 *
 * A runner is one rank of one implementation, a process that lives as long as its comparison. It sets its library up, fills in a
 * lockstep_runner and calls lockstep_runner_serve, which returns the process's exit status. All timing is here, so it is the same for
 * everybody; what differs is one function, `allreduce`. C99 and C++, without dependencies: a peer's runner is compiled on the machine
 * where that peer is installed.
 *
 * The driver (runners.py) has made a folder with a listening unix socket, "socket", and a file of 4,096 zeros, "page", which the
 * ranks of one implementation map for their barriers. A runner connects to the socket, and then
 *
 *   runner -> driver   hello RANK           once its library is set up
 *   driver -> runner   pin                  runner -> driver   pinned ok
 *                      run BYTES CALLS                         time SECONDS WALL_SECONDS  of one call; and with what is
 *                                                                                         done before it
 *                      check BYTES                             wrong ELEMENTS             after one call
 *                      sockets                                 sockets CONGESTION_CONTROL BYTES_SENT
 *                      quit                                    closes
 *
 * where the driver sends all ranks the same line and waits for all answers. Instead of hello or an answer may come error TEXT, and
 * then the runner ends. While it waits for a line a runner blocks, so implementations do not disturb each other.
 *
 * Not thread-safe: the thread that serves is the one that calls the library. A library's threads are its own affair. */

#ifndef BENCH_COMPARE_RUNNER_H_
#define BENCH_COMPARE_RUNNER_H_

#ifndef _GNU_SOURCE
#error "runner.h needs _GNU_SOURCE (sched_setaffinity)"
#endif

#include <errno.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* At most this many ranks: each has a line of its own in the page. */
#define LOCKSTEP_RUNNER_RANKS_MAX 63
/* From here on there is a barrier before each timed call: rewriting takes long enough for one to be late. */
#define LOCKSTEP_RUNNER_BARRIER_BYTES 65536
/* A command that takes longer ends the process (SIGALRM). The driver gives up sooner, and kills; this is for runners
 * whose driver was killed itself. */
#define LOCKSTEP_RUNNER_PATIENCE_S 300

/* In the file "page". One cache line for each rank, written by that rank alone, and one for `note`. */
struct lockstep_runner_page {
  struct {
    uint64_t entered; /* how many barriers the rank has entered */
    char rest_of_line[56];
  } ranks[LOCKSTEP_RUNNER_RANKS_MAX];
  uint64_t note; /* free use by an implementation: a port, say */
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
  /* Not 0: `allreduce` moves bytes and sums nothing, so there is nothing to check. */
  int moves_only;
  char error[512];

  /* Used by the functions below; zero at first. */
  struct lockstep_runner_page* page;
  uint64_t barriers;
  int spins;          /* polls before a waiting rank gives its core away */
  int64_t clock_cost; /* nanoseconds that reading the clock adds to what is timed */
  FILE* commands;
  int socket;
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

/* 0, or -1 with `error`. */
static inline int lockstep_runner_connect(struct lockstep_runner* runner) {
  struct sockaddr_un address;
  memset(&address, 0, sizeof(address));
  address.sun_family = AF_UNIX;
  const int folder = open(runner->folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return lockstep_runner_fail(runner, "open the folder");
  /* The folder's own path may be longer than an address can be. */
  snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/socket", folder);
  runner->socket = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int failed =
      runner->socket < 0 || connect(runner->socket, (const struct sockaddr*)&address, sizeof(address)) != 0;
  const int error = errno;
  close(folder);
  errno = error;
  if (failed) return lockstep_runner_fail(runner, "connect to the driver");
  runner->commands = fdopen(runner->socket, "r");
  return runner->commands != NULL ? 0 : lockstep_runner_fail(runner, "fdopen");
}

/* Tells the driver `error`, connecting if need be, and returns the exit status for it. Also for a library that cannot
 * be set up: instead of lockstep_runner_serve. */
static inline int lockstep_runner_refuse(struct lockstep_runner* runner) {
  for (char* c = runner->error; *c != '\0'; ++c) {
    if (*c == '\n') *c = ' ';
  }
  char error[sizeof(runner->error)];
  memcpy(error, runner->error, sizeof(error));
  if (runner->commands == NULL && lockstep_runner_connect(runner) != 0) {
    fprintf(stderr, "%s; %s\n", error, runner->error);
    return 1;
  }
  dprintf(runner->socket, "error %s\n", error[0] != '\0' ? error : "the call failed");
  return 1;
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
static inline int lockstep_runner_run(struct lockstep_runner* runner, size_t bytes, int64_t calls) {
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
  dprintf(runner->socket, "time %.12g %.12g\n", (double)spent / (double)calls / 1e9,
          (double)elapsed / (double)calls / 1e9);
  return 0;
}

/* Small integers, so every order of additions gives the same; a prime period, so a block in the wrong place shows. */
static inline void lockstep_runner_check(struct lockstep_runner* runner, size_t bytes, size_t* wrong) {
  const size_t count = bytes / sizeof(float);
  const int size = runner->size;
  *wrong = 0;
  for (size_t i = 0; i < count; ++i) runner->data[i] = (float)(i % 251 + (size_t)(3 * runner->rank));
  lockstep_runner_barrier(runner);
  if (runner->allreduce(runner->context, runner->data, count) != 0) {
    *wrong = count;
    return;
  }
  for (size_t i = 0; i < count; ++i) {
    const size_t sum = (size_t)size * (i % 251) + (size_t)(3 * size * (size - 1) / 2);
    if (runner->data[i] != (float)sum) ++*wrong;
  }
}

/* Which of this process's TCP connections has sent most, and under which congestion control: what an implementation says
 * about its transport can be held against it. */
static inline void lockstep_runner_sockets(const struct lockstep_runner* runner) {
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
  dprintf(runner->socket, "sockets %s %llu\n", most_used, (unsigned long long)most_bytes);
}

/* 0 to go on, 1 for quit, -1 with `error`. */
static inline int lockstep_runner_answer(struct lockstep_runner* runner, const char* command) {
  unsigned long long bytes = 0;
  long long calls = 0;
  const int is_run = sscanf(command, "run %llu %lld", &bytes, &calls) == 2;
  if (is_run || sscanf(command, "check %llu", &bytes) == 1) {
    if (bytes < sizeof(float) || bytes > runner->bytes_max || (is_run && calls < 1)) {
      snprintf(runner->error, sizeof(runner->error), "a runner of at most %llu bytes cannot do: %s",
               (unsigned long long)runner->bytes_max, command);
      return -1;
    }
    if (is_run) return lockstep_runner_run(runner, (size_t)bytes, calls);
    size_t wrong = 0;
    if (!runner->moves_only) lockstep_runner_check(runner, (size_t)bytes, &wrong);
    if (runner->error[0] != '\0') return -1;
    dprintf(runner->socket, "wrong %llu\n", (unsigned long long)wrong);
    return 0;
  }
  if (strcmp(command, "pin\n") == 0) {
    lockstep_runner_pin(runner);
    dprintf(runner->socket, "pinned ok\n");
    return 0;
  }
  if (strcmp(command, "sockets\n") == 0) {
    lockstep_runner_sockets(runner);
    return 0;
  }
  if (strcmp(command, "quit\n") == 0) return 1;
  snprintf(runner->error, sizeof(runner->error), "no such command: %s", command);
  return -1;
}

/* Answers the driver until it says quit or is gone. Returns the exit status: 0 after quit. */
static inline int lockstep_runner_serve(struct lockstep_runner* runner) {
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
  if (lockstep_runner_connect(runner) != 0) return lockstep_runner_refuse(runner);
  dprintf(runner->socket, "hello %d\n", runner->rank);
  char command[128];
  while (fgets(command, sizeof(command), runner->commands) != NULL) {
    alarm(LOCKSTEP_RUNNER_PATIENCE_S);
    const int result = lockstep_runner_answer(runner, command);
    if (result < 0) return lockstep_runner_refuse(runner);
    alarm(0);
    if (result > 0) return 0;
  }
  return 1;
}

#endif /* BENCH_COMPARE_RUNNER_H_ */
