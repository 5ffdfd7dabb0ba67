/* From C99 on three processes: ranks that run out of inputs, or leave the others to another communicator; traces; buffers before and
 * after the forward pass; replicas that are compared. */

#include <stdio.h>
#include <string.h>

#include "capi/c_testing.h"

static const int64_t kOne = 1;

/* A running mean of two channels and a count of batches, which on rank r begin as {r, 10 r} and 100 + r. */
typedef struct Buffers {
  float mean[2];
  int64_t batches;
  lockstep_tensor tensors[2];
  lockstep_forward_options forward;
} Buffers;

static void InitBuffers(Buffers* buffers, int32_t rank) {
  static const int64_t two = 2;
  buffers->mean[0] = (float)rank;
  buffers->mean[1] = (float)(10 * rank);
  buffers->batches = 100 + rank;
  buffers->tensors[0] = Vector(buffers->mean, &two, LOCKSTEP_F32);
  buffers->tensors[1] = Vector(&buffers->batches, &kOne, LOCKSTEP_I64);
  LOCKSTEP_INIT(buffers->forward);
  buffers->forward.buffers = buffers->tensors;
  buffers->forward.buffer_count = 2;
}

static int Are(const Buffers* buffers, int32_t rank) {
  return buffers->mean[0] == (float)rank && buffers->mean[1] == (float)(10 * rank) && buffers->batches == 100 + rank;
}

/* Rank r has 1 + r steps. In the end all have the model of rank 2, and the buffers of its last forward. */
static void UseJoin(lockstep_communicator* communicator, int32_t rank) {
  lockstep_reducer_options options;
  lockstep_reducer_buffer_options in_place;
  Buffers buffers;
  float weight = (float)rank;
  lockstep_tensor model = Vector(&weight, &kOne, LOCKSTEP_F32);
  LOCKSTEP_INIT(options);
  options.uneven_inputs = 1;
  options.divide_by_live_ranks = 1;
  lockstep_reducer* reducer = CreateReducer(communicator, NULL, 1, &options);
  LOCKSTEP_INIT(in_place);
  in_place.in_place = 1;
  InitBuffers(&buffers, rank);
  OK(lockstep_reducer_set_buffers(reducer, buffers.tensors, 2, &in_place));
  MISUSED(lockstep_reducer_begin_backward(reducer, NULL), "call begin_forward");
  for (int step = 0; step <= rank; ++step) {
    float value = 3;
    OK(lockstep_reducer_begin_forward(reducer, &buffers.forward, NULL));
    CHECK(Are(&buffers, 2));
    OK(Step(reducer, 1, &value));
    CHECK(value > 2.9F && value < 3.1F); /* not exact */
  }
  model.dtype = 99;
  INVALID(lockstep_reducer_join(reducer, &model, 1, NULL, 0), "'model[0]': 99");
  model.dtype = LOCKSTEP_F32;
  InitBuffers(&buffers, rank);
  OK(lockstep_reducer_join(reducer, &model, 1, buffers.tensors, 2));
  CHECK(weight == 2 && Are(&buffers, 2));
  lockstep_reducer_destroy(reducer);
}

static void UseEarlyEnd(lockstep_communicator* communicator, int32_t rank) {
  lockstep_reducer_options options;
  float value = 3;
  LOCKSTEP_INIT(options);
  options.uneven_inputs = 1;
  options.throw_on_early_termination = 1;
  lockstep_reducer* reducer = CreateReducer(communicator, NULL, 1, &options);
  if (rank == 1) {
    MISUSED(lockstep_reducer_join(reducer, NULL, 0, NULL, 0), "rank 1 has exhausted");
  } else {
    MISUSED(Step(reducer, 1, &value), "1 rank(s) have exhausted");
  }
  OK(Step(reducer, 1, &value));
  lockstep_reducer_destroy(reducer);
}

/* A file for each rank. */
static void UseTrace(lockstep_communicator* communicator, int32_t rank, const char* folder) {
  char path[512];
  lockstep_reducer_options options;
  float value = 1;
  LOCKSTEP_INIT(options);
  snprintf(path, sizeof(path), "%s/steps-", folder);
  options.trace_path = path;
  lockstep_reducer* reducer = CreateReducer(communicator, NULL, 1, &options);
  OK(Step(reducer, 1, &value));
  snprintf(path, sizeof(path), "%s/steps-rank%d.json", folder, (int)rank);
  FILE* file = fopen(path, "r");
  CHECK(file != NULL && fgetc(file) == '[');
  fclose(file);
  lockstep_reducer_destroy(reducer);
}

