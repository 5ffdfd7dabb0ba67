// How well communication hides behind computation, on the gradients of real models. See --help.

#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/device/cuda/cuda_device.h"
#include "base/device/device.h"
#include "base/status.h"
#include "base/types/dtype.h"
#include "bench/model.h"
#include "bench/overlap/computation.h"
#include "bench/overlap/replay.h"
#include "bench/overlap/report.h"
#include "bench/ranks.h"
#include "bench/report.h"
#include "comm/communicator.h"
#include "comm/world/device_backend.h"
#include "comm/world/world.h"
#include "reducer/reducer.h"

ABSL_FLAG(int, nproc, 2, "ranks to start");
ABSL_FLAG(std::string, model, "resnet50",
          "whose gradients: resnet50, bert_base, bert_large, gpt2_small, mlp, tensors64");
ABSL_FLAG(std::string, compute, "busy",
          "busy: arithmetic on the rank's own core, as a framework on processors does; away: sleep, as when an "
          "accelerator computes; stream: on a stream, while the rank goes on, a clock is watched, which leaves the "
          "device to communication");
ABSL_FLAG(double, compute_ms, 0,
          "of a step, a third of it forward; 0: such that backward takes as long as communication alone");
ABSL_FLAG(std::string, device, "host",
          "where gradients are: host, or cuda, on the host's GPUs in turn; exit status 77 without one");
ABSL_FLAG(std::string, backend, "auto",
          "with --device cuda, what brings gradients to the other ranks: nccl, staged or auto");
ABSL_FLAG(std::string, transport, "", "auto, shm, tcp or ofi; empty: as LOCKSTEP_TRANSPORT says");
ABSL_FLAG(double, first_bucket_cap_mb, -1, "cap of the first bucket in MiB; below 0: the reducer's default");
ABSL_FLAG(double, bucket_cap_mb, -1, "cap of the other buckets in MiB; below 0: the reducer's default");
ABSL_FLAG(std::string, compress, "", "what gradients are sent as: f16 or bf16; empty: as they are");
ABSL_FLAG(bool, caps_from_last, false, "the first cap is that of the last bucket, and so on");
ABSL_FLAG(std::string, gradients, "default,copied,views",
          "how gradients are kept, a list of what to compare: default: as the reducer likes it; copied: into buckets "
          "and back; views: they live in the buckets");
ABSL_FLAG(bool, replicas, false, "compare the ranks' parameters in each step as well, as PyTorch's wrapper does");
ABSL_FLAG(int, rounds, 15, "rounds, in each of which every kind of step is measured");
ABSL_FLAG(int64_t, round_ms, 100, "how long the steps of each kind take in a round; there is one at least");
ABSL_FLAG(bool, pin, true, "keep each rank on a core of its own, where there are as many");
ABSL_FLAG(std::string, json, "", "also write the results, every round of them, to this file");

