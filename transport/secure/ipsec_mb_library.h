// The library intel-ipsec-mb, opened when the program runs and never unloaded.

#ifndef TRANSPORT_SECURE_IPSEC_MB_LIBRARY_H_
#define TRANSPORT_SECURE_IPSEC_MB_LIBRARY_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "transport/secure/ipsec_mb_abi.h"

namespace lockstep {

// Immutable and thread-safe.
class IpsecMbLibrary {
 public:
  static constexpr char kFile[] = "libIPSec_MB.so.1";
  static constexpr unsigned kOldest = ipsec_mb::VersionCode(1, 0, 0);
  static constexpr unsigned kTooNew = ipsec_mb::VersionCode(2, 0, 0);

  // Whether this processor has all instructions of the entry points that we use. UNAVAILABLE: it lacks some.
  static absl::Status CheckProcessor();

  // Opens it, by a path or by a name that the loader looks for. UNAVAILABLE: there is none, it is of another version, or it lacks a
  // function; says which.
  static absl::StatusOr<std::unique_ptr<const IpsecMbLibrary>> Load(const std::string& file);

  IpsecMbLibrary(const IpsecMbLibrary&) = delete;
  IpsecMbLibrary& operator=(const IpsecMbLibrary&) = delete;

  const ipsec_mb::Api& api() const { return api_; }
  std::string VersionName() const;  // "ipsec-mb 1.3.0"

 private:
  IpsecMbLibrary() = default;

  ipsec_mb::Api api_ = {};
};

}  // namespace lockstep

#endif  // TRANSPORT_SECURE_IPSEC_MB_LIBRARY_H_
