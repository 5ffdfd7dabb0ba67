// What tests of the reducer and of its rooms share: names of GoogleTest, matchers of statuses, parameters and worlds.

#ifndef REDUCER_PLAN_PLAN_TESTING_H_
#define REDUCER_PLAN_PLAN_TESTING_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "comm/communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reducer/plan/bucket_plan.h"
#include "reducer/plan/parameter.h"
#include "tests/ranks.h"
#include "tests/test_device.h"

namespace lockstep::testing {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using Order = std::vector<size_t>;  // in which gradients come

// Matches a status of that code whose message has all `texts`: strings that are in it, or matchers of it.
template <typename... Texts>
auto Fails(absl::StatusCode code, const Texts&... texts) {
  [[maybe_unused]] const auto matcher = [](const auto& text) -> ::testing::Matcher<const std::string&> {
    if constexpr (std::is_convertible_v<decltype(text), absl::string_view>) {
      return HasSubstr(std::string(text));
    } else {
      return ::testing::SafeMatcherCast<const std::string&>(text);
    }
  };
  const std::vector<::testing::Matcher<const std::string&>> all = {matcher(texts)...};
  return StatusIs(code, ::testing::AllOfArray(all));
}
template <typename... Texts>
auto FailedPrecondition(const Texts&... texts) {
  return Fails(absl::StatusCode::kFailedPrecondition, texts...);
}
template <typename... Texts>
auto InvalidArgument(const Texts&... texts) {
  return Fails(absl::StatusCode::kInvalidArgument, texts...);
}
template <typename... Texts>
auto Aborted(const Texts&... texts) {
  return Fails(absl::StatusCode::kAborted, texts...);
}

// Long enough for any machine, short enough to be an error rather than a hang.
inline TransportCommunicatorOptions ShortTimeout() {
  TransportCommunicatorOptions options;
  options.timeout = std::chrono::seconds(20);
  return options;
}

// Ranks as threads over a loopback network with a short timeout.
inline void RunWorld(int size, const std::function<void(Communicator&)>& body) {
  LoopbackWorld world(size, {}, ShortTimeout());
  world.Run(body);
}

// On the test's device.
inline Parameter MakeParameter(std::string name, DType dtype, std::vector<int64_t> shape,
                               std::vector<int64_t> strides = {}) {
  Parameter parameter;
  parameter.name = std::move(name);
  parameter.dtype = dtype;
  parameter.device = TestDeviceId();
  parameter.shape = std::move(shape);
  parameter.strides = std::move(strides);
  return parameter;
}

// A vector of f32 of each of `sizes` elements: "p0", "p1", ...
inline std::vector<Parameter> VectorsOf(const std::vector<int64_t>& sizes) {
  std::vector<Parameter> table;
  for (const int64_t size : sizes) table.push_back(MakeParameter(absl::StrCat("p", table.size()), DType::kF32, {size}));
  return table;
}
// `count` of `elements` each.
inline std::vector<Parameter> Vectors(int count, int64_t elements) {
  return VectorsOf(std::vector<int64_t>(count, elements));
}

// Tests over worlds of some sizes.
class RanksTest : public ::testing::TestWithParam<int> {
 public:
  static std::string NameOf(const ::testing::TestParamInfo<int>& info) { return absl::StrCat(info.param); }

 protected:
  int size() const { return GetParam(); }
};

}  // namespace lockstep::testing

#endif  // REDUCER_PLAN_PLAN_TESTING_H_
