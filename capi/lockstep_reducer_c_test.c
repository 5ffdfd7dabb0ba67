/* The reducer's calls from C99 against numbers worked out by hand: steps, buckets, plans; and what it tells about its steps.
 * random_steps_test has many more from Python. Gradients are one f32 each unless said otherwise, and rank 1 has twice rank 0's. */

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "capi/c_testing.h"
#include "capi/lockstep.h"

/* Good steps and bad ones of three parameters, of which the second is ignored, in two buckets that take turns with one buffer. */
static void Steps(lockstep_communicator* communicator) {
  const float mine = (float)(lockstep_communicator_rank(communicator) + 1);
  const int64_t caps[2] = {4, 1 << 20};
  lockstep_reducer_options options;
  lockstep_reducer_statistics statistics;
  lockstep_reducer* reducer = NULL;
  lockstep_tensor tensor;
  lockstep_gradient_state state = -1;
  int32_t ended = 0;
  Model model;
  InitModel(&model);
  model.table[1].dtype = 99;
  INVALID(lockstep_reducer_create(communicator, model.table, 2, NULL, &reducer), "'one': 99");
  model.table[1].dtype = LOCKSTEP_F32;
  INVALID(lockstep_reducer_create(communicator, model.table, 0, NULL, &reducer), "parameter");
  model.table[0].struct_size += 1; /* the next row would be at an odd address */
  INVALID(lockstep_reducer_create(communicator, model.table, 2, NULL, &reducer), "struct_size");
  model.table[0].struct_size -= 1;
  model.table[1].ignored = 1;
  LOCKSTEP_INIT(options);
  options.bucket_caps_bytes = caps;
  options.bucket_cap_count = 2;
  options.caps_from_last = 1;
  options.buckets_in_memory_max = 1;
  options.averaging = LOCKSTEP_AVERAGING_PREDIVIDE;
  options.predivide_factor = 2;
  reducer = CreateReducer(communicator, &model, PARAMETERS, &options);
  CHECK(lockstep_reducer_bucket_count(reducer) == 2 && lockstep_reducer_plan_version(reducer) == 1);
  MISUSED(lockstep_reducer_averaged_gradient(reducer, 0, &tensor, NULL), "average");
  MISUSED(lockstep_reducer_gradient_view(reducer, 0, &tensor), "gradient_as_bucket_view");
  MISUSED(lockstep_reducer_gradient_state(reducer, 0, &state), "gradient_state: there is none before");
  MISUSED(lockstep_reducer_end_backward(reducer, NULL), "no backward");
  MISUSED(lockstep_reducer_try_end_backward(reducer, NULL, 60000, &ended), "no backward");
  model.values[0] = mine;
  OK(lockstep_reducer_broadcast(reducer, &model.gradients[0], 1, 1));
  CHECK(model.values[0] == 2);

  /* Accumulated; then one that is marked twice, which the end says, too, and one that never comes. */
  BeginWithoutSync(reducer);
  MISUSED(lockstep_reducer_begin_backward(reducer, NULL), "not ended");
  INVALID(lockstep_reducer_mark_ready(reducer, 3, &model.gradients[1], NULL), "out of range");
  INVALID(lockstep_reducer_mark_ready(reducer, 1, &model.gradients[1], NULL), "ignored");
  Mark(reducer, &model, 2, mine);
  Mark(reducer, &model, 0, mine);
  OK(lockstep_reducer_end_backward(reducer, NULL));
  CHECK(model.values[0] == mine);
  OK(lockstep_reducer_begin_backward(reducer, NULL));
  Mark(reducer, &model, 2, mine);
  MISUSED(lockstep_reducer_mark_ready(reducer, 2, &model.gradients[2], NULL), "two");
  Mark(reducer, &model, 0, mine);
  MISUSED(lockstep_reducer_end_backward(reducer, NULL), "'two' (f32[1]) was marked ready twice");
  OK(lockstep_reducer_begin_backward(reducer, NULL));
  Mark(reducer, &model, 2, mine);
  MISUSED(lockstep_reducer_end_backward(reducer, NULL), "zero");

  /* One whose end has a limit. */
  OK(lockstep_reducer_begin_backward(reducer, NULL));
  Mark(reducer, &model, 2, 10 * mine);
  Mark(reducer, &model, 0, mine);
  INVALID(lockstep_reducer_try_end_backward(reducer, NULL, 60000, NULL), "out_ended");
  INVALID(lockstep_reducer_try_end_backward(reducer, NULL, -1, &ended), "timeout_ms is negative");
  OK(lockstep_reducer_try_end_backward(reducer, NULL, 60000, &ended));
  CHECK(ended == 1 && model.values[0] == 1.5F && model.values[1] == -1 && model.values[2] == 15);
  CHECK(AverageOf(reducer, 0) == 1.5F);
  OK(lockstep_reducer_gradient_state(reducer, 0, &state));
  CHECK(state == LOCKSTEP_GRADIENT_AVERAGED);
  INVALID(lockstep_reducer_gradient_state(reducer, PARAMETERS, &state), "out of range");
  INVALID(lockstep_reducer_gradient_state(reducer, 0, NULL), "out_state");
  LOCKSTEP_INIT(statistics);
  OK(lockstep_reducer_get_statistics(reducer, &statistics));
  CHECK(statistics.steps == 3 && statistics.buckets == 2 && statistics.bytes_reduced > 0);
  lockstep_reducer_destroy(reducer);
}

