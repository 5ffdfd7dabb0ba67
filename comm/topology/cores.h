// The cores that processes may run on, as sets of bits: core i is bit i % 64 of word i / 64.

#ifndef COMM_TOPOLOGY_CORES_H_
#define COMM_TOPOLOGY_CORES_H_

#include <cstdint>
#include <vector>

namespace lockstep {

using CoreSet = std::vector<uint64_t>;

// The affinity mask of the calling thread. Empty when the system does not tell.
CoreSet CoresOfThisThread();

void AddCores(const CoreSet& added, CoreSet* cores);
int CountCores(const CoreSet& cores);

}  // namespace lockstep

#endif  // COMM_TOPOLOGY_CORES_H_
