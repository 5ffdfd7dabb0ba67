// This host: its name, its id, and the cores that processes may run on.

#ifndef COMM_TOPOLOGY_HOST_H_
#define COMM_TOPOLOGY_HOST_H_

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

// The host's name, for texts.
std::string HostName();

// Equal for processes that share a host and its network namespace, and different otherwise: LOCKSTEP_HOST_ID if set, else the
// kernel's boot id with the inode of the network namespace. A hint, not a proof.
std::string HostId();

// Core i is bit i % 64 of word i / 64.
using CoreSet = std::vector<uint64_t>;

// The affinity mask of the calling thread. Empty when the system does not tell.
CoreSet CoresOfThisThread();

void AddCores(const CoreSet& added, CoreSet* cores);
int CountCores(const CoreSet& cores);

}  // namespace lockstep

#endif  // COMM_TOPOLOGY_HOST_H_
