/* What a reducer tells about its steps, from C99 on two processes: statistics of buckets, the summary, logging data. */

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "capi/c_testing.h"

static void TestNulls(void) {
  lockstep_bucket_statistics statistics;
  char* text = NULL;
  LOCKSTEP_INIT(statistics);
  INVALID(lockstep_reducer_get_bucket_statistics(NULL, 0, &statistics), "reducer");
  INVALID(lockstep_reducer_report(NULL, LOCKSTEP_REPORT_SUMMARY, &text), "reducer");
  INVALID(lockstep_reducer_report(NULL, LOCKSTEP_REPORT_LOGGING_DATA, &text), "reducer");
  INVALID(lockstep_reducer_set_logging_sample_rate(NULL, 1), "reducer");
}

static void RunSteps(lockstep_reducer* reducer, int32_t rank, int count) {
  int step;
  for (step = 0; step < count; ++step) {
    float value = (float)(2 * rank);
    OK(Step(reducer, 2, &value));
    CHECK(value == 1);
  }
}

static void CheckLogging(const lockstep_reducer* reducer, const char* part) {
  char* json = NULL;
  OK(lockstep_reducer_report(reducer, LOCKSTEP_REPORT_LOGGING_DATA, &json));
  if (strstr(json, part) == NULL) fprintf(stderr, "no '%s' in\n%s\n", part, json);
  CHECK(strstr(json, part) != NULL);
  lockstep_string_free(json);
}

/* Two buckets. Of times only the order is known. */
static void UseBucketStatistics(const lockstep_reducer* reducer) {
  lockstep_reducer_statistics all;
  lockstep_bucket_statistics of;
  int64_t bytes = 0;
  size_t b;
  LOCKSTEP_INIT(all);
  OK(lockstep_reducer_get_statistics(reducer, &all));
  CHECK(all.steps == 1 && all.buckets == 2);
  for (b = 0; b < 2; ++b) {
    LOCKSTEP_INIT(of);
    OK(lockstep_reducer_get_bucket_statistics(reducer, b, &of));
    CHECK(of.struct_size == sizeof(of));
    CHECK(0 <= of.ready_ms && of.ready_ms <= of.launched_ms && of.launched_ms <= of.wire_begin_ms);
    CHECK(of.wire_begin_ms <= of.wire_end_ms && of.wire_end_ms <= of.done_ms);
    CHECK(0 <= of.exposed_ms && of.exposed_ms <= of.communication_ms);
    CHECK(of.hidden_ms == of.communication_ms - of.exposed_ms);
    CHECK(of.bytes >= 4);
    bytes += of.bytes;
  }
  CHECK(bytes == all.bytes_reduced);
  INVALID(lockstep_reducer_get_bucket_statistics(reducer, 2, &of), "bucket 2");
  INVALID(lockstep_reducer_get_bucket_statistics(reducer, 0, NULL), "out_statistics");
  /* A caller with an older header has room for less, one that forgot LOCKSTEP_INIT for nothing. */
  LOCKSTEP_INIT(of);
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
  lockstep_reducer* reducer;
  char* text = NULL;
  reducer = MakeReducer(communicator, 2, &options);
  LOCKSTEP_INIT(of);
  INVALID(lockstep_reducer_get_bucket_statistics(reducer, 0, &of), "bucket 0");
  CheckLogging(reducer, "\"world_size\": 2");
  CheckLogging(reducer, rank == 0 ? "\"rank\": 0" : "\"rank\": 1");
  CheckLogging(reducer, "\"total_parameter_size_bytes\": 8");
  CheckLogging(reducer, "\"iteration\": 0");

  RunSteps(reducer, rank, 1);
  UseBucketStatistics(reducer);
  OK(lockstep_reducer_report(reducer, LOCKSTEP_REPORT_SUMMARY, &text));
  CHECK(strstr(text, rank == 0 ? "step 1, rank 0 of 2" : "step 1, rank 1 of 2") != NULL);
  lockstep_string_free(text);
  INVALID(lockstep_reducer_report(reducer, LOCKSTEP_REPORT_SUMMARY, NULL), "out_text");
  INVALID(lockstep_reducer_report(reducer, LOCKSTEP_REPORT_LOGGING_DATA, NULL), "out_text");
  INVALID(lockstep_reducer_report(reducer, 2, &text), "2 is no lockstep_report");

  /* Published where the next forward begins: all of the first ten, then by the rate. */
  CheckLogging(reducer, "\"iteration\": 0");
  OK(lockstep_reducer_begin_forward(reducer, NULL, NULL));
  CheckLogging(reducer, "\"iteration\": 1,");
  CheckLogging(reducer, "\"num_buckets_reduced\": 2");
  INVALID(lockstep_reducer_set_logging_sample_rate(reducer, 0), "sample rate");
  OK(lockstep_reducer_set_logging_sample_rate(reducer, 6));
  RunSteps(reducer, rank, 10);
  OK(lockstep_reducer_begin_forward(reducer, NULL, NULL));
  CheckLogging(reducer, "\"iteration\": 10,");
  RunSteps(reducer, rank, 1);
  OK(lockstep_reducer_begin_forward(reducer, NULL, NULL));
  CheckLogging(reducer, "\"iteration\": 12,");
  lockstep_reducer_destroy(reducer);
}

int main(void) {
  TestNulls();
  RunWorld(2, UseReports);
  return 0;
}
