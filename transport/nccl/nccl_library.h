// The NCCL library of this process: where it may be, loaded at first use, never unloaded. And memory of its allocator.

#ifndef TRANSPORT_NCCL_NCCL_LIBRARY_H_
#define TRANSPORT_NCCL_NCCL_LIBRARY_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "transport/nccl/nccl_abi.h"

namespace lockstep {

// Where a library may be.
struct NcclPlace {
  std::string file;      // for dlopen: a path, or a name that the loader looks for
  std::string reason;    // "LOCKSTEP_NCCL_LIBRARY", for messages
  bool present = false;  // only if it is in this process already
};

// From the environment and folders, in order of preference. Loads nothing.
//   - LOCKSTEP_NCCL_LIBRARY, and if that is set nothing else
//   - the library that this process has loaded already: a framework's, whose communicators and ours then share one
//   - the loader's path
//   - CUDA_HOME and /usr/local/cuda
//   - the nvidia-nccl package of Python where it is installed (VIRTUAL_ENV, CONDA_PREFIX, the prefix of the python3 on PATH,
//     PYTHONPATH, HOME)
std::vector<NcclPlace> NcclPlaces();

// Immutable and thread-safe.
class NcclLibrary {
 public:
  // The oldest usable version: the first with non-blocking communicators.
  static constexpr int kOldest = nccl::VersionCode(2, 14, 0);

  // Loads the first of these that is new enough and has all functions. UNAVAILABLE names the reason for each that is not.
  static absl::StatusOr<std::unique_ptr<const NcclLibrary>> Load(absl::Span<const NcclPlace> places);

  NcclLibrary(const NcclLibrary&) = delete;
  NcclLibrary& operator=(const NcclLibrary&) = delete;

  const nccl::Api& api() const { return api_; }
  int version() const { return version_; }           // 22809
  std::string Describe() const;                      // "NCCL 2.28.9 (/usr/lib/libnccl.so.2: the loader's path)"
  std::string VersionName() const;                   // "NCCL 2.28.9"
  const std::string& path() const { return path_; }  // where it was loaded from

  // Functions that some supported versions lack.
  bool can_split() const { return version_ >= nccl::VersionCode(2, 18, 0) && api_.CommSplit != nullptr; }
  bool can_register() const { return version_ >= nccl::VersionCode(2, 19, 0) && api_.CommRegister != nullptr; }
  bool has_float8() const { return version_ >= nccl::VersionCode(2, 24, 0); }
  bool has_ctas() const { return version_ >= nccl::VersionCode(2, 17, 0); }

  // The configuration of a non-blocking communicator, with the size that this version expects.
  nccl::Config MakeConfig() const;

 private:
  NcclLibrary() = default;

  nccl::Api api_ = {};
  int version_ = 0;
  std::string path_;
  std::string reason_;
};

// The process's library, from NcclPlaces(). Tried again at each call until one is found. UNAVAILABLE as Load.
absl::StatusOr<const NcclLibrary*> Nccl();

// Memory that NCCL can share between the ranks of a host and register with its transports. Immutable. The destructor waits,
// as cudaFree does, until the device has no more work of this process's.
class NcclMemory {
 public:
  // Uninitialised. Borrows the library.
  // REQUIRES  can_register()
  // ERRORS    RESOURCE_EXHAUSTED says how much was asked for
  static absl::StatusOr<std::unique_ptr<NcclMemory>> Allocate(const NcclLibrary* library, int device, size_t bytes);

  ~NcclMemory();
  NcclMemory(const NcclMemory&) = delete;
  NcclMemory& operator=(const NcclMemory&) = delete;

  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  NcclMemory(const NcclLibrary* library, int device, char* data, size_t bytes)
      : library_(library), device_(device), data_(data), bytes_(bytes) {}

  const NcclLibrary* const library_;
  const int device_;
  char* const data_;
  const size_t bytes_;
};

}  // namespace lockstep

#endif  // TRANSPORT_NCCL_NCCL_LIBRARY_H_
