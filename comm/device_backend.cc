#include "comm/device_backend.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/rank.h"
#include "base/status.h"
#include "comm/byte_objects.h"
#include "comm/nccl_communicator.h"
#include "comm/staged_communicator.h"

namespace lockstep {
namespace {

using Made = absl::StatusOr<std::unique_ptr<DeviceCommunicator>>;

Made MakeNccl(Communicator* host, Device* device, const DeviceBackendOptions& options, const std::string&) {
  NcclCommunicatorOptions nccl;
  nccl.deterministic = options.deterministic;
  nccl.checked = options.checked;
  nccl.timeout = options.timeout;
  nccl.flight_records = options.flight_records;
  return NcclCommunicator::Create(host, device, nccl);
}

Made MakeStaged(Communicator* host, Device* device, const DeviceBackendOptions& options, const std::string& reason) {
  StagedOptions staged;
  staged.chunk_bytes = options.chunk_bytes;
  staged.timeout = options.timeout;
  staged.flight_records = options.flight_records;
  staged.reason = reason;
  return StagedCommunicator::Create(host, device, std::move(staged));
}

Made MakeIpc(Communicator*, Device*, const DeviceBackendOptions&, const std::string&) {
  return absl::UnimplementedError("collectives by memory that processes on one GPU share");
}

// Not the caller's fault, and no other back end's.
bool MayGoOn(absl::StatusCode code) {
  return code == absl::StatusCode::kUnavailable || code == absl::StatusCode::kFailedPrecondition ||
         code == absl::StatusCode::kUnimplemented;
}

// All ranks asked for the same.
absl::Status CheckAlike(Communicator* host, const std::string& wish) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> wishes, AllGatherBytes(host, wish));
  for (int r = 1; r < host->size(); ++r) {
    if (wishes[r] == wishes[0]) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("the ranks ask for different communicators for a device: rank 0 for ", wishes[0], ", rank ", r,
                     " for ", wishes[r]));
  }
  return absl::OkStatus();
}

// What the ranks' results come to, alike on all: the first error that another back end could not help; else the first
// one.
struct Verdict {
  int rank = -1;  // all went well
  absl::Status status;
};

absl::StatusOr<Verdict> Compare(Communicator* host, const absl::Status& mine) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> codes,
                            AllGatherBytes(host, absl::StrCat(static_cast<int>(mine.code()))));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> messages, AllGatherBytes(host, std::string(mine.message())));
  Verdict verdict;
  for (int r = 0; r < host->size(); ++r) {
    int code = 0;
    if (!absl::SimpleAtoi(codes[r], &code)) return absl::InternalError(absl::StrCat("rank ", r, " sent no code"));
    const absl::Status status(static_cast<absl::StatusCode>(code), messages[r]);
    if (status.ok()) continue;
    if (verdict.rank < 0 || (MayGoOn(verdict.status.code()) && !MayGoOn(status.code()))) verdict = {r, status};
  }
  return verdict;
}

}  // namespace

const std::vector<DeviceBackend>& DeviceBackends() {
  static const auto* const backends =
      new std::vector<DeviceBackend>{{"nccl", &MakeNccl}, {"staged", &MakeStaged}, {"ipc", &MakeIpc}};
  return *backends;
}

absl::StatusOr<std::unique_ptr<DeviceCommunicator>> MakeDeviceCommunicator(HostPart host, Device* device,
                                                                           const DeviceBackendOptions& options) {
  return internal::MakeDeviceCommunicator(std::move(host), device, options, DeviceBackends());
}

absl::Status AgreeThatAllCan(Communicator* host, const absl::Status& mine) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Verdict verdict, Compare(host, mine));
  if (verdict.rank < 0 || !mine.ok()) return mine;
  return absl::UnavailableError(absl::StrCat("rank ", verdict.rank, ": ", verdict.status.message()));
}

namespace internal {

absl::StatusOr<std::unique_ptr<DeviceCommunicator>> MakeDeviceCommunicator(HostPart host, Device* device,
                                                                           const DeviceBackendOptions& options,
                                                                           absl::Span<const DeviceBackend> backends) {
  LOCKSTEP_RETURN_IF_ERROR(
      CheckAlike(host.get(), absl::StrCat("\"", options.backend, "\" on ", Name(device->id().kind))));
  if (device->id().kind == DeviceKind::kHost) {
    return absl::InvalidArgumentError("the host communicator is the host's own: no other is made for it");
  }
  std::vector<std::string> names, refusals;
  for (const DeviceBackend& backend : backends) {
    names.push_back(backend.name);
    if (options.backend != "auto" && options.backend != backend.name) continue;
    Made made = backend.create(host.get(), device, options, absl::StrJoin(refusals, "; "));
    LOCKSTEP_ASSIGN_OR_RETURN(const Verdict verdict, Compare(host.get(), made.status()));
    if (verdict.rank < 0) {
      (*made)->KeepHost(std::move(host));
      if (options.checked) (*made)->CheckPointers();
      return made;
    }
    const std::string refusal = absl::StrCat(backend.name, ": rank ", verdict.rank, ": ", verdict.status.message());
    if (options.backend != "auto" || !MayGoOn(verdict.status.code())) {
      LOCKSTEP_RETURN_IF_ERROR(Annotate(made.status(), backend.name));
      return absl::UnavailableError(refusal);
    }
    refusals.push_back(refusal);
  }
  if (options.backend != "auto") {
    return absl::InvalidArgumentError(absl::StrCat("there is no way for a device's tensors by the name of \"",
                                                   options.backend, "\": there are auto, ",
                                                   absl::StrJoin(names, ", ")));
  }
  return absl::UnavailableError(
      absl::StrCat("there is no way for tensors on ", Name(device->id().kind), ": ", absl::StrJoin(refusals, "; ")));
}

}  // namespace internal
}  // namespace lockstep
