// What tests of new bucket plans share.

#ifndef REDUCER_REDUCER_REPLAN_TESTING_H_
#define REDUCER_REDUCER_REPLAN_TESTING_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "reducer/reducer.h"

namespace lockstep {
namespace testing {

// A plan travels beside the data, so nobody can say how many steps it takes; each of them ends by its deadline. After
// the first ones they give the thread that makes the plan a core, and so take seconds at least in all.
inline constexpr int kStepsMax = 20000;
inline constexpr int kHurriedSteps = 500;

// Every second one, then the others backwards: no plan's order at first.
inline std::vector<size_t> Zigzag(size_t count) {
  std::vector<size_t> order;
  for (size_t i = 0; i < count; i += 2) order.push_back(i);
  for (size_t i = count; i-- > 0;) {
    if (i % 2 == 1) order.push_back(i);
  }
  return order;
}

// Runs steps, the same on each rank, until the plan of that version is in use, which is on all ranks at the same step.
// `run` does one and returns whether it went well. Returns the number of the next one.
inline int StepUntil(const Reducer& reducer, int64_t version, int step,
                     const std::function<absl::Status(int step)>& run) {
  const int begin = step;
  for (; reducer.plan_version() < version; ++step) {
    if (step - begin > kHurriedSteps) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (step - begin == kStepsMax) {
      ADD_FAILURE() << "after " << kStepsMax << " steps there is no plan " << version;
      return step;
    }
    const absl::Status status = run(step);
    LOCKSTEP_EXPECT_OK(status);
    if (!status.ok()) return step;
  }
  return step;
}

}  // namespace testing
}  // namespace lockstep

#endif  // REDUCER_REDUCER_REPLAN_TESTING_H_
