#include "transport/store/store_open.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/error_info.h"
#include "base/log.h"
#include "base/rank.h"
#include "base/status.h"
#include "transport/exchange/exchange.h"
#include "transport/secure/channel.h"
#include "transport/secure/secret.h"
#include "transport/store/secret_handout.h"
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
// One attempt to be handed a secret, and the pause between two.
constexpr int kAskMs = 1000;
constexpr int kAskPauseMs = 50;
// How long a rank without a secret tries to reach the server, which may start later. One that has already ended for another rank of this
// kind is never reached.
constexpr int kKnockMs = 60'000;
constexpr char kNotHandedOut[] =
    "a server answers there and hands out no secret: rank 0 has a secret file, or security level none, or is of "
    "another "
    "user; LOCKSTEP_SECRET_FILE and LOCKSTEP_SECURITY have to be set alike on all ranks (docs/security.md)";

absl::StatusOr<std::unique_ptr<TcpStoreServer>> ServeEverywhere(int port, const TcpStoreServer::Options& options) {
  absl::StatusOr<std::unique_ptr<TcpStoreServer>> server =
      TcpStoreServer::Create(SocketAddress::Parse(absl::StrCat("[::]:", port)).value(), options);
  // Any error but a taken port: this machine has no IPv6.
  if (server.ok() || server.status().code() == absl::StatusCode::kAlreadyExists) return server;
  return TcpStoreServer::Create(SocketAddress::Parse(absl::StrCat("0.0.0.0:", port)).value(), options);
}

absl::StatusOr<std::unique_ptr<TcpStoreServer>> ServeByName(const HostPort& where, bool one_host,
                                                            const TcpStoreServer::Options& options, Deadline deadline) {
  absl::StatusOr<std::vector<SocketAddress>> named =
      Resolve(where.host, where.port, Deadline::Earlier(deadline, Deadline::AfterMs(kResolveMs)));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<InterfaceAddress> machine, ListInterfaceAddresses());
  std::vector<SocketAddress> addresses;
  if (named.ok()) addresses = StoreListenAddresses(*named, machine, one_host);
  if (!addresses.empty()) {
    absl::StatusOr<std::unique_ptr<TcpStoreServer>> server = TcpStoreServer::Create(addresses, options);
    // An interface may have gone meanwhile.
    if (!absl::IsInvalidArgument(server.status())) return server;
  }
  const auto host = [](std::string* out, const SocketAddress& address) { out->append(address.HostString()); };
  LOCKSTEP_LOG(kWarning) << "the store's host '" << where.host << "' means here "
                         << (named.ok() ? absl::StrJoin(*named, ", ", host) : std::string(named.status().message()))
                         << ", by which other hosts do not reach rank 0: its server listens on all addresses of this "
                            "machine, which LOCKSTEP_STORE with an address in place of the name narrows down";
  return ServeEverywhere(where.port, options);
}

absl::StatusOr<std::unique_ptr<TcpStoreServer>> Serve(HostPort where, bool one_host,
                                                      const TcpStoreServer::Options& options, Deadline deadline) {
  if (where.host == "localhost") where.host = "127.0.0.1";
  const absl::StatusOr<SocketAddress> address = SocketAddress::Parse(HostPortText(where));
  if (!address.ok()) return ServeByName(where, one_host, options, deadline);
  absl::StatusOr<std::unique_ptr<TcpStoreServer>> server = TcpStoreServer::Create(*address, options);
  if (server.status().code() != absl::StatusCode::kInvalidArgument) return server;
  LOCKSTEP_LOG(kWarning) << server.status().message() << "; listening on all of its addresses instead";
  return ServeEverywhere(where.port, options);
}

