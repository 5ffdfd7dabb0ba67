#include "comm/device/staged/staged_communicator.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/rank.h"
#include "base/ref.h"
#include "base/status.h"
#include "comm/byte_objects.h"
#include "comm/device/device_work.h"
#include "comm/device/staged/staged_plan.h"
#include "comm/device/staged/staging.h"

namespace lockstep {
namespace {

constexpr int kSlotsMax = 64;

absl::Status CheckOptions(const StagedOptions& options, int size) {
  if (options.slots < 1 || options.slots > kSlotsMax) {
    return absl::InvalidArgumentError(absl::StrCat("staging by ", options.slots, " slots: 1 to ", kSlotsMax));
  }
  const size_t min = StagedPlan::SlotBytesMin(size);
  if (options.chunk_bytes < min) {
    return absl::InvalidArgumentError(
        absl::StrCat("staging by chunks of ", options.chunk_bytes, " bytes: at least ", min, " in a world of ", size));
  }
  return absl::OkStatus();
}

// Every rank's part of the set-up went well, and alike. What a rank says is its options and its error.
absl::Status CheckAlike(Communicator* host, const std::string& options, const absl::Status& mine) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> errors, AllGatherBytes(host, std::string(mine.message())));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> all, AllGatherBytes(host, options));
  LOCKSTEP_RETURN_IF_ERROR(mine);
  for (int r = 0; r < host->size(); ++r) {
    if (!errors[r].empty()) return absl::UnavailableError(absl::StrCat("staging: rank ", r, ": ", errors[r]));
  }
  for (int r = 1; r < host->size(); ++r) {
    if (all[r] == all[0]) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("the ranks stage differently: rank 0 by ", all[0], ", rank ", r, " by ", all[r]));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<StagedCommunicator>> StagedCommunicator::Create(HostPart host, Device* device,
                                                                               StagedOptions options) {
  auto made = std::unique_ptr<StagedCommunicator>(new StagedCommunicator(std::move(host), device, std::move(options)));
  StagedCommunicator* const self = made.get();
  std::unique_ptr<Staging> staging;
  absl::Status mine = CheckOptions(self->options_, self->size());
  if (mine.ok()) {
    absl::StatusOr<std::unique_ptr<Staging>> created =
        Staging::Create(device, self->options_.slots, self->options_.chunk_bytes);
    mine = created.status();
    if (created.ok()) staging = *std::move(created);
  }
  const std::string alike = absl::StrCat(self->options_.slots, " slots of ", self->options_.chunk_bytes, " bytes");
  LOCKSTEP_RETURN_IF_ERROR(CheckAlike(self->host(), alike, mine));
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator, self->host()->Duplicate());
  StagedPipeline::Options pipeline;
  pipeline.timeout = self->options_.timeout;
  pipeline.flight_records = self->options_.flight_records;
  self->pipeline_ = std::make_unique<StagedPipeline>(
      std::move(staging), std::move(communicator), self->failure(),
      [self](const absl::Status& status) {
        // Both communicators hear of what ends all, and the host's tells it in fewer words.
        const absl::Status host_status = self->host()->status();
        self->Fail(host_status.ok() ? status : host_status);
      },
      pipeline);
  return made;
}

StagedCommunicator::~StagedCommunicator() {
  Close();
  pipeline_ = nullptr;
}

absl::Status StagedCommunicator::status() const {
  if (absl::Status status = DeviceCommunicator::status(); !status.ok()) return status;
  failure()->Set(pipeline_->communicator()->status());
  return failure()->status();
}

void StagedCommunicator::OnFailure(const absl::Status& status) {
  Communicator* const communicator = pipeline_->communicator();
  if (communicator->status().ok()) communicator->Abort(std::string(status.message()));
}

void StagedCommunicator::OnLeave() {
  DeviceCommunicator::OnLeave();
  // What it has in flight ends there.
  pipeline_->communicator()->Leave();
}

std::string StagedCommunicator::FlightRecords() const {
  return absl::StrCat(DeviceCommunicator::FlightRecords(), "on ", Name(device()), ":\n", pipeline_->FlightRecords(),
                      "in pieces:\n", pipeline_->communicator()->FlightRecords());
}

std::string StagedCommunicator::DescribeDevice() const {
  return absl::StrCat(Name(device()), ": staged through ", options_.slots, " slots of ", options_.chunk_bytes,
                      " bytes on the host", options_.reason.empty() ? "" : ": ", options_.reason);
}

absl::StatusOr<std::unique_ptr<Communicator>> StagedCommunicator::MakePart(std::unique_ptr<Communicator> part,
                                                                           int /*color*/, int /*key*/) {
  if (part == nullptr) return nullptr;
  return Create(std::move(part), accelerator(), options_);
}

// ---- Calls

absl::Status StagedCommunicator::CheckOnDevice(const DeviceCall& call) {
  const auto* const request = std::get_if<CollectiveRequest>(&call);
  if (request == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("messages of buffers on ", Name(device()), " are not staged: copy them to the host"));
  }
  // What the host communicator would refuse only when the call comes to it.
  CollectiveRequest on_host = *request;
  on_host.device = DeviceId();
  return pipeline_->communicator()->Prepare(on_host).status();
}

absl::Status StagedCommunicator::FailIfNotOk(const absl::Status& issued) {
  if (issued.ok()) return issued;
  Fail(Annotate(issued, absl::StrCat("staging on ", Name(device()))));
  return status();
}

absl::StatusOr<Work> StagedCommunicator::StartOnDevice(absl::Span<const DeviceCall> calls) {
  LOCKSTEP_RETURN_IF_ERROR(pipeline_->CheckRoom(calls.size()));
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Event> end, accelerator()->CreateEvent());
  LOCKSTEP_RETURN_IF_ERROR(FailIfNotOk(pipeline_->IssueUntil(calls, end.get())));
  // Calls are done in their order, and fail with all that come later.
  return Work(MakeRef<EventWork>(failure(), std::move(end), NameNext(calls)));
}

absl::Status StagedCommunicator::IssueOnDevice(absl::Span<const DeviceCall> calls, Stream* stream) {
  if (stream->capturing()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the stream is being captured, and collectives on ", Name(device()),
                     " are staged through the host: a graph cannot repeat them (", options_.reason, ")"));
  }
  LOCKSTEP_RETURN_IF_ERROR(pipeline_->CheckRoom(calls.size()));
  return FailIfNotOk(pipeline_->Issue(calls, stream));
}

}  // namespace lockstep
