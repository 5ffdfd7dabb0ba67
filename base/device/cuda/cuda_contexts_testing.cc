#include "base/device/cuda/cuda_contexts_testing.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/device/cuda/cuda_api.h"
#include "base/device/cuda/cuda_device.h"
#include "base/device/cuda/cuda_error.h"
#include "base/device/cuda/cuda_graph_testing.h"
#include "base/mutex.h"
#include "base/status.h"

namespace lockstep {
namespace {

// A CUcontext.
using Context = void*;

// Of the driver's library, whose numbers for errors are the runtime's.
struct Driver {
  int (*device_get)(int* device, int ordinal);                              // cuDeviceGet
  int (*primary_context_retain)(Context* context, int device);              // cuDevicePrimaryCtxRetain
  int (*context_create)(Context* context, unsigned int flags, int device);  // cuCtxCreate_v2
  int (*context_get_current)(Context* context);                             // cuCtxGetCurrent
  int (*context_set_current)(Context context);                              // cuCtxSetCurrent
};

absl::Status FindDriver(Driver* driver) {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) return absl::UnavailableError(dlerror());
  absl::Status found;
  const auto find = [&](const char* name, auto* function) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library, name));
    if (*function == nullptr) found.Update(absl::UnavailableError(absl::StrCat("libcuda.so.1 has no ", name)));
  };
  find("cuDeviceGet", &driver->device_get);
  find("cuDevicePrimaryCtxRetain", &driver->primary_context_retain);
  find("cuCtxCreate_v2", &driver->context_create);
  find("cuCtxGetCurrent", &driver->context_get_current);
  find("cuCtxSetCurrent", &driver->context_set_current);
  return found;
}

class Contexts {
 public:
  Driver driver = {};

  // Makes it if need be. Returns CUDA's code.
  int Get(int number, Context* context) {
    MutexLock lock(&mu_);
    Context& kept = contexts_[number];
    int code = kCudaSuccess;
    if (kept == nullptr) {
      int gpu = 0;
      code = driver.device_get(&gpu, 0);
      if (code == kCudaSuccess) {
        code = number == 0 ? driver.primary_context_retain(&kept, gpu) : driver.context_create(&kept, /*flags=*/0, gpu);
      }
    }
    *context = kept;
    return code;
  }

  bool Have(Context context) {
    MutexLock lock(&mu_);
    return context != nullptr && std::find(contexts_.begin(), contexts_.end(), context) != contexts_.end();
  }

 private:
  Mutex mu_;
  std::array<Context, kCudaContexts> contexts_ ABSL_GUARDED_BY(mu_) = {};
};

Contexts& TheContexts() {
  static auto* const contexts = new Contexts;
  return *contexts;
}

// Of a thread that is elsewhere. No device's number, so a guard (base/device/cuda/cuda_guard.h) that finds it puts the thread on
// its device and leaves it there.
constexpr int kElsewhere = -1;

// Of a device's own table: on it or elsewhere.
template <int kNumber>
int GetDeviceOf(int* device) {
  Context current = nullptr;
  Context own = nullptr;
  int code = TheContexts().driver.context_get_current(&current);
  if (code == kCudaSuccess) code = TheContexts().Get(kNumber, &own);
  *device = current == own ? 0 : kElsewhere;
  return code;
}
template <int kNumber>
int SetDeviceOf(int device) {
  return device == 0 ? EnterCudaContext(kNumber) : kCudaInvalidDevice;
}

// What tests have in the place of a GPU's memory is pinned memory of the host, and copying must not keep the caller as it would not there.
int CopyAsync(void* target, const void* source, size_t bytes, void* stream) {
  const CudaApi& api = internal::LinkedCudaApi();
  CudaPointer to;
  CudaPointer from;
  if (api.pointer_get_attributes(&to, target) == kCudaSuccess && to.kind == CudaPointer::kPinned &&
      api.pointer_get_attributes(&from, source) == kCudaSuccess && from.kind == CudaPointer::kPinned) {
    return internal::CopyByKernel(target, source, bytes, stream);
  }
  return api.memcpy_async(target, source, bytes, stream);
}

CudaApi OwnCudaApi() {
  CudaApi api = internal::LinkedCudaApi();
  api.memcpy_async = CopyAsync;
  return api;
}

template <int... kNumbers>
std::array<CudaApi, kCudaContexts> MakeTables(std::integer_sequence<int, kNumbers...>) {
  std::array<CudaApi, kCudaContexts> tables;
  tables.fill(OwnCudaApi());
  ((tables[kNumbers].get_device = GetDeviceOf<kNumbers>), ...);
  ((tables[kNumbers].set_device = SetDeviceOf<kNumbers>), ...);
  return tables;
}

// Of the process's table: every context will do.
int GetDevice(int* device) {
  Context current = nullptr;
  const int code = TheContexts().driver.context_get_current(&current);
  *device = TheContexts().Have(current) ? 0 : kElsewhere;
  return code;
}

CudaApi MakeProcessTable() {
  CudaApi api = OwnCudaApi();
  api.get_device = GetDevice;
  api.set_device = SetDeviceOf<0>;
  return api;
}

absl::Status SetUp() {
  int count = 0;
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(internal::LinkedCudaApi().get_device_count(&count), "cudaGetDeviceCount(&count)"));
  if (count == 0) return absl::UnavailableError("CUDA: no device");
  LOCKSTEP_RETURN_IF_ERROR(FindDriver(&TheContexts().driver));
  static const CudaApi process_table = MakeProcessTable();
  internal::ReplaceCudaApi(&process_table);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Device*> CudaDeviceInContext(int context) {
  static const bool another_cuda = &TheCudaApi() != &internal::LinkedCudaApi();
  if (another_cuda) return CudaDevice(0);
  static const absl::Status set_up = SetUp();
  LOCKSTEP_RETURN_IF_ERROR(set_up);
  if (context < 0 || context >= kCudaContexts) {
    return absl::InvalidArgumentError(absl::StrCat("context ", context, " of ", kCudaContexts));
  }
  static const auto tables = MakeTables(std::make_integer_sequence<int, kCudaContexts>());
  return internal::CudaDeviceOver(tables[context], 0);
}

int EnterCudaContext(int context) {
  if (TheContexts().driver.context_set_current == nullptr) return kCudaSuccess;
  Context entered = nullptr;
  const int code = TheContexts().Get(context, &entered);
  return code != kCudaSuccess ? code : TheContexts().driver.context_set_current(entered);
}

}  // namespace lockstep
