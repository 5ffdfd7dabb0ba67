// Worlds of staged communicators whose ranks are threads of one process, each with a device of its own.

#ifndef TESTS_STAGED_WORLDS_H_
#define TESTS_STAGED_WORLDS_H_

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "base/status.h"
#include "comm/device/staged/staged_communicator.h"
#include "comm/host/self_communicator.h"
#include "comm/host/transport_communicator.h"
#include "tests/ranks.h"
#include "transport/loopback/loopback.h"

namespace lockstep::testing {

class StagedWorld {
 public:
  // Collective set-up on all ranks at once. `device` names each rank's, which outlives the world; `change` sees its
  // options.
  static absl::StatusOr<std::unique_ptr<StagedWorld>> Create(
      int size, const std::function<Device*(int rank)>& device, StagedOptions options = {},
      const TransportCommunicatorOptions& transport = {},
      const std::function<void(int rank, StagedOptions*)>& change = nullptr) {
    auto world = std::make_unique<StagedWorld>();
    if (size > 1) world->loopback_ = std::make_unique<LoopbackWorld>(size, LoopbackOptions(), transport);
    world->ranks_.resize(size);
    world->created_.resize(size);
    RunRanks(size, [&](int rank) {
      HostPart host(size == 1 ? nullptr : world->loopback_->communicator(rank));
      if (size == 1) host = HostPart(std::make_unique<SelfCommunicator>(/*flight_records=*/64));
      StagedOptions mine = options;
      if (change != nullptr) change(rank, &mine);
      absl::StatusOr<std::unique_ptr<StagedCommunicator>> communicator =
          StagedCommunicator::Create(std::move(host), device(rank), mine);
      world->created_[rank] = communicator.status();
      if (communicator.ok()) world->ranks_[rank] = *std::move(communicator);
    });
    return world;
  }

  // Each rank's result.
  const std::vector<absl::Status>& created() const { return created_; }
  absl::Status FirstError() const {
    for (const absl::Status& status : created_) LOCKSTEP_RETURN_IF_ERROR(status);
    return absl::OkStatus();
  }

  int size() const { return static_cast<int>(ranks_.size()); }
  std::unique_ptr<StagedCommunicator>& rank(int rank) { return ranks_[rank]; }
  LoopbackNetwork& network() { return loopback_->network(); }

 private:
  std::unique_ptr<LoopbackWorld> loopback_;  // null in a world of one
  std::vector<absl::Status> created_;
  std::vector<std::unique_ptr<StagedCommunicator>> ranks_;
};

}  // namespace lockstep::testing

#endif  // TESTS_STAGED_WORLDS_H_
