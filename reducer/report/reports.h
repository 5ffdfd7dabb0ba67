// What a reducer reports: renderers of its record (record.h). Pure functions: they wait for nothing, and agree with each other.

#ifndef REDUCER_REPORT_REPORTS_H_
#define REDUCER_REPORT_REPORTS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "reducer/report/record.h"

namespace lockstep {

// ---- Statistics: where the time of a synchronised backward went, by the host's clock.
//
//   bucket 0      |----------|          on the wire
//   bucket 1           |----------|
//   backward  |------------|            from BeginBackward to the call of EndBackward
//                 [ hidden ][ exposed]

struct ReducerStatistics {
  int64_t steps = 0;            // synchronised backwards so far
  double backward_ms = 0;       // BeginBackward to the call of EndBackward
  double communication_ms = 0;  // some bucket was being all-reduced
  double exposed_ms = 0;        // of that, after EndBackward was called
  int64_t bytes_reduced = 0;
  int buckets = 0;
  int buckets_launched_in_backward = 0;
  double replicas_ms = 0;  // in BeginBackward, to check a part of the replicas

  double hidden_ms() const { return communication_ms - exposed_ms; }
};

// All zero for an empty record.
ReducerStatistics Statistics(const StepRecord& record);

// Of one bucket, in milliseconds since BeginBackward.
struct BucketStatistics {
  static constexpr double kNotRecorded = -1;

  double ready_ms = kNotRecorded;
  double launched_ms = kNotRecorded;
  double wire_begin_ms = kNotRecorded;
  double wire_end_ms = kNotRecorded;
  double done_ms = kNotRecorded;  // the averages are in the gradients, and stepped with where the reducer does that
  double communication_ms = 0;    // between wire_begin_ms and wire_end_ms
  double exposed_ms = 0;          // of that, after EndBackward was called
  int64_t bytes = 0;

  double hidden_ms() const { return communication_ms - exposed_ms; }
};

BucketStatistics Statistics(const StepRecord& record, size_t bucket);

// ---- Logging data: a JSON object with the names of PyTorch's DistributedDataParallel (DDPLoggingData, as its c10d/logger.cpp fills it
// in), so that what reads the one can read the other. Times are in nanoseconds, and 0 where they are not known; lists are lists here,
// texts there. Parameters that are ignored are left out, as everywhere here. can_set_static_graph is left out until it is known. Bytes
// that are not UTF-8 are replaced.
//
// Of DDP's keys these have no meaning here: module_name, has_sync_bn (a reducer has parameters, no modules); device_ids, output_device
// (it moves no inputs or outputs); master_addr, master_port, torch_distributed_debug, cuda_visible_devices, nccl_* and gloo_* (copies of
// the environment: Communicator::Describe tells how the ranks are connected, and why). DDP also sends all of it to a logging service now
// and then; here the embedder asks for it.
std::string LoggingData(const ReducerRecord& record);

// ---- Summary: the last step as a text of one screen, for people. Of more than 20 buckets, the first and the last ten.
//
//   step 12, rank 0 of 4: backward 8.00 ms, communication 6.00 ms (4.00 hidden, 2.00 exposed)
//   1 of 2 buckets launched in backward, 2097152 bytes reduced; times in ms since backward began
//
//   bucket params        bytes    ready   launch       on the wire     done  |- backward, # on wire   |
//        0      3      1048576     1.00     1.25     2.00 -    4.00     4.50  |----####--------........|
//
// A drawing goes from the beginning of backward to when the last bucket was done: "#" while this bucket was on the
// wire, otherwise "-" in backward and "." after it.
std::string Summary(const ReducerRecord& record);

}  // namespace lockstep

#endif  // REDUCER_REPORT_REPORTS_H_
