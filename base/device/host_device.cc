#include "base/device/host_device.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "base/device/host_stream.h"

namespace lockstep {
namespace {

// What Device promises; also the alignment that DLPack asks for, and four cache lines.
constexpr size_t kAlignment = 256;

class Host final : public Device {
 public:
  DeviceId id() const override { return DeviceId(); }

  absl::StatusOr<std::unique_ptr<Stream>> CreateStream(const std::string& name) override {
    return std::make_unique<internal::HostStream>(name);
  }

  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override { return std::make_unique<internal::HostEvent>(); }

  absl::StatusOr<std::unique_ptr<Stream>> BorrowStream(void*) override {
    return absl::UnimplementedError("a stream on the host has no handle by which it could be borrowed");
  }

  absl::StatusOr<void*> Allocate(size_t bytes) override {
    void* memory = nullptr;
    size_t rounded = 0;
    if (!__builtin_add_overflow(std::max<size_t>(bytes, 1), kAlignment - 1, &rounded)) {
      memory = std::aligned_alloc(kAlignment, rounded / kAlignment * kAlignment);
    }
    if (memory != nullptr) return memory;
    return absl::ResourceExhaustedError(absl::StrCat("host memory: cannot allocate ", bytes, " bytes"));
  }

  void Free(void* memory) override { std::free(memory); }

  absl::StatusOr<void*> AllocateOnHost(size_t bytes) override { return Allocate(bytes); }
  void FreeOnHost(void* memory) override { Free(memory); }
};

}  // namespace

Device* HostDevice() {
  static Host* const host = new Host;
  return host;
}

}  // namespace lockstep
