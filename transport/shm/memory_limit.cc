#include "transport/shm/memory_limit.h"

#include <algorithm>
#include <fstream>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace lockstep {
namespace {

// The limit of a group and those above it, up to the top of what is mounted. A path of which only the top is mounted, as in some
// containers, is looked for all the way.
void Lower(const std::string& mount, absl::string_view group, absl::string_view name,
           absl::optional<MemoryLimit>* lowest) {
  while (absl::EndsWith(group, "/")) group.remove_suffix(1);
  for (;;) {
    const std::string file = absl::StrCat(mount, group, "/", name);
    std::ifstream stream(file);
    std::string text;
    uint64_t bytes = 0;
    // "max" is no number.
    if (std::getline(stream, text) && absl::SimpleAtoi(text, &bytes) &&
        (!lowest->has_value() || bytes < (*lowest)->bytes)) {
      *lowest = MemoryLimit{bytes, file};
    }
    if (group.empty()) return;
    group = group.substr(0, group.rfind('/'));
  }
}

}  // namespace

absl::optional<MemoryLimit> ContainerMemoryLimit(const std::string& membership, const std::string& mount) {
  absl::optional<MemoryLimit> lowest;
  std::ifstream stream(membership);
  for (std::string line; std::getline(stream, line);) {
    // number:controllers:group; cgroup v2 names no controllers.
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3 || !absl::StartsWith(parts[2], "/")) continue;
    const std::vector<std::string> controllers = absl::StrSplit(parts[1], ',');
    if (parts[1].empty()) {
      Lower(mount, parts[2], "memory.max", &lowest);
    } else if (std::count(controllers.begin(), controllers.end(), "memory") > 0) {
      Lower(absl::StrCat(mount, "/memory"), parts[2], "memory.limit_in_bytes", &lowest);
    }
  }
  return lowest;
}

}  // namespace lockstep
