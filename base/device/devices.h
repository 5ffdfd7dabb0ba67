// Every device of the process by its name.

#ifndef BASE_DEVICE_DEVICES_H_
#define BASE_DEVICE_DEVICES_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/device.h"

namespace lockstep {

// Never destroyed. UNAVAILABLE where there is no CUDA; INVALID_ARGUMENT for an index that there is not.
absl::StatusOr<Device*> FindDevice(DeviceId device);

// Whether memory is where its owner says. INVALID_ARGUMENT names the pointer, what it is and what was declared: host
// memory that is declared as a device's, device memory that is declared as the host's or as another device's. Pinned
// and managed memory passes as either, and so does null. For checked modes: each call asks CUDA, and the first sets it
// up, on the declared device or, for the host's memory, on the calling thread's.
absl::Status CheckPointer(const void* pointer, DeviceId declared);

}  // namespace lockstep

#endif  // BASE_DEVICE_DEVICES_H_
