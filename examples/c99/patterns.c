/* What an embedding does beyond the smallest one (two_ranks.c), as docs/embedding.md explains it: micro-batches synchronised in three
 * ways, parameters that not every rank uses, and a hook of each kind. Two ranks; it checks its own numbers. */

#define _POSIX_C_SOURCE 200809L

#include <lockstep.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PARAMETERS 2
#define MICRO_BATCHES 3

static void Require(lockstep_error* error) {
  if (error == NULL) return;
  fprintf(stderr, "%s\n", lockstep_error_message(error));
  lockstep_error_free(error);
  exit(1);
}

/* The framework: two parameters of one number. Gradients accumulate until they are cleared, and there may be none. */
typedef struct Net {
  int32_t rank;
  float memory[PARAMETERS];
  int has_gradient[PARAMETERS];
  lockstep_tensor gradients[PARAMETERS];
} Net;

typedef struct Trainer {
  Net net;
  lockstep_reducer* reducer;
  int marked[PARAMETERS]; /* in this backward */
} Trainer;

typedef void (*GradientHook)(Trainer* trainer, size_t index);

static void ClearGradients(Net* net) {
  memset(net->memory, 0, sizeof(net->memory));
  memset(net->has_gradient, 0, sizeof(net->has_gradient));
}

static void Accumulate(Net* net, size_t index, float gradient) {
  net->memory[index] += gradient;
  net->has_gradient[index] = 1;
}

/* The backward pass calls the hook as each gradient is final. Parameter 0 has rank + 1 times 1, 2 and 3 in the three micro-batches,
 * parameter 1 has 10 in the first of them on rank 0 alone, and 4 in the second on rank 1 alone. */
static void Backward(Trainer* trainer, int micro_batch, GradientHook hook) {
  Net* net = &trainer->net;
  if (net->rank == micro_batch) {
    Accumulate(net, 1, net->rank == 0 ? 10 : 4);
    if (hook != NULL) hook(trainer, 1);
  }
  Accumulate(net, 0, (float)((net->rank + 1) * (micro_batch + 1)));
  if (hook != NULL) hook(trainer, 0);
}

static void MarkReady(Trainer* trainer, size_t index) {
  Require(lockstep_reducer_mark_ready(trainer->reducer, index, &trainer->net.gradients[index], NULL));
  trainer->marked[index] = 1;
}

/* Gradients that this rank does not have and another one does: their average is this rank's gradient, too. */
static void TakeAverages(Trainer* trainer) {
  Net* net = &trainer->net;
  size_t i;
  for (i = 0; i < PARAMETERS; ++i) {
    lockstep_tensor average;
    int32_t used = 0;
    if (net->has_gradient[i]) continue;
    Require(lockstep_reducer_averaged_gradient(trainer->reducer, i, &average, &used));
    if (used) Accumulate(net, i, *(const float*)average.data);
  }
}

/* SINGLE_AUTO_SYNC: the last micro-batch synchronises what has accumulated, overlapping with its backward pass. */
static void SingleAutoSync(Trainer* trainer) {
  lockstep_backward_options backward;
  int k;
  LOCKSTEP_INIT(backward);
  for (k = 0; k < MICRO_BATCHES; ++k) {
    backward.no_sync = k + 1 < MICRO_BATCHES;
    Require(lockstep_reducer_begin_backward(trainer->reducer, &backward));
    Backward(trainer, k, MarkReady);
    Require(lockstep_reducer_end_backward(trainer->reducer, NULL));
  }
  TakeAverages(trainer);
}

/* MULTI_AUTO_SYNC: every micro-batch does. What was averaged before is the same on all ranks, and their average again; so a gradient
 * that an earlier micro-batch left is marked as well, though this one did not touch it. */
static void MultiAutoSync(Trainer* trainer) {
  size_t i;
  int k;
  for (k = 0; k < MICRO_BATCHES; ++k) {
    memset(trainer->marked, 0, sizeof(trainer->marked));
    Require(lockstep_reducer_begin_backward(trainer->reducer, NULL));
    Backward(trainer, k, MarkReady);
    for (i = 0; i < PARAMETERS; ++i) {
      if (trainer->net.has_gradient[i] && !trainer->marked[i]) MarkReady(trainer, i);
    }
    Require(lockstep_reducer_end_backward(trainer->reducer, NULL));
    TakeAverages(trainer);
  }
}

