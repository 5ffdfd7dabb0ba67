#include "comm/host/kept_memory.h"

#include <utility>

#include "absl/status/status.h"
#include "base/log.h"
#include "base/status.h"
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
  const absl::Status kept = engine_->transport()->RegisterMemory(buffer.data(), buffer.bytes());
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
  engine_->transport()->DeregisterMemory(buffer.data(), buffer.bytes());
}

void KeptMemory::Close() {
  MutexLock lock(&mu_);
  if (engine_ == nullptr) return;
  MutexLock engine_lock(engine_->mutex());
  for (const auto& [data, bytes] : kept_) engine_->transport()->DeregisterMemory(data, bytes);
  kept_.clear();
  engine_ = nullptr;
}

}  // namespace lockstep
