// main() of tests whose worlds' transport is chosen on the command line.

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport_flag.h"

int main(int argc, char** argv) {
  lockstep::TakeTransportFlags(&argc, argv);
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
