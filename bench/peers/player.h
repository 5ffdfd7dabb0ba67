/* What every contender of bench:compare has in common: how it is asked, how its all-reduce is timed, and how it is
 * checked.
 *
 * A player is one rank of one contender, a process that lives as long as its contest. It sets its library up, fills in
 * a lockstep_player and calls lockstep_player_play, which returns the process's exit status. All timing is here, so it
 * is the same for everybody; what differs is one function, `allreduce`. C99 and C++, without dependencies: a peer's
 * player is compiled on the machine where that peer is installed.
 *
 * The driver of a contest has made a folder with a listening unix socket, "socket", and a file, "page", which the ranks
 * of one contender map to meet in. A player connects to the socket, and then
 *
 *   player -> driver   hello RANK           once its library is set up
 *   driver -> player   run BYTES CALLS      player -> driver   time SECONDS WALL_SECONDS  of one call; and with what is
 *                                                                                         done before it
 *                      check BYTES                             wrong ELEMENTS             after one call
 *                      sockets                                 sockets CONGESTION_CONTROL BYTES_SENT
 *                      quit                                    closes
 *
 * where the driver sends all ranks the same line and waits for all answers. Instead of hello or an answer may come
 * error TEXT, and then the player ends. While it waits for a line a player blocks, so contenders do not disturb each
 * other.
 *
 * Not thread-safe: the thread that plays is the one that calls the library. A library's threads are its own affair. */

#ifndef BENCH_PEERS_PLAYER_H_
#define BENCH_PEERS_PLAYER_H_

#ifndef _GNU_SOURCE
#error "player.h needs _GNU_SOURCE (sched_setaffinity)"
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
#define LOCKSTEP_PLAYER_RANKS_MAX 63
/* From here on ranks meet before each timed call: rewriting takes long enough for one to be late. */
#define LOCKSTEP_PLAYER_MEETING_BYTES 65536
/* A command that takes longer ends the process (SIGALRM). The driver gives up sooner, and kills; this is for players
 * whose driver was killed itself. */
#define LOCKSTEP_PLAYER_PATIENCE_S 300

/* In the file "page". One cache line for each rank, written by that rank alone, and one for `note`. */
struct lockstep_player_page {
  struct {
    uint64_t arrived; /* how many meetings the rank has come to */
    char rest_of_line[56];
  } ranks[LOCKSTEP_PLAYER_RANKS_MAX];
  uint64_t note;  /* free use by a contender: a port, say */
  uint64_t loose; /* set by the driver: ranks are not pinned to cores */
};

struct lockstep_player {
  /* To be set before lockstep_player_play. */
  const char* folder;
  int rank;
  int size;
  size_t bytes_max;
  /* Sums `count` floats over all ranks in place. Not 0: failed, and `error` may say why. */
  int (*allreduce)(void* context, float* data, size_t count);
  void* context;
  /* NULL, or instead of `allreduce` for a contender that times itself: one run, however many calls are asked for, and the seconds of
   * one call in it. Not 0 as above. */
  int (*measure)(void* context, size_t bytes, double* seconds);
  /* Where the vector of this rank lies; NULL: plain memory, allocated here. */
  float* data;
  /* Not 0: `allreduce` moves bytes and sums nothing, so there is nothing to check. */
  int moves_only;
  char error[512];

  /* Used by the functions below; zero at first. */
  struct lockstep_player_page* page;
  uint64_t meetings;
  int spins;          /* polls before a waiting rank gives its core away */
  int64_t clock_cost; /* nanoseconds that reading the clock adds to what is timed */
  FILE* commands;
  int socket;
};

static inline int64_t lockstep_player_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline int lockstep_player_fail(struct lockstep_player* player, const char* attempt) {
  snprintf(player->error, sizeof(player->error), "%s: %s", attempt, strerror(errno));
  return -1;
}

/* Returns when every rank has called it this many times. */
static inline void lockstep_player_meet(struct lockstep_player* player) {
  const uint64_t meeting = ++player->meetings;
  /* The release is paired with the acquire below: who sees a rank arrived sees what that rank wrote before. */
  __atomic_store_n(&player->page->ranks[player->rank].arrived, meeting, __ATOMIC_RELEASE);
  for (int rank = 0; rank < player->size; ++rank) {
    int polls = 0;
    while (__atomic_load_n(&player->page->ranks[rank].arrived, __ATOMIC_ACQUIRE) < meeting) {
      if (++polls >= player->spins) sched_yield();
    }
  }
}

