#include "base/limits.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/cores.h"

namespace lockstep {
namespace {

// Never destroyed: static destructors may allocate.
LimitFiles& Files() {
  static LimitFiles* const files = new LimitFiles;
  return *files;
}

// A file of one number; "max" is none.
absl::optional<uint64_t> NumberIn(const std::string& file) {
  std::ifstream stream(file);
  std::string text;
  uint64_t number = 0;
  if (!std::getline(stream, text) || !absl::SimpleAtoi(text, &number)) return absl::nullopt;
  return number;
}

// The numbers of those lines ("MemAvailable:   1024 kB", "inactive_file 4096") that begin with one of the names, added up. Nothing when
// the first of them is not there.
absl::optional<uint64_t> SumOf(const std::string& file, const std::vector<absl::string_view>& names) {
  std::ifstream stream(file);
  uint64_t sum = 0;
  bool first_found = false;
  for (std::string line; std::getline(stream, line);) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    uint64_t number = 0;
    if (words.size() < 2 || !absl::SimpleAtoi(words[1], &number)) continue;
    if (std::find(names.begin(), names.end(), words[0]) == names.end()) continue;
    first_found |= words[0] == names[0];
    sum += words.size() > 2 && words[2] == "kB" ? number * 1024 : number;
  }
  return first_found ? absl::make_optional(sum) : absl::nullopt;
}

uint64_t Less(uint64_t all, uint64_t used) { return all > used ? all - used : 0; }

// Calls `look` with the folder of each control group that this process is in, up to the top of what is mounted: of the controller's
// own hierarchy (version 1) and of the common one (version 2). A path of which only the top is mounted, as in some containers, is
// looked for all the way.
void ForEachGroup(absl::string_view controller, const std::function<void(const std::string&, bool version1)>& look) {
  std::ifstream stream(absl::StrCat(Files().proc, "/self/cgroup"));
  for (std::string line; std::getline(stream, line);) {
    // number:controllers:group; version 2 names no controllers.
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3 || !absl::StartsWith(parts[2], "/")) continue;
    const std::vector<std::string> controllers = absl::StrSplit(parts[1], ',');
    const bool version1 = std::count(controllers.begin(), controllers.end(), controller) > 0;
    if (!version1 && !parts[1].empty()) continue;
    const std::string mount = version1 ? absl::StrCat(Files().groups, "/", controller) : Files().groups;
    absl::string_view group = parts[2];
    while (absl::EndsWith(group, "/")) group.remove_suffix(1);
    for (;;) {
      look(absl::StrCat(mount, group), version1);
      if (group.empty()) break;
      group = group.substr(0, group.rfind('/'));
    }
  }
}

struct GroupFiles {
  const char* limit;
  const char* used;
  const char* swap_limit;
  const char* swap_used;
  std::vector<absl::string_view> given_back;  // lines of memory.stat
};
const GroupFiles& FilesOfGroup(bool version1) {
  static const GroupFiles* const first = new GroupFiles{
      "/memory.limit_in_bytes", "/memory.usage_in_bytes", "", "", {"total_inactive_file", "total_active_file"}};
  static const GroupFiles* const second = new GroupFiles{"/memory.max",
                                                         "/memory.current",
                                                         "/memory.swap.max",
                                                         "/memory.swap.current",
                                                         {"inactive_file", "active_file", "slab_reclaimable"}};
  return version1 ? *first : *second;
}

std::string ReadLimit(__rlimit_resource resource, absl::string_view name, absl::string_view of_what) {
  rlimit limit = {};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
  return absl::StrCat(name, " allows ", limit.rlim_cur, " ", of_what);
}

// Whether this process may have as much private memory as the stack of a new thread takes.
bool StackFits() {
  pthread_attr_t attributes;
  size_t bytes = 0;
  if (pthread_getattr_default_np(&attributes) != 0) return true;
  (void)pthread_attr_getstacksize(&attributes, &bytes);
  (void)pthread_attr_destroy(&attributes);
  void* const stack = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (stack == MAP_FAILED) return false;
  (void)munmap(stack, bytes);
  return true;
}

}  // namespace

void SetLimitFilesForTesting(LimitFiles files) { Files() = std::move(files); }

MemoryLeft ReadMemoryLeft() {
  MemoryLeft left;
  const std::string meminfo = absl::StrCat(Files().proc, "/meminfo");
  left.machine = SumOf(meminfo, {"MemAvailable:", "SwapFree:"}).value_or(MemoryLeft::kUnknown);
  const uint64_t swap_free = SumOf(meminfo, {"SwapFree:"}).value_or(0);
  ForEachGroup("memory", [&](const std::string& folder, bool version1) {
    const GroupFiles& files = FilesOfGroup(version1);
    const absl::optional<uint64_t> limit = NumberIn(folder + files.limit);
    if (!limit.has_value()) return;
    const uint64_t used = NumberIn(folder + files.used).value_or(0);
    const uint64_t given_back = SumOf(folder + "/memory.stat", files.given_back).value_or(0);
    uint64_t swap = swap_free;
    if (const absl::optional<uint64_t> most = NumberIn(folder + files.swap_limit)) {
      swap = std::min(swap, Less(*most, NumberIn(folder + files.swap_used).value_or(0)));
    }
    // "No limit" of version 1 is a number near the largest.
    const uint64_t in_memory = Less(*limit, Less(used, given_back));
    if (in_memory >= left.group || in_memory > MemoryLeft::kUnknown - swap || in_memory + swap >= left.group) return;
    struct stat info = {};
    left.group = in_memory + swap;
    left.group_file = folder + files.limit;
    left.group_id = stat(folder.c_str(), &info) == 0 ? (info.st_dev << 48 ^ info.st_ino) + 1 : 0;
  });
  return left;
}