namespace lockstep::bench {
namespace {

constexpr int kWarmUpSteps = 3;
constexpr int kOverheadSteps = 300;

absl::Status SetCap(double mib, size_t* cap_bytes) {
  if (mib < 0) return absl::OkStatus();
  if (!(mib <= 1 << 20)) return absl::InvalidArgumentError(absl::StrCat("no bucket has ", mib, " MiB"));
  *cap_bytes = static_cast<size_t>(std::llround(mib * (1 << 20)));
  return absl::OkStatus();
}

struct Options {
  int ranks = 2;
  ModelTable model;
  ComputeKind compute = ComputeKind::kBusy;
  bool on_gpu = false;
  // What all modes have in common. Not planned anew: gradients come in the order that the first plan expects.
  ReducerOptions reducer;
  std::vector<std::string> modes;
};

absl::StatusOr<ReducerOptions> OptionsOf(const std::string& mode, ReducerOptions options) {
  if (mode != "default" && mode != "copied" && mode != "views") {
    return absl::InvalidArgumentError(
        absl::StrCat("no way to keep gradients '", mode, "'; known are default, copied, views"));
  }
  options.copy_gradients = mode == "copied";
  options.gradient_as_bucket_view = mode == "views";
  return options;
}

absl::StatusOr<Options> OptionsFromFlags() {
  const auto invalid = [](const std::string& what) { return absl::InvalidArgumentError(what); };
  Options options;
  options.ranks = absl::GetFlag(FLAGS_nproc);
  if (options.ranks < 2) return invalid(absl::StrCat(options.ranks, " ranks have nothing to average; 2 at least have"));
  LOCKSTEP_ASSIGN_OR_RETURN(options.model, FindModel(absl::GetFlag(FLAGS_model)));
  LOCKSTEP_ASSIGN_OR_RETURN(options.compute, ParseComputeKind(absl::GetFlag(FLAGS_compute)));
  const double compute_ms = absl::GetFlag(FLAGS_compute_ms);
  if (!(compute_ms >= 0) || compute_ms > 1e6) {
    return invalid(absl::StrCat("a step cannot compute for ", compute_ms, " ms"));
  }
  const std::string device = absl::GetFlag(FLAGS_device);
  options.on_gpu = device == "cuda";
  if (device != "host" && device != "cuda")
    return invalid(absl::StrCat("no device '", device, "'; known are host, cuda"));
  if (options.on_gpu && options.compute != ComputeKind::kStream) {
    return invalid("gradients on a GPU are computed by a stream: --device cuda goes with --compute stream");
  }
  if (options.on_gpu && absl::GetFlag(FLAGS_replicas)) return invalid("--replicas compares memory of the host");
  if (options.on_gpu) LOCKSTEP_RETURN_IF_ERROR(CudaDeviceCount().status());
  std::vector<size_t>& caps = options.reducer.bucket_caps_bytes;
  LOCKSTEP_RETURN_IF_ERROR(SetCap(absl::GetFlag(FLAGS_first_bucket_cap_mb), &caps.front()));
  LOCKSTEP_RETURN_IF_ERROR(SetCap(absl::GetFlag(FLAGS_bucket_cap_mb), &caps.back()));
  if (const std::string dtype = absl::GetFlag(FLAGS_compress); !dtype.empty()) {
    if (dtype != "f16" && dtype != "bf16") return invalid(absl::StrCat("--compress: ", dtype));
    options.reducer.compress = dtype == "f16" ? DType::kF16 : DType::kBF16;
  }
  if (absl::GetFlag(FLAGS_caps_from_last)) options.reducer.caps_from = CapsFrom::kLast;
  options.reducer.replan = false;
  options.modes = absl::StrSplit(absl::GetFlag(FLAGS_gradients), ',');
  for (const std::string& mode : options.modes) LOCKSTEP_RETURN_IF_ERROR(OptionsOf(mode, {}).status());
  if (absl::GetFlag(FLAGS_rounds) < 1 || absl::GetFlag(FLAGS_round_ms) < 1) {
    return invalid("there must be a round at least, of a millisecond");
  }
  return options;
}

// Where a program's gradients are, with what computes them and a communicator that reaches them.
struct Place {
  ReplayPlace replay;
  Communicator* communicator = nullptr;
  std::string text;  // of a GPU, for people: the device, and how its tensors travel
  // What the others borrow, where they are not the caller's.
  std::unique_ptr<Communicator> on_device;
  std::unique_ptr<Stream> stream;
};

absl::StatusOr<Place> FindPlace(const Options& options, Communicator* world) {
  Place place;
  place.replay.compares_replicas = absl::GetFlag(FLAGS_replicas);
  if (!options.on_gpu) {
    place.communicator = world;
    if (options.compute == ComputeKind::kStream) {
      LOCKSTEP_ASSIGN_OR_RETURN(place.stream, place.replay.device->CreateStream("compute"));
    }
  } else {
    LOCKSTEP_ASSIGN_OR_RETURN(const int gpus, CudaDeviceCount());
    const int rank = world->rank().value();
    if (world->size() > gpus) setenv("NCCL_HOSTID", absl::StrCat("rank", rank).c_str(), /*overwrite=*/0);
    LOCKSTEP_ASSIGN_OR_RETURN(place.replay.device, CudaDevice(rank % gpus));
    DeviceBackendOptions backend;
    backend.backend = absl::GetFlag(FLAGS_backend);
    LOCKSTEP_ASSIGN_OR_RETURN(place.on_device, MakeDeviceCommunicator(world, place.replay.device, backend));
    place.communicator = place.on_device.get();
    // The default stream, in which frameworks compute unless they are told otherwise.
    LOCKSTEP_ASSIGN_OR_RETURN(place.stream, place.replay.device->BorrowStream(nullptr));
    // The first line is the device's.
    const std::string description = place.communicator->Describe();
    place.text = std::string(*absl::StrSplit(description, '\n').begin());
  }
  place.replay.stream = place.stream.get();
  return place;
}

// One rank's part in the program.
class OverlapProgram {
 public:
  OverlapProgram(const Options& options, const Place& place)
      : options_(options),
        model_(options.model),
        place_(place),
        group_(place.communicator),
        memories_(options.on_gpu ? std::vector<WireMemory>{WireMemory::kOrdinary}
                                 : std::vector<WireMemory>{WireMemory::kOrdinary, WireMemory::kAllocator}),
        report_(group_.leads() ? stdout : nullptr) {}