/* Rank 2 gives up in the middle of a backward. */
static void ChangeCommunicator(int32_t rank, int32_t size, const char* folder) {
  lockstep_communicator* communicator = Meet(rank, size, folder, "three");
  lockstep_reducer* reducer = CreateReducer(communicator, NULL, 1, NULL);
  float value = (float)(3 * rank);
  const lockstep_tensor gradient = Vector(&value, &kOne, LOCKSTEP_F32);
  Buffers buffers;
  lockstep_communicator *beside = NULL, *survivors = NULL;
  lockstep_reducer_buffer_options in_place;
  InitBuffers(&buffers, rank);
  OK(Step(reducer, 1, &value));
  LOCKSTEP_INIT(in_place);
  in_place.in_place = 1;
  OK(lockstep_reducer_set_buffers(reducer, buffers.tensors, 2, &in_place));
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
  OK(lockstep_reducer_begin_forward(reducer, &buffers.forward, NULL));
  CHECK(Are(&buffers, rank));
  in_place.root = 1;
  OK(lockstep_reducer_set_buffers(reducer, buffers.tensors, 2, &in_place));
  OK(lockstep_reducer_begin_forward(reducer, &buffers.forward, NULL));
  CHECK(Are(&buffers, 1));
  OK(lockstep_communicator_status(survivors));
  lockstep_reducer_destroy(reducer);
  lockstep_communicator_destroy(survivors);
}

/* ---- Buffers before and after the forward pass. */

/* From rank 1, into memory that outlives the reducer. */
static void UseFreshMemory(lockstep_communicator* communicator, int32_t rank) {
  lockstep_reducer* reducer = CreateReducer(communicator, NULL, 1, NULL);
  lockstep_reducer_buffer_options options;
  lockstep_fresh_buffers *fresh = NULL, *other = NULL;
  Buffers buffers;
  float value = 1;
  /* Without buffers a forward may be announced all the same. */
  OK(lockstep_reducer_begin_forward(reducer, NULL, NULL));
  OK(lockstep_reducer_end_forward(reducer, NULL));
  LOCKSTEP_INIT(options);
  options.root = 1;
  InitBuffers(&buffers, rank);
  OK(lockstep_reducer_set_buffers(reducer, buffers.tensors, 2, &options));
  OK(lockstep_reducer_begin_forward(reducer, &buffers.forward, &fresh));
  CHECK(*(const int64_t*)lockstep_fresh_buffers_data(fresh, 1) == 101 && Are(&buffers, rank));
  /* The same step's second forward brings nothing. */
  other = fresh;
  OK(lockstep_reducer_begin_forward(reducer, &buffers.forward, &other));
  CHECK(other == NULL);
  OK(lockstep_reducer_end_forward(reducer, &buffers.forward));
  OK(Step(reducer, 1, &value));
  /* The next step's are due, and have nowhere to go. */
  INVALID(lockstep_reducer_begin_forward(reducer, &buffers.forward, NULL), "out_fresh");
  CHECK(Are(&buffers, rank));
  lockstep_reducer_destroy(reducer);
  CHECK(((const float*)lockstep_fresh_buffers_data(fresh, 0))[1] == 10);
  lockstep_fresh_buffers_destroy(fresh);
}

static void UseInPlace(lockstep_communicator* communicator, int32_t rank, int32_t after) {
  lockstep_reducer* reducer = CreateReducer(communicator, NULL, 1, NULL);
  lockstep_reducer_buffer_options options;
  lockstep_fresh_buffers* fresh = NULL;
  Buffers buffers;
  float value = 1;
  InitBuffers(&buffers, rank);
  LOCKSTEP_INIT(options);
  options.root = 2;
  options.in_place = 1;
  options.after_forward = after;
  OK(lockstep_reducer_set_buffers(reducer, buffers.tensors, 2, &options));
  OK(lockstep_reducer_begin_forward(reducer, &buffers.forward, &fresh));
  CHECK(fresh == NULL && Are(&buffers, after ? rank : 2));
  OK(lockstep_reducer_end_forward(reducer, &buffers.forward));
  CHECK(Are(&buffers, 2));
  OK(Step(reducer, 1, &value));
  /* Rank 0 has a tensor that cannot be read, and is alone with that. */
  InitBuffers(&buffers, rank);
  if (rank == 0) buffers.tensors[1].dtype = 99;
  lockstep_error* error = after ? lockstep_reducer_end_forward(reducer, &buffers.forward)
                                : lockstep_reducer_begin_forward(reducer, &buffers.forward, NULL);
  if (rank == 0) {
    INVALID(error, "'buffers[1]': 99");
  } else {
    OK(error);
  }
  CHECK(Are(&buffers, rank == 0 ? 0 : 2));
  lockstep_reducer_destroy(reducer);
}

