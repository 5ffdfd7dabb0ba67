/* lockstep.h from C99: the sizes of its structs, errors, worlds and how they are made, handles after fork(), and every call on a
 * communicator once. More of the collectives is in lockstep_collectives_c_test.c; the reducer, buffers and normalisation have files of
 * their own, too. */

#define _POSIX_C_SOURCE 200809L

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "capi/c_testing.h"
#include "capi/lockstep.h"

/* A change here breaks binaries that are out there: append fields instead, and extend the line in docs/c_abi.md. */
static void TestSizes(void) {
  static const size_t dtypes[16] = {0, 1, 1, 1, 4, 4, 8, 8, 2, 2, 4, 8, 1, 1, 8, 16};
  CHECK(sizeof(lockstep_tensor) == 40);
  CHECK(sizeof(lockstep_stream) == 16);
  CHECK(sizeof(lockstep_message) == 24);
  CHECK(sizeof(lockstep_code) == 4);
  CHECK(sizeof(lockstep_dtype) == 4);
  for (int32_t i = 0; i < 16; ++i) CHECK(lockstep_dtype_size(i) == dtypes[i]);
  CHECK(lockstep_dtype_size(-1) == 0 && lockstep_dtype_size(16) == 0);
  /* Those that grow have no padding at their ends: a new field would lie in that of an older caller. */
#define GROWS(type, size, last) \
  CHECK(sizeof(type) == (size) && offsetof(type, last) + sizeof(((type*)NULL)->last) == sizeof(type))
  GROWS(lockstep_communicator_options, 200, secret_file);
  GROWS(lockstep_collective_options, 40, wait_ms);
  GROWS(lockstep_collective, 64, tensor_count);
  GROWS(lockstep_parameter, 56, sparse);
  GROWS(lockstep_reduced_bucket, 80, stream);
  GROWS(lockstep_reducer_options, 272, drift_release);
  GROWS(lockstep_backward_options, 48, replicas);
  GROWS(lockstep_reducer_statistics, 80, replicas_ms);
  GROWS(lockstep_bucket_statistics, 80, bytes);
  GROWS(lockstep_reducer_buffer_options, 48, hook_release);
  GROWS(lockstep_forward_options, 24, buffer_count);
  GROWS(lockstep_buffer_set_options, 24, timeout_ms);
  GROWS(lockstep_batch_norm_options, 48, running_variance);
  GROWS(lockstep_store_callbacks, 48, remove);
#undef GROWS
}

static int logged;
static void CountLine(void* context, lockstep_log_level level, const char* line) {
  (void)level;
  CHECK(context == &logged && line != NULL);
  ++logged;
}

static int released;

static void CountRelease(void* context) {
  CHECK(context == &logged);
  ++released;
}

