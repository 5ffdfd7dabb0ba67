#include "tests/guarded_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/check.h"
#include "base/mutex.h"
#include "base/status.h"
#include "kernels/cpu/fold_kernels.h"

namespace lockstep {
namespace {

// By where they seem to be.
class Allocations {
 public:
  absl::StatusOr<void*> Take(size_t bytes) ABSL_LOCKS_EXCLUDED(mu_) {
    // An allocation of nothing has an address, too.
    const size_t mapped = std::max<size_t>(bytes, 1);
    void* const address =
        mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, /*fd=*/-1, /*offset=*/0);
    if (address == MAP_FAILED || bytes > kBytesMax) {
      if (address != MAP_FAILED) munmap(address, mapped);
      return absl::ResourceExhaustedError(absl::StrCat("cannot allocate ", bytes, " bytes of guarded memory"));
    }
    MutexLock lock(&mu_);
    by_address_.emplace(static_cast<char*>(address), std::make_unique<Memory>(mapped));
    return address;
  }

  void Give(void* address) ABSL_LOCKS_EXCLUDED(mu_) {
    if (address == nullptr) return;
    MutexLock lock(&mu_);
    const auto found = by_address_.find(static_cast<char*>(address));
    LOCKSTEP_CHECK(found != by_address_.end()) << "memory that is not guarded, or is freed twice";
    munmap(address, found->second->size());
    by_address_.erase(found);
  }

  void* Reach(const void* address) ABSL_LOCKS_EXCLUDED(mu_) {
    auto* const asked = static_cast<char*>(const_cast<void*>(address));
    MutexLock lock(&mu_);
    auto after = by_address_.upper_bound(asked);
    if (after == by_address_.begin()) return asked;
    const auto& [begin, memory] = *--after;
    // Its end, too: where a chunk of nothing may lie.
    return asked <= begin + memory->size() ? memory->data() + (asked - begin) : asked;
  }

 private:
  using Memory = std::vector<char>;
  static constexpr size_t kBytesMax = size_t{1} << 32;

  Mutex mu_;
  std::map<char*, std::unique_ptr<Memory>> by_address_ ABSL_GUARDED_BY(mu_);
};

Allocations& TheAllocations() {
  static auto* const allocations = new Allocations;
  return *allocations;
}

class GuardedStream : public Stream {
 public:
  explicit GuardedStream(std::unique_ptr<Stream> stream) : stream_(std::move(stream)) {}

  DeviceId device() const override { return stream_->device(); }
  absl::Status Enqueue(absl::AnyInvocable<absl::Status()> work) override { return stream_->Enqueue(std::move(work)); }
  absl::Status Copy(void* target, const void* source, size_t bytes) override {
    return stream_->Copy(ReachGuarded(target), ReachGuarded(source), bytes);
  }
  absl::Status Record(Event* event) override { return stream_->Record(event); }
  absl::Status Wait(Event* event) override { return stream_->Wait(event); }
  absl::Status AwaitValue(const std::atomic<uint32_t>* word, uint32_t value) override {
    return stream_->AwaitValue(word, value);
  }
  absl::Status WriteValue(std::atomic<uint32_t>* word, uint32_t value) override {
    return stream_->WriteValue(word, value);
  }
  absl::Status Synchronize(Deadline deadline) override { return stream_->Synchronize(deadline); }
  absl::Status status() const override { return stream_->status(); }

 private:
  const std::unique_ptr<Stream> stream_;
};

class Kernels final : public kernels::FoldKernels {
 public:
  absl::Status Load(const Device& device) const override { return host_.Load(device); }

  absl::Status Fold(DType dtype, ReduceOp op, void* target, absl::Span<const void* const> sources, size_t count,
                    double factor, Stream& stream) const override {
    std::vector<const void*> reached;
    for (const void* const source : sources) reached.push_back(ReachGuarded(source));
    return host_.Fold(dtype, op, ReachGuarded(target), reached, count, factor, stream);
  }
  absl::Status Scale(DType dtype, void* target, const void* source, size_t count, double factor,
                     Stream& stream) const override {
    return host_.Scale(dtype, ReachGuarded(target), ReachGuarded(source), count, factor, stream);
  }
  absl::Status DivideTowardZero(DType dtype, void* data, size_t count, int64_t divisor, Stream& stream) const override {
    return host_.DivideTowardZero(dtype, ReachGuarded(data), count, divisor, stream);
  }

 private:
  const kernels::FoldKernels& host_ = *kernels::HostFoldKernels();
};

}  // namespace

void* ReachGuarded(const void* address) { return TheAllocations().Reach(address); }

absl::StatusOr<std::unique_ptr<Stream>> GuardedDevice::CreateStream(const std::string& name) {
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Stream> stream, fake_.CreateStream(name));
  return std::make_unique<GuardedStream>(std::move(stream));
}

absl::StatusOr<void*> GuardedDevice::Allocate(size_t bytes) { return TheAllocations().Take(bytes); }

void GuardedDevice::Free(void* memory) { TheAllocations().Give(memory); }

const kernels::FoldKernels* GuardedFoldKernels() {
  static const auto* const kernels = new Kernels;
  return kernels;
}

}  // namespace lockstep
