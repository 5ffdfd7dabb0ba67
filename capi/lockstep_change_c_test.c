/* A reducer that goes over to another communicator, from C99: three processes, of which two go on. */

#include <stdio.h>
#include <string.h>

#include "capi/c_testing.h"

static void TestNulls(void) {
  FAILS(lockstep_reducer_change_communicator(NULL, NULL), LOCKSTEP_INVALID_ARGUMENT, "reducer");
}

/* Rank 2 gives up in the middle of a backward. */
static void RunRank(int32_t rank, int32_t size, const char* folder) {
  static const int64_t one = 1;
  lockstep_communicator* communicator = Meet(rank, size, folder, "three");
  lockstep_reducer* reducer = MakeReducer(communicator, 1, NULL);
  float value = (float)(3 * rank);
  float mean = (float)rank;
  const lockstep_tensor gradient = Vector(&value, &one, LOCKSTEP_F32);
  const lockstep_tensor buffer = Vector(&mean, &one, LOCKSTEP_F32);
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
  FAILS(lockstep_reducer_change_communicator(reducer, NULL), LOCKSTEP_INVALID_ARGUMENT, "communicator");

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

int main(void) {
  TestNulls();
  RunRanks(3, RunRank);
  printf("passed\n");
  return 0;
}
