/* Parameters that are not used in every backward, from C99, on two processes: found out, named, recorded by a static graph, kept for a
 * trigger; and backwards without sync. */

#include <string.h>

#include "capi/c_testing.h"
#include "capi/lockstep.h"

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
  lockstep_reducer* reducer;
  Model model;
  int64_t here = -1, anywhere = -1;
  size_t i;
  int given;
  InitModel(&model);
  options.find_unused_parameters = 1;
  reducer = CreateReducer(communicator, &model, &options);
  for (given = 0; given <= 1; ++given) {
    LOCKSTEP_INIT(backward);
    if (given) {
      backward.unused_given = 1;
      backward.unused = unused;
      backward.unused_count = rank == 0 ? 1 : 2;
    }
    OK(lockstep_reducer_begin_backward(reducer, &backward));
    model.values[1] = -1;
    if (rank == 0) Mark(reducer, &model, 1, 10);
    Mark(reducer, &model, 0, rank == 0 ? 4.0F : 8.0F);
    OK(lockstep_reducer_end_backward(reducer, NULL));
    CHECK(model.values[0] == 6 && model.values[1] == (rank == 0 ? 5.0F : -1.0F) && model.values[2] == -1);
    CHECK(AverageOf(reducer, 0) == 6 && AverageOf(reducer, 1) == 5);
    CheckUnusedAnywhere(reducer, 2);
  }

  for (i = 0; i < PARAMETERS; ++i) {
    OK(lockstep_reducer_parameter_uses(reducer, i, &here, &anywhere));
    CHECK(anywhere == (i == 2 ? 0 : 2) && here == (i == 1 && rank == 1 ? 0 : anywhere));
  }
  OK(lockstep_reducer_parameter_uses(reducer, 0, NULL, NULL));
  INVALID(lockstep_reducer_parameter_uses(reducer, PARAMETERS, &here, NULL), "out of range");

  /* An empty list says that all will come; none of the two ranks keeps that. */
  backward.unused = NULL;
  backward.unused_count = 0;
  OK(lockstep_reducer_begin_backward(reducer, &backward));
  Mark(reducer, &model, 0, 1);
  MISUSED(lockstep_reducer_end_backward(reducer, NULL), "no gradient came");

  /* Used in a backward without sync counts as used in the next one with. */
  BeginWithoutSync(reducer);
  if (rank == 1) Mark(reducer, &model, 2, 6);
  OK(lockstep_reducer_end_backward(reducer, NULL));
  OK(lockstep_reducer_begin_backward(reducer, NULL));
  Mark(reducer, &model, 0, 1);
  OK(lockstep_reducer_end_backward(reducer, NULL));
  CHECK(AverageOf(reducer, 2) == 3);
  CheckUnusedAnywhere(reducer, 1);

  LOCKSTEP_INIT(backward);
  backward.unused_count = 1;
  INVALID(lockstep_reducer_begin_backward(reducer, &backward), "unused");
  backward.unused = &nowhere;
  INVALID(lockstep_reducer_begin_backward(reducer, &backward), "unused_given");
  backward.unused_given = 1;
  INVALID(lockstep_reducer_begin_backward(reducer, &backward), "parameter 7");
  lockstep_reducer_destroy(reducer);

  reducer = CreateReducer(communicator, &model, NULL);
  MISUSED(lockstep_reducer_begin_backward(reducer, &backward), "find_unused");
  lockstep_reducer_destroy(reducer);
}

/* Parameter 1 is shared and marked twice, 2 is never used. */
static void StaticGraph(lockstep_communicator* communicator) {
  const float mine = (float)(lockstep_communicator_rank(communicator) + 1);
  lockstep_reducer_options options = OneEach();
  lockstep_reducer* reducer;
  Model model;
  int step;
  InitModel(&model);
  options.static_graph = 1;
  reducer = CreateReducer(communicator, &model, &options);
  for (step = 0; step < 3; ++step) {
    OK(lockstep_reducer_begin_backward(reducer, NULL));
    Mark(reducer, &model, 1, 100);
    Mark(reducer, &model, 0, mine);
    Mark(reducer, &model, 1, 2 * mine);
    OK(lockstep_reducer_end_backward(reducer, NULL));
    CHECK(model.values[0] == 1.5F && model.values[1] == 3 && model.values[2] == -1);
  }
  OK(lockstep_reducer_begin_backward(reducer, NULL));
  Mark(reducer, &model, 0, mine);
  MISUSED(lockstep_reducer_mark_ready(reducer, 2, &model.gradients[2], NULL), "the graph changed");
  MISUSED(lockstep_reducer_end_backward(reducer, NULL),
          "in the first backward); the graph changed: no gradient came for parameter 1");
  lockstep_reducer_destroy(reducer);
}

