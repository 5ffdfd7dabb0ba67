#include "base/cuda_ipc_testing.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "base/cuda_ipc.h"
#include "base/mutex.h"

namespace lockstep {
namespace {

struct Mapping {
  int descriptor = -1;  // of memory of this process's; -1 of another's
  size_t bytes = 0;
};

struct Mappings {
  Mutex mu;
  std::map<void*, Mapping> by_address ABSL_GUARDED_BY(mu);
};

Mappings& All() {
  static auto* const all = new Mappings;
  return *all;
}

// What a handle's bytes begin with.
struct Handle {
  int process;
  int descriptor;
  size_t bytes;
};
static_assert(sizeof(Handle) <= sizeof(CudaIpcHandle), "a handle");

void* Map(int descriptor, size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

bool Unmap(void* memory, bool own) {
  MutexLock lock(&All().mu);
  const auto found = All().by_address.find(memory);
  if (found == All().by_address.end() || (found->second.descriptor >= 0) != own) return false;
  munmap(memory, found->second.bytes);
  if (own) close(found->second.descriptor);
  All().by_address.erase(found);
  return true;
}

}  // namespace

bool FakeIpc::Takes(size_t bytes) { return bytes > 0 && bytes % kCudaIpcGranularity == 0; }

void* FakeIpc::Allocate(size_t bytes) {
  const int descriptor = memfd_create("fake-cuda", MFD_CLOEXEC);
  if (descriptor < 0) return nullptr;
  void* const memory = ftruncate(descriptor, static_cast<off_t>(bytes)) == 0 ? Map(descriptor, bytes) : nullptr;
  if (memory == nullptr) {
    close(descriptor);
    return nullptr;
  }
  MutexLock lock(&All().mu);
  All().by_address[memory] = {descriptor, bytes};
  return memory;
}

bool FakeIpc::Free(void* memory) { return Unmap(memory, /*own=*/true); }

int FakeIpc::GetHandle(CudaIpcHandle* handle, void* memory) {
  MutexLock lock(&All().mu);
  const auto found = All().by_address.find(memory);
  if (found == All().by_address.end() || found->second.descriptor < 0) return kCudaInvalidValue;
  const Handle fake = {getpid(), found->second.descriptor, found->second.bytes};
  std::memcpy(handle->bytes, &fake, sizeof(fake));
  return kCudaSuccess;
}

int FakeIpc::Open(void** memory, const CudaIpcHandle& handle) {
  Handle fake = {};
  std::memcpy(&fake, handle.bytes, sizeof(fake));
  if (fake.process == getpid()) return kCudaDeviceUninitialized;
  const int descriptor =
      open(absl::StrCat("/proc/", fake.process, "/fd/", fake.descriptor).c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return kCudaInvalidHandle;
  *memory = Map(descriptor, fake.bytes);
  close(descriptor);
  if (*memory == nullptr) return kCudaOutOfMemory;
  MutexLock lock(&All().mu);
  All().by_address[*memory] = {-1, fake.bytes};
  return kCudaSuccess;
}

int FakeIpc::Close(void* memory) { return Unmap(memory, /*own=*/false) ? kCudaSuccess : kCudaInvalidValue; }

}  // namespace lockstep
