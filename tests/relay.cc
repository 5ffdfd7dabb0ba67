#include "tests/relay.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "base/deadline.h"
#include "base/status.h"
#include "transport/secure/channel.h"

namespace lockstep {
namespace {

constexpr int kPollMs = 10;
constexpr size_t kRecordHeaderBytes = 5;

}  // namespace

const char* Name(RelayFault fault) {
  constexpr const char* kNames[] = {"none", "drop", "repeat", "reorder", "flip", "cut"};
  return kNames[static_cast<size_t>(fault)];
}

// What one side says to the other.
class Relay::Direction {
 public:
  Direction(int from, int to, const Options* options, bool hit, std::atomic<int>* faults)
      : from_(from), to_(to), options_(options), hit_(hit), faults_(faults) {}

  // Passes on what has come. False when the connection is over.
  bool Go() {
    char bytes[16'384];
    const ssize_t count = recv(from_, bytes, sizeof(bytes), MSG_DONTWAIT);
    if (count < 0 && errno == EAGAIN) return true;
    if (count <= 0) return false;
    arrived_.append(bytes, static_cast<size_t>(count));
    while (absl::optional<std::string> record = TakeRecord()) {
      if (!PassOn(*std::move(record))) return false;
    }
    return true;
  }

 private:
  absl::optional<std::string> TakeRecord() {
    size_t bytes = kPreambleBytes;
    if (records_ > 0) {
      if (arrived_.size() < kRecordHeaderBytes) return absl::nullopt;
      bytes = kRecordHeaderBytes + (size_t{static_cast<unsigned char>(arrived_[3])} << 8) +
              static_cast<unsigned char>(arrived_[4]);
    }
    if (arrived_.size() < bytes) return absl::nullopt;
    std::string record = arrived_.substr(0, bytes);
    arrived_.erase(0, bytes);
    return record;
  }

  bool PassOn(std::string record) {
    const bool due = records_++ == options_->record && hit_;
    if (!due || options_->fault == RelayFault::kNone) {
      record += std::exchange(held_back_, "");
      return Send(record);
    }
    ++*faults_;
    switch (options_->fault) {
      case RelayFault::kNone:
      case RelayFault::kDrop:
        return true;
      case RelayFault::kRepeat:
        return Send(record + record);
      case RelayFault::kReorder:
        held_back_ = std::move(record);
        return true;
      case RelayFault::kFlip:
        record[record.size() / 2] = static_cast<char>(record[record.size() / 2] ^ 1);
        return Send(record);
      case RelayFault::kCut:
        (void)Send(record.substr(0, record.size() / 2));
        return false;
    }
    return false;
  }

  bool Send(const std::string& bytes) {
    return SendAll(to_, bytes.data(), bytes.size(), Deadline::AfterMs(10'000)).ok();
  }

  const int from_;
  const int to_;
  const Options* const options_;
  const bool hit_;  // the fault is of this direction
  std::atomic<int>* const faults_;
  int records_ = 0;
  std::string arrived_;
  std::string held_back_;
};

struct Relay::Pair {
  Pair(UniqueFd client_socket, UniqueFd server_socket, const Options* options, std::atomic<int>* faults)
      : client(std::move(client_socket)),
        server(std::move(server_socket)),
        there(client.get(), server.get(), options, options->from_client, faults),
        back(server.get(), client.get(), options, !options->from_client, faults) {}

  const UniqueFd client;
  const UniqueFd server;
  Direction there;
  Direction back;
};

absl::StatusOr<std::unique_ptr<Relay>> Relay::Create(const SocketAddress& target, const Options& options) {
  LOCKSTEP_ASSIGN_OR_RETURN(const SocketAddress any, SocketAddress::Parse("127.0.0.1:0"));
  LOCKSTEP_ASSIGN_OR_RETURN(UniqueFd listener, Listen(any));
  LOCKSTEP_ASSIGN_OR_RETURN(const SocketAddress address, LocalAddress(listener.get()));
  std::unique_ptr<Relay> relay(new Relay(target, options, std::move(listener), address));
  Relay* const self = relay.get();
  LOCKSTEP_RETURN_IF_ERROR(relay->thread_.Start("relay", [self] { self->Run(); }));
  return relay;
}

Relay::Relay(const SocketAddress& target, const Options& options, UniqueFd listener, const SocketAddress& address)
    : target_(target), options_(options), listener_(std::move(listener)), address_(address) {}

Relay::~Relay() {
  stop_ = true;
  thread_.Join();
}

void Relay::Run() {
  std::vector<std::unique_ptr<Pair>> pairs;
  while (!stop_) {
    std::vector<pollfd> sockets = {{listener_.get(), POLLIN, 0}};
    for (const auto& pair : pairs) {
      sockets.push_back({pair->client.get(), POLLIN, 0});
      sockets.push_back({pair->server.get(), POLLIN, 0});
    }
    (void)poll(sockets.data(), sockets.size(), kPollMs);
    const auto over = [](const std::unique_ptr<Pair>& pair) { return !pair->there.Go() || !pair->back.Go(); };
    pairs.erase(std::remove_if(pairs.begin(), pairs.end(), over), pairs.end());
    SocketAddress peer;
    absl::StatusOr<UniqueFd> client = Accept(listener_.get(), &peer);
    if (!client.ok() || !client->valid()) continue;
    // Where the target does not listen yet, the client is to see that.
    absl::StatusOr<UniqueFd> server = Connect(target_, Deadline::AfterMs(1'000));
    if (server.ok()) {
      pairs.push_back(std::make_unique<Pair>(*std::move(client), *std::move(server), &options_, &faults_));
    }
  }
}

}  // namespace lockstep
