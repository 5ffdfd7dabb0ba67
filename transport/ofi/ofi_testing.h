// Worlds of libfabric transports in one process, and endpoints that are no rank's, for tests.

#ifndef TRANSPORT_OFI_OFI_TESTING_H_
#define TRANSPORT_OFI_OFI_TESTING_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "tests/transport_testing.h"
#include "transport/net/socket.h"
#include "transport/ofi/endpoint.h"
#include "transport/ofi/ofi_transport.h"
#include "transport/ofi/provider.h"
#include "transport/ofi/wire.h"
#include "transport/secure/credentials.h"
#include "transport/secure/secret.h"

namespace lockstep {

inline SocketAddress OfiTestAddress() {
  const absl::StatusOr<SocketAddress> address = SocketAddress::Parse("127.0.0.1:0");
  LOCKSTEP_CHECK(address.ok()) << address.status();
  return *address;
}

inline OfiTransportOptions OfiTestOptions(int rank, int size, const std::string& provider = "") {
  OfiTransportOptions options;
  static_cast<WorldIdentity&>(options) = TestIdentity(rank, size);
  options.bind_address = OfiTestAddress().ToString();
  options.provider = provider;
  return options;
}

// With a secret that has this byte 32 times.
inline Credentials OfiTestCredentials(SecurityLevel level, char secret = 's') {
  Credentials credentials;
  credentials.level = level;
  if (level == SecurityLevel::kNone) return credentials;
  credentials.secret = *Secret::FromBytes(std::string(Secret::kBytes, secret));
  credentials.source = absl::StrCat("a test of ", std::string(1, secret));
  return credentials;
}

using OfiTransports = std::vector<std::unique_ptr<OfiTransport>>;

// Ranks that know each other's addresses. `change` sees the options of each rank.
inline absl::StatusOr<OfiTransports> CreateOfiWorld(
    int size, const std::string& provider,
    const std::function<void(OfiTransportOptions* options)>& change = [](OfiTransportOptions*) {}) {
  OfiTransports ranks;
  std::vector<std::string> addresses;
  for (int i = 0; i < size; ++i) {
    OfiTransportOptions options = OfiTestOptions(i, size, provider);
    change(&options);
    LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<OfiTransport> rank, OfiTransport::Create(std::move(options)));
    addresses.push_back(rank->address());
    ranks.push_back(std::move(rank));
  }
  for (auto& rank : ranks) LOCKSTEP_RETURN_IF_ERROR(rank->SetPeers(addresses));
  return ranks;
}

// A library that lacks the provider counts as not there.
template <typename Ranks>
absl::StatusOr<Ranks> UnavailableIfNotFound(absl::StatusOr<Ranks> ranks) {
  if (absl::IsNotFound(ranks.status())) return absl::UnavailableError(ranks.status().message());
  return ranks;
}

// The same as Transports that are connected, as those of a world are.
inline absl::StatusOr<Transports> CreateConnectedOfiWorld(
    int size, const std::string& provider, const std::function<void(OfiTransportOptions* options)>& change) {
  LOCKSTEP_ASSIGN_OR_RETURN(OfiTransports ranks, CreateOfiWorld(size, provider, change));
  std::vector<absl::Status> connected(ranks.size());
  RunRanks(ranks, [&](OfiTransport* rank) {
    connected[rank->rank().value()] = rank->Connect(TestDeadline(), absl::OkStatus);
  });
  for (const absl::Status& status : connected) LOCKSTEP_RETURN_IF_ERROR(status);
  return AsTransports(std::move(ranks));
}

// An endpoint that is no rank's, for what ranks should not say. Its messages are ended before the transports that they are for.
class OfiOutsider {
 public:
  struct Heard {
    OfiKind kind;
    OfiNotice notice;
    std::string payload;
  };

  // Borrows the library's functions.
  OfiOutsider(const OfiApi* api, const std::string& provider) {
    OfiRequest request;
    request.provider = provider;
    request.address = OfiTestAddress();
    absl::StatusOr<OfiProvider> found = FindProvider(*api, request);
    LOCKSTEP_CHECK(found.ok()) << found.status();
    absl::StatusOr<std::unique_ptr<OfiEndpoint>> endpoint = OfiEndpoint::Create(api, std::move(found->info));
    LOCKSTEP_CHECK(endpoint.ok()) << endpoint.status();
    endpoint_ = *std::move(endpoint);
    receive_.owner = this;
    receive_.complete = [](OfiPost* post, const OfiCompletion& completion) {
      auto* const self = static_cast<Post*>(post);
      LOCKSTEP_CHECK(completion.status.ok() && completion.bytes >= kOfiNoticeBytes) << completion.status;
      const auto* const bytes = reinterpret_cast<const unsigned char*>(self->memory.data());
      self->owner->heard_.push_back({OfiKindOf(completion.tag), DecodeOfiNotice(bytes),
                                     self->memory.substr(kOfiNoticeBytes, completion.bytes - kOfiNoticeBytes)});
      self->owner->endpoint_->Post(post);
    };
    receive_.kind = OfiPost::Kind::kReceive;
    receive_.ignore = kOfiNoticeIgnore;
    receive_.Use(std::string(kOfiSlotBytes, '\0'));
    endpoint_->Post(&receive_);
  }

  const std::string& name() const { return endpoint_->address(); }
  // As a transport says it.
  std::string address() const {
    return absl::StrCat(endpoint_->info().fabric_attr->prov_name, " ", absl::BytesToHexString(name()));
  }

  // To a transport, by its address.
  void Say(const std::string& address, uint64_t tag, const std::string& bytes) {
    if (peer_ < 0) peer_ = *endpoint_->AddPeer(DecodeOfiName(address.substr(address.find(' ') + 1)));
    Post& post = said_.emplace_back();
    post.complete = [](OfiPost* one, const OfiCompletion& completion) {
      static_cast<Post*>(one)->done = true;
      LOCKSTEP_CHECK(completion.status.ok()) << completion.status;
    };
    post.peer = peer_;
    post.tag = tag;
    post.Use(bytes);
    endpoint_->Post(&post);
  }
  void Say(const std::string& address, OfiKind kind, const OfiNotice& notice, const std::string& payload) {
    std::string bytes(kOfiNoticeBytes, '\0');
    EncodeOfiNotice(notice, reinterpret_cast<unsigned char*>(&bytes[0]));
    Say(address, OfiNoticeTag(kind, 0), bytes + payload);
  }

  bool said_all() {
    endpoint_->Poll();
    return std::all_of(said_.begin(), said_.end(), [](const Post& post) { return post.done; });
  }
  const std::deque<Heard>& heard() {
    endpoint_->Poll();
    return heard_;
  }

 private:
  struct Post : OfiPost {
    void Use(std::string bytes_of_message) {
      memory = std::move(bytes_of_message);
      buffer = &memory[0];
      bytes = memory.size();
    }
    std::string memory;
    OfiOutsider* owner = nullptr;
    bool done = false;
  };
  std::unique_ptr<OfiEndpoint> endpoint_;
  int peer_ = -1;
  Post receive_;
  std::deque<Post> said_;
  std::deque<Heard> heard_;
};

}  // namespace lockstep

#endif  // TRANSPORT_OFI_OFI_TESTING_H_