static void TestErrorsAndNulls(void) {
  lockstep_communicator* communicator = NULL;
  lockstep_communicator_options options;
  char version[64];
  CHECK(lockstep_version() == LOCKSTEP_VERSION);
  snprintf(version, sizeof version, "%d.%d.%d (commit ", LOCKSTEP_VERSION_MAJOR, LOCKSTEP_VERSION_MINOR,
           LOCKSTEP_VERSION_PATCH);
  CHECK(strncmp(lockstep_version_text(), version, strlen(version)) == 0);
  CHECK(lockstep_error_code(NULL) == LOCKSTEP_OK);
  CHECK(lockstep_error_create(LOCKSTEP_OK, "well") == NULL);
  FAILS(lockstep_error_create(LOCKSTEP_DATA_LOSS, "it burnt"), LOCKSTEP_DATA_LOSS, "it burnt");
  FAILS(lockstep_error_create(LOCKSTEP_ABORTED, NULL), LOCKSTEP_ABORTED, "");
  FAILS(lockstep_error_create((lockstep_code)99, "odd"), LOCKSTEP_UNKNOWN, "odd");
  CHECK(strcmp(lockstep_error_message(NULL), "") == 0 && strcmp(lockstep_error_collective(NULL), "") == 0);
  CHECK(lockstep_error_failed_rank(NULL) == -1 && lockstep_error_sequence(NULL) == -1);
  CHECK(lockstep_error_bucket(NULL) == -1 && lockstep_error_parameter(NULL) == -1);
  lockstep_error_free(NULL);
  lockstep_string_free(NULL);
  lockstep_store_destroy(NULL);
  lockstep_communicator_destroy(NULL);
  lockstep_work_destroy(NULL);
  lockstep_reducer_destroy(NULL);

  INVALID(lockstep_communicator_create(NULL, NULL), "out_communicator");
  memset(&options, 0, sizeof(options));
  INVALID(lockstep_communicator_create(&options, &communicator), "struct_size");
  LOCKSTEP_INIT(options);
  options.world_size = 2;
  options.rank = 2;
  INVALID(lockstep_communicator_create(&options, &communicator), "rank");
  options.rank = 0;
  INVALID(lockstep_communicator_create(&options, &communicator), "LOCKSTEP_STORE");
  options.store_url = "carrier-pigeon://home";
  INVALID(lockstep_communicator_create(&options, &communicator), "carrier-pigeon");
  options.store_url = NULL;
  options.world_size = 1;
  options.algorithm = "quantum";
  INVALID(lockstep_communicator_create(&options, &communicator), "ring");
  CHECK(communicator == NULL);
  INVALID(lockstep_all_reduce(NULL, NULL, NULL, LOCKSTEP_SUM, NULL, NULL, NULL), "communicator");
}

/* An options struct as a newer header would have it. */
static void TestVersions(void) {
  struct {
    lockstep_communicator_options options;
    int64_t of_the_future;
  } newer;
  lockstep_communicator* communicator = NULL;
  memset(&newer, 0, sizeof(newer));
  newer.options.struct_size = sizeof(newer);
  newer.options.world_size = 1;
  OK(lockstep_communicator_create(&newer.options, &communicator));
  lockstep_communicator_destroy(communicator);
  newer.of_the_future = 1;
  FAILS(lockstep_communicator_create(&newer.options, &communicator), LOCKSTEP_UNIMPLEMENTED, "does not know");
}

/* What dlpack.h declares, in its order. */
struct dl_tensor {
  void* data;
  int32_t device_type, device_id;
  int32_t ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};

static void TestDlpack(void) {
  float data[6];
  int64_t shape[2] = {2, 3};
  lockstep_tensor tensor;
  struct dl_tensor source;
  memset(&source, 0, sizeof(source));
  source.data = data;
  source.device_type = 1;
  source.ndim = 2;
  source.code = 2;
  source.bits = 32;
  source.lanes = 1;
  source.shape = shape;
  OK(lockstep_tensor_from_dlpack(&source, &tensor));
  CHECK(tensor.data == data && tensor.dtype == LOCKSTEP_F32 && tensor.dimensions == 2 && tensor.shape == shape);
  source.lanes = 4;
  INVALID(lockstep_tensor_from_dlpack(&source, &tensor), "lanes");
}

static void UseAlone(lockstep_communicator* communicator) {
  UseEverything(communicator, 0);
  OK(lockstep_communicator_set_timeout(communicator, 60000));
  INVALID(lockstep_communicator_set_timeout(communicator, 0), "at least 1");
  OK(lockstep_communicator_abort(communicator, "enough"));
  FAILS(lockstep_barrier(communicator, NULL, NULL, NULL), LOCKSTEP_ABORTED, "enough");
  FAILS(lockstep_communicator_status(communicator), LOCKSTEP_ABORTED, "enough");
}

