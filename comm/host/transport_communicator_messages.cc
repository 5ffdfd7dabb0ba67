// Messages of a TransportCommunicator: what lies between its callers and PointToPoint.

#include <utility>

#include "base/status.h"
#include "comm/host/transport_call.h"
#include "comm/host/transport_communicator.h"

namespace lockstep {

template <typename Request>
absl::StatusOr<Ref<TransportCommunicator::CallState>> TransportCommunicator::StartMessage(const Request& request,
                                                                                          MessageInfo* info,
                                                                                          bool background) {
  absl::Status wrong = CheckOnHost(request.device);
  if (wrong.ok()) wrong = CheckMessage(request, size_);
  if (!wrong.ok()) return Refuse(wrong);
  auto message = std::make_unique<Message>(ToCall(request), info, request.timeout, engine_);
  Ref<CallState> state = message->state;
  MutexLock lock(mu());
  const absl::Status over = status_.ok() ? absl::OkStatus() : Over(NameOf(*message));
  if (Collecting()) group_->refused.Update(over);
  LOCKSTEP_RETURN_IF_ERROR(over);
  if (Collecting()) {
    state->set_collector(group_->thread);
    Group::Member& member = group_->members.emplace_back();
    member.state = state;
    member.message = std::move(message);
  } else {
    LaunchMessage(std::move(message), background);
  }
  return absl::StatusOr<Ref<CallState>>(std::move(state));
}

void TransportCommunicator::LaunchMessage(std::unique_ptr<Message> message, bool background) {
  message->deadline = Deadline::After(TimeoutOr(message->timeout));
  message->background = background;
  engine_->NoteDeadline(message->deadline);
  if (background) engine_->AddBackgroundWork();
  messages_.Start(message.release());
}

absl::Status TransportCommunicator::Send(const SendRequest& request) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Ref<CallState> state, StartMessage(request, nullptr, /*background=*/false));
  return state->Finish();
}
absl::Status TransportCommunicator::Receive(const ReceiveRequest& request) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Ref<CallState> state, StartMessage(request, request.info, /*background=*/false));
  return state->Finish();
}
absl::StatusOr<Work> TransportCommunicator::StartSend(const SendRequest& request) {
  LOCKSTEP_ASSIGN_OR_RETURN(Ref<CallState> state, StartMessage(request, nullptr, /*background=*/true));
  return Work(std::move(state));
}
absl::StatusOr<Work> TransportCommunicator::StartReceive(const ReceiveRequest& request) {
  LOCKSTEP_ASSIGN_OR_RETURN(Ref<CallState> state, StartMessage(request, request.info, /*background=*/true));
  return Work(std::move(state));
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
