// Addresses as text: sockets, host and port, a store's URL; and Slurm's lists of nodes and tasks.

#include "tests/fuzz/fuzz.h"
#include "transport/net/socket.h"
#include "transport/store/rendezvous.h"
#include "transport/store/slurm.h"

namespace lockstep {
namespace {

using Code = absl::StatusCode;

void ReadSocketAddress(absl::string_view text) {
  const absl::StatusOr<SocketAddress> address = SocketAddress::Parse(text);
  fuzz::CheckCode(address.status(), {Code::kInvalidArgument});
  if (!address.ok()) return;
  const absl::StatusOr<SocketAddress> again = SocketAddress::Parse(address->ToString());
  LOCKSTEP_CHECK(again.ok() && *again == *address) << address->ToString();
  LOCKSTEP_CHECK(SocketAddress::From(address->get(), address->length()) == *address);
  LOCKSTEP_CHECK(address->WithPort(7).port() == 7);
  LOCKSTEP_CHECK(!(address->loopback() && address->wildcard()));
}

void ReadHostPort(absl::string_view text) {
  const absl::StatusOr<HostPort> server = ParseHostPort(text);
  fuzz::CheckCode(server.status(), {Code::kInvalidArgument});
  if (!server.ok()) return;
  LOCKSTEP_CHECK(!server->host.empty());
  // What has a bracket in it, and is no address, needs none of its own.
  const absl::StatusOr<HostPort> again = ParseHostPort(HostPortText(*server));
  LOCKSTEP_CHECK(!again.ok() || (again->host == server->host && again->port == server->port)) << HostPortText(*server);
}

void ReadStoreUrl(absl::string_view text) {
  const absl::StatusOr<StoreUrl> url = ParseStoreUrl(text);
  fuzz::CheckCode(url.status(), {Code::kInvalidArgument});
  if (!url.ok()) return;
  if (url->scheme == StoreUrl::kTcp) LOCKSTEP_CHECK(!url->server.host.empty() && url->server.port != 0);
  if (url->scheme == StoreUrl::kFile) {
    LOCKSTEP_CHECK(url->path.front() == '/' && url->path.find('\0') == std::string::npos);
  }
}

void ReadSlurm(absl::string_view text) {
  const absl::StatusOr<std::string> host = FirstSlurmHost(text);
  fuzz::CheckCode(host.status(), {Code::kInvalidArgument});
  if (host.ok()) LOCKSTEP_CHECK(FirstSlurmHost(*host).value() == *host) << *host;
  for (const int64_t node : {int64_t{0}, int64_t{3}, int64_t{1} << 62}) {
    const absl::StatusOr<int> tasks = SlurmTasksOnNode(text, node);
    fuzz::CheckCode(tasks.status(), {Code::kInvalidArgument});
    if (tasks.ok()) LOCKSTEP_CHECK(*tasks > 0);
  }
}

}  // namespace

std::vector<std::string> fuzz::Seeds() {
  return {"10.0.0.7:4411",      "[fe80::1%lo]:4411", "[::ffff:127.0.0.1]:0",
          "[::1%4294967295]:1", "host:65535",        "tcp://10.0.0.7:29400",
          "tcp://[fd00::1]:1",  "file:///tmp/job",   "n[07-09,12],x",
          "a[1]-b[2-3].c",      "2(x3),1",           "2147483647(x2147483647)"};
}

}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const lockstep::fuzz::Allocations allocations;
  lockstep::ReadSocketAddress(text);
  lockstep::ReadHostPort(text);
  lockstep::ReadStoreUrl(text);
  lockstep::ReadSlurm(text);
  LOCKSTEP_CHECK(allocations.bytes() <= 64 * size + 16384) << allocations.bytes() << " bytes allocated for " << size;
  return 0;
}