  absl::Status Run() {
    LOCKSTEP_RETURN_IF_ERROR(MakeReplays());
    LOCKSTEP_RETURN_IF_ERROR(MakeComputations());
    LOCKSTEP_ASSIGN_OR_RETURN(const int steps, WarmUp());
    if (group_.leads()) Describe(steps);
    for (int round = 0; round < absl::GetFlag(FLAGS_rounds); ++round) {
      LOCKSTEP_RETURN_IF_ERROR(RunRound(round, steps));
    }
    for (const Mode& mode : modes_) LOCKSTEP_RETURN_IF_ERROR(mode.replay->CheckedStep());
    LOCKSTEP_RETURN_IF_ERROR(group_.Barrier());
    LOCKSTEP_ASSIGN_OR_RETURN(found_.overhead, MeasureReducerOverhead(first().reducer().plan(), kOverheadSteps));
    Show(found_, &report_);
    return report_.Write(absl::GetFlag(FLAGS_json));
  }

 private:
  using WireMemory = Replay::WireMemory;

  struct Mode {
    std::unique_ptr<Replay> replay;
    std::unique_ptr<Computation> computation;
  };

  // What is not a mode's own is measured with this one. The plans are the same.
  Replay& first() const { return *modes_.front().replay; }

  // Every rank alike, so that the leader's memory stands for all.
  absl::Status MakeReplays() {
    for (const std::string& name : options_.modes) {
      LOCKSTEP_ASSIGN_OR_RETURN(const ReducerOptions reducer, OptionsOf(name, options_.reducer));
      LOCKSTEP_ASSIGN_OR_RETURN(const int64_t bytes_before, ProportionalBytes());
      Mode& mode = modes_.emplace_back();
      LOCKSTEP_ASSIGN_OR_RETURN(mode.replay, Replay::Create(group_, model_, reducer, place_.replay));
      for (int step = 0; step < 2; ++step) LOCKSTEP_RETURN_IF_ERROR(mode.replay->CheckedStep());
      LOCKSTEP_ASSIGN_OR_RETURN(const int64_t bytes_after, ProportionalBytes());
      found_.modes.push_back({name, bytes_after - bytes_before});
    }
    found_.gradient_bytes = model_.elements() * static_cast<int64_t>(sizeof(float));
    for (const BucketPlan::Bucket& bucket : first().reducer().plan().buckets) {
      OverlapBucket row;
      row.bytes = static_cast<int64_t>(bucket.bytes());
      row.parameters = static_cast<int>(bucket.slots.size());
      found_.buckets.push_back(row);
    }
    return absl::OkStatus();
  }

