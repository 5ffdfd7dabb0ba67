// Finds the process's devices by kind and index.

#ifndef BASE_DEVICE_DEVICES_H_
#define BASE_DEVICE_DEVICES_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/device.h"

namespace lockstep {

// Never destroyed. UNAVAILABLE without CUDA; INVALID_ARGUMENT if there is no device of that index.
absl::StatusOr<Device*> FindDevice(DeviceId device);

// Checks that memory is on its declared device. Pinned and managed memory passes as either, and so does null.
// ERRORS  INVALID_ARGUMENT  host memory declared as a device's, or device memory as the host's or another device's; names the
//                           pointer and both devices
// COST    a call of CUDA. The first sets CUDA up, on the declared device or, for host memory, on the calling thread's
absl::Status CheckPointer(const void* pointer, DeviceId declared);

}  // namespace lockstep

#endif  // BASE_DEVICE_DEVICES_H_