/* Every flag of every struct is 0 or 1. */
static void FlagsThatCannotBe(lockstep_communicator* communicator) {
  typedef enum Struct { COMMUNICATOR, REDUCER, PARAMETER, BACKWARD } Struct;
  static const struct {
    Struct in;
    size_t offset;
    const char* name;
  } flags[] = {
#define FLAG(in, type, name) {in, offsetof(type, name), #name}
      FLAG(COMMUNICATOR, lockstep_communicator_options, deterministic),
      FLAG(COMMUNICATOR, lockstep_communicator_options, checked),
      FLAG(COMMUNICATOR, lockstep_communicator_options, tcp_zero_copy),
      FLAG(COMMUNICATOR, lockstep_communicator_options, nccl_split_share),
      FLAG(REDUCER, lockstep_reducer_options, find_unused_parameters),
      FLAG(REDUCER, lockstep_reducer_options, static_graph),
      FLAG(REDUCER, lockstep_reducer_options, gradient_as_bucket_view),
      FLAG(REDUCER, lockstep_reducer_options, caps_from_last),
      FLAG(REDUCER, lockstep_reducer_options, no_overlap),
      FLAG(REDUCER, lockstep_reducer_options, no_replan),
      FLAG(REDUCER, lockstep_reducer_options, uneven_inputs),
      FLAG(REDUCER, lockstep_reducer_options, divide_by_live_ranks),
      FLAG(REDUCER, lockstep_reducer_options, throw_on_early_termination),
      FLAG(REDUCER, lockstep_reducer_options, preserve_gradients),
      FLAG(PARAMETER, lockstep_parameter, ignored),
      FLAG(PARAMETER, lockstep_parameter, sparse),
      FLAG(BACKWARD, lockstep_backward_options, no_sync),
      FLAG(BACKWARD, lockstep_backward_options, unused_given),
#undef FLAG
  };
  lockstep_reducer* const good = CreateReducer(communicator, NULL, PARAMETERS, NULL);
  for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); ++i) {
    for (int32_t value = -1; value <= 2; value += 3) {
      lockstep_communicator_options world;
      lockstep_reducer_options options = OneEach();
      lockstep_backward_options backward;
      lockstep_communicator* none = NULL;
      lockstep_reducer* reducer = NULL;
      char text[64];
      Model model;
      InitModel(&model);
      LOCKSTEP_INIT(world);
      LOCKSTEP_INIT(backward);
      void* const structs[] = {&world, &options, &model.table[1], &backward};
      memcpy((char*)structs[flags[i].in] + flags[i].offset, &value, sizeof(value));
      snprintf(text, sizeof(text), "%s is %d, and not 0 or 1", flags[i].name, value);
      if (flags[i].in == COMMUNICATOR) {
        INVALID(lockstep_communicator_create(&world, &none), text);
      } else if (flags[i].in == BACKWARD) {
        INVALID(lockstep_reducer_begin_backward(good, &backward), text);
      } else {
        INVALID(lockstep_reducer_create(communicator, model.table, PARAMETERS, &options, &reducer), text);
      }
    }
  }
  lockstep_reducer_destroy(good);
}

/* Is never called. */
static void Release(void* context) { (void)context; }

