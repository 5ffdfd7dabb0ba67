/* From C99 on three processes: replicas that are compared in each step, and all at once. */

#include <string.h>

#include "capi/c_testing.h"

static const int64_t kShape[] = {2, 2};

typedef struct Seen {
  int reports;
  int answer; /* with the error */
  int released;
} Seen;

static lockstep_error* Report(void* context, lockstep_error* drift) {
  Seen* const seen = context;
  ++seen->reports;
  CHECK(lockstep_error_code(drift) == LOCKSTEP_DATA_LOSS);
  CHECK(strstr(lockstep_error_message(drift),
               "'w' (f32[2, 2]), at [1, 0]: rank 1 has 5 (0x40a00000), ranks 0, 2 have 1"));
  CHECK(lockstep_error_parameter(drift) == 1 && lockstep_error_failed_rank(drift) == 1);
  if (seen->answer) return drift;
  lockstep_error_free(drift);
  return NULL;
}

static void Release(void* context) { ++((Seen*)context)->released; }

static lockstep_error* Begin(lockstep_reducer* reducer, const void* const* data) {
  lockstep_backward_options options;
  LOCKSTEP_INIT(options);
  options.replicas = data;
  return lockstep_reducer_begin_backward(reducer, &options);
}

static void InSteps(lockstep_communicator* communicator, int32_t rank) {
  const lockstep_parameter table[] = {Parameter("v", kShape, 2, LOCKSTEP_F64), Parameter("w", kShape, 2, LOCKSTEP_F32)};
  const double v[4] = {1, 2, 3, 4};
  float w[4] = {1, 1, 1, 1};
  const void* const data[] = {v, w};
  const void* const without_w[] = {v, NULL};
  Seen seen = {0, 0, 0};
  Model model;
  lockstep_reducer_options options = OneEach();
  lockstep_reducer* reducer;
  int step;
  options.replicas = table;
  options.replica_count = 2;
  options.on_drift = Report;
  options.drift_context = &seen;
  options.drift_release = Release;
  InitModel(&model);
  reducer = CreateReducer(communicator, &model, 1, &options);
  for (step = 0; step < 6; ++step) {
    /* From the second step on, rank 1 has another w, which is compared from the fourth on. The fifth step begins with the report. */
    if (step == 1 && rank == 1) w[2] = 5;
    if (step == 4) seen.answer = 1;
    if (step == 4) FAILS(Begin(reducer, data), LOCKSTEP_DATA_LOSS, "begin_backward: replicas differ in 1 of 2 tensors");
    OK(Begin(reducer, step < 1 || step > 2 ? data : step == 1 ? without_w : NULL));
    Mark(reducer, &model, 0, 3);
    OK(lockstep_reducer_end_backward(reducer, NULL));
    CHECK(seen.reports == (step < 4 ? 0 : 1));
    seen.answer = 0;
  }
  lockstep_reducer_destroy(reducer);
  CHECK(seen.released == 1);
}

static void AtOnce(lockstep_communicator* communicator, int32_t rank) {
  lockstep_parameter table[] = {Parameter("v", kShape, 2, LOCKSTEP_I64), Parameter("w", kShape, 2, LOCKSTEP_F32)};
  const int64_t v[4] = {1, 2, 3, 4};
  float w[4] = {1, 1, 1, 1};
  const void* data[] = {v, w};
  lockstep_error* error;
  OK(lockstep_check_replicas(communicator, table, data, 2));
  OK(lockstep_check_replicas(communicator, NULL, NULL, 0));
  if (rank == 1) w[2] = 5;
  error = lockstep_check_replicas(communicator, table, data, 2);
  CHECK(error != NULL && lockstep_error_parameter(error) == 1 && lockstep_error_failed_rank(error) == 1);
  FAILS(error, LOCKSTEP_DATA_LOSS,
        "rank 1 differs from the majority. The first is parameter 1 'w' (f32[2, 2]), at [1, 0]");
  if (rank == 1) data[1] = NULL;
  OK(lockstep_check_replicas(communicator, table, data, 2));
  if (rank == 2) {
    INVALID(lockstep_check_replicas(communicator, table, NULL, 2), "'data' is NULL");
  } else {
    MISUSED(lockstep_check_replicas(communicator, table, data, 2), "rank 2 cannot take part");
  }
  table[0].dtype = rank == 0 ? LOCKSTEP_I64 : LOCKSTEP_U64;
  MISUSED(lockstep_check_replicas(communicator, table, data, 2), "rank 1");
}

static void Run(lockstep_communicator* communicator) {
  const int32_t rank = lockstep_communicator_rank(communicator);
  InSteps(communicator, rank);
  AtOnce(communicator, rank);
}

int main(void) {
  RunWorld(3, Run);
  return 0;
}
