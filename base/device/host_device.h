// The host as a Device: a stream is a worker thread with an ordered queue, an event a point in it.

#ifndef BASE_DEVICE_HOST_DEVICE_H_
#define BASE_DEVICE_HOST_DEVICE_H_

#include "base/device/device.h"

namespace lockstep {

// The process's host device. Never destroyed. The first work of a stream starts its thread, so creating a stream costs
// nothing. Destroying a stream lets the running closure finish, drops the rest and completes its events. Work may not
// synchronize with its own stream (FAILED_PRECONDITION), nor destroy it.
Device* HostDevice();

}  // namespace lockstep

#endif  // BASE_DEVICE_HOST_DEVICE_H_
