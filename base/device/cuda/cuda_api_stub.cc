#include "base/device/cuda/cuda_api.h"

namespace lockstep {
namespace {

// The answer of every function, whatever its arguments.
template <typename... Arguments>
int BuiltWithoutCuda(Arguments...) {
  return kCudaNoDevice;
}

CudaApi MakeLinkedCudaApi() {
  CudaApi api = {};
  api.get_error_name = [](int) { return "no CUDA"; };
  api.get_error_string = [](int) { return "built without CUDA"; };
  api.get_last_error = [] { return int{kCudaNoDevice}; };
  api.driver_get_version = BuiltWithoutCuda;
  api.runtime_get_version = BuiltWithoutCuda;
  api.get_device_count = BuiltWithoutCuda;
  api.get_device = BuiltWithoutCuda;
  api.set_device = BuiltWithoutCuda;
  api.device_get_pci_bus_id = BuiltWithoutCuda;
  api.device_get_stream_priority_range = BuiltWithoutCuda;
  api.stream_create = BuiltWithoutCuda;
  api.stream_destroy = BuiltWithoutCuda;
  api.stream_query = BuiltWithoutCuda;
  api.stream_wait_event = BuiltWithoutCuda;
  api.stream_get_device = BuiltWithoutCuda;
  api.stream_is_capturing = BuiltWithoutCuda;
  api.thread_exchange_stream_capture_mode = BuiltWithoutCuda;
  api.event_create = BuiltWithoutCuda;
  api.event_destroy = BuiltWithoutCuda;
  api.event_record = BuiltWithoutCuda;
  api.event_query = BuiltWithoutCuda;
  api.launch_host_func = BuiltWithoutCuda;
  api.memcpy_async = BuiltWithoutCuda;
  api.stream_wait_value = BuiltWithoutCuda;
  api.stream_write_value = BuiltWithoutCuda;
  api.malloc = BuiltWithoutCuda;
  api.free = BuiltWithoutCuda;
  api.host_alloc = BuiltWithoutCuda;
  api.free_host = BuiltWithoutCuda;
  api.pointer_get_attributes = BuiltWithoutCuda;
  return api;
}

}  // namespace

namespace internal {

const CudaApi& LinkedCudaApi() {
  static const CudaApi api = MakeLinkedCudaApi();
  return api;
}

}  // namespace internal
}  // namespace lockstep