/* Options that mean nothing beside the others. */
static void OptionsThatCannotBe(lockstep_communicator* communicator) {
  static const size_t delayed = 0;
  static const int64_t cap = 0;
  static char context;
  const lockstep_hook_issue issue = (lockstep_hook_issue)(void (*)(void))Release;
  const lockstep_hook_start start = (lockstep_hook_start)(void (*)(void))Release;
  const lockstep_on_drift drift = (lockstep_on_drift)(void (*)(void))Release;
  lockstep_reducer* reducer = NULL;
  Model model;
  InitModel(&model);
#define REFUSED(field, value, text)                                                                    \
  do {                                                                                                 \
    lockstep_reducer_options options = OneEach();                                                      \
    options.field = value;                                                                             \
    INVALID(lockstep_reducer_create(communicator, model.table, PARAMETERS, &options, &reducer), text); \
  } while (0)
  OK(lockstep_group_start(communicator));
  MISUSED(lockstep_reducer_create(communicator, model.table, PARAMETERS, NULL, &reducer), "inside a group");
  MISUSED(lockstep_group_end(communicator, NULL), "inside a group");
  REFUSED(plan, "one bucket, please", "plan");
  REFUSED(averaging, LOCKSTEP_AVERAGING_PREDIVIDE, "by 0");
  REFUSED(predivide_factor, 2, "predivide_factor without LOCKSTEP_AVERAGING_PREDIVIDE");
  REFUSED(delayed, &delayed, "delayed without delayed_count");
  REFUSED(delayed_count, 1, "delayed");
  REFUSED(delayed = &delayed; options.delayed_count, 1, "itself delayed");
  REFUSED(delayed_trigger, 1, "delayed_trigger without delayed");
  REFUSED(bucket_caps_bytes, &cap, "bucket_caps_bytes without bucket_cap_count");
  REFUSED(bucket_caps_bytes = &cap; options.bucket_cap_count, 1, "both");
  REFUSED(buckets_in_memory_max, -1, "negative");
  REFUSED(gradient_as_bucket_view = 1; options.buckets_in_memory_max, 1, "take turns");
  REFUSED(replicas, model.table, "replicas without replica_count");
  REFUSED(on_drift, drift, "on_drift without replicas");
  REFUSED(drift_context, &context, "drift_context without on_drift");
  REFUSED(drift_release, Release, "drift_release without on_drift");
  REFUSED(optimizer_context, &context, "optimizer_context without optimizer_step");
  REFUSED(optimizer_release, Release, "optimizer_release without optimizer_step");
  REFUSED(hook, 99, "no lockstep_hook");
  REFUSED(compression, 99, "no lockstep_compression");
  REFUSED(hook = LOCKSTEP_HOOK_FP16_COMPRESS; options.compression, LOCKSTEP_COMPRESSION_BF16, "different dtypes");
  REFUSED(hook, LOCKSTEP_HOOK_CALLBACK, "one of hook_issue and hook_start");
  REFUSED(hook = LOCKSTEP_HOOK_CALLBACK; options.hook_issue = issue;
          options.hook_start, start, "one of hook_issue and hook_start");
  REFUSED(hook = LOCKSTEP_HOOK_CALLBACK; options.hook_start = start; options.hook_timeout_ms, -1, "hook_timeout_ms");
  REFUSED(hook_name, "mine", "hook_name without LOCKSTEP_HOOK_CALLBACK");
  REFUSED(hook_issue, issue, "hook_issue without LOCKSTEP_HOOK_CALLBACK");
  REFUSED(hook_context, &context, "hook_context without LOCKSTEP_HOOK_CALLBACK");
  REFUSED(hook_release, Release, "hook_release without LOCKSTEP_HOOK_CALLBACK");
  REFUSED(hook_timeout_ms, 1, "hook_timeout_ms without hook_start");
  REFUSED(hook = LOCKSTEP_HOOK_CALLBACK; options.hook_issue = issue;
          options.hook_timeout_ms, 1, "hook_timeout_ms without hook_start");
  for (int32_t averaging = LOCKSTEP_AVERAGING_AFTER; averaging < LOCKSTEP_AVERAGING_PREDIVIDE; ++averaging) {
    REFUSED(hook = LOCKSTEP_HOOK_NOOP; options.averaging, averaging, "nothing is averaged");
    REFUSED(hook = LOCKSTEP_HOOK_CALLBACK; options.hook_issue = issue;
            options.averaging, averaging, "the hook averages");
  }
  REFUSED(divide_by_live_ranks, 1, "divide_by_live_ranks without uneven_inputs");
  REFUSED(throw_on_early_termination, 1, "throw_on_early_termination without uneven_inputs");
  REFUSED(gradient_memory = "copied"; options.gradient_as_bucket_view, 1, "both gradient_memory and");
#undef REFUSED
}

