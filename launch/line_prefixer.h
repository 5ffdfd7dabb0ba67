// LinePrefixer: cuts a stream of bytes into lines and puts a prefix before each.

#ifndef LAUNCH_LINE_PREFIXER_H_
#define LAUNCH_LINE_PREFIXER_H_

#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace lockstep {

// Not thread-safe. Holds back what is not a whole line yet, so that lines of several streams can be mixed without being
// torn. A line longer than `line_bytes_max` is cut into several, so that what is held back is bounded.
class LinePrefixer {
 public:
  explicit LinePrefixer(std::string prefix, size_t line_bytes_max = 65536)
      : prefix_(std::move(prefix)), line_bytes_max_(line_bytes_max) {}

  // Appends the lines that `bytes` completes to *output.
  void Append(absl::string_view bytes, std::string* output);

  // The stream is over: a last line without a newline is given one.
  void Finish(std::string* output);

 private:
  void Emit(absl::string_view rest_of_line, std::string* output);

  const std::string prefix_;
  const size_t line_bytes_max_;
  std::string partial_;  // at most line_bytes_max_ bytes, no newline in it
};

}  // namespace lockstep

#endif  // LAUNCH_LINE_PREFIXER_H_
