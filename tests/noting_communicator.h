// Messages to all ranks for communicators whose ranks are threads: a board in memory in place of the control channel's coordinator.

#ifndef TESTS_NOTING_COMMUNICATOR_H_
#define TESTS_NOTING_COMMUNICATOR_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/device/device.h"
#include "base/mutex.h"
#include "base/rank.h"
#include "comm/communicator.h"
#include "comm/symmetric_buffer.h"

namespace lockstep::testing {

// Keeps every message for as long as it lives. Thread-safe.
class MemoryMessageBoard {
 public:
  void Post(Rank rank, uint64_t topic, const std::string& text) {
    MutexLock lock(&mu_);
    topics_[topic][rank.value()] = text;
    posted_.SignalAll();
  }

  absl::StatusOr<std::vector<std::pair<Rank, std::string>>> Await(uint64_t topic, int count, Deadline deadline) {
    MutexLock lock(&mu_);
    const std::map<int, std::string>& texts = topics_[topic];
    while (static_cast<int>(texts.size()) < count) {
      if (!posted_.WaitUntil(&mu_, deadline)) {
        return absl::DeadlineExceededError(absl::StrCat("there are ", texts.size(), " messages, not ", count));
      }
    }
    std::vector<std::pair<Rank, std::string>> notes;
    for (const auto& [rank, text] : texts) notes.emplace_back(Rank(rank), text);
    return notes;
  }

 private:
  Mutex mu_;
  CondVar posted_;
  std::map<uint64_t, std::map<int, std::string>> topics_ ABSL_GUARDED_BY(mu_);  // then by rank
};

// Forwards everything but messages to `communicator`. Both arguments outlive this.
class NotingCommunicator : public Communicator {
 public:
  NotingCommunicator(Communicator* communicator, MemoryMessageBoard* board) : inner_(communicator), board_(board) {}

  Rank rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  Device* accelerator() const override { return inner_->accelerator(); }
  absl::Status Run(const CollectiveRequest& request) override { return inner_->Run(request); }
  absl::StatusOr<Work> Start(const CollectiveRequest& request) override { return inner_->Start(request); }
  absl::Status Enqueue(const CollectiveRequest& request, Stream* stream, absl::AnyInvocable<void()> before,
                       absl::AnyInvocable<void(const absl::Status&)> done) override {
    return inner_->Enqueue(request, stream, std::move(before), std::move(done));
  }
  absl::StatusOr<std::unique_ptr<PreparedCollective>> Prepare(const CollectiveRequest& request) override {
    return inner_->Prepare(request);
  }
  absl::Status StartGroup() override { return inner_->StartGroup(); }
  absl::StatusOr<Work> EndGroup() override { return inner_->EndGroup(); }
  bool InGroup() const override { return inner_->InGroup(); }
  absl::Status Refuse(const absl::Status& refusal) override { return inner_->Refuse(refusal); }
  absl::StatusOr<Work> StartSend(const SendRequest& request) override { return inner_->StartSend(request); }
  absl::StatusOr<Work> StartReceive(const ReceiveRequest& request) override { return inner_->StartReceive(request); }
  absl::Status Send(const SendRequest& request) override { return inner_->Send(request); }
  absl::Status Receive(const ReceiveRequest& request) override { return inner_->Receive(request); }
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key) override { return inner_->Split(color, key); }
  absl::StatusOr<std::unique_ptr<SymmetricBuffer>> Allocate(size_t bytes) override { return inner_->Allocate(bytes); }
  bool Shares(const void* memory, size_t bytes) const override { return inner_->Shares(memory, bytes); }
  absl::Status CheckMemory(size_t bytes) override { return inner_->CheckMemory(bytes); }
  absl::StatusOr<std::unique_ptr<SymmetricBuffer>> AllocateOnDevice(size_t bytes) override {
    return inner_->AllocateOnDevice(bytes);
  }
  absl::Status Supports(Collective collective, DType dtype, ReduceOp op) const override {
    return inner_->Supports(collective, dtype, op);
  }
  void SetTimeout(std::chrono::milliseconds timeout) override { inner_->SetTimeout(timeout); }
  bool Hold(const char* holder) override { return inner_->Hold(holder); }
  void Release() override { inner_->Release(); }
  absl::Status status() const override { return inner_->status(); }
  void Abort(const std::string& reason) override { inner_->Abort(reason); }
  void PostMessage(uint64_t topic, const std::string& text) override { board_->Post(rank(), topic, text); }
  absl::StatusOr<std::vector<std::pair<Rank, std::string>>> AwaitMessages(uint64_t topic, int count,
                                                                          Deadline deadline) override {
    return board_->Await(topic, count, deadline);
  }
  std::string FlightRecords() const override { return inner_->FlightRecords(); }
  std::string Describe() const override { return inner_->Describe(); }

 private:
  void OnLeave() override { inner_->Leave(); }

  Communicator* const inner_;
  MemoryMessageBoard* const board_;
};

}  // namespace lockstep::testing

#endif  // TESTS_NOTING_COMMUNICATOR_H_
