// A device made of the host, for tests of what is above devices. Its memory is the host's, its streams are host streams, and its id is
// cuda:0.
//
// As on CUDA, closures of all its streams run one at a time, so that one that waits holds up the others.

#ifndef TESTS_FAKE_DEVICE_H_
#define TESTS_FAKE_DEVICE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/device/device.h"
#include "base/device/host_device.h"
#include "base/device/shared_queues_testing.h"
#include "base/mutex.h"
#include "base/status.h"

namespace lockstep {

// Outlives what it made.
class FakeDevice : public Device {
 public:
  // Its streams share so many queues (base/device/shared_queues_testing.h); 0: each has one of its own.
  explicit FakeDevice(int index = 0, int queues = 0)
      : index_(index), queues_(queues == 0 ? nullptr : std::make_unique<SharedQueues>(queues)) {}

  DeviceId id() const override { return {DeviceKind::kCuda, index_}; }
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream(const std::string& name) override {
    if (queues_ != nullptr) return std::make_unique<FakeStream>(this, queues_->NewStream());
    LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Stream> stream, HostDevice()->CreateStream(name));
    return std::make_unique<FakeStream>(this, std::move(stream));
  }
  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override { return HostDevice()->CreateEvent(); }
  absl::StatusOr<std::unique_ptr<Stream>> BorrowStream(void*) override {
    return absl::UnimplementedError("a fake device");
  }
  absl::StatusOr<void*> Allocate(size_t bytes) override { return Take(bytes); }
  void Free(void* memory) override { FreeOnHost(memory); }
  absl::StatusOr<void*> AllocateOnHost(size_t bytes) override { return Take(bytes); }
  void FreeOnHost(void* memory) override {
    --allocations_;
    HostDevice()->FreeOnHost(memory);
  }

  // Allocations that are not freed yet.
  int allocations() const { return allocations_; }
  // What every allocation answers from now on, while it is an error.
  void set_allocation_error(absl::Status error) { allocation_error_ = std::move(error); }
  // Called on a stream's thread before each of its copies, which it may hold up. Before there are any.
  void set_copy_observer(std::function<void(const void* target, const void* source, size_t bytes)> observer) {
    copy_observer_ = std::move(observer);
  }
  // What streams say of themselves.
  void set_capturing(bool capturing) { capturing_ = capturing; }

 private:
  class FakeStream : public Stream {
   public:
    FakeStream(FakeDevice* device, std::unique_ptr<Stream> stream) : device_(device), stream_(std::move(stream)) {}

    DeviceId device() const override { return device_->id(); }
    bool capturing() const override { return device_->capturing_; }
    absl::Status Enqueue(absl::AnyInvocable<absl::Status()> work) override {
      return stream_->Enqueue([device = device_, work = std::move(work)]() mutable {
        MutexLock lock(&device->closures_mu_);
        return work();
      });
    }
    absl::Status Copy(void* target, const void* source, size_t bytes) override {
      return stream_->Enqueue([device = device_, target, source, bytes] {
        if (device->copy_observer_ != nullptr) device->copy_observer_(target, source, bytes);
        if (bytes > 0) std::memcpy(target, source, bytes);
        return absl::OkStatus();
      });
    }
    absl::Status Record(Event* event) override { return stream_->Record(event); }
    absl::Status Wait(Event* event) override { return stream_->Wait(event); }
    absl::Status AwaitValue(const std::atomic<uint32_t>* word, uint32_t value) override {
      if (capturing()) return absl::FailedPreconditionError("a value cannot be awaited in a capture");
      return stream_->AwaitValue(word, value);
    }
    absl::Status WriteValue(std::atomic<uint32_t>* word, uint32_t value) override {
      if (capturing()) return absl::FailedPreconditionError("a value cannot be written in a capture");
      return stream_->WriteValue(word, value);
    }
    absl::Status Synchronize(Deadline deadline) override { return stream_->Synchronize(deadline); }
    absl::Status status() const override { return stream_->status(); }

   private:
    FakeDevice* const device_;
    const std::unique_ptr<Stream> stream_;
  };

  absl::StatusOr<void*> Take(size_t bytes) {
    LOCKSTEP_RETURN_IF_ERROR(allocation_error_);
    // More than a device has; the allocators of sanitizers end the process rather than refuse it.
    if (bytes > kMemoryBytes) {
      return absl::ResourceExhaustedError(absl::StrCat(Name(id()), ": cannot allocate ", bytes, " bytes"));
    }
    ++allocations_;
    return HostDevice()->AllocateOnHost(bytes);
  }

  static constexpr size_t kMemoryBytes = size_t{64} << 30;

  const int index_;
  absl::Status allocation_error_;
  std::function<void(const void*, const void*, size_t)> copy_observer_;
  std::atomic<int> allocations_{0};
  std::atomic<bool> capturing_{false};
  Mutex closures_mu_;                           // held while a closure runs; outlives the queues
  const std::unique_ptr<SharedQueues> queues_;  // null: each stream has one of its own
};

}  // namespace lockstep

#endif  // TESTS_FAKE_DEVICE_H_
