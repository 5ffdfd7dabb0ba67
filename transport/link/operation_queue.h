// Operations in the order in which they were posted, linked through themselves: posting allocates nothing.

#ifndef TRANSPORT_LINK_OPERATION_QUEUE_H_
#define TRANSPORT_LINK_OPERATION_QUEUE_H_

#include "absl/status/status.h"
#include "transport/transport.h"

namespace lockstep {

// Borrows what it links. Externally synchronised.
class OperationQueue {
 public:
  OperationQueue() = default;
  OperationQueue(const OperationQueue&) = delete;
  OperationQueue& operator=(const OperationQueue&) = delete;

  bool empty() const { return front_ == nullptr; }
  Operation* front() const { return front_; }

  void Push(Operation* operation) {
    operation->internal.next = nullptr;
    (front_ == nullptr ? front_ : back_->internal.next) = operation;
    back_ = operation;
  }

  Operation* Pop() {
    Operation* const operation = front_;
    front_ = operation->internal.next;
    return operation;
  }

  // Completes what is queued now; what completions post stays for a later call, so that this one ends.
  void CompleteAll(const absl::Status& status) {
    Operation* operation = front_;
    front_ = nullptr;
    while (operation != nullptr) {
      // Read first: the completion may use the operation again.
      Operation* const next = operation->internal.next;
      operation->complete(operation, status);
      operation = next;
    }
  }

 private:
  Operation* front_ = nullptr;
  Operation* back_ = nullptr;  // valid while front_ is set
};

}  // namespace lockstep

#endif  // TRANSPORT_LINK_OPERATION_QUEUE_H_
