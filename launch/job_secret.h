// The secret of a job, from the launcher to its ranks: in a file that has no name and ends with the launcher, however that ends. Neither an
// argument nor the environment has it, only the file's path.

#ifndef LAUNCH_JOB_SECRET_H_
#define LAUNCH_JOB_SECRET_H_

#include <string>

#include "absl/status/statusor.h"
#include "base/fork.h"
#include "transport/secure/credentials.h"

namespace lockstep {

struct JobSecret {
  // For the launcher's own store server.
  Credentials credentials;
  // What LOCKSTEP_SECRET_FILE of the ranks has to be: "/proc/71/fd/8". Empty if the ranks' variable stays as it is.
  std::string path;
  // Behind `path`, of mode 0600 and sealed against changes. Only processes of this user open it: the kernel asks for the right to
  // trace this process (proc(5), /proc/pid/fd). It has to stay open while ranks may read it.
  UniqueFd file;
};

// By the environment:
//   LOCKSTEP_SECURITY=none    there is no secret
//   LOCKSTEP_SECRET_FILE set  that one; read only if the launcher itself `serves` the store
//   otherwise                 a new one, as in a rank of another launcher's job where the variable is that launcher's `path`; but if this
//                             launcher serves no store, the store may be that job's, and so is the secret
// ERRORS  INVALID_ARGUMENT  names the variable and what is wrong with it or its file
absl::StatusOr<JobSecret> MakeJobSecret(bool serves);

}  // namespace lockstep

#endif  // LAUNCH_JOB_SECRET_H_
