// StagedCommunicator: collectives on a device's tensors over any communicator on the host, through memory that both
// reach. For where nothing carries them from device to device; the work is StagedPipeline's.
//
// It has a duplicate of the host communicator for this, so calls on the host and on the device are in orders of their
// own. All collectives, dtypes and ops of the host communicator; messages on the device are UNIMPLEMENTED. A call's
// pieces are collectives of their own: the bits are those of the host's collectives over each piece, which are those
// over the whole vector where the host communicator is deterministic (docs/numerics.md).
//
// Enqueue and Start issue all of a call's work on the device and wait for none of it (comm/device/staged/staged_pipeline.h); the
// caller's stream waits for an event. No closure is put into a stream, and streams may share a device's queues in any
// way. Ranks that are threads of one process and share a device must not share its queues, though: one rank's wait would
// hold up another's copy. Streams that are being captured are refused: a graph would repeat the copies, but not the
// collective.

#ifndef COMM_DEVICE_STAGED_STAGED_COMMUNICATOR_H_
#define COMM_DEVICE_STAGED_STAGED_COMMUNICATOR_H_

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/device/device.h"
#include "comm/communicator.h"
#include "comm/device/device_communicator.h"
#include "comm/device/staged/staged_pipeline.h"
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
  // they differ; UNAVAILABLE where the device's streams cannot await and write values (base/device/device.h); RESOURCE_EXHAUSTED where
  // there is no staging memory; and UNAVAILABLE, naming that rank, on the others.
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
  void OnLeave() override;

 private:
  StagedCommunicator(HostPart host, Device* device, StagedOptions options)
      : DeviceCommunicator(std::move(host), device, options.timeout), options_(std::move(options)) {}

  // Ends all after a call that was issued in part.
  absl::Status FailIfNotOk(const absl::Status& issued);

  const StagedOptions options_;
  std::unique_ptr<StagedPipeline> pipeline_;  // made by Create
};

}  // namespace lockstep

#endif  // COMM_DEVICE_STAGED_STAGED_COMMUNICATOR_H_
