#include "transport/store_open.h"

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/rank.h"
#include "base/status.h"
#include "transport/socket.h"
#include "transport/store_file.h"
#include "transport/store_memory.h"
#include "transport/store_tcp_client.h"
#include "transport/store_url.h"

namespace lockstep {
namespace {

// How long rank 0 tries to reach its own server in the way the others do, before it takes the short one.
constexpr int kOwnServerMs = 2000;

absl::StatusOr<std::unique_ptr<TcpStoreServer>> ServeEverywhere(int port) {
  absl::StatusOr<std::unique_ptr<TcpStoreServer>> server =
      TcpStoreServer::Create(SocketAddress::Parse(absl::StrCat("[::]:", port)).value(), TcpStoreServer::Options());
  // Any error but a taken port: this machine has no IPv6.
  if (server.ok() || server.status().code() == absl::StatusCode::kAlreadyExists) return server;
  return TcpStoreServer::Create(SocketAddress::Parse(absl::StrCat("0.0.0.0:", port)).value(),
                                TcpStoreServer::Options());
}

absl::StatusOr<std::unique_ptr<TcpStoreServer>> Serve(HostPort where) {
  if (where.host == "localhost") where.host = "127.0.0.1";
  const absl::StatusOr<SocketAddress> address = SocketAddress::Parse(HostPortText(where));
  if (!address.ok()) return ServeEverywhere(where.port);
  absl::StatusOr<std::unique_ptr<TcpStoreServer>> server = TcpStoreServer::Create(*address, TcpStoreServer::Options());
  if (server.status().code() != absl::StatusCode::kInvalidArgument) return server;
  LOCKSTEP_LOG(kWarning) << server.status().message() << "; listening on all of its addresses instead";
  return ServeEverywhere(where.port);
}

absl::StatusOr<std::unique_ptr<TcpStoreClient>> ConnectToOwn(const TcpStoreServer& server, const HostPort& where,
                                                             Deadline deadline) {
  // The others' way first: it tells which of our addresses the others reach.
  absl::StatusOr<std::unique_ptr<TcpStoreClient>> client =
      TcpStoreClient::Connect(where, Deadline::Earlier(deadline, Deadline::AfterMs(kOwnServerMs)));
  if (client.ok()) return client;
  LOCKSTEP_LOG(kWarning) << "rank 0 cannot reach its own store in the way the other ranks have to: "
                         << client.status().message();
  HostPort loopback;
  loopback.host = "127.0.0.1";
  loopback.port = server.address().port();
  return TcpStoreClient::Connect(loopback, deadline);
}

absl::StatusOr<OpenedStore> Open(const WorldSpec& world, Deadline deadline) {
  OpenedStore opened;
  LOCKSTEP_ASSIGN_OR_RETURN(const StoreUrl url, ParseStoreUrl(world.store_url));
  if (url.scheme == StoreUrl::kFile) {
    LOCKSTEP_ASSIGN_OR_RETURN(opened.store, FileStore::Open(url.path, deadline));
    return opened;
  }
  if (world.rank != Rank(0) || world.store_served) {
    LOCKSTEP_ASSIGN_OR_RETURN(opened.store, TcpStoreClient::Connect(url.server, deadline));
    return opened;
  }
  LOCKSTEP_ASSIGN_OR_RETURN(opened.server, Serve(url.server));
  LOCKSTEP_ASSIGN_OR_RETURN(opened.store, ConnectToOwn(*opened.server, url.server, deadline));
  return opened;
}

}  // namespace

absl::StatusOr<OpenedStore> OpenStore(const WorldSpec& world, Deadline deadline) {
  if (world.store_url.empty()) {
    if (world.size != 1)
      return absl::InvalidArgumentError(absl::StrCat("a world of ", world.size, " needs a store URL"));
    OpenedStore opened;
    opened.store = std::make_unique<MemoryStore>();
    return opened;
  }
  absl::StatusOr<OpenedStore> opened = Open(world, deadline);
  if (opened.ok()) return opened;
  const char* const remedy = opened.status().code() == absl::StatusCode::kAlreadyExists
                                 ? "; rank 0 serves the store there: set LOCKSTEP_STORE to another port on all ranks"
                                 : "";
  return absl::Status(opened.status().code(), absl::StrCat(opened.status().message(), " (", world.store_url,
                                                           " is from ", world.store_source, remedy, ")"));
}

}  // namespace lockstep
