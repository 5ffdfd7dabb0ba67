// Messages of a TransportCommunicator: what lies between its callers and PointToPoint.

#include <utility>

#include "base/status.h"
#include "comm/host/transport_call.h"
#include "comm/host/transport_communicator.h"

namespace lockstep {

absl::StatusOr<std::unique_ptr<TransportCommunicator::Message>> TransportCommunicator::MakeMessage(
    const SendRequest& request) {
  LOCKSTEP_RETURN_IF_ERROR(CheckMessage(request, size_));
  return std::make_unique<Message>(ToCall(request), nullptr, request.timeout, engine_);
}

absl::StatusOr<std::unique_ptr<TransportCommunicator::Message>> TransportCommunicator::MakeMessage(
    const ReceiveRequest& request) {
  LOCKSTEP_RETURN_IF_ERROR(CheckMessage(request, size_));
  return std::make_unique<Message>(ToCall(request), request.info, request.timeout, engine_);
}

absl::Status TransportCommunicator::StartMessage(std::unique_ptr<Message> message, bool background) {
  MutexLock lock(mu());
  const absl::Status over = status_.ok() ? absl::OkStatus() : Over(NameOf(*message));
  if (Collecting()) {
    group_->refused.Update(over);
    LOCKSTEP_RETURN_IF_ERROR(over);
    message->state->set_collector(group_->thread);
    Group::Member& member = group_->members.emplace_back();
    member.state = message->state;
    member.message = std::move(message);
    return absl::OkStatus();
  }
  LOCKSTEP_RETURN_IF_ERROR(over);
  LaunchMessage(std::move(message), background);
  return absl::OkStatus();
}

void TransportCommunicator::LaunchMessage(std::unique_ptr<Message> message, bool background) {
  message->deadline = Deadline::After(message->timeout.count() > 0 ? message->timeout : options_.timeout);
  message->background = background;
  engine_->NoteDeadline(message->deadline);
  if (background) engine_->AddBackgroundWork();
  messages_.Start(message.release());
}

absl::Status TransportCommunicator::FinishMessage(absl::StatusOr<std::unique_ptr<Message>> message) {
  LOCKSTEP_RETURN_IF_ERROR(message.status());
  const Ref<CallState> state = (*message)->state;
  LOCKSTEP_RETURN_IF_ERROR(StartMessage(*std::move(message), /*background=*/false));
  // In a group: its end waits.
  if (state->collected()) return absl::OkStatus();
  engine_->Drive(state->done(), Deadline::Infinite(), /*spin=*/true);
  return state->status();
}

absl::StatusOr<Work> TransportCommunicator::BeginMessage(absl::StatusOr<std::unique_ptr<Message>> message) {
  LOCKSTEP_RETURN_IF_ERROR(message.status());
  Ref<CallState> state = (*message)->state;
  LOCKSTEP_RETURN_IF_ERROR(StartMessage(*std::move(message), /*background=*/true));
  return Work(std::move(state));
}

absl::Status TransportCommunicator::Send(const SendRequest& request) { return FinishMessage(MakeMessage(request)); }
absl::Status TransportCommunicator::Receive(const ReceiveRequest& request) {
  return FinishMessage(MakeMessage(request));
}
absl::StatusOr<Work> TransportCommunicator::StartSend(const SendRequest& request) {
  return BeginMessage(MakeMessage(request));
}
absl::StatusOr<Work> TransportCommunicator::StartReceive(const ReceiveRequest& request) {
  return BeginMessage(MakeMessage(request));
}

void TransportCommunicator::OnMessageDone(MessageCall* call, const absl::Status& status) {
  const std::unique_ptr<Message> message(static_cast<Message*>(call));
  if (status.ok() && message->out_info != nullptr) *message->out_info = message->info;
  message->state->set_message(message->info);
  if (message->background) engine_->RemoveBackgroundWork();
  Complete(message->state.get(), status.ok() ? status : OperationError(status, NameOf(*message)));
}

void TransportCommunicator::OnMessageFailed(MessageCall* call, const absl::Status& status, Rank peer) {
  ReportBroken(status, NameOf(*call), peer);
}

}  // namespace lockstep
