// A BareLink between the two ranks of a process group, and what is measured on it.

#ifndef BENCH_LIMITS_CONNECT_H_
#define BENCH_LIMITS_CONNECT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/limits/link.h"
#include "bench/ranks.h"

namespace lockstep {
namespace bench {

struct LinkOptions {
  std::string congestion_control;  // of the bare sockets; empty: the system's default
  std::string host = "127.0.0.1";  // rank 0's IPv4 address, where they connect
  // A provider of libfabric in place of bare sockets: LOCKSTEP_OFI_PROVIDER, or the one that is preferred at `host`, which is then this
  // rank's own address.
  bool fabric = false;
};

// Collective. FAILED_PRECONDITION where there are not two ranks.
absl::StatusOr<std::shared_ptr<BareLink>> ConnectBareLink(const ProcessGroup& group, const LinkOptions& options);

// Calls back to back that move `bytes` both ways at once; or one way, in turns: there and back are two calls.
absl::Status RunBothWays(BareLink& link, int64_t calls, const char* out, char* in, size_t bytes);
absl::Status RunOneWay(BareLink& link, bool first, int64_t calls, const char* out, char* in, size_t bytes);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_LIMITS_CONNECT_H_