/* FORCED_SYNC: behind the last micro-batch, what there is. */
static void ForcedSync(Trainer* trainer) {
  size_t i;
  int k;
  for (k = 0; k < MICRO_BATCHES; ++k) Backward(trainer, k, NULL);
  Require(lockstep_reducer_begin_backward(trainer->reducer, NULL));
  for (i = PARAMETERS; i-- > 0;) {
    if (trainer->net.has_gradient[i]) MarkReady(trainer, i);
  }
  Require(lockstep_reducer_end_backward(trainer->reducer, NULL));
  TakeAverages(trainer);
}

/* Stream-ordered: enqueues, and returns before anything has moved. */
static lockstep_error* AverageInOrder(void* context, lockstep_hook_bucket* bucket, lockstep_communicator* communicator,
                                      const lockstep_stream* stream) {
  lockstep_tensor whole;
  lockstep_error* error = lockstep_hook_bucket_tensor(bucket, &whole);
  (void)context;
  if (error != NULL) return error;
  return lockstep_all_reduce(communicator, &whole, &whole, LOCKSTEP_AVG, NULL, stream, NULL);
}

/* Host-completed: does it here, or has any other thread do it, and says when it is done. */
static void AverageByHand(void* context, lockstep_hook_bucket* bucket, lockstep_communicator* communicator,
                          lockstep_hook_completion* completion) {
  lockstep_tensor whole;
  lockstep_error* error = lockstep_hook_bucket_tensor(bucket, &whole);
  (void)context;
  if (error == NULL) error = lockstep_all_reduce(communicator, &whole, &whole, LOCKSTEP_AVG, NULL, NULL, NULL);
  lockstep_hook_complete(completion, error);
}

static int Train(int32_t rank, const char* store) {
  void (*const strategies[3])(Trainer * trainer) = {SingleAutoSync, MultiAutoSync, ForcedSync};
  const char* const names[PARAMETERS] = {"body", "head"};
  const int64_t one = 1;
  lockstep_parameter table[PARAMETERS];
  lockstep_communicator_options options;
  lockstep_communicator* communicator = NULL;
  Trainer trainer;
  int i, hook, failed = 0;
  memset(&trainer, 0, sizeof(trainer));
  trainer.net.rank = rank;
  for (i = 0; i < PARAMETERS; ++i) {
    LOCKSTEP_INIT(table[i]);
    table[i].name = names[i];
    table[i].shape = &one;
    table[i].dimensions = 1;
    table[i].dtype = LOCKSTEP_F32;
    trainer.net.gradients[i].data = &trainer.net.memory[i];
    trainer.net.gradients[i].shape = &one;
    trainer.net.gradients[i].dimensions = 1;
    trainer.net.gradients[i].dtype = LOCKSTEP_F32;
  }

  LOCKSTEP_INIT(options);
  options.world_size = 2;
  options.rank = rank;
  options.store_url = store;
  options.setup_timeout_ms = 30000;
  Require(lockstep_communicator_create(&options, &communicator));
  for (hook = 0; hook < 3; ++hook) {
    lockstep_reducer_options reducer_options;
    LOCKSTEP_INIT(reducer_options);
    reducer_options.find_unused_parameters = 1;
    reducer_options.hook = hook == 0 ? LOCKSTEP_HOOK_NONE : LOCKSTEP_HOOK_CALLBACK;
    reducer_options.hook_issue = hook == 1 ? AverageInOrder : NULL;
    reducer_options.hook_start = hook == 2 ? AverageByHand : NULL;
    Require(lockstep_reducer_create(communicator, table, PARAMETERS, &reducer_options, &trainer.reducer));
    for (i = 0; i < 3; ++i) {
      ClearGradients(&trainer.net);
      strategies[i](&trainer);
      /* (1 + 2 + 3 and 2 + 4 + 6) / 2, and (10 and 4) / 2. */
      if (trainer.net.memory[0] != 9 || trainer.net.memory[1] != 7) failed = 1;
    }
    lockstep_reducer_destroy(trainer.reducer);
  }
  lockstep_communicator_destroy(communicator);
  printf("rank %d: %s\n", (int)rank, failed ? "wrong averages" : "right averages");
  return failed;
}

int main(void) {
  char folder[] = "/tmp/lockstep-example-XXXXXX";
  char path[64], url[96];
  pid_t child;
  int result, status = 0;
  if (mkdtemp(folder) == NULL) return 1;
  snprintf(path, sizeof(path), "%s/store", folder);
  snprintf(url, sizeof(url), "file://%s", path);
  child = fork();
  if (child == 0) return Train(1, url);
  result = Train(0, url);
  waitpid(child, &status, 0);
  unlink(path);
  rmdir(folder);
  return result != 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}
