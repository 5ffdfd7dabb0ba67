// Worlds of communicators whose tensors the network reads and writes in memory of a device, without a GPU and without a
// network that can: ranks are threads, each with a device whose memory faults when the host touches it, and a provider of
// libfabric in memory carries their messages.

#ifndef COMM_FABRIC_TESTING_H_
#define COMM_FABRIC_TESTING_H_

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>

#include <chrono>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status.h"
#include "comm/channel_registry.h"
#include "comm/progress_engine.h"
#include "comm/staged_communicator.h"
#include "comm/staging.h"
#include "comm/transport_communicator.h"
#include "tests/guarded_device.h"
#include "tests/ranks.h"
#include "transport/ofi/fake_provider.h"
#include "transport/ofi/ofi_testing.h"
#include "transport/transport.h"

namespace lockstep {

// As EFA does: memory is registered, that of devices as such.
inline FakeProviderOptions FabricProvider() {
  FakeProviderOptions fake;
  fake.caps |= FI_HMEM;
  fake.mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_HMEM;
  fake.inject_bytes = 0;
  fake.reach = &ReachGuarded;
  return fake;
}

inline StagedOptions FabricOptions() {
  StagedOptions options;
  options.place = Staging::Place::kOnDevice;
  options.kernels = GuardedFoldKernels();
  options.timeout = std::chrono::milliseconds(60'000);
  return options;
}

// One at a time in a process: its provider is the only one.
class FabricWorld {
 public:
  using Made = absl::StatusOr<std::unique_ptr<StagedCommunicator>>;

  // The hosts' part. `queues`: of each device, as FakeDevice has them.
  static absl::StatusOr<std::shared_ptr<FabricWorld>> CreateHosts(int size,
                                                                  const FakeProviderOptions& fake = FabricProvider(),
                                                                  const TransportCommunicatorOptions& options = {},
                                                                  int queues = 0) {
    auto world = std::make_shared<FabricWorld>();
    world->provider_ = std::make_unique<FakeProvider>(fake);
    LOCKSTEP_ASSIGN_OR_RETURN(Transports transports,
                              CreateConnectedOfiWorld(size, "", [&](OfiTransportOptions* transport) {
                                transport->api = &world->provider_->api();
                                transport->device_memory = OfiTransportOptions::DeviceMemory::kIfTaken;
                              }));
    for (int rank = 0; rank < size; ++rank) {
      Member& member = world->members_.emplace_back();
      member.device = std::make_unique<GuardedDevice>(0, queues);
      member.transport = std::move(transports[rank]);
      member.engine = std::make_unique<ProgressEngine>(member.transport.get(), std::chrono::microseconds(0));
      member.registry = std::make_unique<ChannelRegistry>();
      TransportCommunicatorOptions mine = options;
      mine.registry = member.registry.get();
      member.host = std::make_unique<TransportCommunicator>(member.engine.get(), nullptr, mine);
    }
    return world;
  }

  // What creating each rank's communicator said.
  std::vector<Made> Connect(const std::function<void(int rank, StagedOptions* options)>& change = nullptr) {
    std::vector<Made> made;
    for (size_t r = 0; r < members_.size(); ++r) made.emplace_back(absl::UnknownError("not created"));
    testing::RunRanks(static_cast<int>(members_.size()), [&](int rank) {
      StagedOptions options = FabricOptions();
      if (change) change(rank, &options);
      made[rank] = StagedCommunicator::Create(members_[rank].host.get(), members_[rank].device.get(), options);
    });
    return made;
  }

  // Both; the ranks go first.
  absl::Status ConnectAll(const std::function<void(int rank, StagedOptions* options)>& change = nullptr) {
    for (Made& made : Connect(change)) {
      LOCKSTEP_RETURN_IF_ERROR(made.status());
      ranks_.push_back(*std::move(made));
    }
    return absl::OkStatus();
  }

  ~FabricWorld() {
    ranks_.clear();
    for (Member& member : members_) member.host = nullptr;
    for (Member& member : members_) member.engine = nullptr;
    for (Member& member : members_) member.transport = nullptr;
  }

  FakeProvider& provider() { return *provider_; }
  TransportCommunicator& host(int rank) { return *members_[rank].host; }
  GuardedDevice& device(int rank) { return *members_[rank].device; }
  std::unique_ptr<StagedCommunicator>& rank(int rank) { return ranks_[rank]; }
  std::vector<std::unique_ptr<StagedCommunicator>>& ranks() { return ranks_; }

 private:
  struct Member {
    std::unique_ptr<GuardedDevice> device;
    std::unique_ptr<Transport> transport;
    std::unique_ptr<ProgressEngine> engine;
    std::unique_ptr<ChannelRegistry> registry;
    std::unique_ptr<TransportCommunicator> host;
  };

  std::unique_ptr<FakeProvider> provider_;
  std::vector<Member> members_;
  std::vector<std::unique_ptr<StagedCommunicator>> ranks_;
};

}  // namespace lockstep

#endif  // COMM_FABRIC_TESTING_H_
