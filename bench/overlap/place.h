// Where a program's gradients are: on the host or on a GPU, with what computes them and a communicator that reaches them.

#ifndef BENCH_OVERLAP_PLACE_H_
#define BENCH_OVERLAP_PLACE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/device.h"
#include "bench/overlap/options.h"
#include "bench/overlap/replay.h"
#include "comm/communicator.h"

namespace lockstep {
namespace bench {

struct Place {
  ReplayPlace replay;
  Communicator* communicator = nullptr;
  std::string text;  // for people: the device, and how its tensors travel
  // What the others borrow, where they are not the caller's.
  std::unique_ptr<Communicator> on_device;
  std::unique_ptr<Stream> stream;
};

// Collective over the world's communicator, which must outlive it. Ranks take the host's GPUs in turn; those that share
// one get an NCCL_HOSTID of their own, without which NCCL refuses them. UNAVAILABLE where there is no GPU.
absl::StatusOr<Place> FindPlace(const OverlapOptions& options, Communicator* world);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_OVERLAP_PLACE_H_
