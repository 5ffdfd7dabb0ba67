// SelfCommunicator: the communicator of a world of one. It is a TransportCommunicator over a loopback network of its own: a collective is
// at most a copy, and a message goes from this rank to itself.
//
// THREADS  none, until a message is in flight that nobody waits for; then `lockstep-io`

#ifndef COMM_HOST_SELF_COMMUNICATOR_H_
#define COMM_HOST_SELF_COMMUNICATOR_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "comm/engine/progress_engine.h"
#include "comm/host/transport_communicator.h"
#include "transport/loopback/loopback.h"

namespace lockstep {

// A base class, so that it outlives the communicator.
class LoopbackOfOne {
 protected:
  LoopbackNetwork network_{/*size=*/1};
  const std::unique_ptr<Transport> transport_ = network_.CreateTransport(Rank(0));
  ProgressEngine own_engine_{transport_.get(), /*spin=*/std::chrono::nanoseconds::zero()};
};

class SelfCommunicator : private LoopbackOfOne, public TransportCommunicator {
 public:
  // `timeout`: of a message whose request names none.
  explicit SelfCommunicator(size_t flight_records, std::chrono::milliseconds timeout = std::chrono::minutes(30));

  absl::Status MonitoredBarrier(std::chrono::milliseconds timeout, std::vector<Rank>* missing) override;
  // The newest 64 topics are kept.
  void PostMessage(uint64_t topic, const std::string& text) override;
  absl::StatusOr<std::vector<std::pair<Rank, std::string>>> AwaitMessages(uint64_t topic, int count,
                                                                          Deadline deadline) override;

 private:
  Mutex posted_mu_;
  std::map<uint64_t, std::string> posted_ ABSL_GUARDED_BY(posted_mu_);  // by topic
};

}  // namespace lockstep

#endif  // COMM_HOST_SELF_COMMUNICATOR_H_