absl::StatusOr<std::unique_ptr<TcpStoreClient>> ConnectToOwn(const TcpStoreServer& server, const HostPort& where,
                                                             const Credentials& credentials, Deadline deadline) {
  // The others' way first: it tells which of our addresses the others reach.
  absl::StatusOr<std::unique_ptr<TcpStoreClient>> client =
      TcpStoreClient::Connect(where, credentials, Deadline::Earlier(deadline, Deadline::AfterMs(kOwnServerMs)));
  if (client.ok() || absl::IsResourceExhausted(client.status())) return client;
  LOCKSTEP_LOG(kWarning) << "rank 0 cannot reach its own store in the way the other ranks have to: "
                         << client.status().message();
  HostPort own;
  own.host = server.address().wildcard() ? "127.0.0.1" : server.address().HostString();
  own.port = server.address().port();
  for (;;) {
    client = TcpStoreClient::Connect(own, credentials, Deadline::Earlier(deadline, Deadline::AfterMs(kOwnServerMs)));
    // It may lack descriptors of its own for us.
    LOCKSTEP_RETURN_IF_ERROR(server.status());
    if (!absl::IsDeadlineExceeded(client.status()) || deadline.passed()) return client;
  }
}

bool LacksSecret(const Credentials& credentials) {
  return credentials.level != SecurityLevel::kNone && credentials.secret == nullptr;
}

absl::Status DrawSecret(Credentials* credentials) {
  LOCKSTEP_ASSIGN_OR_RETURN(credentials->secret, Secret::Draw());
  credentials->source = "rank 0, which has drawn it";
  return absl::OkStatus();
}

// Those of them that this machine has.
std::vector<SocketAddress> OfThisMachine(const std::vector<SocketAddress>& addresses,
                                         const std::vector<InterfaceAddress>& machine) {
  std::vector<SocketAddress> local;
  for (const SocketAddress& address : addresses) {
    const bool here = address.loopback() || std::any_of(machine.begin(), machine.end(), [&](const auto& own) {
                        return own.address.WithPort(0) == address.WithPort(0);
                      });
    if (here) local.push_back(address);
  }
  return local;
}

// Nobody has handed out a secret: because nobody serves there, because whoever does has no reason to, or because another user's process is
// where it would be asked for.
absl::Status WhyNoSecret(const std::vector<SocketAddress>& addresses, const absl::Status& asked) {
  if (absl::IsPermissionDenied(asked)) {
    return Reworded(asked, absl::StrCat(asked.message(), "; LOCKSTEP_SECRET_FILE on all ranks does without"));
  }
  absl::Status reached = absl::UnavailableError("its address is not known");
  for (const SocketAddress& address : addresses) {
    reached = Connect(address, Deadline::AfterMs(kAskPauseMs)).status();
    if (reached.ok()) return absl::FailedPreconditionError(absl::StrCat(asked.message(), "; ", kNotHandedOut));
  }
  return absl::DeadlineExceededError(absl::StrCat("no server could be reached by the deadline: ", reached.message()));
}

// Lets a server on another host know that this rank has no secret, so that rank 0 does not wait for it.
void KnockWithoutSecret(const HostPort& server, SecurityLevel level, Deadline deadline) {
  absl::StatusOr<std::shared_ptr<const Secret>> nobodys = Secret::Draw();
  if (!nobodys.ok()) return;
  const Credentials credentials = {level, *std::move(nobodys), "nowhere"};
  (void)TcpStoreClient::Connect(server, credentials, Deadline::Earlier(deadline, Deadline::AfterMs(kKnockMs)));
}

// Asks this machine's processes for the secret of the server there, again and again until the deadline, since it may start later.
absl::Status FindSecret(const HostPort& server, Credentials* credentials, Deadline deadline) {
  for (bool told = false;;) {
    const absl::StatusOr<std::vector<SocketAddress>> addresses = Resolve(server.host, server.port, deadline);
    if (!addresses.ok() && !WorthTryingAgain(addresses.status())) return addresses.status();
    std::vector<SocketAddress> local;
    absl::Status asked = addresses.status();
    if (addresses.ok()) {
      LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<InterfaceAddress> machine, ListInterfaceAddresses());
      local = OfThisMachine(*addresses, machine);
      // "tcp://0.0.0.0:4000" leads to this machine, too.
      std::copy_if(addresses->begin(), addresses->end(), std::back_inserter(local),
                   [](const SocketAddress& address) { return address.wildcard(); });
      if (local.empty()) {
        LOCKSTEP_LOG(kWarning) << kNeedsSecret << "; tries to tell rank 0 at " << HostPortText(server);
        KnockWithoutSecret(server, credentials->level, deadline);
        return absl::FailedPreconditionError(kNeedsSecret);
      }
      auto secret = AskForSecret(local, Deadline::Earlier(deadline, Deadline::AfterMs(kAskMs)));
      if (secret.ok()) {
        credentials->secret = *std::move(secret);
        credentials->source = absl::StrCat("the store's server at ", HostPortText(server));
        return absl::OkStatus();
      }
      asked = secret.status();
      // Another user may have one of the names, and keep nobody from the server, which may come to have another.
      const bool squatted = absl::IsPermissionDenied(asked);
      if (!absl::IsNotFound(asked) && !squatted && !WorthTryingAgain(asked)) return asked;
      if (squatted && !std::exchange(told, true)) LOCKSTEP_LOG(kWarning) << asked.message() << ": waits for another";
    }
    const auto resume = Deadline::Clock::now() + std::chrono::milliseconds(kAskPauseMs);
    if (resume >= deadline.time()) return WhyNoSecret(local, asked);
    std::this_thread::sleep_until(resume);
  }
}