  // Of one plan.
  absl::Status MakeComputations() {
    for (const WireMemory memory : memories_) LOCKSTEP_RETURN_IF_ERROR(CommunicationOnly(memory, 1).status());
    double seconds = absl::GetFlag(FLAGS_compute_ms) / 1e3;
    if (seconds == 0) {
      std::vector<double> totals;
      for (int step = 0; step < kWarmUpSteps; ++step) {
        LOCKSTEP_ASSIGN_OR_RETURN(const Replay::WireTimes wire, CommunicationOnly(WireMemory::kOrdinary, 1));
        totals.push_back(Total(wire.seconds));
      }
      // Of which backward is two thirds.
      seconds = Median(totals) * 3 / 2;
    }
    LOCKSTEP_ASSIGN_OR_RETURN(const int64_t nanoseconds, group_.FromLeader(std::llround(seconds * 1e9)));
    plan_ = PlanCompute(model_, static_cast<double>(nanoseconds) * 1e-9);
    const double units_per_second = options_.compute == ComputeKind::kBusy ? CalibrateArithmetic() : 0;
    for (Mode& mode : modes_) {
      switch (options_.compute) {
        case ComputeKind::kBusy:
          mode.computation =
              MakeBusyComputation(plan_, units_per_second, mode.replay->gradients(), mode.replay->own_value());
          break;
        case ComputeKind::kAway:
          mode.computation = MakeAwayComputation(plan_);
          break;
        case ComputeKind::kStream:
          mode.computation = MakeStreamComputation(plan_, place_.replay.stream);
      }
    }
    return absl::OkStatus();
  }

  // Returns the steps of a round, equal on all ranks.
  absl::StatusOr<int> WarmUp() {
    double slowest = 0;
    for (const Mode& mode : modes_) {
      double seconds = 0;
      for (int step = 0; step < kWarmUpSteps; ++step) {
        LOCKSTEP_ASSIGN_OR_RETURN(seconds, mode.replay->Step(*mode.computation, 1, /*overlap=*/true));
      }
      slowest = std::max(slowest, seconds);
    }
    const double fitting = static_cast<double>(absl::GetFlag(FLAGS_round_ms)) / 1e3 / slowest;
    return std::clamp(static_cast<int>(fitting), 1, 1000);
  }

  absl::StatusOr<Replay::WireTimes> CommunicationOnly(WireMemory memory, int steps) {
    // Who computes beside it lets nobody poll.
    return first().CommunicationOnly(memory, steps, /*background=*/options_.compute == ComputeKind::kBusy);
  }

