#include "bench/overlap/emulated_hosts.h"

#include <limits.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace lockstep {
namespace bench {

absl::Status BecomeEmulatedHosts(int ranks, const std::string& rate, char** argv) {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  if (length < 0) return ErrnoStatus(errno, "read /proc/self/exe");
  const std::string program(path, length);
  const char* const tool_name = "tools/emulated-hosts";
  // Beside the program as Bazel lays it out, or where a test is started.
  std::string tool = absl::StrCat(program, ".runfiles/lockstep/", tool_name);
  if (access(tool.c_str(), X_OK) != 0) tool = tool_name;
  if (access(tool.c_str(), X_OK) != 0) {
    return absl::NotFoundError(
        absl::StrCat("no ", tool_name, " in ", program, ".runfiles/lockstep nor in this folder: --link needs it"));
  }
  std::vector<std::string> words = {tool, "--hosts", absl::StrCat(ranks), "--rate", rate, "--", program};
  for (char** word = argv + 1; *word != nullptr; ++word) words.emplace_back(*word);
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  execv(tool.c_str(), pointers.data());
  return ErrnoStatus(errno, absl::StrCat("run ", tool));
}

}  // namespace bench
}  // namespace lockstep
