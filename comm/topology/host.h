// This host: its name and its id.

#ifndef COMM_TOPOLOGY_HOST_H_
#define COMM_TOPOLOGY_HOST_H_

#include <string>

namespace lockstep {

// The host's name, for texts.
std::string HostName();

// Equal for processes that share a host and its network namespace, and different otherwise: LOCKSTEP_HOST_ID if set, else the
// kernel's boot id with the inode of the network namespace. A hint, not a proof.
std::string HostId();

}  // namespace lockstep

#endif  // COMM_TOPOLOGY_HOST_H_
