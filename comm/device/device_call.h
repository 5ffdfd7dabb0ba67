// What a DeviceCommunicator keeps of calls; its own parts only.

#ifndef COMM_DEVICE_DEVICE_CALL_H_
#define COMM_DEVICE_DEVICE_CALL_H_

#include <cstdint>
#include <deque>
#include <thread>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "base/ref.h"
#include "comm/communicator.h"
#include "comm/device/device_communicator.h"
#include "comm/device/device_work.h"

namespace lockstep {

// A call that outlives its caller's counts.
class KeptCall {
 public:
  explicit KeptCall(const DeviceCall& call) : call_(call) {
    auto* const request = std::get_if<CollectiveRequest>(&call_);
    if (request == nullptr) return;
    counts_.assign(request->counts.begin(), request->counts.end());
    output_counts_.assign(request->output_counts.begin(), request->output_counts.end());
    request->counts = counts_;
    request->output_counts = output_counts_;
  }
  KeptCall(const KeptCall&) = delete;
  KeptCall& operator=(const KeptCall&) = delete;

  const DeviceCall& call() const { return call_; }

 private:
  DeviceCall call_;
  std::vector<int64_t> counts_;
  std::vector<int64_t> output_counts_;
};

struct DeviceCommunicator::Group {
  struct Member {
    explicit Member(const DeviceCall& given, std::thread::id thread)
        : call(given), work(MakeRef<DeferredWork>(thread)) {}
    KeptCall call;
    Ref<DeferredWork> work;
  };

  std::thread::id thread;
  int depth = 1;
  bool on_host = false;  // the host communicator has a group open, with the calls there
  Ref<DeferredWork> work;
  std::deque<Member> members;  // on the device
  absl::Status refused;        // the first call on the device that was
};

}  // namespace lockstep

#endif  // COMM_DEVICE_DEVICE_CALL_H_
