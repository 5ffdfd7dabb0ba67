// CUDA's runtime as a table of functions: every entry point that code of the host's compiler calls.
//
// The types are plain C++ (streams and events are void*, errors are int), so only cuda_api.cu includes CUDA's headers. The
// table is filled from the statically linked runtime. In a build without CUDA its functions return errors. Tests replace it
// by a fake (base/device/cuda/cuda_api_testing.h). Each function has the semantics, threads and errors of CUDA's function of
// the same name in CamelCase, unless its comment differs.

#ifndef BASE_DEVICE_CUDA_CUDA_API_H_
#define BASE_DEVICE_CUDA_CUDA_API_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace lockstep {

// The cudaError_t values that our code knows; any other int may come back too.
enum CudaCode : int {
  kCudaSuccess = 0,
  kCudaInvalidValue = 1,
  kCudaOutOfMemory = 2,
  kCudaInitializationFailed = 3,
  kCudaUnloading = 4,  // the process is ending
  kCudaStubLibrary = 34,
  kCudaInsufficientDriver = 35,
  kCudaDevicesUnavailable = 46,
  kCudaNoDevice = 100,
  kCudaInvalidDevice = 101,
  kCudaDeviceUninitialized = 201,
  kCudaNoKernelImage = 209,
  kCudaEccUncorrectable = 214,
  kCudaNvlinkUncorrectable = 220,
  kCudaContained = 226,
  kCudaInvalidHandle = 400,
  kCudaNotReady = 600,  // of a query: no error
  kCudaIllegalAddress = 700,
  kCudaLaunchTimeout = 702,
  kCudaContextDestroyed = 709,
  kCudaAssert = 710,
  kCudaHardwareStackError = 714,
  kCudaIllegalInstruction = 715,
  kCudaMisalignedAddress = 716,
  kCudaInvalidAddressSpace = 717,
  kCudaInvalidPc = 718,
  kCudaLaunchFailure = 719,
  kCudaTensorMemoryLeak = 721,
  kCudaNotPermitted = 800,
  kCudaNotSupported = 801,
  kCudaSystemNotReady = 802,
  kCudaSystemDriverMismatch = 803,
  kCudaCompatNotSupported = 804,
  kCudaCaptureUnsupported = 900,
  kCudaCapturedEvent = 907,
  kCudaCaptureWrongThread = 908,
};

// Special handles. Null means the same as kCudaLegacyStream: the current device's legacy default stream.
constexpr unsigned long kCudaLegacyStream = 0x1;
constexpr unsigned long kCudaPerThreadStream = 0x2;

// cudaStreamCaptureModeRelaxed: this thread may do what would otherwise break captures that are under way.
constexpr int kCudaCaptureRelaxed = 2;

// What CUDA knows about a pointer.
struct CudaPointer {
  enum Kind { kPageable, kPinned, kDevice, kManaged };
  Kind kind = kPageable;
  int device = 0;  // of kDevice
};

struct CudaApi {
  // get_last_error clears the calling thread's last error.
  const char* (*get_error_name)(int code);
  const char* (*get_error_string)(int code);
  int (*get_last_error)();

  // Versions are 1000 * major + 10 * minor; the driver's is 0 where there is none.
  int (*driver_get_version)(int* version);
  int (*runtime_get_version)(int* version);

  int (*get_device_count)(int* count);
  int (*get_device)(int* device);
  int (*set_device)(int device);
  // "0000:3b:00.0", NUL-terminated, if `bytes` has room for it (13 do).
  int (*device_get_pci_bus_id)(char* address, int bytes, int device);
  int (*device_get_stream_priority_range)(int* least, int* greatest);

  // cudaStreamCreateWithPriority with cudaStreamNonBlocking.
  int (*stream_create)(void** stream, int priority);
  int (*stream_destroy)(void* stream);
  int (*stream_query)(void* stream);
  int (*stream_wait_event)(void* stream, void* event);
  // *device is -1 if the runtime is older than 12.8. REQUIRES that the stream is no default stream.
  int (*stream_get_device)(void* stream, int* device);
  // Whether the stream is being captured, also by a capture that became invalid.
  int (*stream_is_capturing)(void* stream, bool* capturing);
  // *mode is a cudaStreamCaptureMode, for example kCudaCaptureRelaxed.
  int (*thread_exchange_stream_capture_mode)(int* mode);

  // cudaEventCreateWithFlags with cudaEventDisableTiming.
  int (*event_create)(void** event);
  int (*event_destroy)(void* event);
  int (*event_record)(void* event, void* stream);
  int (*event_query)(void* event);

  int (*launch_host_func)(void* stream, void (*function)(void*), void* argument);
  // cudaMemcpyAsync with cudaMemcpyDefault.
  int (*memcpy_async)(void* target, const void* source, size_t bytes, void* stream);

  // The driver's cuStreamWaitValue32 with CU_STREAM_WAIT_VALUE_GEQ; cuStreamWriteValue32 with a memory barrier before it.
  // kCudaNotSupported where the driver has neither. The address is one that the host and the device share.
  int (*stream_wait_value)(void* stream, const void* address, uint32_t value);
  int (*stream_write_value)(void* stream, void* address, uint32_t value);

  int (*malloc)(void** memory, size_t bytes);
  int (*free)(void* memory);
  // cudaHostAlloc, portable and mapped.
  int (*host_alloc)(void** memory, size_t bytes);
  int (*free_host)(void* memory);
  int (*pointer_get_attributes)(CudaPointer* attributes, const void* pointer);
};

namespace internal {

// This binary's table, from cuda_api.cu or cuda_api_stub.cc.
const CudaApi& LinkedCudaApi();

// Null: the linked table. Released when a test puts its table in place, acquired by whoever calls CUDA.
inline std::atomic<const CudaApi*> cuda_api_replacement{nullptr};
// Replaces the linked table, or restores it (null). REQUIRES that nobody uses CUDA through it meanwhile.
inline void ReplaceCudaApi(const CudaApi* api) { cuda_api_replacement.store(api, std::memory_order_release); }

}  // namespace internal

// The table in use. Thread-safe; a table lives as long as what was made through it.
inline const CudaApi& TheCudaApi() {
  const CudaApi* const api = internal::cuda_api_replacement.load(std::memory_order_acquire);
  return api != nullptr ? *api : internal::LinkedCudaApi();
}

}  // namespace lockstep

#endif  // BASE_DEVICE_CUDA_CUDA_API_H_
