/* The embedder's hooks of both kinds, from C99, on two processes, against numbers worked out by hand. */

#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <string.h>

#include "capi/c_testing.h"
#include "capi/lockstep.h"

/* The reducer, whose callbacks call it. */
static lockstep_reducer* called = NULL;

static void CallReducer(lockstep_communicator* communicator) {
  static const char text[] = "a hook, optimizer_step or on_drift must not call a reducer";
  MISUSED(lockstep_reducer_end_backward(called, NULL), text);
  MISUSED(lockstep_reducer_mark_unused(called, 0, NULL), text);
  MISUSED(lockstep_reducer_change_communicator(called, communicator), text);
  lockstep_reducer_destroy(called); /* has no effect */
}

static lockstep_error* SeeAverage(void* context, const lockstep_reduced_bucket* bucket) {
  CHECK(bucket->struct_size == sizeof(*bucket) && bucket->count == 2);
  CHECK(bucket->parameter_count == 1 + bucket->index);
  CallReducer(context);
  return NULL;
}

/* Averages two buckets, of parameter 2 and of parameters 1 and 0, and checks what it is told of them. */
static lockstep_error* AverageBucket(void* context, lockstep_hook_bucket* bucket, lockstep_communicator* communicator,
                                     const lockstep_stream* stream) {
  size_t* const calls = context;
  const size_t index = *calls % 2;
  const float mine = (float)(lockstep_communicator_rank(communicator) + 1);
  const double half = 0.5;
  lockstep_collective_options options;
  lockstep_work* work = NULL;
  lockstep_tensor whole, gradient;
  CHECK(lockstep_hook_bucket_index(bucket) == index && lockstep_hook_bucket_count(bucket) == 2);
  CHECK(lockstep_hook_bucket_step(bucket) == (int64_t)(1 + *calls / 2));
  CHECK(lockstep_hook_bucket_gradient_count(bucket) == 1 + index);
  OK(lockstep_hook_bucket_tensor(bucket, &whole));
  CHECK(whole.dtype == LOCKSTEP_F32 && whole.dimensions == 1);
  for (size_t slot = 0; slot <= index; ++slot) {
    size_t parameter = 99;
    OK(lockstep_hook_bucket_gradient(bucket, slot, &parameter, &gradient));
    CHECK(parameter == 2 - index - slot && *(const float*)gradient.data == mine * (float)(parameter + 1));
    CHECK(gradient.data == (float*)whole.data + 64 * slot); /* a multiple of 256 bytes */
    CHECK(gradient.shape[0] == 1 && gradient.dimensions == 1 && gradient.dtype == LOCKSTEP_F32);
  }
  INVALID(lockstep_hook_bucket_gradient(bucket, 1 + index, NULL, NULL), "out of range");
  CallReducer(communicator);
  ++*calls;
  INVALID(lockstep_all_reduce(communicator, &whole, &whole, LOCKSTEP_AVG, NULL, stream, &work), "work");
  MISUSED(lockstep_all_reduce(communicator, &whole, &whole, LOCKSTEP_AVG, NULL, NULL, NULL),
          "the stream that it was given");
  LOCKSTEP_INIT(options);
  options.factor = &half;
  return lockstep_all_reduce(communicator, &whole, &whole, LOCKSTEP_PREMUL_SUM, &options, stream, NULL);
}

static void StreamOrderedHook(lockstep_communicator* communicator) {
  const float mine = (float)(lockstep_communicator_rank(communicator) + 1);
  const int64_t caps[2] = {4, 1 << 20};
  lockstep_reducer_options options;
  size_t calls = 0;
  Model model;
  InitModel(&model);
  LOCKSTEP_INIT(options);
  options.bucket_caps_bytes = caps;
  options.bucket_cap_count = 2;
  options.no_replan = 1;
  options.hook = LOCKSTEP_HOOK_CALLBACK;
  options.hook_issue = AverageBucket;
  options.hook_context = &calls;
  options.optimizer_step = SeeAverage;
  options.optimizer_context = communicator;
  called = CreateReducer(communicator, &model, PARAMETERS, &options);
  for (int step = 1; step <= 2; ++step) {
    OK(lockstep_reducer_begin_backward(called, NULL));
    for (size_t i = PARAMETERS; i-- > 0;) Mark(called, &model, i, mine * (float)(i + 1));
    OK(lockstep_reducer_end_backward(called, NULL));
    for (size_t i = 0; i < PARAMETERS; ++i) CHECK(model.values[i] == 1.5F * (float)(i + 1));
  }
  CHECK(calls == 4);
  lockstep_reducer_destroy(called);
}

/* Makes of {1, 2} and {3, 6} in turn {2 | 4}, {3 | 6}, {3, 6} on both ranks, and {6, 12}. */
typedef struct Phases {
  float part, result[64];
  lockstep_communicator* communicator;
  const lockstep_stream* stream;
} Phases;

