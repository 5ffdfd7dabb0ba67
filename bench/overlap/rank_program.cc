#include "bench/overlap/rank_program.h"

#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/device/cuda/cuda_device.h"
#include "base/device/host_device.h"
#include "base/rank.h"
#include "base/status.h"
#include "bench/measure.h"
#include "bench/overlap/device_work.h"
#include "bench/overlap/overhead.h"
#include "bench/overlap/plan.h"
#include "bench/overlap/replay.h"
#include "bench/overlap/report.h"
#include "bench/overlap/throttled_transport.h"
#include "bench/ranks.h"
#include "bench/report.h"
#include "comm/communicator.h"
#include "comm/world/device_backend.h"
#include "comm/world/world.h"

namespace lockstep {
namespace bench {
namespace {

constexpr int kWarmUpSteps = 3;

// Where a program's gradients are, with what computes them and a communicator that reaches them.
struct Place {
  ReplayPlace replay;
  Communicator* communicator = nullptr;
  std::string text;  // for people: the device, and how its tensors travel
  // What the others borrow, where they are not the caller's.
  std::unique_ptr<Communicator> on_device;
  std::unique_ptr<Stream> stream;
};

absl::StatusOr<Place> FindPlaceOnGpu(const OverlapOptions& options, Communicator* world) {
  LOCKSTEP_ASSIGN_OR_RETURN(const int gpus, CudaDeviceCount());
  const int rank = world->rank().value();
  if (world->size() > gpus) setenv("NCCL_HOSTID", absl::StrCat("rank", rank).c_str(), /*overwrite=*/0);
  Place place;
  LOCKSTEP_ASSIGN_OR_RETURN(place.replay.device, CudaDevice(rank % gpus));
  DeviceBackendOptions backend;
  backend.backend = options.backend;
  LOCKSTEP_ASSIGN_OR_RETURN(place.on_device, MakeDeviceCommunicator(world, place.replay.device, backend));
  place.communicator = place.on_device.get();
  // The default stream, in which frameworks compute unless they are told otherwise.
  LOCKSTEP_ASSIGN_OR_RETURN(place.stream, place.replay.device->BorrowStream(nullptr));
  // The first line is the device's.
  const std::string description = place.communicator->Describe();
  place.text = std::string(*absl::StrSplit(description, '\n').begin());
  return place;
}

absl::StatusOr<Place> FindPlaceOnHost(const OverlapOptions& options, Communicator* world) {
  Place place;
  place.replay.device = HostDevice();
  place.communicator = world;
  place.text = "host";
  if (ComputesOnStream(options.compute)) {
    LOCKSTEP_ASSIGN_OR_RETURN(place.stream, place.replay.device->CreateStream("compute"));
  }
  return place;
}

absl::StatusOr<Place> FindPlace(const OverlapOptions& options, Communicator* world) {
  LOCKSTEP_ASSIGN_OR_RETURN(Place place, options.device == DeviceKind::kHost ? FindPlaceOnHost(options, world)
                                                                             : FindPlaceOnGpu(options, world));
  place.replay.stream = place.stream.get();
  return place;
}

// One rank's part in the program.
class OverlapProgram {
 public:
  OverlapProgram(const OverlapOptions& options, const Place& place)
      : options_(options), model_(options.model), place_(place), group_(place.communicator) {
    report_.ranks = group_.size();
    report_.parameters = static_cast<int>(model_.parameters.size());
  }

  absl::Status Run() {
    LOCKSTEP_RETURN_IF_ERROR(MakeReplay());
    LOCKSTEP_RETURN_IF_ERROR(MakeComputation());
    LOCKSTEP_ASSIGN_OR_RETURN(const int steps, WarmUp());
    if (group_.leads()) Describe(steps);
    for (int round = 0; round < options_.rounds; ++round) {
      LOCKSTEP_RETURN_IF_ERROR(RunRound(round, steps));
    }
    LOCKSTEP_RETURN_IF_ERROR(replay_->CheckedStep());
    LOCKSTEP_RETURN_IF_ERROR(group_.Barrier());
    LOCKSTEP_ASSIGN_OR_RETURN(report_.overhead,
                              MeasureReducerOverhead(replay_->reducer().plan(), options_.overhead_steps));
    if (group_.leads()) Print(OverlapText(Summarised()));
    return absl::OkStatus();
  }

  const OverlapReport& report() const { return report_; }

