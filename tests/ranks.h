// Ranks as threads: runs a function once per rank and joins them all.

#ifndef TESTS_RANKS_H_
#define TESTS_RANKS_H_

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "comm/communicator.h"
#include "comm/engine/progress_engine.h"
#include "comm/host/channel_registry.h"
#include "comm/host/transport_communicator.h"
#include "tests/noting_communicator.h"
#include "transport/loopback/loopback.h"
#include "transport/transport.h"

namespace lockstep::testing {

// Calls body(rank) on `size` threads at once and returns when all have returned. A body reports with EXPECT_ macros; it may not
// leave the others waiting, so it goes on after a failure or aborts what it shares with them.
void RunRanks(int size, const std::function<void(int rank)>& body);

// Makes communicators for the test's device, collectively, with that timeout.
using MakeTestCommunicator = absl::StatusOr<std::unique_ptr<Communicator>> (*)(Communicator* host, Device* device,
                                                                               std::chrono::milliseconds timeout);
// The default: staged communicators. ReplaceTestCommunicators() must come before the first one is made.
absl::StatusOr<std::unique_ptr<Communicator>> MakeStagedTestCommunicator(Communicator* host, Device* device,
                                                                         std::chrono::milliseconds timeout);
void ReplaceTestCommunicators(MakeTestCommunicator make);

// A communicator for tensors on the test's device and on the host, made from one for the host, which outlives it. If the device is the
// host, it is that one. Collective.
class ForTestDevice {
 public:
  explicit ForTestDevice(Communicator* host,
                         std::chrono::milliseconds timeout = TransportCommunicatorOptions().timeout);

  Communicator* get() const { return on_device_ == nullptr ? host_ : on_device_.get(); }
  Communicator& operator*() const { return *get(); }

 private:
  Communicator* const host_;
  std::unique_ptr<Communicator> on_device_;
};

// Communicators of `size` ranks over one loopback network, without a control channel: each rank has its own view of a failure.
// Messages to all ranks go to a board in memory. For tensors on the test's device, too (tests/test_device.h).
class LoopbackWorld {
 public:
  explicit LoopbackWorld(int size, LoopbackOptions network = {}, TransportCommunicatorOptions options = {});
  ~LoopbackWorld();

  int size() const { return static_cast<int>(ranks_.size()); }
  Communicator* communicator(int rank) { return ranks_[rank].for_device->get(); }
  LoopbackNetwork& network() { return network_; }

  // RunRanks with each rank's communicator.
  void Run(const std::function<void(Communicator&)>& body);

 private:
  struct Member {
    std::unique_ptr<Transport> transport;
    std::unique_ptr<ProgressEngine> engine;
    std::unique_ptr<ChannelRegistry> registry;
    std::unique_ptr<TransportCommunicator> communicator;
    std::unique_ptr<NotingCommunicator> noting;
    std::unique_ptr<ForTestDevice> for_device;
  };

  LoopbackNetwork network_;
  MemoryMessageBoard board_;
  std::vector<Member> ranks_;
};

}  // namespace lockstep::testing

#endif  // TESTS_RANKS_H_
