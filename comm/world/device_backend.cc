#include "comm/world/device_backend.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clipped.h"
#include "base/error_info.h"
#include "base/log.h"
#include "base/rank.h"
#include "base/status.h"
#include "comm/byte_objects.h"

namespace lockstep {
namespace {

constexpr char kNccl[] = "nccl";

using Made = absl::StatusOr<std::unique_ptr<DeviceCommunicator>>;

Made MakeNccl(Communicator* host, Device* device, const DeviceBackendOptions& options, const std::string&) {
  LOCKSTEP_RETURN_IF_ERROR(options.nccl_is_protected);
  return NcclCommunicator::Create(host, device, options.nccl);
}

Made MakeStaged(Communicator* host, Device* device, const DeviceBackendOptions& options, const std::string& reason) {
  StagedOptions staged = options.staged;
  staged.reason = reason;
  return StagedCommunicator::Create(host, device, std::move(staged));
}

// All ranks asked for the same.
absl::Status CheckAlike(Communicator* host, const std::string& wish) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> wishes, AllGatherBytes(host, wish));
  for (int r = 1; r < host->size(); ++r) {
    if (wishes[r] == wishes[0]) continue;
    return WithFailedRank(absl::FailedPreconditionError(
                              absl::StrCat("the ranks ask for different communicators for a device: rank 0 for ",
                                           wishes[0], ", rank ", r, " for ", wishes[r])),
                          host->WorldRank(Rank(r)).value());
  }
  return absl::OkStatus();
}

}  // namespace

const std::vector<DeviceBackend>& DeviceBackends() {
  static const auto* const backends = new std::vector<DeviceBackend>{{kNccl, &MakeNccl}, {"staged", &MakeStaged}};
  return *backends;
}

absl::StatusOr<std::unique_ptr<DeviceCommunicator>> MakeDeviceCommunicator(Communicator* host, Device* device,
                                                                           const DeviceBackendOptions& options) {
  return internal::MakeDeviceCommunicator(host, device, options, DeviceBackends());
}

namespace internal {

absl::StatusOr<std::unique_ptr<DeviceCommunicator>> MakeDeviceCommunicator(Communicator* host, Device* device,
                                                                           const DeviceBackendOptions& options,
                                                                           absl::Span<const DeviceBackend> backends) {
  LOCKSTEP_RETURN_IF_ERROR(CheckAlike(host, absl::StrCat("\"", options.backend, "\" on ", Name(device->id().kind))));
  if (device->id().kind == DeviceKind::kHost) {
    return absl::InvalidArgumentError("the host communicator is the host's own: no other is made for it");
  }
  std::vector<std::string> names, refusals;
  for (const DeviceBackend& backend : backends) {
    names.push_back(backend.name);
    if (options.backend != "auto" && options.backend != backend.name) continue;
    Made made = backend.create(host, device, options, absl::StrJoin(refusals, "; "));
    LOCKSTEP_ASSIGN_OR_RETURN(const RankError first, CompareResults(host, made.status()));
    if (first.rank < 0) {
      const bool notice = backend.name == kNccl && host->rank() == Rank(0) && !options.nccl_notice.empty();
      if (notice) LOCKSTEP_LOG(kInfo) << options.nccl_notice;
      if (options.check_pointers) (*made)->CheckPointers();
      return made;
    }
    const std::string refusal = absl::StrCat(backend.name, ": rank ", first.rank, ": ", first.status.message());
    if (options.backend != "auto" || !IsRefusal(first.status)) {
      LOCKSTEP_RETURN_IF_ERROR(Annotate(made.status(), backend.name));
      return absl::UnavailableError(refusal);
    }
    refusals.push_back(refusal);
  }
  if (options.backend != "auto") {
    return absl::InvalidArgumentError(absl::StrCat("there is no way for a device's tensors by the name of \"",
                                                   Clipped(options.backend), "\": there are auto, ",
                                                   absl::StrJoin(names, ", ")));
  }
  return absl::UnavailableError(
      absl::StrCat("there is no way for tensors on ", Name(device->id().kind), ": ", absl::StrJoin(refusals, "; ")));
}

}  // namespace internal
}  // namespace lockstep
