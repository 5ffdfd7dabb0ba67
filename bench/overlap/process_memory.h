// How much memory this process has, as the kernel counts it.

#ifndef BENCH_OVERLAP_PROCESS_MEMORY_H_
#define BENCH_OVERLAP_PROCESS_MEMORY_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lockstep {
namespace bench {

struct ProcessMemory {
  int64_t resident_bytes = 0;       // VmRSS: pages that it has touched, those of its peers that it maps among them
  int64_t peak_resident_bytes = 0;  // VmHWM: the most of that since ResetPeakMemory
  int64_t proportional_bytes = 0;   // Pss: a page that n processes have counts for 1/n
};

// Of proc_pid_status(5) and smaps_rollup. UNAVAILABLE where the kernel does not tell.
absl::StatusOr<ProcessMemory> MeasureProcessMemory();
absl::Status ResetPeakMemory();

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_OVERLAP_PROCESS_MEMORY_H_
