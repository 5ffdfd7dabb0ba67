// Collectives of a TransportCommunicator on vectors in pieces.

#include <algorithm>
#include <memory>

#include "absl/status/status.h"
#include "base/check.h"
#include "base/types/dtype.h"
#include "comm/engine/operand_memory.h"
#include "comm/host/transport_call.h"
#include "comm/host/transport_communicator.h"
#include "comm/pieces.h"
#include "comm/schedule/schedule.h"

namespace lockstep {

absl::Status TransportCommunicator::PreparePieces(const CollectiveRequest& request, Call* call) {
  const CallPlan& plan = *call->call_plan;
  const Collective collective = request.collective;
  for (const Window window : {Window::kInput, Window::kOutput}) {
    const Pieces* const pieces = (window == Window::kInput ? request.input_pieces : request.output_pieces).get();
    if (pieces == nullptr) continue;
    LOCKSTEP_CHECK(pieces->dtype() == request.dtype && collective != Collective::kAllToAll);
    LOCKSTEP_CHECK(IsOwnBlock(collective, window) || pieces->bytes() == plan.vector_bytes)
        << pieces->bytes() << " bytes";
  }
  call->input_pieces = request.input_pieces;
  call->output_pieces = request.output_pieces;
  const bool by_messages = size_ > 1 && !UsesSharedMemory(plan.signature.algorithm);
  const double factor = plan.input_count > 0 ? InputFactor(request, size_) : 1.0;
  // In messages the output also holds what is on its way.
  const bool keeps_values = call->output_pieces == nullptr || call->output_pieces->keeps_values();
  const bool flat = by_messages && !keeps_values;
  // In place, a multiplied input is read once only.
  const bool multiplied = by_messages && call->input_pieces != nullptr && call->input_pieces->factor() != 1;
  if (factor == 1.0 && !flat && !multiplied) return absl::OkStatus();

  // Other threads get on meanwhile; the call is nobody's but ours.
  mu()->Unlock();
  LOCKSTEP_CHECK(!flat || collective == Collective::kAllReduce) << Name(collective);
  OperandMemory target = call->Caller(Window::kOutput, 0);
  if (!keeps_values || !plan.prepare_in_output) {
    call->prepared.resize(std::max(call->prepared.size(), plan.vector_bytes));
    target = {call->prepared.data()};
  }
  absl::Status status;
  if (factor == 1.0) {
    OperandSteps().Copy(target, call->Caller(Window::kInput, 0), plan.vector_bytes);
  } else {
    status = OperandSteps().Scale(request.dtype, target, call->Caller(Window::kInput, 0), plan.vector_bytes, factor);
  }
  if (flat) {
    call->copied_to = request.output_pieces;
    call->output_pieces = nullptr;
    call->output = target.data;
  }
  call->input = target.data;
  call->input_pieces = target.pieces == nullptr ? nullptr : request.output_pieces;
  mu()->Lock();
  if (!status_.ok()) status.Update(Over(NameOf(request)));
  return status;
}

void TransportCommunicator::FreeCall(Call* call) {
  if (ABSL_PREDICT_FALSE(call->in_pieces() || call->copied_to != nullptr)) {
    call->input_pieces = call->output_pieces = call->copied_to = nullptr;
  }
  free_calls_.push_back(call);
}

}  // namespace lockstep
