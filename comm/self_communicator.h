// The communicator of a world of one: every collective is at most a copy. No transport, no thread, no wait.

#ifndef COMM_SELF_COMMUNICATOR_H_
#define COMM_SELF_COMMUNICATOR_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "comm/communicator.h"
#include "comm/flight_recorder.h"

namespace lockstep {

class SelfCommunicator : public Communicator {
 public:
  explicit SelfCommunicator(size_t flight_records) : recorder_(flight_records) {}

  Rank rank() const override { return Rank(0); }
  int size() const override { return 1; }
  absl::Status Run(const CollectiveRequest& request) override;
  absl::StatusOr<Work> Start(const CollectiveRequest& request) override;
  absl::Status Supports(Collective collective, DType dtype, ReduceOp op) const override;
  absl::Status status() const override;
  void Abort(const std::string& reason) override;
  void PostNote(uint64_t topic, const std::string& text) override;
  absl::StatusOr<std::vector<std::pair<Rank, std::string>>> AwaitNotes(uint64_t topic, int count,
                                                                       Deadline deadline) override;
  std::string FlightRecords() const override;
  std::string Describe() const override { return "one rank: collectives are copies"; }

 private:
  // Guarded by mu_.
  mutable Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  FlightRecorder recorder_ ABSL_GUARDED_BY(mu_);
  uint64_t sequence_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<uint64_t, std::string> notes_ ABSL_GUARDED_BY(mu_);  // by topic, the newest 64
};

}  // namespace lockstep

#endif  // COMM_SELF_COMMUNICATOR_H_
