/* From C99, on two processes: parameters that are not used in every backward (found out or named), and sparse gradients.
 * random_steps_test has many more cases from Python. */

#include <string.h>

#include "capi/c_testing.h"
#include "capi/lockstep.h"

static const int64_t kOne = 1;

/* Parameter 0 is used by both ranks, 1 by rank 0 alone, 2 by none. Rank 0 says so on the way, rank 1 at the beginning. */
static void Unused(lockstep_communicator* communicator) {
  const int32_t rank = lockstep_communicator_rank(communicator);
  const size_t unused[2] = {2, 1}, nowhere = 7;
  lockstep_reducer_options options = OneEach();
  lockstep_backward_options backward;
  lockstep_tensor tensor;
  Model model;
  int64_t here = -1, anywhere = -1;
  int32_t used = -1;
  InitModel(&model);
  options.find_unused_parameters = 1;
  lockstep_reducer* reducer = CreateReducer(communicator, &model, PARAMETERS, &options);
  MISUSED(lockstep_reducer_mark_unused(reducer, 2, NULL), "outside a backward");
  LOCKSTEP_INIT(backward);
  backward.unused_given = 1;
  backward.unused = unused;
  backward.unused_count = rank == 0 ? 0 : 2;
  OK(lockstep_reducer_begin_backward(reducer, &backward));
  if (rank == 0) OK(lockstep_reducer_mark_unused(reducer, 2, NULL));
  INVALID(lockstep_reducer_mark_unused(reducer, nowhere, NULL), "parameter 7");
  if (rank == 0) Mark(reducer, &model, 1, 10);
  Mark(reducer, &model, 0, rank == 0 ? 4.0F : 8.0F);
  MISUSED(lockstep_reducer_mark_unused(reducer, 0, NULL), "was marked ready");
  OK(lockstep_reducer_end_backward(reducer, NULL));
  CHECK(model.values[0] == 6 && model.values[1] == (rank == 0 ? 5.0F : -1.0F) && model.values[2] == -1);
  CHECK(AverageOf(reducer, 1) == 5);
  OK(lockstep_reducer_averaged_gradient(reducer, 2, &tensor, &used));
  CHECK(used == 0 && tensor.data == NULL && tensor.shape == NULL && tensor.dimensions == 0);

  OK(lockstep_reducer_parameter_uses(reducer, 1, &here, &anywhere));
  CHECK(here == 1 - rank && anywhere == 1);
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

/* ---- Sparse gradients. */

/* Leaves other rows than it is given, of which one comes twice; and the dense bucket as it is. */
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
  if (count == 0) return NULL;
  CHECK(count == 2 && rows[0] == 2 && rows[1] == 3 && ((const float*)values)[1] == 9);
  INVALID(lockstep_hook_bucket_set_rows(bucket, NULL, numbers, 3), "rows");
  return lockstep_hook_bucket_set_rows(bucket, left, numbers, 3);
}

/* A dense weight and an embedding of 5 rows of 2. */
static void UseRows(lockstep_communicator* communicator) {
  static const float averages[4] = {3, 4, 6, 7};
  lockstep_reducer_options options;
  float weight = 1, numbers[4] = {8, 9, 0, 0};
  int64_t given[2] = {2, 3}, shape[2] = {2, 2};
  const int64_t rows_of_2[2] = {5, 2};
  const lockstep_tensor dense = Vector(&weight, &kOne, LOCKSTEP_F32);
  const int64_t* rows = NULL;
  const void* values = NULL;
  size_t count = 0;
  int32_t used = -1;
  lockstep_parameter table[2];
  lockstep_tensor sparse = Vector(numbers, shape, LOCKSTEP_F32), none;
  lockstep_reducer* reducer = NULL;
  sparse.dimensions = 2;
  table[0] = Parameter("weight", &kOne, 1, LOCKSTEP_F32);
  table[1] = Parameter("embedding", rows_of_2, 2, LOCKSTEP_F32);
  table[1].sparse = 1;
  LOCKSTEP_INIT(options);
  options.find_unused_parameters = 1;
  options.hook = LOCKSTEP_HOOK_CALLBACK;
  options.hook_issue = LeaveRows;
  OK(lockstep_reducer_create(communicator, table, 2, &options, &reducer));
  MISUSED(lockstep_reducer_averaged_rows(reducer, 1, &rows, &values, &count, &used), "averaged_rows");

  OK(lockstep_reducer_begin_backward(reducer, NULL));
  INVALID(lockstep_reducer_mark_ready(reducer, 1, &dense, NULL), "is sparse");
  INVALID(lockstep_reducer_mark_ready_sparse(reducer, 0, given, 2, &sparse, NULL), "is not sparse");
  INVALID(lockstep_reducer_mark_ready_sparse(reducer, 1, NULL, 2, &sparse, NULL), "rows");
  INVALID(lockstep_reducer_mark_ready_sparse(reducer, 1, given, 1, &sparse, NULL), "1 rows");
  given[0] = 5;
  INVALID(lockstep_reducer_mark_ready_sparse(reducer, 1, given, 2, &sparse, NULL), "rows[0] is 5");
  given[0] = 2;
  OK(lockstep_reducer_mark_ready_sparse(reducer, 1, given, 2, &sparse, NULL));
  OK(lockstep_reducer_mark_ready(reducer, 0, &dense, NULL));
  OK(lockstep_reducer_end_backward(reducer, NULL));
  OK(lockstep_reducer_averaged_rows(reducer, 1, &rows, &values, &count, &used));
  CHECK(used == 1 && count == 2 && rows[0] == 1 && rows[1] == 4);
  CHECK(memcmp(values, averages, sizeof(averages)) == 0);
  INVALID(lockstep_reducer_averaged_rows(reducer, 0, &rows, &values, &count, &used), "is not sparse");
  INVALID(lockstep_reducer_averaged_gradient(reducer, 1, &none, NULL), "is sparse");
  INVALID(lockstep_reducer_averaged_rows(reducer, 1, NULL, &values, &count, &used), "out_rows");
  OK(lockstep_reducer_begin_backward(reducer, NULL));
  OK(lockstep_reducer_end_backward(reducer, NULL));
  OK(lockstep_reducer_averaged_rows(reducer, 1, &rows, &values, &count, &used));
  CHECK(used == 0 && rows == NULL && values == NULL && count == 0);
  lockstep_reducer_destroy(reducer);
  INVALID(lockstep_reducer_mark_ready_sparse(NULL, 0, NULL, 0, NULL, NULL), "reducer");
  INVALID(lockstep_reducer_averaged_rows(NULL, 0, &rows, &values, &count, NULL), "reducer");
}

static void UseParameters(lockstep_communicator* communicator) {
  Unused(communicator);
  UseRows(communicator);
}

int main(void) {
  RunWorld(2, UseParameters);
  return 0;
}
