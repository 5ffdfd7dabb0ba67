// The cores that a thread may run on.

#ifndef BASE_CORES_H_
#define BASE_CORES_H_

#include <cstdint>
#include <vector>

namespace lockstep {

// Core i is bit i % 64 of word i / 64.
using CoreSet = std::vector<uint64_t>;

// The affinity mask of the calling thread. Empty when the system does not tell.
CoreSet CoresOfThisThread();

void AddCores(const CoreSet& added, CoreSet* cores);
int CountCores(const CoreSet& cores);

}  // namespace lockstep

#endif  // BASE_CORES_H_