static lockstep_error* AddMeans(void* context, lockstep_communicator* communicator, const lockstep_tensor* buffers,
                                size_t buffer_count) {
  lockstep_communicator* part = NULL;
  CHECK(lockstep_communicator_size(communicator) == 3);
  CHECK(buffer_count == 2 && buffers[1].dtype == LOCKSTEP_I64 && buffers[0].shape[0] == 2);
  OK(lockstep_all_reduce(communicator, &buffers[0], &buffers[0], LOCKSTEP_SUM, NULL, NULL, NULL));
  /* A part of it is a communicator like any other. */
  OK(lockstep_communicator_duplicate(communicator, &part));
  OK(lockstep_broadcast(part, &buffers[1], 1, NULL, NULL, NULL));
  lockstep_communicator_destroy(part);
  return lockstep_error_create(*(const lockstep_code*)context, "no more room");
}

/* {0, 0}, {1, 10} and {2, 20} add up to {3, 30}. */
static void UseHook(lockstep_communicator* communicator, int32_t rank) {
  lockstep_reducer* reducer = CreateReducer(communicator, NULL, 1, NULL);
  lockstep_reducer_buffer_options options;
  lockstep_fresh_buffers* fresh = NULL;
  Buffers buffers;
  float value = 1;
  lockstep_code code = LOCKSTEP_OK;
  InitBuffers(&buffers, rank);
  LOCKSTEP_INIT(options);
  options.hook = AddMeans;
  options.hook_context = &code;
  OK(lockstep_reducer_set_buffers(reducer, buffers.tensors, 2, &options));
  OK(lockstep_reducer_begin_forward(reducer, &buffers.forward, &fresh));
  CHECK(fresh == NULL && buffers.mean[0] == 3 && buffers.mean[1] == 30 && buffers.batches == 101);
  OK(Step(reducer, 1, &value));
  /* Its error is this rank's alone. */
  code = rank == 2 ? LOCKSTEP_RESOURCE_EXHAUSTED : LOCKSTEP_OK;
  if (rank == 2) {
    FAILS(lockstep_reducer_begin_forward(reducer, &buffers.forward, NULL), LOCKSTEP_RESOURCE_EXHAUSTED,
          "the buffer hook: no more room");
  } else {
    OK(lockstep_reducer_begin_forward(reducer, &buffers.forward, NULL));
  }
  CHECK(buffers.mean[0] == 9);
  OK(Step(reducer, 1, &value));
  lockstep_reducer_destroy(reducer);
}

/* Refused on all ranks; nothing is set then. */
static void RefuseBuffers(lockstep_communicator* communicator, int32_t rank) {
  float value = 3;
  const lockstep_tensor gradient = Vector(&value, &kOne, LOCKSTEP_F32);
  lockstep_reducer* reducer = CreateReducer(communicator, NULL, 1, NULL);
  lockstep_reducer_buffer_options options;
  lockstep_fresh_buffers* fresh = NULL;
  Buffers buffers;
  InitBuffers(&buffers, rank);
  if (rank == 1) buffers.tensors[0].dtype = 99;
  FAILS(lockstep_reducer_set_buffers(reducer, buffers.tensors, 2, NULL), CodeOfRefusal(rank == 1), "'buffers[0]': 99");
  InitBuffers(&buffers, rank);
  MISUSED(lockstep_reducer_set_buffers(reducer, buffers.tensors, rank == 2 ? 1 : 2, NULL), "rank 2");
  LOCKSTEP_INIT(options);
  options.root = 3;
  INVALID(lockstep_reducer_set_buffers(reducer, buffers.tensors, 2, &options), "root 3");
  OK(lockstep_reducer_begin_forward(reducer, &buffers.forward, &fresh));
  CHECK(fresh == NULL && Are(&buffers, rank));
  OK(lockstep_reducer_begin_backward(reducer, NULL));
  MISUSED(lockstep_reducer_set_buffers(reducer, buffers.tensors, 2, NULL), "end_backward");
  OK(lockstep_reducer_mark_ready(reducer, 0, &gradient, NULL));
  OK(lockstep_reducer_end_backward(reducer, NULL));
  MISUSED(lockstep_reducer_join(reducer, NULL, 0, NULL, 0), "set uneven_inputs");
  lockstep_reducer_destroy(reducer);
}

/* ---- Replicas that are compared in each step, and all at once. */

static const int64_t kShape[] = {2, 2};

typedef struct Seen {
  int reports, released;
} Seen;

static lockstep_error* Report(void* context, lockstep_error* drift) {
  ++((Seen*)context)->reports;
  CHECK(lockstep_error_code(drift) == LOCKSTEP_DATA_LOSS);
  CHECK(strstr(lockstep_error_message(drift),
               "'w' (f32[2, 2]), at [1, 0]: rank 1 has 5 (0x40a00000), ranks 0, 2 have 1"));
  CHECK(lockstep_error_parameter(drift) == 1 && lockstep_error_failed_rank(drift) == 1);
  return drift;
}

