#include "bench/overlap/place.h"

#include <stdlib.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/cuda_device.h"
#include "base/host_device.h"
#include "base/status.h"
#include "comm/device_backend.h"
#include "kernels/cuda/fold_kernels.h"

namespace lockstep {
namespace bench {
namespace {

absl::StatusOr<Place> FindPlaceOnGpu(const OverlapOptions& options, Communicator* world) {
  LOCKSTEP_ASSIGN_OR_RETURN(const int gpus, CudaDeviceCount());
  const int rank = world->rank().value();
  if (world->size() > gpus) setenv("NCCL_HOSTID", absl::StrCat("rank", rank).c_str(), /*overwrite=*/0);
  Place place;
  LOCKSTEP_ASSIGN_OR_RETURN(place.replay.device, CudaDevice(rank % gpus));
  DeviceBackendOptions backend;
  backend.backend = options.backend;
  backend.fold_kernels = kernels::CudaFoldKernels();
  LOCKSTEP_ASSIGN_OR_RETURN(place.on_device, MakeDeviceCommunicator(world, place.replay.device, backend));
  place.communicator = place.on_device.get();
  // The default stream, in which frameworks compute unless they are told otherwise.
  LOCKSTEP_ASSIGN_OR_RETURN(place.stream, place.replay.device->BorrowStream(nullptr));
  // The first line is the device's.
  const std::string description = place.communicator->Describe();
  place.text = std::string(*absl::StrSplit(description, '\n').begin());
  return place;
}

absl::StatusOr<Place> FindPlaceOnHost(const OverlapOptions& options, Communicator* world) {
  Place place;
  place.replay.device = HostDevice();
  place.communicator = world;
  place.text = "host";
  if (ComputesOnStream(options.compute)) {
    LOCKSTEP_ASSIGN_OR_RETURN(place.stream, place.replay.device->CreateStream("compute"));
  }
  return place;
}

}  // namespace

absl::StatusOr<Place> FindPlace(const OverlapOptions& options, Communicator* world) {
  LOCKSTEP_ASSIGN_OR_RETURN(Place place, options.device == DeviceKind::kHost ? FindPlaceOnHost(options, world)
                                                                             : FindPlaceOnGpu(options, world));
  place.replay.stream = place.stream.get();
  return place;
}

}  // namespace bench
}  // namespace lockstep
