/* From C99, on two processes: parameters that are not used in every backward (found out or named), and sparse gradients.
 * random_steps_test has many more cases from Python. */

#include <string.h>

#include "capi/c_testing.h"
#include "capi/lockstep.h"

static const int64_t kOne = 1;

static void CheckUnusedAnywhere(lockstep_reducer* reducer, size_t index) {
  lockstep_tensor tensor;
  int32_t used = -1;
  OK(lockstep_reducer_averaged_gradient(reducer, index, &tensor, &used));
  CHECK(used == 0 && tensor.data == NULL && tensor.shape == NULL && tensor.dimensions == 0);
}

/* Parameter 0 is used by both ranks, 1 by rank 0 alone, 2 by none. */
static void Unused(lockstep_communicator* communicator) {
  const int32_t rank = lockstep_communicator_rank(communicator);
  const size_t unused[2] = {2, 1};
  const size_t nowhere = 7;
  lockstep_reducer_options options = OneEach();
  lockstep_backward_options backward;
  Model model;
  int64_t here = -1, anywhere = -1;
  InitModel(&model);
  options.find_unused_parameters = 1;
  lockstep_reducer* reducer = CreateReducer(communicator, &model, PARAMETERS, &options);
  MISUSED(lockstep_reducer_mark_unused(reducer, 2, NULL), "outside a backward");
  /* Found out at the end; named at the beginning; told on the way, by one as if it had been named. */
  for (int way = 0; way <= 2; ++way) {
    LOCKSTEP_INIT(backward);
    if (way > 0) {
      backward.unused_given = 1;
      backward.unused = unused;
      backward.unused_count = rank == 0 ? 1 : 2;
      if (way == 2) backward.unused_count -= 1;
    }
    OK(lockstep_reducer_begin_backward(reducer, &backward));
    model.values[1] = -1;
    if (way == 2) {
      OK(lockstep_reducer_mark_unused(reducer, 2, NULL));
      OK(lockstep_reducer_mark_unused(reducer, rank == 0 ? 2 : 1, NULL));
      INVALID(lockstep_reducer_mark_unused(reducer, nowhere, NULL), "parameter 7");
    }
    if (rank == 0) Mark(reducer, &model, 1, 10);
    Mark(reducer, &model, 0, rank == 0 ? 4.0F : 8.0F);
    if (way > 0) MISUSED(lockstep_reducer_mark_unused(reducer, 0, NULL), "was marked ready");
    OK(lockstep_reducer_end_backward(reducer, NULL));
    CHECK(model.values[0] == 6 && model.values[1] == (rank == 0 ? 5.0F : -1.0F) && model.values[2] == -1);
    CHECK(AverageOf(reducer, 0) == 6 && AverageOf(reducer, 1) == 5);
    CheckUnusedAnywhere(reducer, 2);
  }

  for (size_t i = 0; i < PARAMETERS; ++i) {
    OK(lockstep_reducer_parameter_uses(reducer, i, &here, &anywhere));
    CHECK(anywhere == (i == 2 ? 0 : 3) && here == (i == 1 && rank == 1 ? 0 : anywhere));
  }
  OK(lockstep_reducer_parameter_uses(reducer, 0, NULL, NULL));
  INVALID(lockstep_reducer_parameter_uses(reducer, PARAMETERS, &here, NULL), "out of range");

  /* An empty list says that all will come; none of the two ranks keeps that. */
  backward.unused = NULL;
  backward.unused_count = 0;
  OK(lockstep_reducer_begin_backward(reducer, &backward));
  Mark(reducer, &model, 0, 1);
  MISUSED(lockstep_reducer_end_backward(reducer, NULL), "no gradient came");
  OK(lockstep_reducer_begin_backward(reducer, &backward));
  if (rank == 1) OK(lockstep_reducer_explain_missing(reducer, "boom"));
  INVALID(lockstep_reducer_explain_missing(reducer, NULL), "reason");
  for (size_t i = 0; rank == 0 && i < PARAMETERS; ++i) Mark(reducer, &model, i, 1);
  MISUSED(lockstep_reducer_end_backward(reducer, NULL), "rank 1: boom");

  /* What was refused is not unused. */
  OK(lockstep_reducer_begin_backward(reducer, &backward));
  INVALID(lockstep_reducer_mark_ready(reducer, 1, NULL, NULL), "gradient");
  MISUSED(lockstep_reducer_mark_unused(reducer, 1, NULL), "a mark of parameter 1 'one'");
  MISUSED(lockstep_reducer_end_backward(reducer, NULL), "a mark was refused");

  LOCKSTEP_INIT(backward);
  backward.unused_count = 1;
  INVALID(lockstep_reducer_begin_backward(reducer, &backward), "unused");
  backward.unused = &nowhere;
  INVALID(lockstep_reducer_begin_backward(reducer, &backward), "unused_given");
  backward.unused_given = 1;
  INVALID(lockstep_reducer_begin_backward(reducer, &backward), "parameter 7");
  lockstep_reducer_destroy(reducer);

  reducer = CreateReducer(communicator, &model, PARAMETERS, NULL);
  MISUSED(lockstep_reducer_begin_backward(reducer, &backward), "find_unused");
  OK(lockstep_reducer_begin_backward(reducer, NULL));
  MISUSED(lockstep_reducer_mark_unused(reducer, 0, NULL), "set find_unused_parameters");
  lockstep_reducer_destroy(reducer);
}

