#include "transport/store/store_url.h"

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/clipped.h"
#include "base/status.h"

namespace lockstep {

absl::StatusOr<StoreUrl> ParseStoreUrl(absl::string_view url) {
  const auto wrong = [url](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("store URL '", Clipped(url), "': ", what));
  };
  StoreUrl result;
  absl::string_view rest = url;
  if (absl::ConsumePrefix(&rest, "tcp://")) {
    const absl::StatusOr<HostPort> server = ParseHostPort(rest);
    if (!server.ok()) return Annotate(server.status(), absl::StrCat("store URL '", Clipped(url), "'"));
    if (server->port == 0) return wrong("port 0 is nothing that other ranks could connect to");
    result.scheme = StoreUrl::kTcp;
    result.server = *server;
    return result;
  }
  if (absl::ConsumePrefix(&rest, "file://")) {
    if (!absl::StartsWith(rest, "/")) return wrong("takes an absolute path, as in file:///path");
    if (absl::EndsWith(rest, "/")) return wrong("names a folder, not a file");
    if (absl::StrContains(rest, absl::string_view("\0", 1))) return wrong("the path contains a NUL byte");
    result.scheme = StoreUrl::kFile;
    result.path = std::string(rest);
    return result;
  }
  return wrong("expected tcp://host:port or file:///path");
}

std::string HostPortText(const HostPort& server) {
  const bool v6 = absl::StrContains(server.host, ":");
  return absl::StrCat(v6 ? "[" : "", server.host, v6 ? "]:" : ":", server.port);
}

std::string TcpStoreUrl(const HostPort& server) { return absl::StrCat("tcp://", HostPortText(server)); }

}  // namespace lockstep
