#include "comm/host/registered_memory.h"

#include <utility>

#include "absl/status/status.h"
#include "base/log.h"
#include "base/status.h"
#include "transport/transport.h"

namespace lockstep {

absl::StatusOr<std::unique_ptr<SymmetricBuffer>> RegisteredMemory::Allocate(size_t bytes) {
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<SymmetricBuffer> buffer, MakePrivateBuffer(bytes));
  Register(*buffer);
  char* const data = buffer->data();
  return std::make_unique<SymmetricBuffer>(
      data, bytes, /*shared=*/false,
      [memory = shared_from_this(), buffer = std::move(buffer)] { memory->Deregister(*buffer); });
}

void RegisteredMemory::Register(const SymmetricBuffer& buffer) {
  MutexLock lock(&mu_);
  if (engine_ == nullptr) return;
  MutexLock engine_lock(engine_->mutex());
  const absl::Status registered = engine_->transport()->RegisterMemory(buffer.data(), buffer.bytes());
  if (registered.ok()) {
    registered_.emplace(buffer.data(), buffer.bytes());
  } else {
    LOCKSTEP_LOG(kInfo) << "the allocator's " << buffer.bytes()
                        << " bytes are made known for each message: " << registered.message();
  }
}

void RegisteredMemory::Deregister(const SymmetricBuffer& buffer) {
  MutexLock lock(&mu_);
  if (registered_.erase(buffer.data()) == 0) return;
  MutexLock engine_lock(engine_->mutex());
  engine_->transport()->DeregisterMemory(buffer.data(), buffer.bytes());
}

void RegisteredMemory::Close() {
  MutexLock lock(&mu_);
  if (engine_ == nullptr) return;
  MutexLock engine_lock(engine_->mutex());
  for (const auto& [data, bytes] : registered_) engine_->transport()->DeregisterMemory(data, bytes);
  registered_.clear();
  engine_ = nullptr;
}

}  // namespace lockstep
