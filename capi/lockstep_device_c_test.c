/* What the C ABI says of devices where nothing, or the wrong thing, is on one. Skips nothing: with a GPU a communicator for it is made. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "capi/c_testing.h"
#include "capi/lockstep.h"

static lockstep_stream StreamOn(int32_t kind, int32_t index) {
  lockstep_stream stream;
  memset(&stream, 0, sizeof(stream));
  stream.device_kind = kind;
  stream.device_index = index;
  return stream;
}

/* On a communicator for the host alone. */
static void TestRefusals(void) {
  lockstep_communicator* communicator = NULL;
  lockstep_reducer* reducer = NULL;
  lockstep_memory* buffer = NULL;
  lockstep_backward_options backward;
  lockstep_stream on_gpu = StreamOn(LOCKSTEP_CUDA, 0);
  lockstep_stream on_host = StreamOn(LOCKSTEP_HOST, 0);
  const int64_t shape[1] = {4};
  float values[4] = {1, 2, 3, 4};
  lockstep_tensor tensor = Vector(values, shape, LOCKSTEP_F32);
  lockstep_parameter parameter = Parameter("w", shape, 1, LOCKSTEP_F32);
  OK(lockstep_communicator_create(NULL, &communicator));

  INVALID(lockstep_barrier(communicator, NULL, &on_gpu, NULL), "cuda:0");
  FAILS(lockstep_barrier(communicator, NULL, &on_host, NULL), LOCKSTEP_UNIMPLEMENTED, "NULL");
  FAILS(lockstep_memory_create(communicator, 64, LOCKSTEP_CUDA, &buffer), LOCKSTEP_UNIMPLEMENTED, "device");

  tensor.device_kind = LOCKSTEP_CUDA;
  INVALID(lockstep_broadcast(communicator, &tensor, 0, NULL, NULL, NULL), "cuda:0");
  INVALID(lockstep_send(communicator, &tensor, 0, 0, 0, NULL), "cuda:0");
  tensor.device_kind = LOCKSTEP_HOST;
  OK(lockstep_broadcast(communicator, &tensor, 0, NULL, NULL, NULL));

  parameter.device_kind = LOCKSTEP_CUDA;
  INVALID(lockstep_reducer_create(communicator, &parameter, 1, NULL, &reducer), "cuda:0");
  parameter.device_kind = LOCKSTEP_HOST;
  OK(lockstep_reducer_create(communicator, &parameter, 1, NULL, &reducer));
  LOCKSTEP_INIT(backward);
  backward.stream = &on_gpu;
  INVALID(lockstep_reducer_begin_backward(reducer, &backward), "cuda:0");
  backward.stream = &on_host;
  FAILS(lockstep_reducer_begin_backward(reducer, &backward), LOCKSTEP_UNIMPLEMENTED, "NULL");
  backward.stream = NULL;
  OK(lockstep_reducer_begin_backward(reducer, &backward));
  INVALID(lockstep_reducer_mark_ready(reducer, 0, &tensor, &on_gpu), "cuda:0");
  OK(lockstep_reducer_mark_ready(reducer, 0, &tensor, NULL));
  INVALID(lockstep_reducer_end_backward(reducer, &on_gpu), "cuda:0");
  OK(lockstep_reducer_end_backward(reducer, NULL));
  CHECK(values[3] == 4);
  /* Nothing was captured, so nothing was replayed. */
  OK(lockstep_reducer_check_replays(reducer));
  INVALID(lockstep_reducer_check_replays(NULL), "reducer");
  lockstep_reducer_destroy(reducer);
  lockstep_communicator_destroy(communicator);
}

static void TestCreation(void) {
  lockstep_communicator* communicator = NULL;
  lockstep_communicator_options options;
  lockstep_error* error = NULL;
  char* text = NULL;
  LOCKSTEP_INIT(options);
  options.world_size = 1;
  options.device_kind = 7;
  INVALID(lockstep_communicator_create(&options, &communicator), "7");
  options.device_kind = LOCKSTEP_CUDA;
  error = lockstep_communicator_create(&options, &communicator);
  if (error != NULL) {
    /* No driver, no device, or a build without CUDA. */
    CHECK(lockstep_error_code(error) == LOCKSTEP_UNAVAILABLE);
    lockstep_error_free(error);
    return;
  }
  OK(lockstep_communicator_describe(communicator, &text));
  CHECK(strstr(text, "cuda:0") != NULL);
  lockstep_string_free(text);
  lockstep_communicator_destroy(communicator);
}

int main(void) {
  TestRefusals();
  TestCreation();
  return 0;
}