static void Delayed(lockstep_communicator* communicator) {
  const size_t delayed = 0;
  lockstep_reducer_options options = OneEach();
  lockstep_reducer* reducer = NULL;
  Model model;
  InitModel(&model);
  options.delayed_count = 1;
  INVALID(lockstep_reducer_create(communicator, model.table, PARAMETERS, &options, &reducer), "delayed");
  options.delayed = &delayed;
  options.delayed_trigger = 0;
  INVALID(lockstep_reducer_create(communicator, model.table, PARAMETERS, &options, &reducer), "itself delayed");
}

static void States(lockstep_communicator* communicator) {
  lockstep_gradient_state state = -1;
  Model model;
  InitModel(&model);
  lockstep_reducer* reducer = CreateReducer(communicator, &model, PARAMETERS, NULL);
  MISUSED(lockstep_reducer_gradient_state(reducer, 0, &state), "gradient_state: there is none before");
  OK(RunStep(reducer, &model, 1));
  OK(lockstep_reducer_gradient_state(reducer, 0, &state));
  CHECK(state == LOCKSTEP_GRADIENT_AVERAGED);
  INVALID(lockstep_reducer_gradient_state(reducer, PARAMETERS, &state), "out of range");
  INVALID(lockstep_reducer_gradient_state(reducer, 0, NULL), "out_state");
  lockstep_reducer_destroy(reducer);
}

static void UseSomeParameters(lockstep_communicator* communicator) {
  Unused(communicator);
  Delayed(communicator);
  States(communicator);
}

/* ---- Sparse gradients. */

/* A dense weight and an embedding of 5 rows of 2. */
static lockstep_reducer* MakeSparse(lockstep_communicator* communicator, const lockstep_reducer_options* options) {
  static const int64_t shape[2] = {5, 2};
  lockstep_parameter table[2];
  lockstep_reducer* reducer = NULL;
  table[0] = Parameter("weight", &kOne, 1, LOCKSTEP_F32);
  table[1] = Parameter("embedding", shape, 2, LOCKSTEP_F32);
  table[1].sparse = 1;
  OK(lockstep_reducer_create(communicator, table, 2, options, &reducer));
  return reducer;
}

static lockstep_tensor Values(float* values, int64_t* shape) {
  lockstep_tensor tensor = Vector(values, shape, LOCKSTEP_F32);
  tensor.dimensions = 2;
  return tensor;
}

static void TestNulls(void) {
  const int64_t* rows = NULL;
  const void* values = NULL;
  size_t count = 0;
  INVALID(lockstep_reducer_mark_ready_sparse(NULL, 0, NULL, 0, NULL, NULL), "reducer");
  INVALID(lockstep_reducer_averaged_rows(NULL, 0, &rows, &values, &count, NULL), "reducer");
}

/* Every rank leaves two rows, of which one comes twice, instead of what it has; and nothing for the dense bucket. */
static lockstep_error* LeaveRows(void* context, lockstep_hook_bucket* bucket, lockstep_communicator* communicator,
                                 const lockstep_stream* stream) {
  static const int64_t left[3] = {4, 1, 4};
  static const float numbers[6] = {1, 2, 3, 4, 5, 5};
  const int64_t* rows = NULL;
  const void* values = NULL;
  size_t count = 9;
  int32_t sparse = -1;
  (void)context;
  (void)communicator;
  (void)stream;
  OK(lockstep_hook_bucket_rows(bucket, &rows, &values, &count, &sparse));
  if (!sparse) {
    CHECK(rows == NULL && values == NULL && count == 0);
    MISUSED(lockstep_hook_bucket_set_rows(bucket, left, numbers, 3), "sparse");
    return NULL;
  }
  CHECK(count == 1 && rows[0] == 2 && ((const float*)values)[1] == 9);
  INVALID(lockstep_hook_bucket_set_rows(bucket, NULL, numbers, 3), "rows");
  return lockstep_hook_bucket_set_rows(bucket, left, numbers, 3);
}

