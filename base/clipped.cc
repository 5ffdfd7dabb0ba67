#include "base/clipped.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace lockstep {
namespace {

constexpr size_t kBytesMax = 100;

// Not the first byte of a character of UTF-8.
bool Continues(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

}  // namespace

std::string Clipped(absl::string_view text) {
  size_t end = text.size();
  if (end > kBytesMax) {
    end = kBytesMax;
    while (end > kBytesMax - 4 && Continues(text[end])) --end;
  }
  std::string shown;
  bool second_of_control = false;
  for (size_t i = 0; i < end; ++i) {
    const auto value = static_cast<unsigned char>(text[i]);
    // U+0080 to U+009F are controls too, and UTF-8 writes them as C2 and another byte.
    const bool first_of_control =
        value == 0xC2 && i + 1 < end && (static_cast<unsigned char>(text[i + 1]) & 0xE0) == 0x80;
    if (value < 0x20 || value == 0x7F || first_of_control || second_of_control) {
      absl::StrAppendFormat(&shown, "\\x%02x", value);
    } else {
      shown.push_back(text[i]);
    }
    second_of_control = first_of_control;
  }
  if (end < text.size()) absl::StrAppend(&shown, "... (", text.size(), " bytes)");
  return shown;
}

}  // namespace lockstep
