#include "bench/machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "capi/lockstep.h"

namespace lockstep {
namespace bench {
namespace {

constexpr char kUnknown[] = "unknown";

std::string FirstLine(const char* path) {
  std::string line;
  std::getline(std::ifstream(path), line);
  return line.empty() ? kUnknown : line;
}

std::string CpuModel() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (!absl::StartsWith(line, "model name")) continue;
    const size_t colon = line.find(':');
    if (colon != std::string::npos) return std::string(absl::StripAsciiWhitespace(line.substr(colon + 1)));
  }
  return kUnknown;
}

std::string Kernel() {
  utsname names;
  return uname(&names) == 0 ? absl::StrCat(names.sysname, " ", names.release, " ", names.machine) : kUnknown;
}

// The first line that git prints; empty when it fails.
std::string Git(const std::string& folder, const std::string& arguments) {
  const std::string quoted = absl::StrCat("'", absl::StrReplaceAll(folder, {{"'", "'\\''"}}), "'");
  FILE* const output = popen(absl::StrCat("git -C ", quoted, " ", arguments, " 2>/dev/null").c_str(), "r");
  if (output == nullptr) return "";
  char line[256] = "";
  const bool read = fgets(line, sizeof(line), output) != nullptr;
  // What is left unread would end git with SIGPIPE.
  for (char rest[256]; fgets(rest, sizeof(rest), output) != nullptr;) continue;
  return pclose(output) == 0 && read ? std::string(absl::StripAsciiWhitespace(line)) : "";
}

std::string Commit() {
  const char* const folder = getenv("BUILD_WORKSPACE_DIRECTORY");
  if (folder == nullptr) return kUnknown;
  const std::string commit = Git(folder, "rev-parse --short=12 HEAD");
  if (commit.empty()) return kUnknown;
  return Git(folder, "status --porcelain").empty() ? commit : commit + " with local changes";
}

std::string Compiler() {
#ifdef __clang__
  const char* const name = __VERSION__;  // begins with its name
#else
  const char* const name = "gcc " __VERSION__;
#endif
#ifdef __OPTIMIZE__
  return name;
#else
  return absl::StrCat(name, " without optimisation: build with -c opt");
#endif
}

}  // namespace

std::vector<std::pair<std::string, std::string>> MachineFacts() {
  return {
      {"cpu", absl::StrCat(CpuModel(), ", ", sysconf(_SC_NPROCESSORS_ONLN), " cores")},
      {"kernel", Kernel()},
      {"tcp congestion control", FirstLine("/proc/sys/net/ipv4/tcp_congestion_control")},
      {"lockstep", absl::StrCat(LOCKSTEP_VERSION_MAJOR, ".", LOCKSTEP_VERSION_MINOR, ".", LOCKSTEP_VERSION_PATCH,
                                ", commit ", Commit())},
      {"compiler", Compiler()},
  };
}

}  // namespace bench
}  // namespace lockstep
