// What every Device promises, as tests. A device's own test includes this and supplies a factory:
//
//   INSTANTIATE_TEST_SUITE_P(Host, DeviceConformance, testing::Values(DeviceFactory([] { return HostDevice(); })));
//
// A factory that answers UNAVAILABLE skips the suite (no such device here); any other error fails it.
//
// CUDA may run the host work of all streams on one thread. So work in a stream waits only at gates that the test opens,
// never for work in another stream, other than through events.

#ifndef TESTS_DEVICE_CONFORMANCE_H_
#define TESTS_DEVICE_CONFORMANCE_H_

#include "tests/device_conformance_fixture.h"
#include "tests/device_memory_conformance.h"
#include "tests/device_streams_conformance.h"

#endif  // TESTS_DEVICE_CONFORMANCE_H_