absl::StatusOr<std::unique_ptr<TcpStoreClient>> ConnectToOthers(const HostPort& server, Credentials* credentials,
                                                                Deadline deadline,
                                                                std::chrono::milliseconds answer_time) {
  if (!LacksSecret(*credentials)) {
    return TcpStoreClient::Connect(server, *credentials, deadline, nullptr, answer_time);
  }
  for (std::shared_ptr<const Secret> before;;) {
    LOCKSTEP_RETURN_IF_ERROR(
        Annotate(FindSecret(server, credentials, deadline), absl::StrCat("store tcp://", HostPortText(server))));
    absl::StatusOr<std::unique_ptr<TcpStoreClient>> client =
        TcpStoreClient::Connect(server, *credentials, deadline, nullptr, answer_time);
    // An earlier job's server may have handed out its own and ended.
    const bool another = before == nullptr || before->bytes() != credentials->secret->bytes();
    if (!absl::IsPermissionDenied(client.status()) || !another || deadline.passed()) return client;
    before = credentials->secret;
  }
}

absl::StatusOr<OpenedStore> Open(const WorldSpec& world, Credentials* credentials, Deadline deadline) {
  OpenedStore opened;
  LOCKSTEP_ASSIGN_OR_RETURN(const StoreUrl url, ParseStoreUrl(world.store_url));
  if (url.scheme == StoreUrl::kFile) {
    LOCKSTEP_ASSIGN_OR_RETURN(opened.store, FileStore::Open(url.path, deadline));
    return opened;
  }
  const bool several_hosts = world.local_size > 0 && world.local_size < world.size && !IsOnLoopback(url);
  if (LacksSecret(*credentials) && several_hosts) return absl::FailedPreconditionError(kNeedsSecret);
  if (world.rank != Rank(0) || world.store_served) {
    LOCKSTEP_ASSIGN_OR_RETURN(opened.store, ConnectToOthers(url.server, credentials, deadline, world.answer_time));
    return opened;
  }
  TcpStoreServer::Options options;
  options.hands_out_secret = LacksSecret(*credentials);
  if (options.hands_out_secret) LOCKSTEP_RETURN_IF_ERROR(DrawSecret(credentials));
  options.credentials = *credentials;
  LOCKSTEP_ASSIGN_OR_RETURN(opened.server, Serve(url.server, world.local_size == world.size, options, deadline));
  LOCKSTEP_ASSIGN_OR_RETURN(opened.store, ConnectToOwn(*opened.server, url.server, *credentials, deadline));
  return opened;
}

// What rank 0 tells the others; TakeExchangedText reads it.
std::string ExchangedText(const std::string& url, const Credentials& credentials, bool drawn) {
  if (!drawn) return url;
  std::string hex = credentials.secret->Hex();
  const WipedAtEnd wiped(&hex);
  return absl::StrCat(url, " ", hex);
}

}  // namespace