 private:
  // Every rank alike, so that the leader's memory stands for all.
  absl::Status MakeReplay() {
    LOCKSTEP_RETURN_IF_ERROR(ResetPeakMemory());
    LOCKSTEP_ASSIGN_OR_RETURN(const ProcessMemory before, MeasureProcessMemory());
    LOCKSTEP_ASSIGN_OR_RETURN(replay_, Replay::Create(group_, model_, options_.reducer, place_.replay));
    for (int step = 0; step < 2; ++step) LOCKSTEP_RETURN_IF_ERROR(replay_->CheckedStep());
    LOCKSTEP_ASSIGN_OR_RETURN(const ProcessMemory after, MeasureProcessMemory());
    report_.memory.gradient_bytes = model_.elements() * static_cast<int64_t>(sizeof(float));
    report_.memory.resident_bytes_max = after.peak_resident_bytes - before.resident_bytes;
    report_.memory.proportional_bytes = after.proportional_bytes - before.proportional_bytes;
    for (const BucketPlan::Bucket& bucket : replay_->reducer().plan().buckets) {
      OverlapBucket row;
      row.bytes = static_cast<int64_t>(bucket.bytes());
      row.parameters = static_cast<int>(bucket.slots.size());
      report_.buckets.push_back(row);
    }
    costs_.resize(report_.buckets.size());
    return absl::OkStatus();
  }

  absl::Status MakeComputation() {
    LOCKSTEP_RETURN_IF_ERROR(CommunicationOnly(1).status());
    double seconds = options_.compute_ms / 1e3;
    if (seconds == 0) {
      std::vector<double> totals;
      for (int step = 0; step < kWarmUpSteps; ++step) {
        LOCKSTEP_ASSIGN_OR_RETURN(const Replay::WireTimes wire, CommunicationOnly(1));
        totals.push_back(Total(wire.seconds));
      }
      // Of which backward is two thirds.
      seconds = Median(totals) * 3 / 2;
    }
    LOCKSTEP_ASSIGN_OR_RETURN(const int64_t nanoseconds, group_.FromLeader(std::llround(seconds * 1e9)));
    plan_ = PlanCompute(model_, static_cast<double>(nanoseconds) * 1e-9);
    switch (options_.compute) {
      case ComputeKind::kBusy:
        computation_ = MakeBusyComputation(plan_, CalibrateArithmetic(), replay_->gradients(), replay_->own_value());
        break;
      case ComputeKind::kAway:
        computation_ = MakeAwayComputation(plan_, AwaitedGradients());
        break;
      case ComputeKind::kStream:
        computation_ = MakeStreamComputation(plan_, place_.replay.stream, ClockWork(place_.replay.stream));
        break;
      case ComputeKind::kMatmul: {
        LOCKSTEP_ASSIGN_OR_RETURN(matmul_, MatmulWork::Create(place_.replay.device, place_.replay.stream));
        computation_ = MakeStreamComputation(plan_, place_.replay.stream,
                                             [this](double seconds) { return matmul_->Enqueue(seconds); });
      }
    }
    return absl::OkStatus();
  }

  // The last of each bucket's, in the order of backward, or none in particular.
  std::vector<bool> AwaitedGradients() const {
    if (!options_.wake_per_bucket) return {};
    const BucketPlan& plan = replay_->reducer().plan();
    std::vector<bool> awaited(plan.locations.size());
    std::vector<bool> seen(plan.buckets.size());
    for (size_t p = 0; p < plan.locations.size(); ++p) {
      const size_t bucket = plan.locations[p].bucket;
      awaited[p] = !seen[bucket];
      seen[bucket] = true;
    }
    return awaited;
  }

  // Returns the steps of a round, equal on all ranks.
  absl::StatusOr<int> WarmUp() {
    double seconds = 0;
    for (int step = 0; step < kWarmUpSteps; ++step) {
      LOCKSTEP_ASSIGN_OR_RETURN(seconds, replay_->Step(*computation_, 1, /*overlap=*/true));
    }
    if (options_.steps > 0) return options_.steps;
    const double fitting = std::chrono::duration<double>(options_.round_time).count() / seconds;
    return std::clamp(static_cast<int>(fitting), 1, 1000);
  }

  absl::StatusOr<Replay::WireTimes> CommunicationOnly(int steps) {
    // Who computes beside it lets nobody poll.
    return replay_->CommunicationOnly(steps, /*background=*/options_.compute == ComputeKind::kBusy);
  }

  static double Total(const std::vector<double>& values) {
    double sum = 0;
    for (const double value : values) sum += value;
    return sum;
  }

  // The four kinds of steps in turn, beginning with another one each round.
  absl::Status RunRound(int number, int steps) {
    OverlapRound round;
    Replay::ComputeTimes compute;
    Replay::WireTimes wire;
    constexpr int kKinds = 4;
    for (int i = 0; i < kKinds; ++i) {
      switch ((number + i) % kKinds) {
        case 0: {
          LOCKSTEP_ASSIGN_OR_RETURN(compute, replay_->ComputeOnly(*computation_, steps));
          break;
        }
        case 1: {
          LOCKSTEP_ASSIGN_OR_RETURN(wire, CommunicationOnly(steps));
          break;
        }
        case 2: {
          LOCKSTEP_ASSIGN_OR_RETURN(round.serial, replay_->Step(*computation_, steps, /*overlap=*/false));
          break;
        }
        default: {
          LOCKSTEP_ASSIGN_OR_RETURN(round.overlapped, replay_->Step(*computation_, steps, /*overlap=*/true));
        }
      }
    }
    std::vector<BucketCost> buckets;
    for (size_t b = 0; b < report_.buckets.size(); ++b) {
      const double processor = options_.compute == ComputeKind::kBusy ? wire.processor_seconds[b] : 0;
      buckets.push_back({compute.ready_seconds[b], wire.seconds[b], processor});
      costs_[b].push_back({compute.ready_seconds[b], wire.seconds[b], wire.processor_seconds[b]});
    }
    round.compute = compute.seconds;
    round.communication = Total(wire.seconds);
    round.ideal = IdealStepSeconds(compute.seconds, buckets);
    report_.rounds.push_back(round);
    return absl::OkStatus();
  }

