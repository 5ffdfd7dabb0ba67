#include "transport/store/store_open.h"

#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/error_info.h"
#include "base/log.h"
#include "base/rank.h"
#include "base/status.h"
#include "transport/exchange/exchange.h"
#include "transport/store/store_file.h"
#include "transport/store/store_memory.h"
#include "transport/store/store_tcp_client.h"

namespace lockstep {
namespace {

// How long rank 0 tries to reach its own server in the way the others do, before it takes the short one.
constexpr int kOwnServerMs = 2000;
// How long rank 0 waits for the resolver: the others may know the name all the same.
constexpr int kResolveMs = 10'000;
// How long it looks who has its port.
constexpr int kOtherServerMs = 500;

absl::StatusOr<std::unique_ptr<TcpStoreServer>> ServeEverywhere(int port) {
  absl::StatusOr<std::unique_ptr<TcpStoreServer>> server =
      TcpStoreServer::Create(SocketAddress::Parse(absl::StrCat("[::]:", port)).value(), TcpStoreServer::Options());
  // Any error but a taken port: this machine has no IPv6.
  if (server.ok() || server.status().code() == absl::StatusCode::kAlreadyExists) return server;
  return TcpStoreServer::Create(SocketAddress::Parse(absl::StrCat("0.0.0.0:", port)).value(),
                                TcpStoreServer::Options());
}

absl::StatusOr<std::unique_ptr<TcpStoreServer>> ServeByName(const HostPort& where, bool one_host, Deadline deadline) {
  absl::StatusOr<std::vector<SocketAddress>> named =
      Resolve(where.host, where.port, Deadline::Earlier(deadline, Deadline::AfterMs(kResolveMs)));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<InterfaceAddress> machine, ListInterfaceAddresses());
  std::vector<SocketAddress> addresses;
  if (named.ok()) addresses = StoreListenAddresses(*named, machine, one_host);
  if (!addresses.empty()) {
    absl::StatusOr<std::unique_ptr<TcpStoreServer>> server =
        TcpStoreServer::Create(addresses, TcpStoreServer::Options());
    // An interface may have gone meanwhile.
    if (!absl::IsInvalidArgument(server.status())) return server;
  }
  const auto host = [](std::string* out, const SocketAddress& address) { out->append(address.HostString()); };
  LOCKSTEP_LOG(kWarning) << "the store's host '" << where.host << "' means here "
                         << (named.ok() ? absl::StrJoin(*named, ", ", host) : std::string(named.status().message()))
                         << ", by which other hosts do not reach rank 0: its server listens on all addresses of this "
                            "machine, which LOCKSTEP_STORE with an address in place of the name narrows down";
  return ServeEverywhere(where.port);
}

absl::StatusOr<std::unique_ptr<TcpStoreServer>> Serve(HostPort where, bool one_host, Deadline deadline) {
  if (where.host == "localhost") where.host = "127.0.0.1";
  const absl::StatusOr<SocketAddress> address = SocketAddress::Parse(HostPortText(where));
  if (!address.ok()) return ServeByName(where, one_host, deadline);
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
  if (client.ok() || absl::IsResourceExhausted(client.status())) return client;
  LOCKSTEP_LOG(kWarning) << "rank 0 cannot reach its own store in the way the other ranks have to: "
                         << client.status().message();
  HostPort own;
  own.host = server.address().wildcard() ? "127.0.0.1" : server.address().HostString();
  own.port = server.address().port();
  for (;;) {
    client = TcpStoreClient::Connect(own, Deadline::Earlier(deadline, Deadline::AfterMs(kOwnServerMs)));
    // It may lack descriptors of its own for us.
    LOCKSTEP_RETURN_IF_ERROR(server.status());
    if (!absl::IsDeadlineExceeded(client.status()) || deadline.passed()) return client;
  }
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
  LOCKSTEP_ASSIGN_OR_RETURN(opened.server, Serve(url.server, world.local_size == world.size, deadline));
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
  std::string hint;
  if (absl::IsAlreadyExists(opened.status())) {
    const bool ours =
        TcpStoreClient::Connect(ParseStoreUrl(world.store_url)->server, Deadline::AfterMs(kOtherServerMs)).ok();
    hint = absl::StrCat(
        "; rank 0 serves the store there",
        ours ? ", and another job is here, or another process that takes itself for rank 0: a Lockstep store answers"
             : "",
        ": set LOCKSTEP_STORE to another port on all ranks");
  }
  return absl::Status(opened.status().code(), absl::StrCat(opened.status().message(), " (", world.store_url,
                                                           " is from ", world.store_source, hint, ")"));
}

absl::StatusOr<OpenedStore> OpenStoreByExchange(WorldSpec* world, const absl::StatusOr<SocketAddress>& address,
                                                Deadline deadline) {
  OpenedStore opened;
  const auto serve = [&]() -> absl::StatusOr<std::string> {
    LOCKSTEP_RETURN_IF_ERROR(address.status());
    LOCKSTEP_ASSIGN_OR_RETURN(opened.server, TcpStoreServer::Create(address->WithPort(0), TcpStoreServer::Options()));
    return absl::StrCat("tcp://", opened.server->address().ToString());
  };
  const absl::StatusOr<std::string> url = world->rank == Rank(0) ? serve() : std::string();
  const absl::StatusOr<std::string> told = [&]() -> absl::StatusOr<std::string> {
    LOCKSTEP_ASSIGN_OR_RETURN(Exchange* const exchange, OpenExchange(world->exchange, deadline));
    return TellAll(exchange, world->rank, url, deadline);
  }();
  if (!url.ok()) return url.status();
  if (!told.ok()) {
    // Rank 0's own errors, and an absent rank's, would be no others without an exchange.
    const bool exchange_failed = !GetErrorInfo(told.status()).failed_rank.has_value() &&
                                 !absl::StartsWith(told.status().message(), kNotAllHaveCome);
    return Reworded(
        told.status(),
        absl::StrCat("rank ", world->rank.value(), " of ", world->size, " (by ", world->source,
                     "): ", told.status().message(),
                     exchange_failed ? absl::StrCat("; to do without ", Name(world->exchange), ", ", kSetStore) : ""));
  }
  world->store_url = *told;
  world->store_source = Name(world->exchange);
  if (opened.server == nullptr) return OpenStore(*world, deadline);
  LOCKSTEP_ASSIGN_OR_RETURN(opened.store, ConnectToOwn(*opened.server, ParseStoreUrl(*told)->server, deadline));
  return opened;
}

std::vector<SocketAddress> StoreListenAddresses(const std::vector<SocketAddress>& named,
                                                const std::vector<InterfaceAddress>& machine, bool one_host) {
  std::vector<SocketAddress> local;
  bool reachable = false;
  for (const SocketAddress& address : named) {
    const bool here = address.loopback() || std::any_of(machine.begin(), machine.end(), [&](const auto& own) {
                        return own.address.WithPort(0) == address.WithPort(0);
                      });
    if (!here) continue;
    local.push_back(address);
    reachable |= one_host || !address.loopback();
  }
  if (!reachable) local.clear();
  return local;
}

}  // namespace lockstep
