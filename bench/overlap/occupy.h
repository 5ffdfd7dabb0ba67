// Something that keeps a stream busy for as long as it is told, in the place of work.

#ifndef BENCH_OVERLAP_OCCUPY_H_
#define BENCH_OVERLAP_OCCUPY_H_

#include <chrono>

#include "absl/status/status.h"
#include "base/device.h"

namespace lockstep {
namespace bench {

// Enqueues it and returns. On a GPU it is a kernel of one thread that looks at the device's clock, and so leaves memory and
// all but one multiprocessor to others; on the host the stream's thread sleeps. Errors are those of a launch and of
// Stream::Enqueue.
absl::Status Occupy(Stream& stream, std::chrono::nanoseconds time);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_OVERLAP_OCCUPY_H_
