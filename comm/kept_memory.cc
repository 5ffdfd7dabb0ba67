#include "comm/kept_memory.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "comm/communicator.h"
#include "transport/transport.h"

namespace lockstep {

class KeptMemory::Buffer : public SymmetricBuffer {
 public:
  Buffer(std::shared_ptr<KeptMemory> memory, std::unique_ptr<SymmetricBuffer> buffer)
      : memory_(std::move(memory)), buffer_(std::move(buffer)) {
    memory_->Keep(*buffer_);
  }
  ~Buffer() override { memory_->Forget(*buffer_); }

  char* data() const override { return buffer_->data(); }
  size_t bytes() const override { return buffer_->bytes(); }
  bool shared() const override { return false; }

 private:
  const std::shared_ptr<KeptMemory> memory_;
  const std::unique_ptr<SymmetricBuffer> buffer_;
};

absl::StatusOr<std::unique_ptr<SymmetricBuffer>> KeptMemory::Allocate(size_t bytes) {
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<SymmetricBuffer> buffer, MakePrivateBuffer(bytes));
  return std::make_unique<Buffer>(shared_from_this(), std::move(buffer));
}

void KeptMemory::Keep(const SymmetricBuffer& buffer) {
  MutexLock lock(&mu_);
  if (engine_ == nullptr) return;
  MutexLock engine_lock(engine_->mutex());
  const absl::Status kept = engine_->transport()->KeepMemory(buffer.data(), buffer.bytes());
  if (kept.ok()) {
    kept_.emplace(buffer.data(), buffer.bytes());
  } else {
    LOCKSTEP_LOG(kInfo) << "the allocator's " << buffer.bytes()
                        << " bytes are made known for each message: " << kept.message();
  }
}

void KeptMemory::Forget(const SymmetricBuffer& buffer) {
  MutexLock lock(&mu_);
  if (kept_.erase(buffer.data()) == 0) return;
  MutexLock engine_lock(engine_->mutex());
  engine_->transport()->ForgetMemory(buffer.data(), buffer.bytes());
}

absl::Status KeptMemory::AddDevice(const void* memory, size_t bytes, DeviceId device) {
  MutexLock lock(&mu_);
  if (device.kind != DeviceKind::kCuda) {
    return absl::InvalidArgumentError(absl::StrCat("memory on ", Name(device), ", where that of a GPU is expected"));
  }
  if (engine_ == nullptr) return absl::FailedPreconditionError("the communicator is over");
  MutexLock engine_lock(engine_->mutex());
  LOCKSTEP_RETURN_IF_ERROR(engine_->transport()->AddDeviceMemory(memory, bytes, device.index));
  if (bytes > 0) on_devices_[static_cast<const char*>(memory)] = {bytes, device};
  return absl::OkStatus();
}

void KeptMemory::ForgetDevice(const void* memory) {
  MutexLock lock(&mu_);
  const auto found = on_devices_.find(static_cast<const char*>(memory));
  if (found == on_devices_.end()) return;
  MutexLock engine_lock(engine_->mutex());
  engine_->transport()->ForgetMemory(memory, found->second.bytes);
  on_devices_.erase(found);
}

absl::Status KeptMemory::CheckOnDevice(const void* data, size_t bytes, DeviceId device) {
  MutexLock lock(&mu_);
  if (on_devices_.empty()) return CheckOnHost(device);
  const auto* const begin = static_cast<const char*>(data);
  auto after = on_devices_.upper_bound(begin);
  if (after != on_devices_.begin()) {
    const auto& [region, memory] = *--after;
    const auto offset = static_cast<size_t>(begin - region);
    if (memory.device == device && offset <= memory.bytes && bytes <= memory.bytes - offset) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a message of ", bytes, " bytes on ", Name(device), ", which the network was not told of"));
}

void KeptMemory::Close() {
  MutexLock lock(&mu_);
  if (engine_ == nullptr) return;
  MutexLock engine_lock(engine_->mutex());
  for (const auto& [data, bytes] : kept_) engine_->transport()->ForgetMemory(data, bytes);
  for (const auto& [data, memory] : on_devices_) engine_->transport()->ForgetMemory(data, memory.bytes);
  kept_.clear();
  on_devices_.clear();
  engine_ = nullptr;
}

}  // namespace lockstep
