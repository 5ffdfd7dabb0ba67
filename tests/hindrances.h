// Keeps this process from what it could do otherwise: refused system calls, limits. For ranks that are processes (tests/processes.h) and
// forked children.

#ifndef TESTS_HINDRANCES_H_
#define TESTS_HINDRANCES_H_

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "base/check.h"
#include "base/fork.h"
#include "base/status.h"

namespace lockstep {

struct RefusedCall {
  int number = 0;  // SYS_...
  int error = 0;   // the errno that it fails with
  // With `argument` (0 to 5) only calls whose argument equals `value` in its lower 32 bits.
  int argument = -1;
  uint32_t value = 0;
};

// Goes on behind this instruction if the word at `offset` of the call equals `value`, and skips `others` more if not.
inline void AppendRefusalTest(uint32_t offset, uint32_t value, uint8_t others, std::vector<sock_filter>* program) {
  program->push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offset));
  program->push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, others));
}

// Makes the call fail until the process ends, on this thread and those that it starts, as a container's filter does. UNAVAILABLE if the
// system has no such filters.
inline absl::Status Refuse(const RefusedCall& call) {
  const bool any_argument = call.argument < 0;
  std::vector<sock_filter> program;
  AppendRefusalTest(offsetof(seccomp_data, nr), static_cast<uint32_t>(call.number), any_argument ? 1 : 3, &program);
  // The lower half of an argument comes first, this being little-endian like everything here.
  if (!any_argument) AppendRefusalTest(offsetof(seccomp_data, args) + 8 * call.argument, call.value, 1, &program);
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(call.error)));
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog filter = {static_cast<unsigned short>(program.size()), program.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
    return absl::UnavailableError(ErrnoStatus(errno, "install a filter of system calls").message());
  }
  return absl::OkStatus();
}

// Sets the soft limit, as far as the hard one allows; it may be raised again.
inline absl::Status Limit(__rlimit_resource resource, rlim_t most) {
  rlimit limit = {};
  if (getrlimit(resource, &limit) != 0) return ErrnoStatus(errno, "getrlimit");
  limit.rlim_cur = std::min(most, limit.rlim_max);
  return setrlimit(resource, &limit) == 0 ? absl::OkStatus() : ErrnoStatus(errno, "setrlimit");
}

// While it lives, this process may open so many descriptors more.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(int more) {
    LOCKSTEP_CHECK(getrlimit(RLIMIT_NOFILE, &before_) == 0);
    const int lowest_free = UniqueFd(dup(0)).get();
    LOCKSTEP_CHECK(Limit(RLIMIT_NOFILE, static_cast<rlim_t>(lowest_free + more)).ok());
  }
  ~DescriptorLimit() { LOCKSTEP_CHECK(setrlimit(RLIMIT_NOFILE, &before_) == 0); }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;

 private:
  rlimit before_ = {};
};

}  // namespace lockstep

#endif  // TESTS_HINDRANCES_H_
