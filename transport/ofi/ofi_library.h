// The libfabric that this process uses: opened when it is first asked for, never unloaded.
//
// Its headers are included in this folder only, and nothing is linked, so a program runs where libfabric is absent. All
// other calls of libfabric go through tables of functions inside the objects that fi_getinfo and fi_fabric lead to. So a
// test that replaces this table replaces the library.

#ifndef TRANSPORT_OFI_OFI_LIBRARY_H_
#define TRANSPORT_OFI_OFI_LIBRARY_H_

#include <rdma/fabric.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep {

// The version of the interface that is asked for: it has all we use, old libraries will do, and new ones write no more than
// this header's structures have room for.
inline constexpr uint32_t kOfiVersion = FI_VERSION(1, 12);

// The entry points, as in <rdma/fabric.h>. Immutable once loaded, and thread-safe.
struct OfiApi {
  int (*getinfo)(uint32_t version, const char* node, const char* service, uint64_t flags, const fi_info* hints,
                 fi_info** info) = nullptr;
  void (*freeinfo)(fi_info* info) = nullptr;
  // Of null: an empty one. No fi_info is made in any other way: the library's may be larger than the header's.
  fi_info* (*dupinfo)(const fi_info* info) = nullptr;
  int (*fabric)(fi_fabric_attr* attributes, fid_fabric** fabric, void* context) = nullptr;
  uint32_t (*version)() = nullptr;
  const char* (*strerror)(int error) = nullptr;
};

// Loads `file`, a path or a name on the loader's path. UNAVAILABLE says why not.
absl::StatusOr<OfiApi> LoadOfiLibrary(const std::string& file);

// The process's: LOCKSTEP_OFI_LIBRARY, or libfabric.so.1. Tried again at each call while there is none. UNAVAILABLE as above.
absl::StatusOr<const OfiApi*> Ofi();

// What a call returned, a negative errno or libfabric's own: "<attempt>: Connection refused (111)". UNAVAILABLE where a
// peer or the network is the cause, RESOURCE_EXHAUSTED for memory and queues, UNIMPLEMENTED for what a provider lacks,
// else INTERNAL.
absl::Status OfiStatus(const OfiApi& api, int64_t result, absl::string_view attempt);

}  // namespace lockstep

#endif  // TRANSPORT_OFI_OFI_LIBRARY_H_
