/* What is under way in lockstep.h, from C99: many works at once, several communicators from several threads, groups left open, and
 * communicators that end meanwhile. On a world of one, and on two processes over shared memory and over TCP. */

#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "capi/c_testing.h"
#include "capi/lockstep.h"

#define WORKS 8
#define PARTS 3
#define COUNT 20000

static float Sum(int32_t size, float each) { return each * (float)(size * (size + 1) / 2); }

/* Started together, waited for from the last to the first. */
static void StartMany(lockstep_communicator* communicator) {
  const int32_t rank = lockstep_communicator_rank(communicator);
  const int32_t size = lockstep_communicator_size(communicator);
  static float values[WORKS][COUNT];
  const int64_t count = COUNT;
  lockstep_work *works[WORKS], *barrier = NULL;
  int i, k;
  for (i = 0; i < WORKS; ++i) {
    const lockstep_tensor tensor = Vector(values[i], &count, LOCKSTEP_F32);
    for (k = 0; k < COUNT; ++k) values[i][k] = (float)((rank + 1) * (i + 1));
    works[i] = NULL;
    OK(lockstep_all_reduce(communicator, &tensor, &tensor, LOCKSTEP_SUM, NULL, NULL, &works[i]));
  }
  OK(lockstep_barrier(communicator, NULL, NULL, &barrier));
  OK(lockstep_work_wait(barrier, 60000));
  lockstep_work_destroy(barrier);
  for (i = WORKS; i-- > 0;) {
    OK(lockstep_work_wait(works[i], 60000));
    CHECK(lockstep_work_done(works[i]) == 1);
    for (k = 0; k < COUNT; ++k) CHECK(values[i][k] == Sum(size, (float)(i + 1)));
    lockstep_work_destroy(works[i]);
  }
}

typedef struct Task {
  pthread_t thread;
  lockstep_communicator* communicator;
  int calls;
} Task;

static void* ReduceOften(void* argument) {
  const Task* const task = (const Task*)argument;
  const int32_t rank = lockstep_communicator_rank(task->communicator);
  const int32_t size = lockstep_communicator_size(task->communicator);
  const int64_t count = 1000;
  float values[1000];
  const lockstep_tensor tensor = Vector(values, &count, LOCKSTEP_F32);
  int call, k;
  for (call = 1; call <= task->calls; ++call) {
    for (k = 0; k < 1000; ++k) values[k] = (float)((rank + 1) * call);
    OK(lockstep_all_reduce(task->communicator, &tensor, &tensor, LOCKSTEP_SUM, NULL, NULL, NULL));
    for (k = 0; k < 1000; ++k) CHECK(values[k] == Sum(size, (float)call));
  }
  return NULL;
}

/* Each rank has an order of its own, and one thread for each communicator or one for all. */
static void UseParts(lockstep_communicator* communicator) {
  const int32_t rank = lockstep_communicator_rank(communicator);
  const int32_t size = lockstep_communicator_size(communicator);
  const int64_t count = COUNT;
  static float values[PARTS][COUNT];
  Task tasks[PARTS];
  lockstep_work* works[PARTS];
  int i, k;
  for (i = 0; i < PARTS; ++i) {
    OK(lockstep_communicator_duplicate(communicator, &tasks[i].communicator));
    tasks[i].calls = 50 * (i + 1);
    works[i] = NULL;
  }
  for (i = 0; i < PARTS; ++i) {
    const int part = rank == 0 ? i : PARTS - 1 - i;
    const lockstep_tensor tensor = Vector(values[part], &count, LOCKSTEP_F32);
    for (k = 0; k < COUNT; ++k) values[part][k] = (float)((rank + 1) * (part + 1));
    OK(lockstep_all_reduce(tasks[part].communicator, &tensor, &tensor, LOCKSTEP_SUM, NULL, NULL, &works[part]));
  }
  for (i = 0; i < PARTS; ++i) {
    OK(lockstep_work_wait(works[i], 60000));
    lockstep_work_destroy(works[i]);
    for (k = 0; k < COUNT; ++k) CHECK(values[i][k] == Sum(size, (float)(i + 1)));
  }
  for (i = 0; i < PARTS; ++i) {
    Task* const task = &tasks[rank == 0 ? i : PARTS - 1 - i];
    CHECK(pthread_create(&task->thread, NULL, ReduceOften, task) == 0);
  }
  /* This thread works on the communicator that they were made of. */
  StartMany(communicator);
  for (i = 0; i < PARTS; ++i) {
    CHECK(pthread_join(tasks[i].thread, NULL) == 0);
    lockstep_communicator_destroy(tasks[i].communicator);
  }
  OK(lockstep_communicator_status(communicator));
}

/* Receives what nobody sends, and a collective that one rank alone has called: none can finish. Rank 0 destroys the communicator;
 * another rank is told so first. */
