// ProcessGuardian: a small process that ends its owner's process groups if the owner dies first, even by SIGKILL.
//
// A death signal (PR_SET_PDEATHSIG) reaches only children; the guardian reaches their children too. It is a fork of its owner,
// holds one end of a socket pair and no other descriptor, and sleeps until a message comes or the owner's death closes the
// socket.

#ifndef LAUNCH_PROCESS_GUARDIAN_H_
#define LAUNCH_PROCESS_GUARDIAN_H_

#include <sys/types.h>

#include <memory>

#include "absl/status/statusor.h"

namespace lockstep {

// Not thread-safe.
class ProcessGuardian {
 public:
  static constexpr int kGroupsMax = 4096;

  // Forks. Start it before opening descriptors that must not stay open in another process.
  static absl::StatusOr<std::unique_ptr<ProcessGuardian>> Start();

  // Ends the guardian, not the groups it watches. Waits for its process, which takes microseconds.
  ~ProcessGuardian();
  ProcessGuardian(const ProcessGuardian&) = delete;
  ProcessGuardian& operator=(const ProcessGuardian&) = delete;

  // Watches the caller's own group, at most kGroupsMax at once. Async-signal-safe.
  // REQUIRES  the caller is a forked child that leads a group, and has not done anything yet that might outlive the owner
  static void WatchCaller(const void* guardian);
  // Stops watching the group. For a group without members: its number may soon belong to another process.
  void Forget(pid_t group);

 private:
  ProcessGuardian(pid_t pid, int socket) : pid_(pid), socket_(socket) {}

  void Tell(pid_t message) const;

  const pid_t pid_;
  const int socket_;
};

}  // namespace lockstep

#endif  // LAUNCH_PROCESS_GUARDIAN_H_
