// Where a store is, as text: "tcp://host:port", "tcp://[v6]:port", "file:///path".

#ifndef TRANSPORT_STORE_STORE_URL_H_
#define TRANSPORT_STORE_STORE_URL_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "transport/net/socket.h"

namespace lockstep {

struct StoreUrl {
  enum Scheme { kTcp, kFile };

  Scheme scheme = kTcp;
  HostPort server;   // kTcp; the port is not 0
  std::string path;  // kFile; absolute
};

// INVALID_ARGUMENT says what is wrong; for an unknown scheme, which ones there are.
absl::StatusOr<StoreUrl> ParseStoreUrl(absl::string_view url);

// "host:port", with the brackets that an IPv6 address needs: what ParseHostPort takes.
std::string HostPortText(const HostPort& server);

std::string TcpStoreUrl(const HostPort& server);

}  // namespace lockstep

#endif  // TRANSPORT_STORE_STORE_URL_H_