static void DestroyInFlight(lockstep_communicator* communicator) {
  const int32_t rank = lockstep_communicator_rank(communicator);
  const int32_t size = lockstep_communicator_size(communicator);
  const int64_t one = 1;
  float value = 1, received[2] = {-1, -1};
  const lockstep_tensor tensor = Vector(&value, &one, LOCKSTEP_F32);
  lockstep_communicator* part = NULL;
  lockstep_work* works[3] = {NULL, NULL, NULL};
  int i;
  OK(lockstep_communicator_duplicate(communicator, &part));
  for (i = 0; i < 2; ++i) {
    const lockstep_tensor into = Vector(&received[i], &one, LOCKSTEP_F32);
    OK(lockstep_receive(part, &into, rank, i, 0, NULL, &works[i]));
  }
  if (size > 1 && rank == 0) OK(lockstep_all_reduce(part, &tensor, &tensor, LOCKSTEP_SUM, NULL, NULL, &works[2]));
  OK(lockstep_barrier(communicator, NULL, NULL, NULL)); /* all are under way */
  if (rank == 0) lockstep_communicator_destroy(part);
  for (i = 0; i < 3; ++i) {
    if (works[i] == NULL) continue;
    if (rank == 0) {
      CHECK(lockstep_work_done(works[i]) == 1);
      FAILS(lockstep_work_wait(works[i], 0), LOCKSTEP_CANCELLED, "destroyed");
    } else {
      FAILS(lockstep_work_wait(works[i], 60000), LOCKSTEP_ABORTED, "rank 0 destroyed the communicator with ");
    }
    lockstep_work_destroy(works[i]);
  }
  if (rank != 0) lockstep_communicator_destroy(part);
  CHECK(received[0] == -1 && received[1] == -1);
  /* What it was made of goes on. */
  OK(lockstep_barrier(communicator, NULL, NULL, NULL));
  OK(lockstep_communicator_status(communicator));
}

/* Neither launched nor waited for. */
static void LeaveGroupOpen(lockstep_communicator* communicator) {
  const int64_t one = 1;
  float value = 5;
  const lockstep_tensor tensor = Vector(&value, &one, LOCKSTEP_F32);
  lockstep_communicator* part = NULL;
  lockstep_work* work = NULL;
  OK(lockstep_communicator_duplicate(communicator, &part));
  OK(lockstep_group_start(part));
  OK(lockstep_group_start(part));
  OK(lockstep_all_reduce(part, &tensor, &tensor, LOCKSTEP_PROD, NULL, NULL, &work));
  OK(lockstep_group_end(part, NULL));
  CHECK(lockstep_work_done(work) == 0);
  MISUSED(lockstep_work_wait(work, 0), "end the group first");
  lockstep_communicator_destroy(part);
  CHECK(lockstep_work_done(work) == 1 && value == 5);
  MISUSED(lockstep_work_wait(work, 60000), "destroyed with a group open: its 1 calls");
  lockstep_work_destroy(work);
  OK(lockstep_barrier(communicator, NULL, NULL, NULL));
}

/* The whole world, by rank 0, while rank 1 waits for it. */
static void DestroyWorldInFlight(lockstep_communicator* communicator, int32_t rank) {
  const int64_t one = 1;
  float value = 0, message = 0;
  const lockstep_tensor tensor = Vector(&value, &one, LOCKSTEP_F32);
  const lockstep_tensor ready = Vector(&message, &one, LOCKSTEP_F32);
  lockstep_work *receive = NULL, *reduce = NULL;
  if (rank == 0) {
    OK(lockstep_receive(communicator, &tensor, 1, 4, 0, NULL, &receive));
    /* Rank 1 is through with what came before. */
    OK(lockstep_receive(communicator, &ready, 1, 5, 0, NULL, NULL));
    OK(lockstep_all_reduce(communicator, &tensor, &tensor, LOCKSTEP_SUM, NULL, NULL, &reduce));
    lockstep_communicator_destroy(communicator);
    FAILS(lockstep_work_wait(receive, 0), LOCKSTEP_CANCELLED, "");
    FAILS(lockstep_work_wait(reduce, 0), LOCKSTEP_CANCELLED, "");
    lockstep_work_destroy(reduce);
    lockstep_work_destroy(receive);
  } else {
    OK(lockstep_send(communicator, &ready, 0, 5, 0, NULL));
    FAILS(lockstep_receive(communicator, &tensor, 0, 4, 0, NULL, NULL), LOCKSTEP_ABORTED, "rank 0");
    FAILS(lockstep_barrier(communicator, NULL, NULL, NULL), LOCKSTEP_ABORTED, "rank 0");
    lockstep_communicator_destroy(communicator);
  }
}

static void UseAll(lockstep_communicator* communicator) {
  StartMany(communicator);
  UseParts(communicator);
  DestroyInFlight(communicator);
  LeaveGroupOpen(communicator);
}

static void RunRank(int32_t rank, int32_t size, const char* folder) {
  static const char* const transports[2] = {"shm", "tcp"};
  lockstep_communicator_options options;
  lockstep_communicator* communicator;
  int i;
  LOCKSTEP_INIT(options);
  for (i = 0; i < 2; ++i) {
    options.transport = transports[i];
    communicator = MeetWith(rank, size, folder, transports[i], &options);
    UseAll(communicator);
    DestroyWorldInFlight(communicator, rank);
  }
}

int main(void) {
  RunAlone(UseAll);
  RunRanks(2, RunRank);
  return 0;
}
