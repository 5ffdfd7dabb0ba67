#include "base/device/cuda/cuda_api.h"

namespace lockstep {
namespace {

// The answer of every function, whatever its arguments.
template <typename... Arguments>
int BuiltWithoutCuda(Arguments...) {
  return kCudaNoDevice;
}

template <typename... Functions>
void Fill(Functions&... functions) {
  ((functions = BuiltWithoutCuda), ...);
}

CudaApi MakeLinkedCudaApi() {
  CudaApi api = {};
  api.get_error_name = [](int) { return "no CUDA"; };
  api.get_error_string = [](int) { return "built without CUDA"; };
  api.get_last_error = [] { return int{kCudaNoDevice}; };
  Fill(api.driver_get_version, api.runtime_get_version, api.get_device_count, api.get_device, api.set_device,
       api.device_get_pci_bus_id, api.device_get_stream_priority_range, api.stream_create, api.stream_destroy,
       api.stream_query, api.stream_wait_event, api.stream_get_device, api.stream_is_capturing,
       api.thread_exchange_stream_capture_mode, api.event_create, api.event_destroy, api.event_record, api.event_query,
       api.launch_host_func, api.memcpy_async, api.stream_wait_value, api.stream_write_value, api.malloc, api.free,
       api.host_alloc, api.free_host, api.pointer_get_attributes);
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
