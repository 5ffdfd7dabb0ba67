// DeviceMemory: owns an allocation of a Device.

#ifndef BASE_DEVICE_DEVICE_MEMORY_H_
#define BASE_DEVICE_DEVICE_MEMORY_H_

#include <cstddef>
#include <utility>

#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "base/status.h"

namespace lockstep {

// Empty when default-constructed or moved from. REQUIRES that nothing issued still uses the memory at its destruction.
class DeviceMemory {
 public:
  // As Device::Allocate and Device::AllocateOnHost, with their errors. The device must outlive the result.
  static absl::StatusOr<DeviceMemory> Allocate(Device* device, size_t bytes) {
    LOCKSTEP_ASSIGN_OR_RETURN(void* const data, device->Allocate(bytes));
    return DeviceMemory(device, data, bytes, &Device::Free);
  }
  static absl::StatusOr<DeviceMemory> AllocateOnHost(Device* device, size_t bytes) {
    LOCKSTEP_ASSIGN_OR_RETURN(void* const data, device->AllocateOnHost(bytes));
    return DeviceMemory(device, data, bytes, &Device::FreeOnHost);
  }

  DeviceMemory() = default;
  DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(free_, other.free_);
    return *this;
  }
  ~DeviceMemory() {
    if (data_ != nullptr) (device_->*free_)(data_);
  }

  char* data() const { return static_cast<char*>(data_); }
  size_t bytes() const { return bytes_; }

 private:
  using Freer = void (Device::*)(void*);
  DeviceMemory(Device* device, void* data, size_t bytes, Freer free)
      : device_(device), data_(data), bytes_(bytes), free_(free) {}

  Device* device_ = nullptr;
  void* data_ = nullptr;
  size_t bytes_ = 0;
  Freer free_ = nullptr;
};

}  // namespace lockstep

#endif  // BASE_DEVICE_DEVICE_MEMORY_H_
