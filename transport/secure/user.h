// Whose a process or a file is, by the ids that the kernel gives.
//
// The kernel shows every id that this process's user namespace does not map as one and the same: the overflow id (user_namespaces(7), 65534
// as a rule). In a rootless container it stands for anybody outside. So where not all ids are mapped, it is nobody's here: neither this
// process's user, though that may have the number, nor root.

#ifndef TRANSPORT_SECURE_USER_H_
#define TRANSPORT_SECURE_USER_H_

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace lockstep {

// Whether it is the effective user id of this process, that of root, or one of this process's groups. Any thread.
bool IsThisUser(uid_t user);
bool IsRoot(uid_t user);
bool IsGroupOfThisProcess(gid_t group);

// A number for this process's user namespace, other than those of all others of this host that processes are in now. 0 if /proc is not
// there.
uint64_t UserNamespace();

// "user 1000", and where it stands for anybody, that it does.
std::string DescribeUser(uid_t user);

// Whether `id` stands for more than one. `map` is the text of /proc/self/uid_map or gid_map, `overflow` that of
// /proc/sys/kernel/overflowuid or overflowgid; of what cannot be read, "". Pure.
bool StandsForAnybody(id_t id, absl::string_view map, absl::string_view overflow);

}  // namespace lockstep

#endif  // TRANSPORT_SECURE_USER_H_
