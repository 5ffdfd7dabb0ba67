// What every transport promises (transport/transport.h), as a test suite over a factory.
//
//   INSTANTIATE_TEST_SUITE_P(Loopback, TransportConformance, testing::Values(TransportFactory{"seed1",
//   &CreateLoopback}),
//                            TransportFactoryName);

#ifndef TESTS_TRANSPORT_CONFORMANCE_H_
#define TESTS_TRANSPORT_CONFORMANCE_H_

#include "tests/transport_conformance_fixture.h"
#include "tests/transport_endings_conformance.h"
#include "tests/transport_messages_conformance.h"

#endif  // TESTS_TRANSPORT_CONFORMANCE_H_
