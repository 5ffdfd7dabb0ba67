#include "bench/overlap/options.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "bench/overlap/model_table.h"
#include "comm/price_table.h"

namespace lockstep {
namespace bench {
namespace {

struct AverageName {
  Average average;
  const char* name;
};
constexpr AverageName kAverages[] = {
    {Average::kBefore, "before"}, {Average::kAfter, "after"}, {Average::kInCollective, "in_collective"}};

}  // namespace

absl::Status CheckOptions(const OverlapOptions& options) {
  const auto invalid = [](const std::string& what) { return absl::InvalidArgumentError(what); };
  if (options.ranks < 2) return invalid(absl::StrCat(options.ranks, " ranks have nothing to average; 2 at least have"));
  LOCKSTEP_RETURN_IF_ERROR(FindModel(options.model).status());
  if (!(options.compute_ms >= 0) || options.compute_ms > 1e6) {
    return invalid(absl::StrCat("a step cannot compute for ", options.compute_ms, " ms"));
  }
  if (options.rounds < 1 || options.overhead_steps < 1) return invalid("there must be a round at least");
  if (options.steps < 0 || options.round_time.count() < 1) return invalid("a round has a step or a millisecond");
  if (options.wake_per_bucket && options.compute != ComputeKind::kAway) {
    return invalid("who computes does not sleep: --wake_per_bucket goes with --compute away");
  }
  if (options.device != DeviceKind::kHost && !ComputesOnStream(options.compute)) {
    return invalid("gradients on a GPU are computed by a stream: --device cuda goes with --compute matmul or stream");
  }
  if (!options.link.empty() && (options.transport == "shm" || options.transport == "ofi")) {
    return invalid("shared memory and libfabric have no link: --link goes with --transport tcp or auto");
  }
  if (options.throttle) {
    if (options.link.empty()) return invalid("--throttle goes with --link");
    LOCKSTEP_RETURN_IF_ERROR(LinkBytesPerSecond(options.link).status());
  }
  return absl::OkStatus();
}

absl::StatusOr<double> LinkBytesPerSecond(const std::string& link) {
  if (link == "none") return 0;
  LOCKSTEP_ASSIGN_OR_RETURN(const double ns_per_byte, ParseBandwidth(link));
  return 1e9 / ns_per_byte;
}

absl::StatusOr<DeviceKind> ParseDeviceKind(absl::string_view text) {
  for (const DeviceKind kind : {DeviceKind::kHost, DeviceKind::kCuda}) {
    if (text == lockstep::Name(kind)) return kind;
  }
  return absl::InvalidArgumentError(absl::StrCat("no device '", text, "'; known are host, cuda"));
}

absl::StatusOr<Average> ParseAverage(absl::string_view text) {
  std::vector<std::string> known_names;
  for (const AverageName& known : kAverages) {
    if (text == known.name) return known.average;
    known_names.emplace_back(known.name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no way to average '", text, "'; known are ", absl::StrJoin(known_names, ", ")));
}

std::string Name(Average average) {
  for (const AverageName& known : kAverages) {
    if (known.average == average) return known.name;
  }
  return "otherwise";
}

}  // namespace bench
}  // namespace lockstep
