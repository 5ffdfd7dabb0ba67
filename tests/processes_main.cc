// main() of multi-process tests: the program is the test and, executed again by it, each of its ranks.

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/processes.h"

int main(int argc, char** argv) {
  if (lockstep::IsRankProcess()) return lockstep::RunRankProcess();
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
