#include "transport/secure/user.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/fork.h"

namespace lockstep {
namespace {

constexpr id_t kUsualOverflow = 65534;

// Empty if it cannot be read.
std::string TextOf(const char* path) {
  const UniqueFd file(open(path, O_RDONLY | O_CLOEXEC));
  char text[4096];  // a map has 340 lines at most, and of ours the first tells
  const ssize_t bytes = file.valid() ? read(file.get(), text, sizeof(text)) : 0;
  return std::string(text, static_cast<size_t>(std::max<ssize_t>(bytes, 0)));
}

// Looked up each time: a process may change its namespace.
bool UserStandsForAnybody(uid_t user) {
  return StandsForAnybody(user, TextOf("/proc/self/uid_map"), TextOf("/proc/sys/kernel/overflowuid"));
}

}  // namespace

bool IsThisUser(uid_t user) { return user == geteuid() && !UserStandsForAnybody(user); }

bool IsRoot(uid_t user) { return user == 0 && !UserStandsForAnybody(user); }

bool IsGroupOfThisProcess(gid_t group) {
  bool has = group == getegid();
  if (const int count = getgroups(0, nullptr); !has && count > 0) {
    std::vector<gid_t> groups(count);
    groups.resize(std::max(getgroups(count, groups.data()), 0));
    has = std::find(groups.begin(), groups.end(), group) != groups.end();
  }
  return has && !StandsForAnybody(group, TextOf("/proc/self/gid_map"), TextOf("/proc/sys/kernel/overflowgid"));
}

uint64_t UserNamespace() {
  struct stat space = {};
  return stat("/proc/self/ns/user", &space) == 0 ? space.st_ino : 0;
}

std::string DescribeUser(uid_t user) {
  return absl::StrCat("user ", user,
                      UserStandsForAnybody(user) ? ", which is anybody outside this user namespace" : "");
}

bool StandsForAnybody(id_t id, absl::string_view map, absl::string_view overflow) {
  id_t overflow_id = 0;
  if (!absl::SimpleAtoi(overflow, &overflow_id)) overflow_id = kUsualOverflow;
  if (id != overflow_id) return false;
  // All ids at once, or not all. A map that covers them in pieces is taken for one that does not.
  const std::vector<absl::string_view> fields = absl::StrSplit(map, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  return fields != std::vector<absl::string_view>{"0", "0", "4294967295"};
}

}  // namespace lockstep