  static double Total(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

  // Computation, communication in each memory, and two kinds of steps of each mode, in turn, beginning with another one each round.
  absl::Status RunRound(int number, int steps) {
    OverlapRound round;
    round.steps.resize(modes_.size());
    Replay::ComputeTimes compute;
    std::vector<Replay::WireTimes> wires(memories_.size());
    if (!options_.on_gpu) {
      for (const bool as_list : {number % 2 == 0, number % 2 != 0}) {
        double& seconds = as_list ? round.list : round.flat;
        LOCKSTEP_ASSIGN_OR_RETURN(seconds, first().AllReduceAll(as_list));
      }
    }
    const size_t kinds = 1 + wires.size() + 2 * modes_.size();
    for (size_t i = 0; i < kinds; ++i) {
      size_t kind = (static_cast<size_t>(number) + i) % kinds;
      if (kind == 0) {
        LOCKSTEP_ASSIGN_OR_RETURN(compute, first().ComputeOnly(*modes_.front().computation, steps));
      } else if (kind <= wires.size()) {
        LOCKSTEP_ASSIGN_OR_RETURN(wires[kind - 1], CommunicationOnly(memories_[kind - 1], steps));
      } else {
        kind -= 1 + wires.size();
        const Mode& mode = modes_[kind / 2];
        const bool overlap = kind % 2 == 1;
        double& seconds = overlap ? round.steps[kind / 2].overlapped : round.steps[kind / 2].serial;
        LOCKSTEP_ASSIGN_OR_RETURN(seconds, mode.replay->Step(*mode.computation, steps, overlap));
      }
    }
    round.compute = compute.seconds;
    for (const Replay::WireTimes& wire : wires) {
      std::vector<BucketCost> buckets;
      for (size_t b = 0; b < found_.buckets.size(); ++b) {
        buckets.push_back({compute.ready_seconds[b], wire.seconds[b], wire.processor_seconds[b]});
        if (&wire == &wires.front()) found_.buckets[b].costs.push_back(buckets.back());
        if (options_.compute != ComputeKind::kBusy) buckets.back().processor_seconds = 0;
      }
      round.communication.push_back({Total(wire.seconds), IdealStepSeconds(compute.seconds, buckets)});
    }
    found_.rounds.push_back(round);
    return absl::OkStatus();
  }

  void Describe(int steps) {
    const auto flag = [](bool set, const char* text) { return set ? text : ""; };
    Facts facts = MachineFacts();
    const auto add = [&facts](const char* name, const std::string& value) { facts.emplace_back(name, value); };
    add("ranks", absl::StrCat(group_.size(),
                              flag(absl::GetFlag(FLAGS_pin), ", each on a core of its own where there are as many")));
    if (options_.on_gpu) add("gradients on", place_.text);
    add("transport", group_.Routes());
    add("model",
        absl::StrFormat("%s, %d parameters, %d elements of f32; costs of %s, %.4g multiplications", model_.name,
                        model_.parameters.size(), model_.elements(), model_.example, model_.multiply_adds()));
    add("compute",
        absl::StrFormat(
            "%s, %.3f ms a step, a third of it forward%s", Name(options_.compute), plan_.total_seconds() * 1e3,
            flag(absl::GetFlag(FLAGS_compute_ms) == 0, ": chosen so that backward takes as long as communication")));
    add("bucket caps", absl::StrCat(absl::StrJoin(options_.reducer.bucket_caps_bytes, ", "), " B, from the ",
                                    options_.reducer.caps_from == CapsFrom::kFirst ? "first" : "last", " gradients"));
    add("gradients", absl::StrJoin(options_.modes, ", "));
    if (options_.reducer.compress.has_value()) add("sent as", lockstep::Name(*options_.reducer.compress));
    add("ideal", absl::StrCat("buckets one after the other, each when its gradients are there",
                              flag(options_.compute == ComputeKind::kBusy,
                                   ", on a core that has to spare their processor time (that of the rank's threads)"),
                              flag(!options_.on_gpu, "; flat vectors, in ordinary memory where nothing else is said")));
    add("time", absl::StrCat("of the slowest rank, a mean of ", steps, " steps of each kind in turn, ",
                             absl::GetFlag(FLAGS_rounds), " rounds"));
    report_.AddFacts(facts);
  }

  const Options& options_;
  const ModelTable& model_;
  const Place& place_;
  const ProcessGroup group_;
  const std::vector<WireMemory> memories_;
  std::vector<Mode> modes_;
  ComputePlan plan_;
  OverlapReport found_;
  Report report_;
};

// DATA_LOSS for wrong averages. Ranks take the host's GPUs in turn; those that share one get an NCCL_HOSTID of their own, without which
// NCCL refuses them.
absl::Status RunRank(const Options& options) {
  WorldOptions world_options;
  world_options.transport = absl::GetFlag(FLAGS_transport);
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<World> world,
                            JoinWorld(world_options, options.ranks, absl::GetFlag(FLAGS_pin)));
  LOCKSTEP_ASSIGN_OR_RETURN(const Place place, FindPlace(options, world->communicator()));
  return OverlapProgram(options, place).Run();
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  return lockstep::bench::RunBench(
      argc, argv,
      "replays a model's training steps on ranks that it starts on this machine, or that a "
      "launcher has started anywhere: its gradients in their order, and computation that "
      "takes its time; prints steps with and without overlap beside the ideal",
      &lockstep::bench::OptionsFromFlags, &lockstep::bench::RunRank);
}