std::string WhyNoMemory(const MemoryLeft& left, uint64_t machine_bytes, uint64_t group_bytes) {
  if (group_bytes > left.group) return absl::StrCat(left.group, " bytes are left by ", left.group_file);
  if (machine_bytes > left.machine) {
    return absl::StrCat(left.machine, " bytes are left by MemAvailable and SwapFree of ", Files().proc, "/meminfo");
  }
  return "";
}

std::string WhyNoMemory(uint64_t bytes) { return WhyNoMemory(ReadMemoryLeft(), bytes, bytes); }

std::string WhyNoFile(uint64_t bytes) {
  rlimit most = {};
  if (getrlimit(RLIMIT_FSIZE, &most) != 0 || bytes <= most.rlim_cur) return "";
  return absl::StrCat("RLIMIT_FSIZE allows ", most.rlim_cur);
}

std::string LimitsOnMemory() {
  std::vector<std::string> limits;
  std::string address_space = ReadLimit(RLIMIT_AS, "RLIMIT_AS", "bytes of address space");
  if (!address_space.empty()) {
    uint64_t pages = 0;
    if (std::ifstream(absl::StrCat(Files().proc, "/self/statm")) >> pages) {
      absl::StrAppend(&address_space, ", ", pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)), " are in use");
    }
    limits.push_back(std::move(address_space));
  }
  std::string data = ReadLimit(RLIMIT_DATA, "RLIMIT_DATA", "bytes of private memory");
  if (!data.empty()) limits.push_back(std::move(data));
  std::ifstream maps(absl::StrCat(Files().proc, "/self/maps"));
  const uint64_t mappings = std::count(std::istreambuf_iterator<char>(maps), std::istreambuf_iterator<char>(), '\n');
  const absl::optional<uint64_t> most = NumberIn(absl::StrCat(Files().proc, "/sys/vm/max_map_count"));
  // The last ones are refused to some calls before others.
  if (most.has_value() && mappings + 8 >= *most) {
    limits.push_back(absl::StrCat("vm.max_map_count allows ", *most, " mappings, ", mappings, " are there"));
  }
  const MemoryLeft left = ReadMemoryLeft();
  if (limits.empty() && left.group < left.machine) return WhyNoMemory(left, 0, MemoryLeft::kUnknown);
  if (limits.empty() && left.machine != MemoryLeft::kUnknown) return WhyNoMemory(left, MemoryLeft::kUnknown, 0);
  return limits.empty() ? "no limit is known" : absl::StrJoin(limits, "; ");
}

std::string LimitsOnThreads() {
  // The C library has one error for a thread and for its stack.
  if (!StackFits()) return absl::StrCat("there is no memory for its stack: ", LimitsOnMemory());
  std::vector<std::string> limits;
  ForEachGroup("pids", [&](const std::string& folder, bool) {
    const absl::optional<uint64_t> most = NumberIn(folder + "/pids.max");
    if (!most.has_value()) return;
    limits.push_back(absl::StrCat(folder, "/pids.max allows ", *most, ", ",
                                  NumberIn(folder + "/pids.current").value_or(0), " are there"));
  });
  std::string user = ReadLimit(RLIMIT_NPROC, "RLIMIT_NPROC", "threads of this user");
  if (!user.empty()) limits.push_back(std::move(user));
  return limits.empty() ? "no limit is known" : absl::StrJoin(limits, "; ");
}

uint64_t OutOfMemoryKills() {
  uint64_t kills = 0;
  ForEachGroup("memory", [&kills](const std::string& folder, bool version1) {
    kills += SumOf(folder + (version1 ? "/memory.oom_control" : "/memory.events"), {"oom_kill"}).value_or(0);
  });
  return kills;
}

int UsableCores() {
  int64_t cores = CountCores(CoresOfThisThread());
  if (cores == 0) cores = sysconf(_SC_NPROCESSORS_ONLN);
  ForEachGroup("cpu", [&cores](const std::string& folder, bool version1) {
    int64_t quota = 0, period = 0;  // microseconds of processor time per period; -1 and "max" are no limit
    if (version1) {
      std::ifstream(folder + "/cpu.cfs_quota_us") >> quota;
      std::ifstream(folder + "/cpu.cfs_period_us") >> period;
    } else {
      std::ifstream(folder + "/cpu.max") >> quota >> period;
    }
    if (quota > 0 && period > 0) cores = std::min(cores, quota / period);
  });
  return static_cast<int>(std::max<int64_t>(cores, 1));
}

}  // namespace lockstep
