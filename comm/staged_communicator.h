// StagedCommunicator: collectives on a device's tensors over any communicator on the host, through memory that both
// reach. For where nothing carries them from device to device; the work is StagedPipeline's.
//
// It has a duplicate of the host communicator for this, so calls on the host and on the device are in orders of their
// own. All collectives, dtypes and ops of the host communicator; messages on the device are UNIMPLEMENTED. A call's
// pieces are collectives of their own: the bits are those of the host's collectives over each piece, which are those
// over the whole vector where the host communicator is deterministic (docs/numerics.md).
//
// Enqueue never waits. In the caller's stream a call is an event, which the pipeline waits for, and behind it a closure
// that returns once the call is done; so CUDA's thread for closures waits while the call is under way. The Stream
// itself, a borrowed one, too, outlives the call: closures that have yet to run go with it. Streams that are being
// captured are refused: a graph would repeat the closure, but not the collective.

#ifndef COMM_STAGED_COMMUNICATOR_H_
#define COMM_STAGED_COMMUNICATOR_H_

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/device.h"
#include "base/ref.h"
#include "comm/communicator.h"
#include "comm/device_communicator.h"
#include "comm/staged_pipeline.h"
#include "comm/work.h"

namespace lockstep {

struct StagedOptions {
  // Of a slot, and so of a collective on the host: what its latency is small against, and small against a bucket, so
  // that the stages overlap. Equal on all ranks.
  size_t chunk_bytes = size_t{1} << 20;
  int slots = 3;  // one for each stage; more even out what a stage's time varies by. Equal on all ranks
  std::chrono::milliseconds timeout{1800000};  // of a call that names none
  size_t flight_records = 256;
  std::string reason;  // why calls are staged, for Describe
};

class StagedCommunicator : public DeviceCommunicator {
 public:
  // Collective over `host`. INVALID_ARGUMENT for options that cannot be; FAILED_PRECONDITION, naming the ranks, when
  // they differ; RESOURCE_EXHAUSTED where there is no staging memory, and UNAVAILABLE, naming that rank, on the others.
  static absl::StatusOr<std::unique_ptr<StagedCommunicator>> Create(HostPart host, Device* device,
                                                                    StagedOptions options = {});

  // Completes calls in flight with CANCELLED, and fails them on the other ranks.
  ~StagedCommunicator() override;

  absl::Status status() const override;
  // The host communicator's; the calls on the device; their pieces.
  std::string FlightRecords() const override;

 protected:
  absl::Status CheckOnDevice(const DeviceCall& call) override;
  absl::Status IssueOnDevice(absl::Span<const DeviceCall> calls, Stream* stream) override;
  absl::StatusOr<Work> StartOnDevice(absl::Span<const DeviceCall> calls) override;
  absl::StatusOr<std::unique_ptr<Communicator>> MakePart(std::unique_ptr<Communicator> part, int color,
                                                         int key) override;
  std::string DescribeDevice() const override;
  void OnFailure(const absl::Status& status) override;

 private:
  StagedCommunicator(HostPart host, Device* device, StagedOptions options)
      : DeviceCommunicator(std::move(host), device, options.timeout), options_(std::move(options)) {}

  absl::StatusOr<Ref<StagedOp>> MakeOp(const CollectiveRequest& request, std::unique_ptr<Event> ready);

  const StagedOptions options_;
  std::unique_ptr<StagedPipeline> pipeline_;  // made by Create
  // What the last call in a stream waits for. The next one's stream waits for it, too, so that a closure that waits for
  // a call finds all before it ready: they then need no other closure to be run. Used by one call at a time.
  Ref<StagedOp> last_ready_;
};

}  // namespace lockstep

#endif  // COMM_STAGED_COMMUNICATOR_H_