/* Parameter 0 waits for 2. What is marked of it behind that is for the next time. */
static void Delayed(lockstep_communicator* communicator) {
  const float mine = (float)(lockstep_communicator_rank(communicator) + 1);
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
  options.delayed_trigger = 2;
  reducer = CreateReducer(communicator, &model, &options);
  OK(lockstep_reducer_begin_backward(reducer, NULL));
  Mark(reducer, &model, 2, mine);
  Mark(reducer, &model, 0, 10 * mine);
  Mark(reducer, &model, 1, mine);
  OK(lockstep_reducer_end_backward(reducer, NULL));
  CHECK(model.values[2] == 1.5F && model.values[1] == 1.5F && model.values[0] == 10 * mine);
  OK(lockstep_reducer_begin_backward(reducer, NULL));
  Mark(reducer, &model, 2, mine);
  Mark(reducer, &model, 1, mine);
  OK(lockstep_reducer_end_backward(reducer, NULL));
  CHECK(model.values[0] == 15);
  lockstep_reducer_destroy(reducer);
}

/* Three micro-batches, with gradients rank + 1 times 1, 2 and 3 of parameter 0: their sums are 6 and 12, on average 9. Parameter 1
 * gets 10 on rank 0 alone, in the first of them. By each of Composer's strategies. */
static void SyncStrategies(lockstep_communicator* communicator) {
  const int32_t rank = lockstep_communicator_rank(communicator);
  const float mine = (float)(rank + 1);
  lockstep_reducer_options options = OneEach();
  lockstep_reducer* reducer;
  Model model;
  int k;
  InitModel(&model);
  options.find_unused_parameters = 1;
  reducer = CreateReducer(communicator, &model, &options);

  /* SINGLE_AUTO_SYNC: the last one synchronises what has accumulated. */
  model.values[0] = model.values[1] = 0;
  for (k = 1; k <= 3; ++k) {
    if (k < 3) {
      BeginWithoutSync(reducer);
    } else {
      OK(lockstep_reducer_begin_backward(reducer, NULL));
    }
    if (k == 1 && rank == 0) Mark(reducer, &model, 1, model.values[1] + 10);
    Mark(reducer, &model, 0, model.values[0] + mine * (float)k);
    OK(lockstep_reducer_end_backward(reducer, NULL));
  }
  CHECK(model.values[0] == 9 && AverageOf(reducer, 1) == 5);

  /* MULTI_AUTO_SYNC: each does. What was averaged before is the same on all ranks, and stays so. */
  model.values[0] = model.values[1] = 0;
  for (k = 1; k <= 3; ++k) {
    OK(lockstep_reducer_begin_backward(reducer, NULL));
    if (k == 1 && rank == 0) Mark(reducer, &model, 1, model.values[1] + 10);
    Mark(reducer, &model, 0, model.values[0] + mine * (float)k);
    OK(lockstep_reducer_end_backward(reducer, NULL));
    if (k == 1) CHECK(AverageOf(reducer, 1) == 5);
  }
  CHECK(model.values[0] == 9);

  /* FORCED_SYNC: behind the last one, what there is. */
  model.values[0] = model.values[1] = 0;
  for (k = 1; k <= 3; ++k) model.values[0] += mine * (float)k;
  OK(lockstep_reducer_begin_backward(reducer, NULL));
  if (rank == 0) Mark(reducer, &model, 1, 10);
  Mark(reducer, &model, 0, model.values[0]);
  OK(lockstep_reducer_end_backward(reducer, NULL));
  CHECK(model.values[0] == 9 && AverageOf(reducer, 1) == 5);
  CheckUnusedAnywhere(reducer, 2);
  lockstep_reducer_destroy(reducer);
}

static void UseSomeParameters(lockstep_communicator* communicator) {
  Unused(communicator);
  StaticGraph(communicator);
  Delayed(communicator);
  SyncStrategies(communicator);
}

int main(void) {
  RunWorld(2, UseSomeParameters);
  return 0;
}