absl::StatusOr<OpenedStore> OpenStore(const WorldSpec& world, Credentials* credentials, Deadline deadline) {
  if (world.store_url.empty()) {
    if (world.size != 1)
      return absl::InvalidArgumentError(absl::StrCat("a world of ", world.size, " needs a store URL"));
    OpenedStore opened;
    opened.store = std::make_unique<MemoryStore>();
    return opened;
  }
  absl::StatusOr<OpenedStore> opened = Open(world, credentials, deadline);
  if (opened.ok()) return opened;
  std::string hint;
  if (absl::IsAlreadyExists(opened.status())) {
    Refusal refusal;
    const absl::Status other = TcpStoreClient::Connect(ParseStoreUrl(world.store_url)->server, *credentials,
                                                       Deadline::AfterMs(kOtherServerMs), &refusal)
                                   .status();
    // It may have another secret or level.
    const bool ours = other.ok() || (absl::IsPermissionDenied(other) && refusal != Refusal::kNotOurs);
    hint = absl::StrCat(
        "; rank 0 serves the store there",
        ours ? ", and another job is here, or another process that takes itself for rank 0: a Lockstep store answers"
             : "",
        ": set LOCKSTEP_STORE to another port on all ranks");
  }
  return absl::Status(opened.status().code(), absl::StrCat(opened.status().message(), " (", world.store_url,
                                                           " is from ", world.store_source, hint, ")"));
}

absl::StatusOr<OpenedStore> OpenStoreByExchange(WorldSpec* world, Credentials* credentials,
                                                const absl::StatusOr<SocketAddress>& address, Deadline deadline) {
  OpenedStore opened;
  const auto serve = [&]() -> absl::StatusOr<std::string> {
    LOCKSTEP_RETURN_IF_ERROR(address.status());
    const bool draws = LacksSecret(*credentials);
    if (draws) LOCKSTEP_RETURN_IF_ERROR(DrawSecret(credentials));
    TcpStoreServer::Options options;
    options.credentials = *credentials;
    LOCKSTEP_ASSIGN_OR_RETURN(opened.server, TcpStoreServer::Create(address->WithPort(0), options));
    return ExchangedText(absl::StrCat("tcp://", opened.server->address().ToString()), *credentials, draws);
  };
  absl::StatusOr<std::string> text = world->rank == Rank(0) ? serve() : std::string();
  const WipedAtEnd text_wiped(&text);
  absl::StatusOr<std::string> told = [&]() -> absl::StatusOr<std::string> {
    LOCKSTEP_ASSIGN_OR_RETURN(Exchange* const exchange, OpenExchange(world->exchange, deadline));
    return TellAll(exchange, world->rank, text, deadline);
  }();
  const WipedAtEnd told_wiped(&told);
  if (!text.ok()) return text.status();
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
  LOCKSTEP_RETURN_IF_ERROR(TakeExchangedText(*told, world, credentials));
  if (opened.server != nullptr) {
    LOCKSTEP_ASSIGN_OR_RETURN(
        opened.store, ConnectToOwn(*opened.server, ParseStoreUrl(world->store_url)->server, *credentials, deadline));
    return opened;
  }
  if (LacksSecret(*credentials)) {
    return absl::FailedPreconditionError(
        "rank 0 has a secret of its own or none, and this rank has none: LOCKSTEP_SECRET_FILE and LOCKSTEP_SECURITY "
        "have to be set alike on all ranks");
  }
  return OpenStore(*world, credentials, deadline);
}

absl::Status TakeExchangedText(const std::string& text, WorldSpec* world, Credentials* credentials) {
  const size_t blank = text.find(' ');
  world->store_url = text.substr(0, blank);
  world->store_source = Name(world->exchange);
  if (blank == std::string::npos || !LacksSecret(*credentials)) return absl::OkStatus();
  LOCKSTEP_ASSIGN_OR_RETURN(credentials->secret, Secret::FromHex(absl::string_view(text).substr(blank + 1)));
  credentials->source = Name(world->exchange);
  return absl::OkStatus();
}

std::vector<SocketAddress> StoreListenAddresses(const std::vector<SocketAddress>& named,
                                                const std::vector<InterfaceAddress>& machine, bool one_host) {
  std::vector<SocketAddress> local = OfThisMachine(named, machine);
  const bool reachable = std::any_of(local.begin(), local.end(),
                                     [&](const SocketAddress& address) { return one_host || !address.loopback(); });
  if (!reachable) local.clear();
  return local;
}

}  // namespace lockstep
