#include "comm/world/world_on_device.h"

#include <utility>

#include "base/device/devices.h"
#include "base/mutex.h"
#include "base/status.h"
#include "comm/agreement.h"
#include "comm/communicator.h"
#include "comm/device/device_communicator.h"

namespace lockstep {
namespace {

class WorldOnDevice : public World {
 public:
  WorldOnDevice(std::unique_ptr<World> host, std::unique_ptr<Communicator> communicator)
      : host_(std::move(host)), communicator_(std::move(communicator)) {}

  Communicator* communicator() override { return communicator_.get(); }
  void CloseCommunicator() override {
    MutexLock lock(&mu_);
    communicator_.reset();
    host_->CloseCommunicator();
  }
  void Close() override {
    MutexLock lock(&mu_);
    if (communicator_ != nullptr) communicator_->Leave();
    host_->Close();
  }

 private:
  Mutex mu_;  // of those that end the communicator
  const std::unique_ptr<World> host_;
  std::unique_ptr<Communicator> communicator_;  // over the host's, so it goes first
};

}  // namespace

absl::StatusOr<std::unique_ptr<World>> MakeWorldOnDevice(std::unique_ptr<World> world, DeviceId device,
                                                         const DeviceBackendOptions& options) {
  const absl::StatusOr<Device*> found = FindDevice(device);
  LOCKSTEP_RETURN_IF_ERROR(AgreeThatAllCan(world->communicator(), found.status()));
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator,
                            MakeDeviceCommunicator(world->communicator(), *found, options));
  return std::make_unique<WorldOnDevice>(std::move(world), std::move(communicator));
}

}  // namespace lockstep
