/* Ranks that come and go, from C99 on three processes: that run out of inputs, or leave the others to another communicator. Traces. */

#include <stdio.h>
#include <string.h>

#include "capi/c_testing.h"

static const int64_t kOne = 1;

static lockstep_reducer_options Uneven(void) {
  lockstep_reducer_options options;
  LOCKSTEP_INIT(options);
  options.uneven_inputs = 1;
  return options;
}

/* Rank r has 1 + r steps of gradients 12, and adds up the averages: over all
 * ranks 12, 8 and 4, over those that are there 12 each. */
static void UseJoin(lockstep_communicator* communicator, int32_t rank, int32_t live) {
  lockstep_reducer_options options = Uneven();
  lockstep_reducer* reducer;
  int epoch, step;
  options.divide_by_live_ranks = live;
  reducer = MakeReducer(communicator, 2, &options);
  for (epoch = 0; epoch < 2; ++epoch) {
    float weight = 0;
    lockstep_tensor model = Vector(&weight, &kOne, LOCKSTEP_F32);
    for (step = 0; step <= rank; ++step) {
      const float expected = live ? 12 : (float)(12 - 4 * step);
      float value = 12;
      OK(Step(reducer, 2, &value));
      CHECK(value > expected - 1e-4F && value < expected + 1e-4F);
      weight += value;
    }
    model.dtype = 99;
    INVALID(lockstep_reducer_join(reducer, &model, 1, NULL, 0), "'model[0]': 99");
    model.dtype = LOCKSTEP_F32;
    OK(lockstep_reducer_join(reducer, &model, 1, NULL, 0));
    CHECK(weight > (float)(live ? 36 : 24) - 1e-3F && weight < (float)(live ? 36 : 24) + 1e-3F);
  }
  lockstep_reducer_destroy(reducer);
}

/* Ranks 0 and 1 have one step, rank 2 has two. In each all have the buffers of
 * the highest rank that has inputs. */
static void UseBuffers(lockstep_communicator* communicator, int32_t rank) {
  const lockstep_reducer_options options = Uneven();
  lockstep_reducer* reducer = MakeReducer(communicator, 1, &options);
  lockstep_reducer_buffer_options in_place;
  lockstep_forward_options forward;
  float weight = 0, mean = 0;
  const lockstep_tensor model = Vector(&weight, &kOne, LOCKSTEP_F32);
  const lockstep_tensor buffer = Vector(&mean, &kOne, LOCKSTEP_F32);
  int step;
  LOCKSTEP_INIT(in_place);
  in_place.in_place = 1;
  OK(lockstep_reducer_set_buffers(reducer, &buffer, 1, &in_place));
  MISUSED(lockstep_reducer_begin_backward(reducer, NULL), "call begin_forward");
  LOCKSTEP_INIT(forward);
  forward.buffers = &buffer;
  forward.buffer_count = 1;
  for (step = 0; step < (rank == 2 ? 2 : 1); ++step) {
    float value = 3;
    mean = (float)(100 * step + rank + 1);
    OK(lockstep_reducer_begin_forward(reducer, &forward, NULL));
    CHECK(mean == (step == 0 ? 3 : 103));
    mean += (float)(10 * (rank + 1));
    OK(Step(reducer, 1, &value));
    CHECK(value > (step == 0 ? 3 : 1) - 1e-5F && value < (step == 0 ? 3 : 1) + 1e-5F);
    weight += value;
  }
  OK(lockstep_reducer_join(reducer, &model, 1, &buffer, 1));
  /* As each joined: ranks 0 and 1 with what rank 2 had then, rank 2 with its
   * own. */
  CHECK(mean == (rank == 2 ? 133 : 103));
  CHECK(weight > 4 - 1e-5F && weight < 4 + 1e-5F);
  lockstep_reducer_destroy(reducer);
}

static void UseEarlyEnd(lockstep_communicator* communicator, int32_t rank) {
  lockstep_reducer_options options = Uneven();
  lockstep_reducer* reducer;
  float value = 3, weight = 0;
  const lockstep_tensor model = Vector(&weight, &kOne, LOCKSTEP_F32);
  options.throw_on_early_termination = 1;
  reducer = MakeReducer(communicator, 1, &options);
  if (rank == 1) {
    MISUSED(lockstep_reducer_join(reducer, &model, 1, NULL, 0), "rank 1 has exhausted");
  } else {
    MISUSED(Step(reducer, 1, &value), "1 rank(s) have exhausted");
  }
  value = 3;
  OK(Step(reducer, 1, &value));
  CHECK(value > 3 - 1e-5F && value < 3 + 1e-5F);
  lockstep_reducer_destroy(reducer);
}

