// GoogleTest matchers for absl::Status and absl::StatusOr.
//
//   EXPECT_THAT(store.Set("key", "value"), IsOk());
//   EXPECT_THAT(store.Get("key"), IsOkAndHolds("value"));
//   EXPECT_THAT(socket.Connect(address), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("connection refused")));
//   LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto socket, Connect(address));

#ifndef BASE_STATUS_MATCHERS_H_
#define BASE_STATUS_MATCHERS_H_

#include <ostream>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace absl {
ABSL_NAMESPACE_BEGIN

// How GoogleTest shows a StatusOr: found here by argument-dependent lookup. A Status has operator<< already.
template <typename T>
void PrintTo(const StatusOr<T>& status_or, std::ostream* stream) {
  if (status_or.ok()) {
    *stream << "OK: " << testing::PrintToString(*status_or);
  } else {
    *stream << status_or.status();
  }
}

ABSL_NAMESPACE_END
}  // namespace absl

namespace lockstep {

// Plain classes: the matchers of all tests are compiled once.
class IsOkMatcher {
 public:
  using is_gtest_matcher = void;
  template <typename StatusOrT>
  bool MatchAndExplain(const StatusOrT& value, ::testing::MatchResultListener* /*listener*/) const {
    return internal::AsStatus(value).ok();
  }
  void DescribeTo(std::ostream* stream) const;
  void DescribeNegationTo(std::ostream* stream) const;
};

class StatusIsMatcher {
 public:
  using is_gtest_matcher = void;
  StatusIsMatcher(::testing::Matcher<absl::StatusCode> code, ::testing::Matcher<const std::string&> message);
  template <typename StatusOrT>
  bool MatchAndExplain(const StatusOrT& value, ::testing::MatchResultListener* listener) const {
    return Matches(internal::AsStatus(value), listener);
  }
  void DescribeTo(std::ostream* stream) const;
  void DescribeNegationTo(std::ostream* stream) const;

 private:
  bool Matches(const absl::Status& status, ::testing::MatchResultListener* listener) const;

  ::testing::Matcher<absl::StatusCode> code_;
  ::testing::Matcher<const std::string&> message_;
};

// A Status or StatusOr that is OK.
inline IsOkMatcher IsOk() { return {}; }

// A Status or StatusOr with this code and this message: values, or matchers for them.
StatusIsMatcher StatusIs(::testing::Matcher<absl::StatusCode> code);
StatusIsMatcher StatusIs(::testing::Matcher<absl::StatusCode> code, ::testing::Matcher<const std::string&> message);

// `value` is a value or a matcher for one.
MATCHER_P(IsOkAndHolds, value,
          std::string(negation ? "is not OK, or holds a value that does not match: "
                               : "is OK and holds a value that matches: ") +
              ::testing::DescribeMatcher<typename std::decay_t<arg_type>::value_type>(value)) {
  return arg.ok() && ::testing::ExplainMatchResult(value, *arg, result_listener);
}

}  // namespace lockstep

#define LOCKSTEP_EXPECT_OK(expression) EXPECT_THAT((expression), ::lockstep::IsOk())
#define LOCKSTEP_ASSERT_OK(expression) ASSERT_THAT((expression), ::lockstep::IsOk())

// Ends the test, which must return void, when the StatusOr is not OK.
#define LOCKSTEP_ASSERT_OK_AND_ASSIGN(target, expression) \
  LOCKSTEP_ASSERT_OK_AND_ASSIGN_(LOCKSTEP_CONCAT_(lockstep_status_or_, __LINE__), target, expression)
#define LOCKSTEP_ASSERT_OK_AND_ASSIGN_(status_or, target, expression) \
  auto status_or = (expression);                                      \
  ASSERT_THAT(status_or.status(), ::lockstep::IsOk()) << #expression; \
  target = *std::move(status_or)

#endif  // BASE_STATUS_MATCHERS_H_
