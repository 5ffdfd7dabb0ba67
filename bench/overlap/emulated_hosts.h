// Ranks on hosts of their own, which this machine emulates.

#ifndef BENCH_OVERLAP_EMULATED_HOSTS_H_
#define BENCH_OVERLAP_EMULATED_HOSTS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lockstep {
namespace bench {

// Whether this process may make network namespaces: tools/emulated-hosts is asked. NOT_FOUND as below.
absl::StatusOr<bool> HostsCanBeEmulated();

// Becomes tools/emulated-hosts, which runs this program again, with the same arguments, as so many ranks in network
// namespaces with links of `rate` between them ("1gbit"; "none": as fast as the kernel copies). Its exit status is 77,
// and it says why, where namespaces are not permitted. Returns only when it cannot be run: NOT_FOUND says where was
// looked.
absl::Status BecomeEmulatedHosts(int ranks, const std::string& rate, char** argv);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_OVERLAP_EMULATED_HOSTS_H_
