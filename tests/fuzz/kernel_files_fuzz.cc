// The kernel's files about memory and control groups.
//
//   input = { text }        of meminfo, cgroup, memory.max, memory.current, memory.stat, memory.swap.max, pids.max

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <initializer_list>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "tests/fuzz/fuzz.h"

namespace lockstep {
namespace {

constexpr const char* kFiles[] = {"meminfo",     "self/cgroup",     "memory.max", "memory.current",
                                  "memory.stat", "memory.swap.max", "pids.max"};

// A folder for both /proc and /sys/fs/cgroup.
const std::string& Folder() {
  static const std::string* const folder = [] {
    const char* const above = std::getenv("TEST_TMPDIR");
    std::string name = absl::StrCat(above == nullptr ? "/dev/shm" : above, "/lockstep-fuzz-XXXXXX");
    LOCKSTEP_CHECK(mkdtemp(&name[0]) != nullptr) << name;
    LOCKSTEP_CHECK(mkdir((name + "/self").c_str(), 0700) == 0);
    SetLimitFilesForTesting({name, name});
    std::atexit([] {
      for (const char* const file : kFiles) (void)unlink(absl::StrCat(Folder(), "/", file).c_str());
      (void)rmdir((Folder() + "/self").c_str());
      (void)rmdir(Folder().c_str());
    });
    return new std::string(name);
  }();
  return *folder;
}

void Write(const std::string& file, absl::string_view text) {
  const int descriptor = open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  LOCKSTEP_CHECK(descriptor >= 0 && write(descriptor, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  (void)close(descriptor);
}

}  // namespace

std::vector<std::string> fuzz::Seeds() {
  const auto texts = [](std::initializer_list<const char*> list) {
    std::string seed;
    for (const char* const text : list) seed += Text(text);
    return seed;
  };
  return {
      texts({"MemTotal: 16 kB\nMemAvailable:   1024 kB\nSwapFree: 7 kB\n", "0::/\n", "4096\n", "1024\n",
             "inactive_file 1\nactive_file 2\nslab_reclaimable 3\n", "max\n", "100\n"}),
      texts({"", "12:memory,cpu:/a/b\n0::/\n", "max\n"}),
  };
}

}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;  // NOLINT: nothing else is here
  fuzz::Input input(data, size);
  for (const char* const file : kFiles) Write(absl::StrCat(Folder(), "/", file), input.TakeText());
  const MemoryLeft left = ReadMemoryLeft();
  LOCKSTEP_CHECK((left.group == MemoryLeft::kUnknown) == left.group_file.empty());
  LOCKSTEP_CHECK(WhyNoMemory(left, 0, 0).empty());
  if (left.group != MemoryLeft::kUnknown) LOCKSTEP_CHECK(!WhyNoMemory(left, 0, left.group + 1).empty());
  LOCKSTEP_CHECK(!LimitsOnMemory().empty() && !LimitsOnThreads().empty());
  return 0;
}
