// What every communicator promises (comm/communicator.h), as a test suite over a factory.
//
//   INSTANTIATE_TEST_SUITE_P(Loopback, CommunicatorConformance, ::testing::Values(CommunicatorFactory{"seed1", &Create}),
//                            CommunicatorFactoryName);
//
// Where all combinations would take too long, each test runs through the product of what matters most to it and turns
// the rest over on the way.

#ifndef TESTS_COMMUNICATOR_CONFORMANCE_H_
#define TESTS_COMMUNICATOR_CONFORMANCE_H_

#include "tests/communicator_conformance_fixture.h"
#include "tests/communicator_in_flight_conformance.h"
#include "tests/communicator_results_conformance.h"

#endif  // TESTS_COMMUNICATOR_CONFORMANCE_H_