static void UseHook(lockstep_communicator* communicator) {
  lockstep_reducer_options options;
  int64_t row = 2, shape[2] = {1, 2};
  float numbers[2] = {8, 9}, weight = 1;
  const lockstep_tensor sparse = Values(numbers, shape);
  const lockstep_tensor dense = Vector(&weight, &kOne, LOCKSTEP_F32);
  LOCKSTEP_INIT(options);
  options.hook = LOCKSTEP_HOOK_CALLBACK;
  options.hook_issue = LeaveRows;
  lockstep_reducer* reducer = MakeSparse(communicator, &options);
  OK(lockstep_reducer_begin_backward(reducer, NULL));
  OK(lockstep_reducer_mark_ready_sparse(reducer, 1, &row, 1, &sparse, NULL));
  OK(lockstep_reducer_mark_ready(reducer, 0, &dense, NULL));
  OK(lockstep_reducer_end_backward(reducer, NULL));
  lockstep_reducer_destroy(reducer);
}

static void UseRows(lockstep_communicator* communicator) {
  const int32_t rank = lockstep_communicator_rank(communicator);
  lockstep_reducer_options options;
  float weight = (float)(2 * rank);
  const lockstep_tensor dense = Vector(&weight, &kOne, LOCKSTEP_F32);
  /* Rank r has (1, 2) and (5, 6) for row r, and (2 r + 2, 0) for row 4. */
  const float averages[6] = {3, 4, 3, 4, 3, 0};
  int64_t given[3] = {rank, 4, rank}, shape[2] = {3, 2};
  float numbers[6] = {1, 2, 0, 0, 5, 6};
  const int64_t* rows = NULL;
  const void* values = NULL;
  size_t count = 0;
  int32_t used = -1;
  lockstep_tensor sparse = Values(numbers, shape), none;
  numbers[2] = (float)(2 * rank + 2);
  LOCKSTEP_INIT(options);
  options.find_unused_parameters = 1;
  lockstep_reducer* reducer = MakeSparse(communicator, &options);
  MISUSED(lockstep_reducer_averaged_rows(reducer, 1, &rows, &values, &count, &used), "averaged_rows");

  OK(lockstep_reducer_begin_backward(reducer, NULL));
  INVALID(lockstep_reducer_mark_ready(reducer, 1, &dense, NULL), "is sparse");
  INVALID(lockstep_reducer_mark_ready_sparse(reducer, 0, given, 3, &sparse, NULL), "is not sparse");
  INVALID(lockstep_reducer_mark_ready_sparse(reducer, 1, NULL, 3, &sparse, NULL), "rows");
  INVALID(lockstep_reducer_mark_ready_sparse(reducer, 1, given, 2, &sparse, NULL), "2 rows");
  given[1] = 5;
  INVALID(lockstep_reducer_mark_ready_sparse(reducer, 1, given, 3, &sparse, NULL), "rows[1] is 5");
  given[1] = 4;
  OK(lockstep_reducer_mark_ready_sparse(reducer, 1, given, 3, &sparse, NULL));
  OK(lockstep_reducer_mark_ready(reducer, 0, &dense, NULL));
  OK(lockstep_reducer_end_backward(reducer, NULL));
  CHECK(weight == 1);
  OK(lockstep_reducer_averaged_rows(reducer, 1, &rows, &values, &count, &used));
  CHECK(used == 1 && count == 3 && rows[0] == 0 && rows[1] == 1 && rows[2] == 4);
  for (size_t i = 0; i < 6; ++i) CHECK(((const float*)values)[i] == averages[i]);
  CHECK(numbers[0] == 1 && numbers[4] == 5);
  INVALID(lockstep_reducer_averaged_rows(reducer, 0, &rows, &values, &count, &used), "is not sparse");
  INVALID(lockstep_reducer_averaged_gradient(reducer, 1, &none, NULL), "is sparse");
  INVALID(lockstep_reducer_averaged_rows(reducer, 1, NULL, &values, &count, &used), "out_rows");
  OK(lockstep_reducer_begin_backward(reducer, NULL));
  OK(lockstep_reducer_end_backward(reducer, NULL));
  OK(lockstep_reducer_averaged_rows(reducer, 1, &rows, &values, &count, &used));
  CHECK(used == 0 && rows == NULL && values == NULL && count == 0);
  lockstep_reducer_destroy(reducer);
}

static void UseSparse(lockstep_communicator* communicator) {
  UseRows(communicator);
  UseHook(communicator);
}

int main(void) {
  RunWorld(2, UseSomeParameters);
  TestNulls();
  RunWorld(2, UseSparse);
  return 0;
}