static void Release(void* context) { ++((Seen*)context)->released; }

/* A step begins with the report of an earlier one. */
static void CompareInSteps(lockstep_communicator* communicator, int32_t rank) {
  const lockstep_parameter table[] = {Parameter("v", kShape, 2, LOCKSTEP_F64), Parameter("w", kShape, 2, LOCKSTEP_F32)};
  const double v[4] = {1, 2, 3, 4};
  const float w[4] = {1, 1, rank == 1 ? 5.0F : 1.0F, 1};
  const void* const data[] = {v, w};
  float value = 3;
  const lockstep_tensor gradient = Vector(&value, &kOne, LOCKSTEP_F32);
  lockstep_backward_options backward;
  lockstep_reducer_options options;
  Seen seen = {0, 0};
  int failures = 0;
  LOCKSTEP_INIT(options);
  options.replicas = table;
  options.replica_count = 2;
  options.on_drift = Report;
  options.drift_context = &seen;
  options.drift_release = Release;
  lockstep_reducer* reducer = CreateReducer(communicator, NULL, 1, &options);
  LOCKSTEP_INIT(backward);
  backward.replicas = data;
  for (int step = 0; step < 3; ++step) {
    lockstep_error* error = lockstep_reducer_begin_backward(reducer, &backward);
    if (error != NULL) {
      ++failures;
      FAILS(error, LOCKSTEP_DATA_LOSS, "begin_backward: replicas differ in 1 of 2 tensors");
      OK(lockstep_reducer_begin_backward(reducer, &backward));
    }
    OK(lockstep_reducer_mark_ready(reducer, 0, &gradient, NULL));
    OK(lockstep_reducer_end_backward(reducer, NULL));
  }
  CHECK(failures == 1 && seen.reports == 1 && seen.released == 0);
  lockstep_reducer_destroy(reducer);
  CHECK(seen.released == 1);
}

static void CompareAtOnce(lockstep_communicator* communicator, int32_t rank) {
  lockstep_parameter table[] = {Parameter("v", kShape, 2, LOCKSTEP_I64), Parameter("w", kShape, 2, LOCKSTEP_F32)};
  const int64_t v[4] = {1, 2, 3, 4};
  float w[4] = {1, 1, 1, 1};
  const void* data[] = {v, w};
  OK(lockstep_check_replicas(communicator, table, data, 2));
  OK(lockstep_check_replicas(communicator, NULL, NULL, 0));
  if (rank == 1) w[2] = 5;
  lockstep_error* error = lockstep_check_replicas(communicator, table, data, 2);
  CHECK(error != NULL && lockstep_error_parameter(error) == 1 && lockstep_error_failed_rank(error) == 1);
  FAILS(error, LOCKSTEP_DATA_LOSS,
        "rank 1 differs from the majority. The first is parameter 1 'w' (f32[2, 2]), at [1, 0]");
  if (rank == 1) data[1] = NULL;
  OK(lockstep_check_replicas(communicator, table, data, 2));
  FAILS(lockstep_check_replicas(communicator, table, rank == 2 ? NULL : data, 2), CodeOfRefusal(rank == 2),
        rank == 2 ? "'data' is NULL" : "rank 2 cannot take part");
  table[0].dtype = rank == 0 ? LOCKSTEP_I64 : LOCKSTEP_U64;
  MISUSED(lockstep_check_replicas(communicator, table, data, 2), "rank 1");
}

static void RunRank(int32_t rank, int32_t size, const char* folder) {
  lockstep_communicator* communicator = Meet(rank, size, folder, "store");
  UseJoin(communicator, rank);
  UseEarlyEnd(communicator, rank);
  UseTrace(communicator, rank, folder);
  UseFreshMemory(communicator, rank);
  UseInPlace(communicator, rank, 0);
  UseInPlace(communicator, rank, 1);
  UseHook(communicator, rank);
  RefuseBuffers(communicator, rank);
  CompareInSteps(communicator, rank);
  CompareAtOnce(communicator, rank);
  OK(lockstep_communicator_status(communicator));
  lockstep_communicator_destroy(communicator);
  ChangeCommunicator(rank, size, folder);
}

int main(void) {
  INVALID(lockstep_reducer_join(NULL, NULL, 0, NULL, 0), "reducer");
  INVALID(lockstep_reducer_change_communicator(NULL, NULL), "reducer");
  INVALID(lockstep_reducer_set_buffers(NULL, NULL, 0, NULL), "reducer");
  INVALID(lockstep_reducer_begin_forward(NULL, NULL, NULL), "reducer");
  INVALID(lockstep_reducer_end_forward(NULL, NULL), "reducer");
  RunRanks(3, RunRank);
  return 0;
}
