// The NCCL library of this process: loaded at first use, never unloaded.

#ifndef TRANSPORT_NCCL_NCCL_LIBRARY_H_
#define TRANSPORT_NCCL_NCCL_LIBRARY_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "transport/nccl/nccl_abi.h"
#include "transport/nccl/nccl_places.h"

namespace lockstep {

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

}  // namespace lockstep

#endif  // TRANSPORT_NCCL_NCCL_LIBRARY_H_
