// LOCKSTEP_CHECK: aborts on our own mistakes, where going on would hide the cause. Failures from outside are absl::Status.
//
//   LOCKSTEP_CHECK(slot < size_) << "slot " << slot << " of " << size_;
//
// Prints file, line, the condition and the streamed text to stderr, then aborts. Active in every build.

#ifndef BASE_CHECK_H_
#define BASE_CHECK_H_

#include <sstream>

namespace lockstep::internal {

// Collects the streamed text; its destructor prints and aborts.
class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* condition);
  [[noreturn]] ~CheckFailure();

  std::ostream& stream() { return stream_; }

 private:
  std::ostringstream stream_;
};

// Gives both arms of the conditional in LOCKSTEP_CHECK the type void, with a precedence below <<.
struct Voidify {
  void operator&(std::ostream&) {}
};

}  // namespace lockstep::internal

#define LOCKSTEP_CHECK(condition)                     \
  (__builtin_expect(static_cast<bool>(condition), 1)) \
      ? static_cast<void>(0)                          \
      : ::lockstep::internal::Voidify() & ::lockstep::internal::CheckFailure(__FILE__, __LINE__, #condition).stream()

#endif  // BASE_CHECK_H_