static void RefuseJoin(lockstep_communicator* communicator) {
  lockstep_reducer* reducer = MakeReducer(communicator, 1, NULL);
  MISUSED(lockstep_reducer_join(reducer, NULL, 0, NULL, 0), "set uneven_inputs");
  lockstep_reducer_destroy(reducer);
}

/* A file for each rank, which is JSON after every step. */
static void UseTrace(lockstep_communicator* communicator, int32_t rank, const char* folder) {
  char path[512], text[4096];
  lockstep_reducer_options options;
  lockstep_reducer* reducer;
  float value = 1;
  size_t length;
  FILE* file;
  LOCKSTEP_INIT(options);
  snprintf(path, sizeof(path), "%s/steps-", folder);
  options.trace_path = path;
  reducer = MakeReducer(communicator, 1, &options);
  OK(Step(reducer, 1, &value));
  snprintf(path, sizeof(path), "%s/steps-rank%d.json", folder, (int)rank);
  file = fopen(path, "r");
  CHECK(file != NULL);
  length = fread(text, 1, sizeof(text) - 1, file);
  text[length] = '\0';
  CHECK(text[0] == '[' && strcmp(text + length - 3, "\n]\n") == 0 && strstr(text, "backward") != NULL);
  fclose(file);
  lockstep_reducer_destroy(reducer);
}

/* Rank 2 gives up in the middle of a backward. */
static void ChangeCommunicator(int32_t rank, int32_t size, const char* folder) {
  lockstep_communicator* communicator = Meet(rank, size, folder, "three");
  lockstep_reducer* reducer = MakeReducer(communicator, 1, NULL);
  float value = (float)(3 * rank);
  float mean = (float)rank;
  const lockstep_tensor gradient = Vector(&value, &kOne, LOCKSTEP_F32);
  const lockstep_tensor buffer = Vector(&mean, &kOne, LOCKSTEP_F32);
  lockstep_communicator *beside = NULL, *survivors = NULL;
  lockstep_reducer_buffer_options in_place;
  lockstep_forward_options forward;
  OK(Step(reducer, 1, &value));
  CHECK(value == 3);
  LOCKSTEP_INIT(in_place);
  in_place.in_place = 1;
  OK(lockstep_reducer_set_buffers(reducer, &buffer, 1, &in_place));
  OK(lockstep_communicator_duplicate(communicator, &beside));
  OK(lockstep_reducer_begin_backward(reducer, NULL));
  OK(lockstep_barrier(beside, NULL, NULL, NULL));
  lockstep_communicator_destroy(beside);
  if (rank == 2) {
    OK(lockstep_communicator_abort(communicator, "rank 2 leaves"));
    lockstep_reducer_destroy(reducer);
    lockstep_communicator_destroy(communicator);
    return;
  }
  OK(lockstep_reducer_mark_ready(reducer, 0, &gradient, NULL));
  FAILS(lockstep_reducer_end_backward(reducer, NULL), LOCKSTEP_ABORTED, "rank 2 leaves");
  INVALID(lockstep_reducer_change_communicator(reducer, NULL), "communicator");

  survivors = Meet(rank, 2, folder, "two");
  OK(lockstep_reducer_change_communicator(reducer, survivors));
  lockstep_communicator_destroy(communicator);
  value = (float)(3 * rank);
  OK(Step(reducer, 1, &value));
  CHECK(value == 1.5F);
  /* Buffers were those of the old ranks. */
  LOCKSTEP_INIT(forward);
  forward.buffers = &buffer;
  forward.buffer_count = 1;
  OK(lockstep_reducer_begin_forward(reducer, &forward, NULL));
  CHECK(mean == (float)rank);
  in_place.root = 1;
  OK(lockstep_reducer_set_buffers(reducer, &buffer, 1, &in_place));
  OK(lockstep_reducer_begin_forward(reducer, &forward, NULL));
  CHECK(mean == 1);
  OK(lockstep_communicator_status(survivors));
  lockstep_reducer_destroy(reducer);
  lockstep_communicator_destroy(survivors);
}

static void RunRank(int32_t rank, int32_t size, const char* folder) {
  lockstep_communicator* communicator = Meet(rank, size, folder, "store");
  UseJoin(communicator, rank, 0);
  UseJoin(communicator, rank, 1);
  UseBuffers(communicator, rank);
  UseEarlyEnd(communicator, rank);
  RefuseJoin(communicator);
  UseTrace(communicator, rank, folder);
  lockstep_communicator_destroy(communicator);
  ChangeCommunicator(rank, size, folder);
}

int main(void) {
  INVALID(lockstep_reducer_join(NULL, NULL, 0, NULL, 0), "reducer");
  INVALID(lockstep_reducer_change_communicator(NULL, NULL), "reducer");
  RunRanks(3, RunRank);
  return 0;
}