static lockstep_error* AddRank(void* context, lockstep_hook_bucket* bucket) {
  Phases* phases = (Phases*)context;
  const int64_t one = 1;
  const lockstep_tensor part = Vector(&phases->part, &one, LOCKSTEP_F32);
  MISUSED(lockstep_all_reduce(phases->communicator, &part, &part, LOCKSTEP_SUM, NULL, phases->stream, NULL),
          "hook_issue");
  MISUSED(lockstep_hook_bucket_run(bucket, AddRank, context), "hook_issue");
  phases->part += (float)(lockstep_communicator_rank(phases->communicator) + 1);
  return NULL;
}

static lockstep_error* IssuePhases(void* context, lockstep_hook_bucket* bucket, lockstep_communicator* communicator,
                                   const lockstep_stream* stream) {
  Phases* phases = (Phases*)context;
  const int64_t one = 1, two = 2;
  const lockstep_tensor part = Vector(&phases->part, &one, LOCKSTEP_F32);
  const lockstep_tensor pair = Vector(phases->result, &two, LOCKSTEP_F32);
  int64_t counts[2] = {1, 1};
  lockstep_tensor halves[2], gradient, result;
  phases->communicator = communicator;
  phases->stream = stream;
  OK(lockstep_hook_bucket_gradient(bucket, 0, NULL, &gradient));
  OK(lockstep_reduce_scatter_v(communicator, &gradient, &part, counts, LOCKSTEP_AVG, NULL, stream, NULL));
  OK(lockstep_hook_bucket_run(bucket, AddRank, phases));
  OK(lockstep_all_gather_v(communicator, &part, &pair, counts, NULL, stream, NULL));
  for (int i = 0; i < 2; ++i) halves[i] = Vector(phases->result + 1 - i, &one, LOCKSTEP_F32);
  OK(lockstep_all_reduce_coalesced(communicator, halves, halves, 2, LOCKSTEP_SUM, NULL, stream, NULL));
  /* Arrays are the caller's again when the collectives run. */
  memset(counts, 0x7f, sizeof(counts));
  memset(halves, 0x7f, sizeof(halves));
  OK(lockstep_hook_bucket_tensor(bucket, &result));
  result.data = phases->result;
  INVALID(lockstep_hook_bucket_run(bucket, NULL, NULL), "function");
  return lockstep_hook_bucket_set_result(bucket, &result);
}

static void HookOfSeveralPhases(lockstep_communicator* communicator) {
  const int32_t rank = lockstep_communicator_rank(communicator);
  const int64_t two = 2;
  float values[2] = {rank == 0 ? 1.0F : 3.0F, rank == 0 ? 2.0F : 6.0F};
  const lockstep_tensor gradient = Vector(values, &two, LOCKSTEP_F32);
  const lockstep_parameter parameter = Parameter("pair", &two, 1, LOCKSTEP_F32);
  lockstep_reducer_options options;
  lockstep_reducer* reducer = NULL;
  Phases phases;
  memset(&phases, 0, sizeof(phases));
  LOCKSTEP_INIT(options);
  options.hook = LOCKSTEP_HOOK_CALLBACK;
  options.hook_issue = IssuePhases;
  options.hook_context = &phases;
  OK(lockstep_reducer_create(communicator, &parameter, 1, &options, &reducer));
  OK(lockstep_reducer_begin_backward(reducer, NULL));
  OK(lockstep_reducer_mark_ready(reducer, 0, &gradient, NULL));
  OK(lockstep_reducer_end_backward(reducer, NULL));
  CHECK(values[0] == 6 && values[1] == 12);
  lockstep_reducer_destroy(reducer);
}

/* Fails on rank 1: in step 1 at once, in step 2 on the stream; in step 3 it leaves a result of the wrong size everywhere, in
 * step 4 the ranks call different collectives. */
static lockstep_error* Refuse(void* context, lockstep_hook_bucket* bucket) {
  (void)context;
  (void)bucket;
  return lockstep_error_create(LOCKSTEP_RESOURCE_EXHAUSTED, "no room");
}

static lockstep_error* IssueClumsily(void* context, lockstep_hook_bucket* bucket, lockstep_communicator* communicator,
                                     const lockstep_stream* stream) {
  static float wrong[7];
  const int64_t seven = 7;
  const int rank = lockstep_communicator_rank(communicator);
  const int64_t step = lockstep_hook_bucket_step(bucket);
  lockstep_tensor whole, result = Vector(wrong, &seven, LOCKSTEP_F32);
  OK(lockstep_hook_bucket_tensor(bucket, &whole));
  CHECK(whole.dtype == LOCKSTEP_F16 && whole.shape[0] == 128);
  if (step == 1 && rank == 1) return Refuse(context, bucket);
  if (step == 2 && rank == 1) OK(lockstep_hook_bucket_run(bucket, Refuse, context));
  if (step == 3) OK(lockstep_hook_bucket_set_result(bucket, &result));
  return lockstep_all_reduce(communicator, &whole, &whole, step == 4 && rank == 1 ? LOCKSTEP_MAX : LOCKSTEP_AVG, NULL,
                             stream, NULL);
}

