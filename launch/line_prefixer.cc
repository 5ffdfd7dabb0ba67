#include "launch/line_prefixer.h"

#include "absl/strings/str_cat.h"

namespace lockstep {

void LinePrefixer::Append(absl::string_view bytes, std::string* output) {
  while (!bytes.empty()) {
    const size_t room = line_bytes_max_ - partial_.size();
    const size_t newline = bytes.substr(0, room + 1).find('\n');
    if (newline != absl::string_view::npos) {
      Emit(bytes.substr(0, newline), output);
      bytes.remove_prefix(newline + 1);
    } else if (bytes.size() > room) {
      Emit(bytes.substr(0, room), output);
      bytes.remove_prefix(room);
    } else {
      absl::StrAppend(&partial_, bytes);
      return;
    }
  }
}

void LinePrefixer::Finish(std::string* output) {
  if (!partial_.empty()) Emit("", output);
}

void LinePrefixer::Emit(absl::string_view rest_of_line, std::string* output) {
  absl::StrAppend(output, prefix_, partial_, rest_of_line, "\n");
  partial_.clear();
}

}  // namespace lockstep
