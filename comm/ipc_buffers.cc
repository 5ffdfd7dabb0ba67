#include "comm/ipc_buffers.h"

#include <algorithm>
#include <cstdint>

#include "base/deadline.h"
#include "base/fork.h"
#include "base/log.h"

namespace lockstep {
namespace {

constexpr int64_t kDrainMs = 10'000;

}  // namespace

class IpcBuffers::Buffer : public SymmetricBuffer {
 public:
  Buffer(std::shared_ptr<IpcBuffers> buffers, std::unique_ptr<IpcMemory> memory)
      : buffers_(std::move(buffers)), memory_(std::move(memory)), fork_generation_(ForkGeneration()) {
    MutexLock lock(&buffers_->mu_);
    buffers_->memories_.push_back(memory_.get());
  }

  ~Buffer() override {
    if (fork_generation_ != ForkGeneration()) {
      (void)memory_.release();  // the parent's
      return;
    }
    {
      MutexLock lock(&buffers_->mu_);
      auto& all = buffers_->memories_;
      all.erase(std::find(all.begin(), all.end(), memory_.get()));
    }
    const absl::Status through = buffers_->last()->Synchronize(Deadline::AfterMs(kDrainMs));
    if (absl::IsDeadlineExceeded(through)) LeakIpcMemory(std::move(memory_), through);
  }

  char* data() const override { return memory_->mine(); }
  size_t bytes() const override { return memory_->bytes(); }
  bool shared() const override { return true; }

 private:
  const std::shared_ptr<IpcBuffers> buffers_;  // shared with the communicator
  std::unique_ptr<IpcMemory> memory_;
  const uint64_t fork_generation_;
};

IpcBuffers::Place IpcBuffers::Find(const void* data, size_t bytes) const {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  MutexLock lock(&mu_);
  for (const IpcMemory* const memory : memories_) {
    const auto base = reinterpret_cast<uintptr_t>(memory->mine());
    if (begin >= base && bytes <= memory->bytes() && begin - base <= memory->bytes() - bytes) {
      return {memory, begin - base};
    }
  }
  return {};
}

std::unique_ptr<SymmetricBuffer> IpcBuffers::Add(const std::shared_ptr<IpcBuffers>& buffers,
                                                 std::unique_ptr<IpcMemory> memory) {
  return std::make_unique<Buffer>(buffers, std::move(memory));
}

void LeakIpcMemory(std::unique_ptr<IpcMemory> memory, const absl::Status& reason) {
  LOCKSTEP_LOG(kWarning) << "memory of " << memory->bytes() << " bytes that ranks share is leaked: " << reason;
  (void)memory.release();
}

}  // namespace lockstep
