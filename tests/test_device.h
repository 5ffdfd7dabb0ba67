// The device on which tests run that can do with any: the host or, by the environment variable LOCKSTEP_TEST_DEVICE,
//
//   fake   devices made of the host, which call themselves cuda:0, with kernels of the host
//   cuda   the GPU cuda:0; tests that need one say that they are skipped where there is none
//
// So one test proves code above devices on the host, over the seams of a device, and on a GPU.

#ifndef TESTS_TEST_DEVICE_H_
#define TESTS_TEST_DEVICE_H_

#include "base/device.h"

namespace lockstep {
namespace testing {

// One for each rank, since ranks are processes elsewhere and a device's closures wait for each other. Never destroyed.
Device* TestDevice(int rank);

inline DeviceId TestDeviceId() { return TestDevice(0)->id(); }
inline bool OnHost() { return TestDeviceId().kind == DeviceKind::kHost; }

}  // namespace testing
}  // namespace lockstep

#endif  // TESTS_TEST_DEVICE_H_
