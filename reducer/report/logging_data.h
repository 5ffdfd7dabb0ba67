// What a reducer says about itself under the names that PyTorch's DistributedDataParallel uses (DDPLoggingData, as
// its c10d/logger.cpp fills it in), so that what reads the one can read the other. Times are in nanoseconds; lists
// are lists here, texts there.
//
// Of DDP's keys these have no meaning here: module_name, has_sync_bn (a reducer has parameters, no modules);
// device_ids, output_device (it moves no inputs or outputs); master_addr, master_port, torch_distributed_debug,
// cuda_visible_devices, nccl_* and gloo_* (copies of the environment: Communicator::Describe tells how the ranks are
// connected, and why). DDP also sends all of it to a logging service now and then; here the embedder asks for it.
//
// Nothing here waits for anything: what is published about a step are times that the host has recorded already.

#ifndef REDUCER_REPORT_LOGGING_DATA_H_
#define REDUCER_REPORT_LOGGING_DATA_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "base/rank.h"
#include "reducer/plan/bucket_plan.h"
#include "reducer/plan/parameter.h"
#include "reducer/report/step_record.h"

namespace lockstep {

struct LoggingData {
  // Known when the reducer is made.
  int64_t world_size = 0;
  int64_t rank = 0;
  std::string backend_name;
  int64_t num_parameter_tensors = 0;       // without those that are ignored, as everywhere here
  int64_t total_parameter_size_bytes = 0;  //
  std::vector<std::string> dtypes;         // each once, sorted
  bool is_multi_device_module = false;     // parameters are on more than one device
  std::vector<int64_t> bucket_sizes;       // bytes of the gradients in each
  int64_t bucket_cap_bytes = 0;            // the last of the caps, which repeats
  bool broadcast_buffers = false;
  bool find_unused_parameters = false;
  bool gradient_as_bucket_view = false;
  bool static_graph = false;
  std::string comm_hook;  // empty: none

  // Known later.
  bool has_rebuilt_buckets = false;
  std::vector<int64_t> rebuilt_bucket_sizes;
  std::vector<std::vector<int64_t>> rebuilt_per_bucket_param_indices;
  bool join_uneven_inputs = false;
  absl::optional<bool> can_set_static_graph;  // once it is known whether the same parameters are unused each time
  std::string error;                          // the first; empty: none

  // Of the last iteration that was published; see RuntimeSampler.
  int64_t iteration = 0;  // its number; 0: none yet
  int64_t num_buckets_reduced = 0;
  int64_t unused_parameter_size = 0;  // bytes
  std::vector<int64_t> prev_iteration_grad_ready_order_indices;
  int64_t forward_compute_time = 0;   // the forward began, to: the backward began
  int64_t backward_compute_time = 0;  // to: EndBackward was called
  int64_t backward_comm_time = 0;     // the first bucket was launched, to: the last one was done
  // What the two have in common: from the first launch to the call of EndBackward, or until the last bucket was done if
  // that was sooner. As in DDP, whether or not something was on the wire all the while: ReducerStatistics has the time
  // that communication took and was hidden.
  int64_t backward_compute_comm_overlap_time = 0;

  // Means over the published iterations in which they are known.
  int64_t avg_forward_compute_time = 0;
  int64_t avg_backward_compute_time = 0;
  int64_t avg_backward_comm_time = 0;
  int64_t avg_backward_compute_comm_overlap_time = 0;

  // Nanoseconds since 1970 (UTC); 0: not known.
  int64_t forward_compute_time_start = 0;
  int64_t backward_compute_time_start = 0;
  int64_t backward_comm_time_start = 0;
  int64_t backward_compute_time_end = 0;
  int64_t backward_comm_time_end = 0;
};

// What is known from rank, table and plan; the rest is the caller's to fill in.
LoggingData ConstructionData(Rank rank, int world_size, absl::Span<const Parameter> parameters, const BucketPlan& plan);

void SetRebuiltBuckets(const BucketPlan& plan, LoggingData* data);

// An object whose keys are the names above, in that order. An optional that is empty is left out. Bytes that are not
// UTF-8 are replaced.
std::string ToJson(const LoggingData& data);

// Publishes records, if their turn comes: those of the first ten iterations, and then of every `sample_rate`-th. An
// iteration is a synchronised backward. Externally synchronised.
class RuntimeSampler {
 public:
  static constexpr int64_t kFirst = 10;

  // INVALID_ARGUMENT for a rate below one, which changes nothing.
  absl::Status SetSampleRate(int64_t sample_rate);

  // Called where a forward begins, with the last record that is finished; and where a backward begins, for embedders
  // that announce no forwards. Does nothing where that record is not sampled or is published already. A record whose
  // times say that the host heard of things in another order than they happened leaves out what would be negative.
  void Publish(const StepRecord& last, const ClockAnchor& anchor, LoggingData* data);

 private:
  struct Mean {
    int64_t sum = 0;
    int64_t count = 0;
  };

  bool IsSampled(int64_t iteration) const { return iteration <= kFirst || iteration % sample_rate_ == 0; }
  // From `begin` to `end`, and the mean of it so far; 0 where that is not known.
  static void Measure(StepTime begin, StepTime end, Mean* mean, int64_t* nanoseconds, int64_t* average);

  int64_t sample_rate_ = 100;
  Mean forward_compute_;
  Mean backward_compute_;
  Mean backward_comm_;
  Mean overlap_;
};

}  // namespace lockstep

#endif  // REDUCER_REPORT_LOGGING_DATA_H_
