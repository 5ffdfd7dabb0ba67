#include "comm/fabric_exchange.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "base/rank.h"
#include "base/status.h"
#include "comm/agreement.h"
#include "comm/device_fold.h"
#include "comm/signature.h"
#include "comm/staged_plan.h"
#include "comm/work.h"

namespace lockstep {
namespace {

// As the words have it.
uint32_t Word(uint64_t number) { return static_cast<uint32_t>(number); }

// Of what is left; an operation without time left still says how it fails.
std::chrono::milliseconds TimeoutUntil(Deadline deadline) {
  return std::chrono::milliseconds(deadline.infinite() ? 0 : std::max(1, deadline.remaining_ms()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<FabricExchange>> FabricExchange::Create(Communicator* communicator, Staging* staging,
                                                                       const kernels::FoldKernels* kernels) {
  if (kernels == nullptr) return absl::UnavailableError("this program has no kernels that fold on a GPU");
  auto made = std::unique_ptr<FabricExchange>(new FabricExchange(communicator, staging, kernels));
  Device* const device = staging->device();
  LOCKSTEP_RETURN_IF_ERROR(communicator->AddDeviceMemory(staging->memory(), staging->memory_bytes(), device->id()));
  made->known_ = true;
  // Not at their first launch, which would wait for streams that wait for other ranks.
  LOCKSTEP_RETURN_IF_ERROR(kernels->Load(*device));
  return made;
}

FabricExchange::~FabricExchange() {
  if (known_) communicator_->ForgetDeviceMemory(staging_->memory());
}

absl::Status FabricExchange::Plan(const StagedPiece& piece, char* slot, FabricPlan* plan) const {
  return MakeFabricPlan(piece.request, communicator_->rank().value(), communicator_->size(), slot,
                        slot + staging_->slot_bytes(), plan);
}

absl::Status FabricExchange::IssueIn(const StagedPiece& piece, char* slot, Stream* in) {
  LOCKSTEP_RETURN_IF_ERROR(Plan(piece, slot, &issued_));
  if (issued_.own_bytes > 0) {
    LOCKSTEP_RETURN_IF_ERROR(in->Copy(issued_.own_target, issued_.own_source, issued_.own_bytes));
  }
  const CollectiveRequest& request = piece.request;
  if (!ScalesInput(request) || request.count == 0) return absl::OkStatus();
  return kernels_->Scale(request.dtype, slot, slot, request.count, request.factor, *in);
}

absl::Status FabricExchange::IssueOut(const StagedPiece& piece, char* slot, uint64_t number, Stream* out) {
  LOCKSTEP_RETURN_IF_ERROR(Plan(piece, slot, &issued_));
  if (issued_.operands.empty()) return absl::OkStatus();
  LOCKSTEP_RETURN_IF_ERROR(out->AwaitValue(staging_->scattered(), Word(number)));
  LOCKSTEP_RETURN_IF_ERROR(
      FoldOnDevice(piece.request, *kernels_, issued_.target, issued_.operands, issued_.count, *out));
  return out->WriteValue(staging_->folded(), Word(number));
}

absl::Status FabricExchange::Agree(const Signature& call, Deadline deadline) {
  return AgreeOnSignature(communicator_, call, TimeoutUntil(deadline));
}

absl::Status FabricExchange::Run(const StagedPiece& piece, char* slot, uint64_t number, Deadline deadline,
                                 Await await) {
  if (piece.request.collective == Collective::kBarrier) {
    CollectiveRequest barrier;
    barrier.timeout = TimeoutUntil(deadline);
    return communicator_->Run(barrier);
  }
  LOCKSTEP_RETURN_IF_ERROR(Plan(piece, slot, &running_));
  LOCKSTEP_RETURN_IF_ERROR(Exchange(running_.sends, running_.receives, deadline));
  if (!running_.operands.empty()) {
    // Pairs with the stream that awaits it: what has come is there to be folded.
    staging_->scattered()->store(Word(number), std::memory_order_release);
    LOCKSTEP_RETURN_IF_ERROR(await(staging_->folded(), number, deadline, "the device has not folded what came"));
  } else {
    // Nobody writes it, and numbers go round: it would stay behind until it seemed ahead.
    staging_->folded()->store(Word(number), std::memory_order_relaxed);
  }
  return Exchange(running_.second_sends, running_.second_receives, deadline);
}

absl::Status FabricExchange::Exchange(absl::Span<const FabricMessage> sends, absl::Span<const FabricMessage> receives,
                                      Deadline deadline) {
  // All ranks count alike, also those that have nothing to say.
  const int64_t tag = next_tag_++;
  if (sends.empty() && receives.empty()) return absl::OkStatus();
  const DeviceId device = staging_->device()->id();
  const std::chrono::milliseconds timeout = TimeoutUntil(deadline);
  arrived_.assign(receives.size(), MessageInfo());
  LOCKSTEP_RETURN_IF_ERROR(communicator_->StartGroup());
  absl::Status started;
  for (size_t i = 0; i < receives.size() && started.ok(); ++i) {
    ReceiveRequest receive;
    receive.source = Rank(receives[i].peer);
    receive.tag = tag;
    receive.data = receives[i].data;
    receive.bytes = receives[i].bytes;
    receive.info = &arrived_[i];
    receive.timeout = timeout;
    receive.device = device;
    started = communicator_->StartReceive(receive).status();
  }
  for (size_t i = 0; i < sends.size() && started.ok(); ++i) {
    SendRequest send;
    send.target = Rank(sends[i].peer);
    send.tag = tag;
    send.data = sends[i].data;
    send.bytes = sends[i].bytes;
    send.timeout = timeout;
    send.device = device;
    started = communicator_->StartSend(send).status();
  }
  absl::StatusOr<Work> work = communicator_->EndGroup();
  LOCKSTEP_RETURN_IF_ERROR(started);
  LOCKSTEP_RETURN_IF_ERROR(work.status());
  // The messages' own deadlines bound this.
  LOCKSTEP_RETURN_IF_ERROR(work->Wait(Deadline::Infinite()));
  for (size_t i = 0; i < receives.size(); ++i) {
    if (arrived_[i].bytes == receives[i].bytes) continue;
    return absl::FailedPreconditionError(absl::StrCat("rank ", receives[i].peer, " sent ", arrived_[i].bytes,
                                                      " bytes where ", receives[i].bytes, " were expected"));
  }
  return absl::OkStatus();
}

void FabricExchange::LetGo(uint64_t number) { staging_->scattered()->store(Word(number), std::memory_order_release); }

}  // namespace lockstep