/* Errors about ranks that differ have the rank, and those about tables the parameter. */
static void RanksThatDiffer(lockstep_communicator* communicator) {
  const int32_t rank = lockstep_communicator_rank(communicator);
  lockstep_reducer_options options = OneEach();
  lockstep_reducer* reducer = NULL;
  Model model;
  InitModel(&model);
  if (rank == 1) options.hook = LOCKSTEP_HOOK_FP16_COMPRESS;
  lockstep_error* error = lockstep_reducer_create(communicator, model.table, PARAMETERS, &options, &reducer);
  CHECK(lockstep_error_failed_rank(error) == 1 && lockstep_error_parameter(error) == -1);
  MISUSED(error, "the options differ: hook: none on rank 0, fp16_compress on rank 1");
  if (rank == 1) model.table[1].dtype = LOCKSTEP_F64;
  error = lockstep_reducer_create(communicator, model.table, PARAMETERS, NULL, &reducer);
  CHECK(lockstep_error_failed_rank(error) == 1 && lockstep_error_parameter(error) == 1);
  MISUSED(error, "differ");
}

/* Views of buckets; a new plan when asked for, and the plan of another run. Gradients appear in the order 0, 1, 2, not as expected. */
static void Plans(lockstep_communicator* communicator) {
  lockstep_reducer_options options = OneEach();
  char *plan = NULL, *taken = NULL;
  lockstep_tensor view;
  Model model;
  InitModel(&model);
  options.no_replan = 1;
  options.gradient_as_bucket_view = 1;
  lockstep_reducer* reducer = CreateReducer(communicator, &model, PARAMETERS, &options);
  for (int step = 0; step < 40; ++step) {
    CHECK(step > 20 || lockstep_reducer_plan_version(reducer) == 1);
    if (step == 20) OK(lockstep_reducer_request_replan(reducer));
    OK(lockstep_reducer_begin_backward(reducer, NULL));
    for (size_t i = 0; i < PARAMETERS; ++i) Mark(reducer, &model, i, 1);
    OK(lockstep_reducer_end_backward(reducer, NULL));
  }
  CHECK(lockstep_reducer_plan_version(reducer) == 2);
  OK(lockstep_reducer_gradient_view(reducer, 2, &view));
  CHECK(view.dimensions == 1 && view.shape[0] == 1);
  INVALID(lockstep_reducer_gradient_view(reducer, PARAMETERS, &view), "out of range");
  OK(lockstep_reducer_export_plan(reducer, &plan));
  CHECK(strstr(plan, "bucket 0\nbucket 1\nbucket 2\n") != NULL);
  lockstep_reducer_destroy(reducer);

  options.plan = plan;
  reducer = CreateReducer(communicator, &model, PARAMETERS, &options);
  OK(lockstep_reducer_export_plan(reducer, &taken));
  CHECK(strcmp(taken, plan) == 0);
  lockstep_reducer_destroy(reducer);
  lockstep_string_free(plan);
  lockstep_string_free(taken);
}

/* ---- Reports: statistics of buckets, the summary, logging data. */

static void RunSteps(lockstep_reducer* reducer, int count) {
  float value = 1;
  while (count-- > 0) OK(Step(reducer, 2, &value));
}

static void CheckReport(const lockstep_reducer* reducer, lockstep_report report, const char* part) {
  char* text = NULL;
  OK(lockstep_reducer_report(reducer, report, &text));
  CHECK(strstr(text, part) != NULL);
  lockstep_string_free(text);
}