  const OverlapReport& Summarised() {
    const auto median = [](const std::vector<BucketCost>& costs, double BucketCost::*part) {
      std::vector<double> values;
      for (const BucketCost& cost : costs) values.push_back(cost.*part);
      return Median(values);
    };
    for (size_t b = 0; b < costs_.size(); ++b) {
      BucketCost& cost = report_.buckets[b].cost;
      cost.ready_seconds = median(costs_[b], &BucketCost::ready_seconds);
      cost.wire_seconds = median(costs_[b], &BucketCost::wire_seconds);
      cost.processor_seconds = median(costs_[b], &BucketCost::processor_seconds);
    }
    return report_;
  }

  void Describe(int steps) {
    report_.facts = MachineFacts();
    const auto add = [this](const char* name, const std::string& value) { report_.facts.emplace_back(name, value); };
    add("ranks",
        absl::StrCat(group_.size(), options_.pin ? ", each on a core of its own where there are as many" : ""));
    if (options_.device != DeviceKind::kHost) add("gradients on", place_.text);
    add("transport",
        absl::StrCat(group_.Routes(), options_.link.empty() ? ""
                                      : options_.throttle   ? ", messages held back as by links of " + options_.link
                                                            : ", hosts emulated, links of " + options_.link));
    add("model",
        absl::StrFormat("%s, %d parameters, %d elements of f32; costs of %s, %.4g multiplications", model_.name,
                        model_.parameters.size(), model_.elements(), model_.example, model_.multiply_adds()));
    add("compute",
        absl::StrFormat("%s, %.3f ms a step, a third of it forward%s", Name(options_.compute),
                        plan_.total_seconds() * 1e3,
                        options_.compute_ms == 0 ? ": chosen so that backward takes as long as communication" : ""));
    if (options_.wake_per_bucket) add("wakes", "once for each bucket");
    add("bucket caps", absl::StrCat(absl::StrJoin(options_.reducer.bucket_caps_bytes, ", "), " B, from the ",
                                    options_.reducer.caps_from == CapsFrom::kFirst ? "first" : "last", " gradients"));
    add("gradients", options_.reducer.gradient_as_bucket_view ? "live in the buckets" : "copied into buckets and back");
    add("average", absl::StrCat("divided ", options_.average));
    if (options_.reducer.compress.has_value()) add("sent as", lockstep::Name(*options_.reducer.compress));
    add("ideal", absl::StrCat("buckets one after the other, each when its gradients are there",
                              options_.compute == ComputeKind::kBusy
                                  ? ", on a core that has to spare their processor time (that of the rank's threads)"
                                  : ""));
    add("time", absl::StrCat("of the slowest rank, a mean of ", steps, " steps of each kind in turn, ", options_.rounds,
                             " rounds"));
    Print(FactsText(report_.facts));
  }

  const OverlapOptions& options_;
  const ModelTable& model_;
  const Place& place_;
  const ProcessGroup group_;
  std::unique_ptr<Replay> replay_;
  ComputePlan plan_;
  std::unique_ptr<MatmulWork> matmul_;  // with --compute matmul; computation_ borrows it
  std::unique_ptr<Computation> computation_;
  std::vector<std::vector<BucketCost>> costs_;  // by bucket and round
  OverlapReport report_;                        // the facts and the buckets' costs on rank 0 only
};

}  // namespace

absl::Status RunOverlapRank(const OverlapOptions& options) {
  WorldOptions world_options;
  world_options.transport = options.throttle ? "tcp" : options.transport;
  if (options.throttle) {
    world_options.decorate_tcp =
        [&options](std::unique_ptr<PollableTransport> tcp) -> absl::StatusOr<std::unique_ptr<Transport>> {
      return ThrottledTransport::Create(std::move(tcp), options.link_bytes_per_second);
    };
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<World> world, JoinWorld(world_options, options.ranks, options.pin));
  Communicator* const communicator = world->communicator();
  LOCKSTEP_ASSIGN_OR_RETURN(const Place place, FindPlace(options, communicator));
  OverlapProgram program(options, place);
  LOCKSTEP_RETURN_IF_ERROR(program.Run());
  if (communicator->rank() != Rank(0) || options.json.empty()) return absl::OkStatus();
  return WriteJson(OverlapJson(program.report()), options.json);
}

}  // namespace bench
}  // namespace lockstep
