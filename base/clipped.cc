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
  for (const char byte : text.substr(0, end)) {
    const auto value = static_cast<unsigned char>(byte);
    if (value < 0x20 || value == 0x7F) {
      absl::StrAppendFormat(&shown, "\\x%02x", value);
    } else {
      shown.push_back(byte);
    }
  }
  if (end < text.size()) absl::StrAppend(&shown, "... (", text.size(), " bytes)");
  return shown;
}

}  // namespace lockstep