/* Maps the page. Called by lockstep_player_play, or before it by who needs the note. 0, or -1 with `error`. */
static inline int lockstep_player_open_page(struct lockstep_player* player) {
  if (player->page != NULL) return 0;
  if (player->size < 1 || player->size > LOCKSTEP_PLAYER_RANKS_MAX || player->rank < 0 ||
      player->rank >= player->size) {
    snprintf(player->error, sizeof(player->error), "rank %d of %d; at most %d ranks can be compared", player->rank,
             player->size, LOCKSTEP_PLAYER_RANKS_MAX);
    return -1;
  }
  const int folder = open(player->folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return lockstep_player_fail(player, "open the folder");
  const int file = openat(folder, "page", O_RDWR | O_CLOEXEC);
  close(folder);
  if (file < 0) return lockstep_player_fail(player, "open the page");
  void* const mapped = mmap(NULL, sizeof(struct lockstep_player_page), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (mapped == MAP_FAILED) return lockstep_player_fail(player, "map the page");
  player->page = (struct lockstep_player_page*)mapped;
  player->spins = (long)player->size <= sysconf(_SC_NPROCESSORS_ONLN) ? 10000 : 1;
  return 0;
}

/* 0, or -1 with `error`. */
static inline int lockstep_player_connect(struct lockstep_player* player) {
  struct sockaddr_un address;
  memset(&address, 0, sizeof(address));
  address.sun_family = AF_UNIX;
  const int folder = open(player->folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return lockstep_player_fail(player, "open the folder");
  /* The folder's own path may be longer than an address can be. */
  snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/socket", folder);
  player->socket = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int failed =
      player->socket < 0 || connect(player->socket, (const struct sockaddr*)&address, sizeof(address)) != 0;
  const int error = errno;
  close(folder);
  errno = error;
  if (failed) return lockstep_player_fail(player, "connect to the driver");
  player->commands = fdopen(player->socket, "r");
  return player->commands != NULL ? 0 : lockstep_player_fail(player, "fdopen");
}

/* Tells the driver `error`, connecting if need be, and returns the exit status for it. Also for a library that cannot
 * be set up: instead of lockstep_player_play. */
static inline int lockstep_player_refuse(struct lockstep_player* player) {
  for (char* c = player->error; *c != '\0'; ++c) {
    if (*c == '\n') *c = ' ';
  }
  char error[sizeof(player->error)];
  memcpy(error, player->error, sizeof(error));
  if (player->commands == NULL && lockstep_player_connect(player) != 0) {
    fprintf(stderr, "%s; %s\n", error, player->error);
    return 1;
  }
  dprintf(player->socket, "error %s\n", error[0] != '\0' ? error : "the call failed");
  return 1;
}

/* Keeps the calling thread on one core: the rank-th that it may use, counted round and round where ranks outnumber cores, so
 * that it does not take luck to have a neighbour or another on the same core. Threads that the library made before keep what
 * they had. */
static inline void lockstep_player_pin(const struct lockstep_player* player) {
  cpu_set_t allowed;
  cpu_set_t own;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  const int place = player->rank % CPU_COUNT(&allowed);
  int core = 0;
  for (int passed = 0; !CPU_ISSET(core, &allowed) || passed++ < place;) ++core;
  CPU_ZERO(&own);
  CPU_SET(core, &own);
  sched_setaffinity(0, sizeof(own), &own);
}

static inline int64_t lockstep_player_measure_clock(void) {
  enum { kReads = 2000 };
  const int64_t begin = lockstep_player_now();
  int64_t end = begin;
  for (int i = 0; i < kReads; ++i) end = lockstep_player_now();
  return (end - begin) / kReads;
}

/* Calls are timed one by one. Before each the rank rewrites its vector, as a training step does: otherwise what a rank
 * reads in every call would stay in its cache, and shared memory would look faster than it is. Rewriting is not timed.
 * */
static inline int lockstep_player_run(struct lockstep_player* player, size_t bytes, int64_t calls) {
  const size_t count = bytes / sizeof(float);
  const float value = (float)(player->rank + 1);
  int64_t spent = 0;
  lockstep_player_meet(player);
  const int64_t begin = lockstep_player_now();
  if (player->measure != NULL) {
    double seconds = 0;
    if (player->measure(player->context, bytes, &seconds) != 0) return -1;
    dprintf(player->socket, "time %.12g %.12g\n", seconds, (double)(lockstep_player_now() - begin) / 1e9);
    return 0;
  }
  for (int64_t call = 0; call < calls; ++call) {
    for (size_t i = 0; i < count; ++i) player->data[i] = value;
    if (bytes >= LOCKSTEP_PLAYER_MEETING_BYTES) lockstep_player_meet(player);
    const int64_t call_begin = lockstep_player_now();
    if (player->allreduce(player->context, player->data, count) != 0) return -1;
    spent += lockstep_player_now() - call_begin - player->clock_cost;
  }
  const int64_t elapsed = lockstep_player_now() - begin;
  const int ranks_summed = player->size * (player->size + 1) / 2;
  const float sum = (float)ranks_summed;
  if (!player->moves_only && (player->data[0] != sum || player->data[count - 1] != sum)) {
    snprintf(player->error, sizeof(player->error), "wrong sums after a timed call: %g and %g where %g belongs",
             (double)player->data[0], (double)player->data[count - 1], (double)sum);
    return -1;
  }
  dprintf(player->socket, "time %.12g %.12g\n", (double)spent / (double)calls / 1e9,
          (double)elapsed / (double)calls / 1e9);
  return 0;
}

/* Small integers, so every order of additions gives the same; a prime period, so a block in the wrong place shows. */
static inline void lockstep_player_check(struct lockstep_player* player, size_t bytes, size_t* wrong) {
  const size_t count = bytes / sizeof(float);
  const int size = player->size;
  *wrong = 0;
  for (size_t i = 0; i < count; ++i) player->data[i] = (float)(i % 251 + (size_t)(3 * player->rank));
  lockstep_player_meet(player);
  if (player->allreduce(player->context, player->data, count) != 0) {
    *wrong = count;
    return;
  }
  for (size_t i = 0; i < count; ++i) {
    const size_t sum = (size_t)size * (i % 251) + (size_t)(3 * size * (size - 1) / 2);
    if (player->data[i] != (float)sum) ++*wrong;
  }
}

/* Which of this process's TCP connections has sent most, and under which congestion control: what a contender says
 * about its transport can be held against it. */
static inline void lockstep_player_sockets(const struct lockstep_player* player) {
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
  dprintf(player->socket, "sockets %s %llu\n", most_used, (unsigned long long)most_bytes);
}

/* 0 to go on, 1 for quit, -1 with `error`. */
static inline int lockstep_player_obey(struct lockstep_player* player, const char* command) {
  unsigned long long bytes = 0;
  long long calls = 0;
  const int is_run = sscanf(command, "run %llu %lld", &bytes, &calls) == 2;
  if (is_run || sscanf(command, "check %llu", &bytes) == 1) {
    if (bytes < sizeof(float) || bytes > player->bytes_max || (is_run && calls < 1)) {
      snprintf(player->error, sizeof(player->error), "a player of at most %llu bytes cannot do: %s",
               (unsigned long long)player->bytes_max, command);
      return -1;
    }
    if (is_run) return lockstep_player_run(player, (size_t)bytes, calls);
    size_t wrong = 0;
    if (!player->moves_only) lockstep_player_check(player, (size_t)bytes, &wrong);
    if (player->error[0] != '\0') return -1;
    dprintf(player->socket, "wrong %llu\n", (unsigned long long)wrong);
    return 0;
  }
  if (strcmp(command, "sockets\n") == 0) {
    lockstep_player_sockets(player);
    return 0;
  }
  if (strcmp(command, "quit\n") == 0) return 1;
  snprintf(player->error, sizeof(player->error), "no such command: %s", command);
  return -1;
}

/* Obeys the driver until it says quit or is gone. Returns the exit status: 0 after quit. */
static inline int lockstep_player_play(struct lockstep_player* player) {
  if (lockstep_player_open_page(player) != 0) return lockstep_player_refuse(player);
  if (player->data == NULL) {
    void* memory = NULL;
    if (posix_memalign(&memory, 4096, player->bytes_max) != 0) {
      snprintf(player->error, sizeof(player->error), "no memory for a vector of %llu bytes",
               (unsigned long long)player->bytes_max);
      return lockstep_player_refuse(player);
    }
    player->data = (float*)memory;
  }
  if (!player->page->loose) lockstep_player_pin(player);
  player->clock_cost = lockstep_player_measure_clock();
  if (lockstep_player_connect(player) != 0) return lockstep_player_refuse(player);
  dprintf(player->socket, "hello %d\n", player->rank);
  char command[128];
  while (fgets(command, sizeof(command), player->commands) != NULL) {
    alarm(LOCKSTEP_PLAYER_PATIENCE_S);
    const int result = lockstep_player_obey(player, command);
    if (result < 0) return lockstep_player_refuse(player);
    alarm(0);
    if (result > 0) return 0;
  }
  return 1;
}

#endif /* BENCH_PEERS_PLAYER_H_ */
