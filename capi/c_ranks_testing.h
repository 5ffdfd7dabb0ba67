/* For C99 tests of reducers: any number of ranks as processes, and a model of one weight. */

#ifndef CAPI_C_RANKS_TESTING_H_
#define CAPI_C_RANKS_TESTING_H_

/* Before anything is included: mkdtemp, fork. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "capi/c_testing.h"
#include "capi/lockstep.h"

/* Runs rank 0 here and the others in children, with an empty folder between them; returns when all have passed. To be called
 * while the process has no handle. */
static inline void RunRanks(int32_t size, void (*run)(int32_t rank, int32_t size, const char* folder)) {
  char folder[256];
  const char* root = getenv("TEST_TMPDIR");
  int32_t rank, ended;
  snprintf(folder, sizeof(folder), "%s/ranks-XXXXXX", root == NULL ? "/tmp" : root);
  CHECK(mkdtemp(folder) != NULL);
  for (rank = 1; rank < size; ++rank) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child > 0) continue;
    run(rank, size, folder);
    _exit(0);
  }
  run(0, size, folder);
  for (ended = 1; ended < size; ++ended) {
    int status = 0;
    CHECK(wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
}

/* Ranks that say the same name and size meet. */
static inline lockstep_communicator* Meet(int32_t rank, int32_t size, const char* folder, const char* name) {
  char url[512];
  lockstep_communicator_options options;
  lockstep_communicator* communicator = NULL;
  snprintf(url, sizeof(url), "file://%s/%s", folder, name);
  lockstep_communicator_options_init(&options);
  options.world_size = size;
  options.rank = rank;
  options.store_url = url;
  options.setup_timeout_ms = 60000;
  options.timeout_ms = 60000;
  OK(lockstep_communicator_create(&options, &communicator));
  return communicator;
}

/* Of `count` weights of one f32 each, at most 2. */
static inline lockstep_reducer* MakeReducer(lockstep_communicator* communicator, size_t count,
                                            const lockstep_reducer_options* options) {
  static const char* const names[2] = {"weight", "bias"};
  static const int64_t one = 1;
  lockstep_parameter table[2];
  lockstep_reducer* reducer = NULL;
  size_t i;
  for (i = 0; i < count; ++i) {
    lockstep_parameter_init(&table[i]);
    table[i].name = names[i];
    table[i].shape = &one;
    table[i].dimensions = 1;
  }
  OK(lockstep_reducer_create(communicator, table, count, options, &reducer));
  return reducer;
}

/* A step whose gradients are *value each; *value is their average then. How it ended. */
static inline lockstep_error* Step(lockstep_reducer* reducer, size_t count, float* value) {
  static const int64_t one = 1;
  float gradients[2];
  lockstep_error* error;
  size_t i;
  OK(lockstep_reducer_begin_backward(reducer, NULL));
  for (i = count; i-- > 0;) {
    const lockstep_tensor tensor = Vector(&gradients[i], &one, LOCKSTEP_F32);
    gradients[i] = *value;
    OK(lockstep_reducer_mark_ready(reducer, i, &tensor, NULL));
  }
  error = lockstep_reducer_end_backward(reducer, NULL);
  *value = gradients[0];
  return error;
}

#endif /* CAPI_C_RANKS_TESTING_H_ */