static void RunRank(int32_t rank, int32_t size, const char* folder) {
  char url[4096];
  lockstep_communicator_options options;
  const int64_t one = 1;
  float value = (float)rank;
  const lockstep_tensor tensor = Vector(&value, &one, LOCKSTEP_F32);
  lockstep_buffer_set* set = NULL;
  lockstep_fresh_buffers* fresh = NULL;
  int status = 0;

  LOCKSTEP_INIT(options);
  options.local_world_size = size;
  options.local_rank = rank;
  options.transport = "shm";
  lockstep_communicator* communicator = MeetWith(rank, size, folder, "first", &options);
  UseEverything(communicator, 1);

  /* The child of a fork cannot use the handles, may forget them, and may make its own. Memory that they gave out is copied. */
  OK(lockstep_buffer_set_create(communicator, &tensor, 1, &set));
  OK(lockstep_buffer_set_broadcast(set, &tensor, 1, NULL, &fresh));
  const pid_t child = fork();
  if (child == 0) {
    MISUSED(lockstep_barrier(communicator, NULL, NULL, NULL), "fork");
    MISUSED(lockstep_batch_norm_sum_gradients(communicator, 1, &value, &value, NULL), "fork");
    MISUSED(lockstep_buffer_set_broadcast(set, &tensor, 1, NULL, NULL), "fork");
    CHECK(*(const float*)lockstep_fresh_buffers_data(fresh, 0) == 0);
    lockstep_fresh_buffers_destroy(fresh);
    lockstep_buffer_set_destroy(set);
    lockstep_communicator_destroy(communicator);
    lockstep_communicator* const own = Alone();
    UseEverything(own, 0);
    lockstep_communicator_destroy(own);
    _exit(0);
  }
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  OK(lockstep_barrier(communicator, NULL, NULL, NULL));
  lockstep_fresh_buffers_destroy(fresh);
  lockstep_buffer_set_destroy(set);
  lockstep_communicator_destroy(communicator);

  /* Again, checked, as if from another host, and aborted by rank 1. */
  snprintf(url, sizeof(url), "file://%s/store", folder);
  LOCKSTEP_INIT(options);
  options.world_size = 2;
  options.rank = rank;
  options.store_url = url;
  options.setup_timeout_ms = 60000;
  options.checked = 1;
  options.deterministic = 1;
  options.transport = "pigeon";
  INVALID(lockstep_communicator_create(&options, &communicator), "known are auto, tcp, shm, ofi");
  options.transport = "ofi";
  options.ofi_provider = "pigeon";
  FAILS(lockstep_communicator_create(&options, &communicator), LOCKSTEP_NOT_FOUND, "pigeon");
  options.transport = "tcp";
  options.security = "perhaps";
  INVALID(lockstep_communicator_create(&options, &communicator),
          "security is 'perhaps', not none, authenticate, encrypt");
  options.security = NULL;
  options.tcp_sockets = 65;
  INVALID(lockstep_communicator_create(&options, &communicator), "tcp_sockets");
  options.tcp_sockets = 2;
  options.tcp_congestion_control = "reno";
  options.host_id = rank == 0 ? "a" : "b";
  options.tcp_zero_copy = 1;
  OK(lockstep_communicator_create(&options, &communicator));
  UseEverything(communicator, 0);
  /* Rank 0 must have looked at its status before rank 1 spoils it. */
  if (rank == 1) {
    OK(lockstep_barrier(communicator, NULL, NULL, NULL));
    OK(lockstep_communicator_abort(communicator, "no more"));
  } else {
    lockstep_error* error = NULL;
    while (error == NULL) error = lockstep_barrier(communicator, NULL, NULL, NULL);
    CHECK(lockstep_error_failed_rank(error) == 1 && strcmp(lockstep_error_collective(error), "barrier") == 0);
    CHECK(lockstep_error_bucket(error) == -1 && lockstep_error_parameter(error) == -1);
    FAILS(error, LOCKSTEP_ABORTED, "no more");
  }
  lockstep_communicator_destroy(communicator);
}

int main(void) {
  lockstep_set_log_callback(CountLine, &logged, CountRelease);
  lockstep_set_log_level(LOCKSTEP_LOG_INFO);
  TestSizes();
  TestErrorsAndNulls();
  TestVersions();
  TestDlpack();
  RunAlone(UseAlone);
  RunRanks(2, RunRank);
  CHECK(logged > 0);
  CHECK(released == 0);
  lockstep_set_log_callback(NULL, NULL, NULL);
  CHECK(released == 1);
  return 0;
}