static void HookThatFails(lockstep_communicator* communicator) {
  lockstep_reducer_options options;
  float value = 7;
  LOCKSTEP_INIT(options);
  options.hook = LOCKSTEP_HOOK_CALLBACK;
  options.hook_name = "clumsy";
  options.compression = LOCKSTEP_COMPRESSION_F16;
  options.hook_issue = IssueClumsily;
  lockstep_reducer* reducer = CreateReducer(communicator, NULL, 1, &options);
  MISUSED(Step(reducer, 1, &value), "rank 1: hook clumsy, bucket 0: no room");
  MISUSED(Step(reducer, 1, &value), "rank 1: hook clumsy, bucket 0: no room");
  MISUSED(Step(reducer, 1, &value), "it returned f32[7]");
  CHECK(value == 7);
  MISUSED(Step(reducer, 1, &value), "hook clumsy");
  OK(lockstep_communicator_status(communicator));
  lockstep_reducer_destroy(reducer);
}

/* Host-completed: in step 1 by another thread, in step 2 with an error on rank 1; or too late. */
typedef struct Task {
  int is_late;
  lockstep_hook_bucket* bucket;
  lockstep_communicator* communicator;
  lockstep_hook_completion* completion;
  pthread_t thread;
} Task;

static void* AverageAndComplete(void* context) {
  Task* task = (Task*)context;
  lockstep_tensor whole;
  OK(lockstep_hook_bucket_tensor(task->bucket, &whole));
  lockstep_hook_complete(task->completion,
                         lockstep_all_reduce(task->communicator, &whole, &whole, LOCKSTEP_AVG, NULL, NULL, NULL));
  return NULL;
}

static void Start(void* context, lockstep_hook_bucket* bucket, lockstep_communicator* communicator,
                  lockstep_hook_completion* completion) {
  Task* task = (Task*)context;
  const int64_t step = lockstep_hook_bucket_step(bucket);
  task->bucket = bucket;
  task->communicator = communicator;
  task->completion = completion;
  MISUSED(lockstep_hook_bucket_run(bucket, Refuse, NULL), "hook_issue");
  CallReducer(communicator);
  if (task->is_late) {
    /* The hooks of both ranks start before one is too late. Its failure may end the barrier. */
    lockstep_error_free(lockstep_barrier(communicator, NULL, NULL, NULL));
    return;
  }
  if (step == 1) {
    CHECK(pthread_create(&task->thread, NULL, AverageAndComplete, task) == 0);
  } else if (lockstep_communicator_rank(communicator) == 0) {
    AverageAndComplete(task);
  } else {
    lockstep_hook_complete(completion, Refuse(NULL, bucket));
  }
}

static void HostCompletedHook(lockstep_communicator* communicator) {
  float value = (float)(2 * lockstep_communicator_rank(communicator));
  lockstep_reducer_options options;
  Task task, late;
  memset(&task, 0, sizeof(task));
  LOCKSTEP_INIT(options);
  options.hook = LOCKSTEP_HOOK_CALLBACK;
  options.hook_start = Start;
  options.hook_context = &task;
  called = CreateReducer(communicator, NULL, 1, &options);
  OK(Step(called, 1, &value));
  CHECK(value == 1 && pthread_join(task.thread, NULL) == 0);
  MISUSED(Step(called, 1, &value), "rank 1: hook callback, bucket 0: no room");
  lockstep_reducer_destroy(called);
  memset(&task, 0, sizeof(task));
  task.is_late = 1;
  options.hook_timeout_ms = 10;
  called = CreateReducer(communicator, NULL, 1, &options);
  MISUSED(Step(called, 1, &value), "did not complete in time");
  late = task;
  memset(&task, 0, sizeof(task)); /* rank 0 may have rank 1's error before its hook starts */
  MISUSED(Step(called, 1, &value), "rank 1: hook callback, bucket 0: no room");
  /* The communicator of the late hook is another one, and is over. */
  CHECK(late.communicator != task.communicator);
  FAILS(lockstep_barrier(late.communicator, NULL, NULL, NULL), LOCKSTEP_ABORTED, "did not complete in time");
  /* Stay until the other rank has received this rank's error. */
  OK(lockstep_barrier(communicator, NULL, NULL, NULL));
  lockstep_reducer_destroy(called);
  FAILS(lockstep_barrier(late.communicator, NULL, NULL, NULL), LOCKSTEP_ABORTED, "did not complete in time");
  lockstep_hook_complete(late.completion, NULL);
}

static void UseHooks(lockstep_communicator* communicator) {
  StreamOrderedHook(communicator);
  HookOfSeveralPhases(communicator);
  HookThatFails(communicator);
  HostCompletedHook(communicator);
}

int main(void) {
  lockstep_tensor tensor;
  CHECK(lockstep_hook_bucket_index(NULL) == 0 && lockstep_hook_bucket_count(NULL) == 0);
  CHECK(lockstep_hook_bucket_step(NULL) == 0 && lockstep_hook_bucket_gradient_count(NULL) == 0);
  INVALID(lockstep_hook_bucket_tensor(NULL, &tensor), "bucket");
  INVALID(lockstep_hook_bucket_set_result(NULL, &tensor), "bucket");
  lockstep_hook_complete(NULL, lockstep_error_create(LOCKSTEP_ABORTED, "nobody hears it"));
  RunWorld(2, UseHooks);
  return 0;
}
