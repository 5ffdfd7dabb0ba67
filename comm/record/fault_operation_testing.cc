#include "comm/record/fault_operation_testing.h"

#include <algorithm>

#include "base/check.h"
#include "base/deadline.h"
#include "base/rank.h"
#include "base/status.h"

namespace lockstep {
namespace {

constexpr size_t kMessageBytes = size_t{2} << 20;  // four times what a mailbox holds
constexpr size_t kBlockCount = 150'000, kWholeCount = 500'000;
constexpr char kUnwritten = 0x5a;

CollectiveCase CaseOf(const std::string& name) {
  CollectiveCase c;
  c.collective = Collective::kBarrier;
  for (const Collective collective : kAllCollectives) {
    if (Name(collective) == name) c.collective = collective;
  }
  c.count = IsByRank(c.collective) ? kBlockCount : kWholeCount;
  return c;
}

}  // namespace

size_t FaultOperation::SymmetricBytes(int size) {
  return 2 * sizeof(float) * std::max(kWholeCount, size * kBlockCount);
}

FaultOperation::FaultOperation(const std::string& name, Communicator* self, SymmetricBuffer* symmetric)
    : self_(*self),
      is_collective_(name != kMessages),
      reference_(CaseOf(name), self->size()),
      run_(reference_, self->rank()),
      request_(run_.request()) {
  if (!is_collective_) {
    sent_.assign(kMessageBytes, static_cast<char>('a' + self->rank().value()));
    received_.resize(kMessageBytes);
  } else if (symmetric != nullptr) {
    LOCKSTEP_CHECK(symmetric->bytes() >= SymmetricBytes(self->size()));
    const std::vector<char>& input = reference_.input(self->rank().value());
    std::copy(input.begin(), input.end(), symmetric->data());
    if (request_.input != nullptr) request_.input = symmetric->data();
    if (request_.output != nullptr) request_.output = symmetric->data() + symmetric->bytes() / 2;
  }
}

absl::Status FaultOperation::Run() {
  LOCKSTEP_RETURN_IF_ERROR(is_collective_ ? RunCollective() : Exchange());
  const std::string wrong = FindWrong();
  return wrong.empty() ? absl::OkStatus() : absl::DataLossError(wrong);
}

absl::StatusOr<Work> FaultOperation::Start() {
  if (is_collective_) return self_.Start(request_);
  LOCKSTEP_RETURN_IF_ERROR(self_.StartGroup());
  LOCKSTEP_RETURN_IF_ERROR(self_.StartReceive(Incoming()).status());
  LOCKSTEP_RETURN_IF_ERROR(self_.StartSend(Outgoing()).status());
  return self_.EndGroup();
}

SendRequest FaultOperation::Outgoing() const {
  SendRequest request;
  request.target = Rank((self_.rank().value() + 1) % self_.size());
  request.data = sent_.data();
  request.bytes = sent_.size();
  return request;
}

ReceiveRequest FaultOperation::Incoming() {
  ReceiveRequest request;
  request.source = Rank((self_.rank().value() + self_.size() - 1) % self_.size());
  request.data = received_.data();
  request.bytes = received_.size();
  return request;
}

absl::Status FaultOperation::Exchange() {
  LOCKSTEP_ASSIGN_OR_RETURN(Work receive, self_.StartReceive(Incoming()));
  absl::Status status = self_.Send(Outgoing());
  status.Update(receive.Wait(Deadline::Infinite()));
  return status;
}

absl::Status FaultOperation::RunCollective() {
  if (request_.output == run_.request().output) return self_.Run(request_);
  // What is checked lies in ordinary memory.
  const size_t bytes = reference_.expected(self_.rank().value()).size();
  auto* const output = static_cast<char*>(request_.output);
  std::fill_n(output, bytes, kUnwritten);
  LOCKSTEP_RETURN_IF_ERROR(self_.Run(request_));
  std::copy_n(output, bytes, static_cast<char*>(run_.request().output));
  return absl::OkStatus();
}

std::string FaultOperation::FindWrong() {
  if (is_collective_) return run_.Check();
  const std::vector<char> expected(kMessageBytes, static_cast<char>('a' + Incoming().source.value()));
  return received_ == expected ? "" : "another message arrived";
}

}  // namespace lockstep
