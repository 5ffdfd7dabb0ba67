/* A rank of Lockstep in bench:compare, an embedder in C. Usage: lockstep-run -n SIZE lockstep_runner FOLDER BYTES_MAX KIND; settings of
 * the communicator come from the environment. KIND:
 *   call       the vector lies in ordinary memory
 *   symmetric  in memory of the communicator's allocator
 *   prepared   the collective is made before it is timed
 *   list       prepared, too, of 64 tensors, or one for each element: the vector's blocks, the last one first, so that no two lie one
 *              behind the other */

#include "capi/lockstep.h"
#include "runner.h"

#define BLOCKS 64
#define SIZES_MAX 64

struct prepared {
  size_t count;
  lockstep_prepared* collective;
};

struct lockstep {
  struct lockstep_runner runner;
  lockstep_communicator* communicator;
  int is_list;
  struct prepared prepared[SIZES_MAX]; /* by size, as they come */
};

/* 0, or -1 with the runner's error. */
static int check(struct lockstep* self, lockstep_error* error) {
  if (error == NULL) return 0;
  snprintf(self->runner.error, sizeof(self->runner.error), "%s", lockstep_error_message(error));
  lockstep_error_free(error);
  return -1;
}

static lockstep_tensor vector(float* data, const int64_t* count) {
  const lockstep_tensor tensor = {data, count, NULL, 1, LOCKSTEP_F32, LOCKSTEP_HOST, 0};
  return tensor;
}

static int call(void* context, float* data, size_t count) {
  struct lockstep* const self = (struct lockstep*)context;
  const int64_t elements = (int64_t)count;
  const lockstep_tensor whole = vector(data, &elements);
  return check(self, lockstep_all_reduce(self->communicator, &whole, &whole, LOCKSTEP_SUM, NULL, NULL, NULL));
}

static int prepare(struct lockstep* self, float* data, struct prepared* made, size_t count) {
  const int64_t whole = (int64_t)count;
  const int64_t block = (whole + BLOCKS - 1) / BLOCKS;
  const int64_t blocks = (whole + block - 1) / block;
  const int64_t first = whole - (blocks - 1) * block;
  lockstep_tensor tensors[BLOCKS];
  for (int64_t i = 0; i + 1 < blocks; ++i) tensors[i] = vector(data + first + (blocks - 2 - i) * block, &block);
  tensors[blocks - 1] = vector(data, &first);
  const lockstep_tensor flat = vector(data, &whole);
  lockstep_collective collective;
  LOCKSTEP_INIT(collective);
  collective.kind = LOCKSTEP_COLLECTIVE_ALL_REDUCE;
  collective.op = LOCKSTEP_SUM;
  collective.input = collective.output = self->is_list ? tensors : &flat;
  collective.tensor_count = self->is_list ? (size_t)blocks : 0;
  made->count = count;
  return check(self, lockstep_prepared_create(self->communicator, &collective, NULL, &made->collective));
}

static int run_prepared(void* context, float* data, size_t count) {
  struct lockstep* const self = (struct lockstep*)context;
  struct prepared* found = self->prepared;
  while (found->count != count) {
    if (found->count == 0 && prepare(self, data, found, count) != 0) return -1;
    if (found->count != count && ++found == self->prepared + SIZES_MAX) {
      snprintf(self->runner.error, sizeof(self->runner.error), "more than %d sizes", SIZES_MAX);
      return -1;
    }
  }
  return check(self, lockstep_prepared_run(found->collective));
}

static int set_up(struct lockstep* self, const char* kind, lockstep_memory** memory) {
  lockstep_communicator_options options;
  LOCKSTEP_INIT(options);
  options.setup_timeout_ms = 30000;
  if (check(self, lockstep_communicator_create(&options, &self->communicator)) != 0) return -1;
  self->is_list = strcmp(kind, "list") == 0;
  self->runner.context = self;
  self->runner.allreduce = self->is_list || strcmp(kind, "prepared") == 0 ? run_prepared : call;
  if (strcmp(kind, "symmetric") != 0) return 0;
  if (check(self, lockstep_memory_create(self->communicator, self->runner.bytes_max, LOCKSTEP_HOST, memory)) != 0)
    return -1;
  self->runner.data = (float*)lockstep_memory_data(*memory);
  return 0;
}

int main(int argc, char** argv) {
  struct lockstep self;
  lockstep_memory* memory = NULL;
  memset(&self, 0, sizeof(self));
  if (argc != 4 || lockstep_runner_begin(&self.runner, argc, argv) != 0) {
    fprintf(stderr, "usage: lockstep-run ... lockstep_runner FOLDER BYTES_MAX KIND\n");
    return 2;
  }
  /* Until it serves, which sets the alarm anew. */
  alarm(LOCKSTEP_RUNNER_PATIENCE_S);
  const int status =
      set_up(&self, argv[3], &memory) == 0 ? lockstep_runner_serve(&self.runner) : lockstep_runner_refuse(&self.runner);
  for (int i = 0; i < SIZES_MAX; ++i) lockstep_prepared_destroy(self.prepared[i].collective);
  lockstep_memory_destroy(memory);
  lockstep_communicator_destroy(self.communicator);
  return status;
}