/* Two buckets. Of times only the order is known. */
static void UseBucketStatistics(const lockstep_reducer* reducer) {
  lockstep_reducer_statistics all;
  lockstep_bucket_statistics of;
  int64_t bytes = 0;
  LOCKSTEP_INIT(all);
  OK(lockstep_reducer_get_statistics(reducer, &all));
  CHECK(all.steps == 1 && all.buckets == 2);
  LOCKSTEP_INIT(of);
  for (size_t b = 0; b < 2; ++b) {
    OK(lockstep_reducer_get_bucket_statistics(reducer, b, &of));
    CHECK(of.struct_size == sizeof(of));
    CHECK(0 <= of.ready_ms && of.ready_ms <= of.launched_ms && of.launched_ms <= of.wire_begin_ms);
    CHECK(of.wire_begin_ms <= of.wire_end_ms && of.wire_end_ms <= of.done_ms);
    CHECK(0 <= of.exposed_ms && of.exposed_ms <= of.communication_ms);
    CHECK(of.hidden_ms == of.communication_ms - of.exposed_ms);
    bytes += of.bytes;
  }
  CHECK(bytes == all.bytes_reduced);
  INVALID(lockstep_reducer_get_bucket_statistics(reducer, 2, &of), "bucket 2");
  INVALID(lockstep_reducer_get_bucket_statistics(reducer, 0, NULL), "out_statistics");
  /* A caller with an older header has room for less, one that forgot LOCKSTEP_INIT for nothing. */
  of.struct_size = offsetof(lockstep_bucket_statistics, launched_ms);
  of.launched_ms = -7;
  OK(lockstep_reducer_get_bucket_statistics(reducer, 0, &of));
  CHECK(of.struct_size == offsetof(lockstep_bucket_statistics, launched_ms));
  CHECK(of.ready_ms >= 0 && of.launched_ms == -7);
  of.struct_size = 0;
  INVALID(lockstep_reducer_get_bucket_statistics(reducer, 0, &of), "LOCKSTEP_INIT");
}

static void UseReports(lockstep_communicator* communicator) {
  const int32_t rank = lockstep_communicator_rank(communicator);
  const lockstep_reducer_options options = OneEach();
  lockstep_bucket_statistics of;
  char* text = NULL;
  lockstep_reducer* reducer = CreateReducer(communicator, NULL, 2, &options);
  LOCKSTEP_INIT(of);
  INVALID(lockstep_reducer_get_bucket_statistics(reducer, 0, &of), "bucket 0");
  CheckReport(reducer, LOCKSTEP_REPORT_LOGGING_DATA, "\"iteration\": 0");
  RunSteps(reducer, 1);
  UseBucketStatistics(reducer);
  CheckReport(reducer, LOCKSTEP_REPORT_SUMMARY, rank == 0 ? "step 1, rank 0 of 2" : "step 1, rank 1 of 2");
  INVALID(lockstep_reducer_report(reducer, LOCKSTEP_REPORT_SUMMARY, NULL), "out_text");
  INVALID(lockstep_reducer_report(reducer, LOCKSTEP_REPORT_LOGGING_DATA, NULL), "out_text");
  INVALID(lockstep_reducer_report(reducer, 2, &text), "2 is no lockstep_report");

  /* Published where the next forward begins: all of the first ten, then by the rate. */
  INVALID(lockstep_reducer_set_logging_sample_rate(reducer, 0), "sample rate");
  OK(lockstep_reducer_set_logging_sample_rate(reducer, 6));
  RunSteps(reducer, 11);
  OK(lockstep_reducer_begin_forward(reducer, NULL, NULL));
  CheckReport(reducer, LOCKSTEP_REPORT_LOGGING_DATA, "\"iteration\": 12,");
  lockstep_reducer_destroy(reducer);
}

static void UseReducers(lockstep_communicator* communicator) {
  Steps(communicator);
  FlagsThatCannotBe(communicator);
  OptionsThatCannotBe(communicator);
  RanksThatDiffer(communicator);
  Plans(communicator);
  UseReports(communicator);
}

int main(void) {
  lockstep_bucket_statistics statistics;
  char* text = NULL;
  LOCKSTEP_INIT(statistics);
  CHECK(lockstep_reducer_plan_version(NULL) == 0 && lockstep_reducer_bucket_count(NULL) == 0);
  INVALID(lockstep_reducer_request_replan(NULL), "reducer");
  INVALID(lockstep_reducer_export_plan(NULL, &text), "reducer");
  INVALID(lockstep_reducer_get_bucket_statistics(NULL, 0, &statistics), "reducer");
  INVALID(lockstep_reducer_report(NULL, LOCKSTEP_REPORT_SUMMARY, &text), "reducer");
  INVALID(lockstep_reducer_set_logging_sample_rate(NULL, 1), "reducer");
  RunWorld(2, UseReducers);
  return 0;
}
