#include "base/device/cuda/cuda_api.h"

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime.h>

namespace lockstep {
namespace {

// CudaCode repeats CUDA's numbers, since headers of ours include none of CUDA's.
#define LOCKSTEP_SAME_CODE(ours, cudas) static_assert(int{ours} == int{cudas}, #cudas)
LOCKSTEP_SAME_CODE(kCudaSuccess, cudaSuccess);
LOCKSTEP_SAME_CODE(kCudaInvalidValue, cudaErrorInvalidValue);
LOCKSTEP_SAME_CODE(kCudaOutOfMemory, cudaErrorMemoryAllocation);
LOCKSTEP_SAME_CODE(kCudaInitializationFailed, cudaErrorInitializationError);
LOCKSTEP_SAME_CODE(kCudaUnloading, cudaErrorCudartUnloading);
LOCKSTEP_SAME_CODE(kCudaStubLibrary, cudaErrorStubLibrary);
LOCKSTEP_SAME_CODE(kCudaInsufficientDriver, cudaErrorInsufficientDriver);
LOCKSTEP_SAME_CODE(kCudaDevicesUnavailable, cudaErrorDevicesUnavailable);
LOCKSTEP_SAME_CODE(kCudaNoDevice, cudaErrorNoDevice);
LOCKSTEP_SAME_CODE(kCudaInvalidDevice, cudaErrorInvalidDevice);
LOCKSTEP_SAME_CODE(kCudaDeviceUninitialized, cudaErrorDeviceUninitialized);
LOCKSTEP_SAME_CODE(kCudaNoKernelImage, cudaErrorNoKernelImageForDevice);
LOCKSTEP_SAME_CODE(kCudaEccUncorrectable, cudaErrorECCUncorrectable);
LOCKSTEP_SAME_CODE(kCudaNvlinkUncorrectable, cudaErrorNvlinkUncorrectable);
LOCKSTEP_SAME_CODE(kCudaInvalidHandle, cudaErrorInvalidResourceHandle);
LOCKSTEP_SAME_CODE(kCudaNotReady, cudaErrorNotReady);
LOCKSTEP_SAME_CODE(kCudaIllegalAddress, cudaErrorIllegalAddress);
LOCKSTEP_SAME_CODE(kCudaLaunchTimeout, cudaErrorLaunchTimeout);
LOCKSTEP_SAME_CODE(kCudaContextDestroyed, cudaErrorContextIsDestroyed);
LOCKSTEP_SAME_CODE(kCudaAssert, cudaErrorAssert);
LOCKSTEP_SAME_CODE(kCudaHardwareStackError, cudaErrorHardwareStackError);
LOCKSTEP_SAME_CODE(kCudaIllegalInstruction, cudaErrorIllegalInstruction);
LOCKSTEP_SAME_CODE(kCudaMisalignedAddress, cudaErrorMisalignedAddress);
LOCKSTEP_SAME_CODE(kCudaInvalidAddressSpace, cudaErrorInvalidAddressSpace);
LOCKSTEP_SAME_CODE(kCudaInvalidPc, cudaErrorInvalidPc);
LOCKSTEP_SAME_CODE(kCudaLaunchFailure, cudaErrorLaunchFailure);
LOCKSTEP_SAME_CODE(kCudaNotPermitted, cudaErrorNotPermitted);
LOCKSTEP_SAME_CODE(kCudaNotSupported, cudaErrorNotSupported);
LOCKSTEP_SAME_CODE(kCudaSystemNotReady, cudaErrorSystemNotReady);
LOCKSTEP_SAME_CODE(kCudaSystemDriverMismatch, cudaErrorSystemDriverMismatch);
LOCKSTEP_SAME_CODE(kCudaCompatNotSupported, cudaErrorCompatNotSupportedOnDevice);
LOCKSTEP_SAME_CODE(kCudaCaptureUnsupported, cudaErrorStreamCaptureUnsupported);
LOCKSTEP_SAME_CODE(kCudaCapturedEvent, cudaErrorCapturedEvent);
LOCKSTEP_SAME_CODE(kCudaCaptureWrongThread, cudaErrorStreamCaptureWrongThread);
#if CUDART_VERSION >= 12080
LOCKSTEP_SAME_CODE(kCudaContained, cudaErrorContained);
LOCKSTEP_SAME_CODE(kCudaTensorMemoryLeak, cudaErrorTensorMemoryLeak);
#endif
#undef LOCKSTEP_SAME_CODE

static_assert(kCudaCaptureRelaxed == cudaStreamCaptureModeRelaxed, "cudaStreamCaptureModeRelaxed");

cudaStream_t AsStream(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t AsEvent(void* event) { return static_cast<cudaEvent_t>(event); }

int StreamCreate(void** stream, int priority) {
  cudaStream_t created = nullptr;
  const cudaError_t error = cudaStreamCreateWithPriority(&created, cudaStreamNonBlocking, priority);
  *stream = created;
  return error;
}

int StreamGetDevice(void* stream, int* device) {
#if CUDART_VERSION >= 12080
  return cudaStreamGetDevice(AsStream(stream), device);
#else
  *device = -1;
  return cudaSuccess;
#endif
}

int StreamIsCapturing(void* stream, bool* capturing) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t error = cudaStreamIsCapturing(AsStream(stream), &status);
  *capturing = status != cudaStreamCaptureStatusNone;
  return error;
}

int ThreadExchangeStreamCaptureMode(int* mode) {
  cudaStreamCaptureMode exchanged = static_cast<cudaStreamCaptureMode>(*mode);
  const cudaError_t error = cudaThreadExchangeStreamCaptureMode(&exchanged);
  *mode = exchanged;
  return error;
}

int EventCreate(void** event) {
  cudaEvent_t created = nullptr;
  const cudaError_t error = cudaEventCreateWithFlags(&created, cudaEventDisableTiming);
  *event = created;
  return error;
}

CudaPointer::Kind KindOf(cudaMemoryType type) {
  switch (type) {
    case cudaMemoryTypeHost:
      return CudaPointer::kPinned;
    case cudaMemoryTypeDevice:
      return CudaPointer::kDevice;
    case cudaMemoryTypeManaged:
      return CudaPointer::kManaged;
    default:
      return CudaPointer::kPageable;
  }
}

int PointerGetAttributes(CudaPointer* attributes, const void* pointer) {
  cudaPointerAttributes found = {};
  const cudaError_t error = cudaPointerGetAttributes(&found, pointer);
  if (error == cudaSuccess) *attributes = {KindOf(found.type), found.device};
  return error;
}

// The driver's function, which is looked up so that programs need no driver to start. Asked of the version in which the
// function is always enabled; null before that.
template <typename Function>
Function DriverFunction(const char* name) {
  constexpr unsigned int kVersion = 11070;
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &found, kVersion, cudaEnableLegacyStream, &result);
#else
  static_assert(CUDART_VERSION >= kVersion, "cudaGetDriverEntryPoint asks for the version of the runtime");
  const cudaError_t error = cudaGetDriverEntryPoint(name, &found, cudaEnableLegacyStream, &result);
#endif
  if (error == cudaSuccess && result == cudaDriverEntryPointSuccess) return reinterpret_cast<Function>(found);
  cudaGetLastError();
  return nullptr;
}

CUdeviceptr AsDevicePointer(const void* address) { return reinterpret_cast<CUdeviceptr>(address); }

// The driver takes calls only of threads that have made a context their own, which the runtime does for threads of its
// callers when it must. Who has one stays in it.
cudaError_t EnterContext() {
  static const auto get_current = DriverFunction<PFN_cuCtxGetCurrent_v4000>("cuCtxGetCurrent");
  int device = 0;
  CUcontext current = nullptr;
  const cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  if (get_current != nullptr && get_current(&current) == CUDA_SUCCESS && current != nullptr) return cudaSuccess;
  return cudaSetDevice(device);
}

// CUresult's numbers are cudaError_t's.
int StreamWaitValue(void* stream, const void* address, uint32_t value) {
  static const auto wait = DriverFunction<PFN_cuStreamWaitValue32_v11070>("cuStreamWaitValue32");
  if (wait == nullptr) return kCudaNotSupported;
  if (const cudaError_t error = EnterContext(); error != cudaSuccess) return error;
  return wait(AsStream(stream), AsDevicePointer(address), value, CU_STREAM_WAIT_VALUE_GEQ);
}

int StreamWriteValue(void* stream, void* address, uint32_t value) {
  static const auto write = DriverFunction<PFN_cuStreamWriteValue32_v11070>("cuStreamWriteValue32");
  if (write == nullptr) return kCudaNotSupported;
  if (const cudaError_t error = EnterContext(); error != cudaSuccess) return error;
  return write(AsStream(stream), AsDevicePointer(address), value, CU_STREAM_WRITE_VALUE_DEFAULT);
}

CudaApi MakeLinkedCudaApi() {
  CudaApi api = {};
  api.get_error_name = [](int code) { return cudaGetErrorName(static_cast<cudaError_t>(code)); };
  api.get_error_string = [](int code) { return cudaGetErrorString(static_cast<cudaError_t>(code)); };
  api.get_last_error = []() -> int { return cudaGetLastError(); };
  api.driver_get_version = [](int* version) -> int { return cudaDriverGetVersion(version); };
  api.runtime_get_version = [](int* version) -> int { return cudaRuntimeGetVersion(version); };
  api.get_device_count = [](int* count) -> int { return cudaGetDeviceCount(count); };
  api.get_device = [](int* device) -> int { return cudaGetDevice(device); };
  api.set_device = [](int device) -> int { return cudaSetDevice(device); };
  api.device_get_pci_bus_id = [](char* address, int bytes, int device) -> int {
    return cudaDeviceGetPCIBusId(address, bytes, device);
  };
  api.device_get_stream_priority_range = [](int* least, int* greatest) -> int {
    return cudaDeviceGetStreamPriorityRange(least, greatest);
  };
  api.stream_create = StreamCreate;
  api.stream_destroy = [](void* stream) -> int { return cudaStreamDestroy(AsStream(stream)); };
  api.stream_query = [](void* stream) -> int { return cudaStreamQuery(AsStream(stream)); };
  api.stream_wait_event = [](void* stream, void* event) -> int {
    return cudaStreamWaitEvent(AsStream(stream), AsEvent(event), 0);
  };
  api.stream_get_device = StreamGetDevice;
  api.stream_is_capturing = StreamIsCapturing;
  api.thread_exchange_stream_capture_mode = ThreadExchangeStreamCaptureMode;
  api.event_create = EventCreate;
  api.event_destroy = [](void* event) -> int { return cudaEventDestroy(AsEvent(event)); };
  api.event_record = [](void* event, void* stream) -> int { return cudaEventRecord(AsEvent(event), AsStream(stream)); };
  api.event_query = [](void* event) -> int { return cudaEventQuery(AsEvent(event)); };
  api.launch_host_func = [](void* stream, void (*function)(void*), void* argument) -> int {
    return cudaLaunchHostFunc(AsStream(stream), function, argument);
  };
  api.memcpy_async = [](void* target, const void* source, size_t bytes, void* stream) -> int {
    return cudaMemcpyAsync(target, source, bytes, cudaMemcpyDefault, AsStream(stream));
  };
  api.stream_wait_value = StreamWaitValue;
  api.stream_write_value = StreamWriteValue;
  api.malloc = [](void** memory, size_t bytes) -> int { return cudaMalloc(memory, bytes); };
  api.free = [](void* memory) -> int { return cudaFree(memory); };
  api.host_alloc = [](void** memory, size_t bytes) -> int {
    return cudaHostAlloc(memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
  };
  api.free_host = [](void* memory) -> int { return cudaFreeHost(memory); };
  api.pointer_get_attributes = PointerGetAttributes;
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
