#include "base/status_matchers.h"

namespace lockstep {

void IsOkMatcher::DescribeTo(std::ostream* stream) const { *stream << "is OK"; }
void IsOkMatcher::DescribeNegationTo(std::ostream* stream) const { *stream << "is not OK"; }

StatusIsMatcher::StatusIsMatcher(::testing::Matcher<absl::StatusCode> code,
                                 ::testing::Matcher<const std::string&> message)
    : code_(std::move(code)), message_(std::move(message)) {}

bool StatusIsMatcher::Matches(const absl::Status& status, ::testing::MatchResultListener* listener) const {
  return code_.MatchAndExplain(status.code(), listener) &&
         message_.MatchAndExplain(std::string(status.message()), listener);
}

void StatusIsMatcher::DescribeTo(std::ostream* stream) const {
  *stream << "has a status code that ";
  code_.DescribeTo(stream);
  *stream << " and a message that ";
  message_.DescribeTo(stream);
}

void StatusIsMatcher::DescribeNegationTo(std::ostream* stream) const {
  *stream << "does not have a status code that ";
  code_.DescribeTo(stream);
  *stream << " and a message that ";
  message_.DescribeTo(stream);
}

StatusIsMatcher StatusIs(::testing::Matcher<absl::StatusCode> code) { return StatusIs(std::move(code), ::testing::_); }
StatusIsMatcher StatusIs(::testing::Matcher<absl::StatusCode> code, ::testing::Matcher<const std::string&> message) {
  return StatusIsMatcher(std::move(code), std::move(message));
}

}  // namespace lockstep
