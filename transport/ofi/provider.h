// libfabric as this process uses it, which of its providers carries the messages, on which interface, and why none of the others.
//
// The library is opened when it is first asked for, and never unloaded. Its headers are included in this folder only, and
// nothing is linked, so a program runs where libfabric is absent. All other calls of libfabric go through tables of functions
// inside the objects that fi_getinfo and fi_fabric lead to. So a test that replaces OfiApi replaces the library.
//
// The choice compares a provider's attributes (fi_getinfo(3)) with what we can do. Names only order those that fit: real
// fabrics first, then what runs over sockets. docs/libfabric.md lists the providers that were never run.

#ifndef TRANSPORT_OFI_PROVIDER_H_
#define TRANSPORT_OFI_PROVIDER_H_

#include <rdma/fabric.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "transport/net/socket.h"

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
// peer or the network is the cause, RESOURCE_EXHAUSTED for memory and queues, ALREADY_EXISTS for a port that is taken, UNIMPLEMENTED for
// what a provider lacks, else INTERNAL.
absl::Status OfiStatus(const OfiApi& api, int64_t result, absl::string_view attempt);

// The tags that we use have no more bits than this: some fabrics' have no more.
inline constexpr int kOfiTagBits = 48;
// Every message that is not cut into pieces fits in this.
inline constexpr size_t kOfiMessageBytesMin = 8192;

// Modes of memory registration that we serve (fi_mr(3)). The others are FI_MR_RAW, FI_MR_MMU_NOTIFY, FI_MR_RMA_EVENT,
// FI_MR_COLLECTIVE and FI_MR_HMEM, of which only the second concerns messages in memory of the host.
inline constexpr int kOfiMrModes = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
inline constexpr uint64_t kOfiModes = FI_CONTEXT | FI_CONTEXT2;

struct OfiRequest {
  // Empty: by preference. "tcp;ofi_rxm" is that one; "tcp" is also what is layered over it, when no provider has just
  // that name.
  std::string provider;
  // A provider with IP addresses must be at this one, whatever the port. Without a family: any.
  SocketAddress address;
  // It must be this domain, the provider's name for a device or an interface ("mlx5_1", "rdmap0s6-rdm", "eth0"); empty: any.
  std::string domain;
};

struct OfiCandidate {
  std::string provider;  // "tcp;ofi_rxm"
  std::string domain;    // "eth0"
  std::string address;   // "10.0.0.7", where it has an IP address
  std::string rejected;  // why; empty for the one that was chosen
};

struct OfiChoice {
  const fi_info* chosen = nullptr;       // in the list that was chosen from
  std::vector<OfiCandidate> candidates;  // each once, the chosen one first
};

// "net eth0 10.0.0.7, lo 127.0.0.1: must be asked for by name: ...": a line for each provider and reason, in the order
// of the candidates.
std::string Describe(const std::vector<OfiCandidate>& candidates);

// Chooses from `fitting`, what fi_getinfo answers to our hints. `all`, what it answers without any, or null: the
// providers that do not fit, to be told why. Pure. NOT_FOUND lists the candidates with the reasons.
absl::StatusOr<OfiChoice> ChooseProvider(const fi_info* fitting, const fi_info* all, const OfiRequest& request);

struct OfiInfoDeleter {
  const OfiApi* api = nullptr;
  void operator()(fi_info* info) const { api->freeinfo(info); }
};
using OfiInfo = std::unique_ptr<fi_info, OfiInfoDeleter>;

struct OfiProvider {
  OfiInfo info;                          // one, of which endpoints are made
  std::vector<OfiCandidate> candidates;  // as above
};

// Asks the library and chooses. NOT_FOUND as above; UNAVAILABLE when it has no provider at all.
absl::StatusOr<OfiProvider> FindProvider(const OfiApi& api, const OfiRequest& request);

// The IP address of an info's source; one without a family when it has another kind.
SocketAddress SourceOf(const fi_info& info);

}  // namespace lockstep

#endif  // TRANSPORT_OFI_PROVIDER_H_
