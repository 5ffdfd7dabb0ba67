#define _POSIX_C_SOURCE 200809L

#include "capi/c_testing.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

void CheckOk(lockstep_error* error, const char* file, int line) {
  if (error == NULL) return;
  fprintf(stderr, "%s:%d: error %d: %s\n", file, line, (int)lockstep_error_code(error), lockstep_error_message(error));
  lockstep_error_free(error);
  exit(1);
}

void CheckError(lockstep_error* error, lockstep_code code, const char* part, const char* file, int line) {
  if (lockstep_error_code(error) != code || strstr(lockstep_error_message(error), part) == NULL) {
    fprintf(stderr, "%s:%d: wanted code %d with '%s', got %d: %s\n", file, line, (int)code, part,
            (int)lockstep_error_code(error), lockstep_error_message(error));
    exit(1);
  }
  lockstep_error_free(error);
}

lockstep_code CodeOfRefusal(int is_mine) { return is_mine ? LOCKSTEP_INVALID_ARGUMENT : LOCKSTEP_FAILED_PRECONDITION; }

lockstep_tensor Vector(void* data, const int64_t* count, int32_t dtype) {
  lockstep_tensor tensor;
  memset(&tensor, 0, sizeof(tensor));
  tensor.data = data;
  tensor.shape = count;
  tensor.dimensions = 1;
  tensor.dtype = dtype;
  return tensor;
}

lockstep_parameter Parameter(const char* name, const int64_t* shape, int32_t dimensions, lockstep_dtype dtype) {
  lockstep_parameter parameter;
  LOCKSTEP_INIT(parameter);
  parameter.name = name;
  parameter.shape = shape;
  parameter.dimensions = dimensions;
  parameter.dtype = dtype;
  return parameter;
}

void RunRanks(int32_t size, void (*run)(int32_t rank, int32_t size, const char* folder)) {
  char folder[256];
  const char* root = getenv("TEST_TMPDIR");
  snprintf(folder, sizeof(folder), "%s/ranks-XXXXXX", root == NULL ? "/tmp" : root);
  CHECK(mkdtemp(folder) != NULL);
  for (int32_t rank = 1; rank < size; ++rank) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child > 0) continue;
    run(rank, size, folder);
    _exit(0);
  }
  run(0, size, folder);
  for (int32_t ended = 1; ended < size; ++ended) {
    int status = 0;
    CHECK(wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
}

lockstep_communicator* MeetWith(int32_t rank, int32_t size, const char* folder, const char* name,
                                const lockstep_communicator_options* others) {
  char url[512];
  lockstep_communicator_options options = *others;
  lockstep_communicator* communicator = NULL;
  snprintf(url, sizeof(url), "file://%s/%s", folder, name);
  options.world_size = size;
  options.rank = rank;
  options.store_url = url;
  options.setup_timeout_ms = 60000;
  options.timeout_ms = 60000;
  OK(lockstep_communicator_create(&options, &communicator));
  return communicator;
}

lockstep_communicator* Meet(int32_t rank, int32_t size, const char* folder, const char* name) {
  lockstep_communicator_options options;
  LOCKSTEP_INIT(options);
  return MeetWith(rank, size, folder, name, &options);
}

lockstep_communicator* Alone(void) {
  lockstep_communicator_options options;
  lockstep_communicator* communicator = NULL;
  LOCKSTEP_INIT(options);
  options.world_size = 1;
  OK(lockstep_communicator_create(&options, &communicator));
  return communicator;
}

static void (*run_world)(lockstep_communicator* communicator);

static void RunRankOfWorld(int32_t rank, int32_t size, const char* folder) {
  lockstep_communicator* const communicator = Meet(rank, size, folder, "store");
  run_world(communicator);
  OK(lockstep_communicator_status(communicator));
  lockstep_communicator_destroy(communicator);
}

void RunWorld(int32_t size, void (*run)(lockstep_communicator* communicator)) {
  run_world = run;
  RunRanks(size, RunRankOfWorld);
}

void RunAlone(void (*run)(lockstep_communicator* communicator)) {
  lockstep_communicator* const communicator = Alone();
  run(communicator);
  lockstep_communicator_destroy(communicator);
}

void InitModel(Model* model) {
  static const char* const names[PARAMETERS] = {"zero", "one", "two"};
  static const int64_t one = 1;
  for (int i = 0; i < PARAMETERS; ++i) {
    model->table[i] = Parameter(names[i], &one, 1, LOCKSTEP_F32);
    model->values[i] = -1;
    model->gradients[i] = Vector(&model->values[i], &one, LOCKSTEP_F32);
  }
}

lockstep_reducer_options OneEach(void) {
  lockstep_reducer_options options;
  LOCKSTEP_INIT(options);
  options.bucket_cap_bytes = 1;
  return options;
}

lockstep_reducer* CreateReducer(lockstep_communicator* communicator, const Model* model, size_t count,
                                const lockstep_reducer_options* options) {
  lockstep_reducer* reducer = NULL;
  Model fresh;
  InitModel(&fresh);
  OK(lockstep_reducer_create(communicator, model == NULL ? fresh.table : model->table, count, options, &reducer));
  return reducer;
}

void Mark(lockstep_reducer* reducer, Model* model, size_t index, float value) {
  model->values[index] = value;
  OK(lockstep_reducer_mark_ready(reducer, index, &model->gradients[index], NULL));
}

void BeginWithoutSync(lockstep_reducer* reducer) {
  lockstep_backward_options backward;
  LOCKSTEP_INIT(backward);
  backward.no_sync = 1;
  OK(lockstep_reducer_begin_backward(reducer, &backward));
}

float AverageOf(lockstep_reducer* reducer, size_t index) {
  lockstep_tensor tensor;
  int32_t used = -1;
  OK(lockstep_reducer_averaged_gradient(reducer, index, &tensor, &used));
  CHECK(used == 1 && tensor.dimensions == 1 && tensor.shape[0] == 1 && tensor.dtype == LOCKSTEP_F32);
  return *(const float*)tensor.data;
}

lockstep_error* Step(lockstep_reducer* reducer, size_t count, float* value) {
  Model model;
  InitModel(&model);
  OK(lockstep_reducer_begin_backward(reducer, NULL));
  while (count-- > 0) Mark(reducer, &model, count, *value);
  lockstep_error* error = lockstep_reducer_end_backward(reducer, NULL);
  *value = model.values[0];
  return error;
}
