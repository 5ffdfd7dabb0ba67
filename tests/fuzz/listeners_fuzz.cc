// The listeners of a whole world, in this process: unauthenticated peers connect to them, and send captures of its set-up that are
// changed, cut and repeated.
//
//   input = { step }                at most kStepsMax
//   step  = where:u8 what:u8 ...    where: bits 0 and 1 the connection; the others the listener that it goes to, if it is not open
//     what % 8, followed by
//     0 send     text
//     1 capture  whose:u8 begin:u16 bytes:u16 at:u16 flip:u8
//                                   a piece of what a rank has sent, with one byte changed. whose: a purpose, 0 for the listener's own
//     2 repeat   times:u8           what was sent last
//     3 wait                        for an answer, at most a millisecond
//     4 finish                      sends the end of the stream, and waits until the listener closes the connection
//     5 close
//     6 reset
//     7 replay                      all that a rank has sent to a listener like this one
//   To a Unix socket, what is sent by 0, 1 and 7 is a message, which has `what / 64` descriptors beside it.
//
// The world has three ranks on two hosts, so that it has listeners for TCP and for shared memory, a coordinator, and a store's server as
// a launcher has it. It forms once, at level authenticate. Nobody may be admitted: a listener sends no more than the beginning of a
// handshake, closes every connection, and logs nothing but that somebody was turned away. The store's server counts each. Messages,
// collectives and the store go on meanwhile, and memory is bounded.

#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/rank.h"
#include "base/status.h"
#include "base/types/dtype.h"
#include "comm/communicator.h"
#include "comm/schedule/schedule.h"
#include "comm/work.h"
#include "comm/world/world.h"
#include "tests/attacks.h"
#include "tests/fuzz/fuzz.h"
#include "tests/listening_sockets.h"
#include "tests/packet_capture.h"
#include "transport/net/socket.h"
#include "transport/net/unix_socket.h"
#include "transport/secure/channel.h"
#include "transport/secure/credentials.h"
#include "transport/secure/refusals.h"
#include "transport/secure/secret.h"
#include "transport/store/store_tcp_client.h"
#include "transport/store/store_tcp_server.h"

// Of the sanitizers that replace malloc.
extern "C" __attribute__((weak)) size_t __sanitizer_get_current_allocated_bytes();

namespace lockstep {
namespace {

constexpr int kRanks = 3;
constexpr int kConnections = 4;  // of an input, at a time
constexpr int kStepsMax = 64;
constexpr int kDescriptor = 64;  // in a step's `what`: so much for each
// What the process may allocate for a connection: a handshake, and what this file keeps of it.
constexpr int64_t kConnectionBytesMax = 128 << 10;
// After so many inputs, over a corpus after each, the world is looked at, and the last of them is repeated so often. These may leave so
// much behind, or there is another round.
constexpr int kInputsPerCheck = 16;
constexpr int kRepetitions = 8;
constexpr int64_t kLeftBytesMax = 2 << 10;
constexpr int kRoundsMax = 20;
constexpr size_t kElements = 1000;

// Before libFuzzer gives up (tools/fuzz).
Deadline Soon() { return Deadline::After(std::chrono::seconds(15)); }

int64_t HeapBytes() {
  if (&__sanitizer_get_current_allocated_bytes != nullptr) {
    return static_cast<int64_t>(__sanitizer_get_current_allocated_bytes());
  }
  return static_cast<int64_t>(mallinfo2().uordblks);
}

size_t CountSockets() {
  size_t sockets = 0;
  std::error_code gone;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", gone)) {
    const std::filesystem::path target = std::filesystem::read_symlink(entry.path(), gone);
    if (absl::StartsWith(target.native(), "socket:")) ++sockets;
  }
  return sockets;
}

void CheckOk(const absl::Status& status, absl::string_view what) {
  LOCKSTEP_CHECK(status.ok()) << what << ": " << status;
}

template <typename Condition>
bool ComesTrue(Condition condition, Deadline deadline) {
  while (!condition()) {
    if (deadline.passed()) return false;
    (void)poll(nullptr, 0, 1);
  }
  return true;
}

struct Listener {
  ListeningSocket socket;
  Purpose purpose;
};

absl::StatusOr<UniqueFd> ConnectTo(const ListeningSocket& listener) {
  if (listener.family != AF_UNIX) {
    LOCKSTEP_ASSIGN_OR_RETURN(const SocketAddress address, SocketAddress::Parse(listener.name));
    return Connect(address, Soon());
  }
  const Deadline deadline = Soon();
  for (;;) {
    absl::StatusOr<UniqueFd> socket = ConnectUnix(absl::string_view(listener.name).substr(1));
    if (!socket.ok() || socket->valid()) return socket;
    if (deadline.passed()) return absl::DeadlineExceededError("its queue stays full");
    (void)poll(nullptr, 0, 1);
  }
}

// One connection of an unauthenticated peer.
class Peer {
 public:
  explicit Peer(const Listener& listener) : listener_(listener) {
    absl::StatusOr<UniqueFd> socket = ConnectTo(listener.socket);
    LOCKSTEP_CHECK(socket.ok()) << "connect to " << listener.socket.name << ": " << socket.status();
    socket_ = *std::move(socket);
  }

  const Listener& listener() const { return listener_; }

  // What the socket has no room for, or the listener no longer reads, is lost. The descriptors, for a Unix socket, are this connection's
  // own: one that the listener keeps is a connection that does not close.
  void Send(absl::string_view bytes, int descriptors) {
    last_ = std::string(bytes);
    if (listener_.socket.family != AF_UNIX || descriptors == 0) {
      (void)send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      return;
    }
    const std::vector<int> own(static_cast<size_t>(descriptors), socket_.get());
    (void)SendUnix(socket_.get(), bytes.substr(0, kUnixMessageBytesMax), own);
  }
  void Repeat(int times) {
    for (int i = 0; i < times; ++i) (void)send(socket_.get(), last_.data(), last_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  // Waits until something comes. True at the end of the stream.
  bool Read(int wait_ms) {
    pollfd event = {socket_.get(), POLLIN, 0};
    (void)poll(&event, 1, wait_ms);
    char bytes[4096];
    for (;;) {
      const ssize_t count = recv(socket_.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
      if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
      if (count <= 0) return true;
      if (heard_.size() < kPreambleBytes) heard_.append(bytes, static_cast<size_t>(count));
      heard_bytes_ += static_cast<size_t>(count);
      LOCKSTEP_CHECK(heard_bytes_ <= kAnswerBytesMax)
          << listener_.socket.name << " has answered " << heard_bytes_ << " bytes";
    }
  }

  void Finish() {
    (void)shutdown(socket_.get(), SHUT_WR);
    const Deadline deadline = Soon();
    while (!Read(deadline.remaining_ms())) {
      LOCKSTEP_CHECK(!deadline.passed()) << listener_.socket.name << " keeps a connection whose peer has gone";
    }
  }

  // Closing then sends a reset.
  void WillReset() {
    const linger reset = {1, 0};
    (void)setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
  }

  // The beginning of what the listener has said.
  const std::string& heard() const { return heard_; }

 private:
  const Listener listener_;
  UniqueFd socket_;
  std::string last_;
  std::string heard_;
  size_t heard_bytes_ = 0;
};

class FormedWorld {
 public:
  // Forms it in the first call. It lives as long as the process.
  static FormedWorld& OfThisProcess() {
    static FormedWorld* const world = new FormedWorld;
    return *world;
  }

  // In an order that is the same in every process.
  const std::vector<Listener>& listeners() const { return listeners_; }
  // What a rank has sent to a listener for this.
  const std::string& capture(Purpose purpose) const { return captures_.at(purpose); }
  // The same, or else that of another purpose.
  const std::string& capture(uint8_t whose, Purpose own) const {
    return captures_.at(whose == 0 || whose > captures_.size() ? own : static_cast<Purpose>(whose));
  }

  std::unique_ptr<Peer> Connect(const Listener& listener) {
    if (listener.purpose == Purpose::kStore) ++store_peers_;
    return std::make_unique<Peer>(listener);
  }

  // Aborts unless the world works, all peers have been turned away, and nothing is left of them. Without open connections.
  void Check() {
    ExchangeMessages();
    AllReduce();
    CheckOk(clients_[0]->Set("key", "value", Soon()), "set in the store");
    const absl::StatusOr<std::string> value = clients_[1]->Get("key", Soon());
    LOCKSTEP_CHECK(value.ok() && *value == "value") << "get from the store: " << value.status();
    const auto closed = [this] { return CountSockets() == sockets_; };
    LOCKSTEP_CHECK(ComesTrue(closed, Soon())) << CountSockets() << " sockets, not " << sockets_;
    const auto counted = [this] { return server_->refusals().total() == store_peers_; };
    LOCKSTEP_CHECK(ComesTrue(counted, Soon()))
        << store_peers_ << " were at the store, which has " << server_->refusals().Describe();
    MutexLock lock(&mu_);
    LOCKSTEP_CHECK(surprise_.empty()) << surprise_;
  }

 private:
  FormedWorld() {
    SetLogLevel(LogLevel::kWarning);
    SetLogSink([](void* self, LogLevel, const char* line) { static_cast<FormedWorld*>(self)->OnLogLine(line); }, this);
    absl::StatusOr<PacketCapture> packets = PacketCapture::Start();
    // The same in every process, so that a flight from a corpus is one that was made with the secret.
    Credentials job;
    job.level = SecurityLevel::kAuthenticate;
    job.secret = *Secret::FromBytes(std::string(Secret::kBytes, 's'));
    TcpStoreServer::Options options;
    options.credentials = job;
    auto server = TcpStoreServer::Create(*SocketAddress::Parse("127.0.0.1:0"), options);
    CheckOk(server.status(), "serve a store");
    server_ = *std::move(server);
    Form(job);
    PostReceives();
    ExchangeMessages();
    AllReduce();
    FindListeners();
    Capture(packets.ok() ? &*packets : nullptr, job);
    packets = absl::CancelledError();
    sockets_ = CountSockets();
  }

  void Form(const Credentials& job) {
    const UniqueFd file(memfd_create("secret", MFD_CLOEXEC));
    const std::string hex = job.secret->Hex();
    LOCKSTEP_CHECK(fchmod(file.get(), 0600) == 0 &&
                   write(file.get(), hex.data(), hex.size()) == static_cast<ssize_t>(hex.size()));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        auto client = TcpStoreClient::Connect({"127.0.0.1", server_->address().port()}, job, Soon());
        CheckOk(client.status(), "connect to the store");
        clients_[rank] = *std::move(client);
        WorldOptions options;
        options.rank = options.local_rank = rank;
        options.size = options.local_size = kRanks;
        options.host_id = rank < 2 ? "a" : "b";
        options.store = clients_[rank].get();
        options.job_id = "job";
        options.security = "authenticate";
        options.secret_file = absl::StrCat("/proc/self/fd/", file.get());
        options.transport = "auto";
        options.setup_timeout = options.peer_timeout = std::chrono::milliseconds(60'000);
        options.timeout = std::chrono::milliseconds(600'000);
        auto world = World::Create(options);
        CheckOk(world.status(), absl::StrCat("form rank ", rank));
        worlds_[rank] = *std::move(world);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  Communicator* rank(int rank) const { return worlds_[rank]->communicator(); }

  // Receives that wait keep the engines of all ranks going, and with them the listeners of their transports.
  void PostReceives() {
    received_.fill(-1);
    for (int i = 0; i < kRanks; ++i) {
      ReceiveRequest request;
      request.source = Rank((i + 1) % kRanks);
      request.tag = 1;
      request.data = &received_[i];
      request.bytes = sizeof(received_[i]);
      absl::StatusOr<Work> work = rank(i)->StartReceive(request);
      CheckOk(work.status(), "receive");
      receives_.push_back(*std::move(work));
    }
  }

  void ExchangeMessages() {
    ++round_;
    std::vector<Work> sends;
    for (int i = 0; i < kRanks; ++i) {
      SendRequest request;
      request.target = Rank((i + kRanks - 1) % kRanks);
      request.tag = 1;
      request.data = &round_;
      request.bytes = sizeof(round_);
      absl::StatusOr<Work> work = rank(i)->StartSend(request);
      CheckOk(work.status(), "send");
      sends.push_back(*std::move(work));
    }
    for (Work& send : sends) CheckOk(send.Wait(Soon()), "send");
    for (Work& receive : receives_) CheckOk(receive.Wait(Soon()), "receive");
    for (const int64_t received : received_) LOCKSTEP_CHECK(received == round_) << received << ", not " << round_;
    receives_.clear();
    PostReceives();
  }

  void AllReduce() {
    std::array<std::vector<float>, kRanks> data;
    std::vector<Work> works;
    for (int i = 0; i < kRanks; ++i) {
      data[i].assign(kElements, static_cast<float>(i + 1));
      absl::StatusOr<Work> work =
          rank(i)->Start(MakeRequest(Collective::kAllReduce, DType::kF32, kElements, data[i].data(), data[i].data()));
      CheckOk(work.status(), "all-reduce");
      works.push_back(*std::move(work));
    }
    for (Work& work : works) CheckOk(work.Wait(Soon()), "all-reduce");
    constexpr float kSum = 1 + 2 + 3;
    for (const auto& sums : data) {
      LOCKSTEP_CHECK(std::all_of(sums.begin(), sums.end(), [](float sum) { return sum == kSum; })) << "a wrong sum";
    }
  }

  void FindListeners() {
    for (const ListeningSocket& socket : ListeningSocketsOf({getpid()})) {
      // A listener that hears what is none of our protocol answers with its preamble, which has its purpose.
      Peer asks({socket, Purpose::kStore});
      asks.Send("?", 0);
      asks.Finish();
      LOCKSTEP_CHECK(asks.heard().size() >= kPreambleBytes) << socket.name << " has said nothing";
      listeners_.push_back({socket, static_cast<Purpose>(asks.heard()[6])});
      if (listeners_.back().purpose == Purpose::kStore) ++store_peers_;
    }
    std::sort(listeners_.begin(), listeners_.end(), [](const Listener& a, const Listener& b) {
      return std::tie(a.purpose, a.socket.name) < std::tie(b.purpose, b.socket.name);
    });
    std::string purposes;
    for (const Listener& listener : listeners_) absl::StrAppend(&purposes, Name(listener.purpose), " ");
    LOCKSTEP_CHECK(purposes == "store control data data data local local ") << purposes;
  }

  // Where this process may not listen to the network, and for Unix sockets, which nobody else can: a first flight made as a rank does.
  void Capture(PacketCapture* packets, const Credentials& job) {
    std::set<uint16_t> ports;
    for (const Listener& listener : listeners_) {
      if (listener.socket.family != AF_UNIX) ports.insert(SocketAddress::Parse(listener.socket.name)->port());
      captures_[listener.purpose] = Channel(listener.purpose, Channel::Side::kConnects, job).Start();
    }
    if (packets == nullptr) return;
    for (const std::string& heard : packets->Take(ports)) {
      const auto known =
          heard.size() < kPreambleBytes ? captures_.end() : captures_.find(static_cast<Purpose>(heard[6]));
      if (known != captures_.end() && heard.size() > known->second.size()) known->second = heard;
    }
  }

  void OnLogLine(absl::string_view line) {
    const bool refused =
        absl::StrContains(line, ": turned away ") && !absl::StrContains(line, Text(Refusal::kOtherWorld));
    MutexLock lock(&mu_);
    if (!refused && surprise_.empty()) surprise_ = std::string(line);
  }

  std::unique_ptr<TcpStoreServer> server_;
  std::array<std::unique_ptr<TcpStoreClient>, kRanks> clients_;
  std::array<std::unique_ptr<World>, kRanks> worlds_;
  std::vector<Listener> listeners_;
  std::map<Purpose, std::string> captures_;
  size_t sockets_ = 0;        // of the world's own
  uint64_t store_peers_ = 0;  // connections to the store's server that are not of the world

  int64_t round_ = 0;
  std::array<int64_t, kRanks> received_;
  std::vector<Work> receives_;

  Mutex mu_;
  std::string surprise_ ABSL_GUARDED_BY(mu_);  // a line of the log that is no refusal of a peer
};

using Peers = std::array<std::unique_ptr<Peer>, kConnections>;

void TakeStep(fuzz::Input* input, FormedWorld* world, Peers* peers) {
  const uint8_t where = input->Take<uint8_t>();
  const uint8_t what = input->Take<uint8_t>();
  const int descriptors = what / kDescriptor;
  std::unique_ptr<Peer>& peer = (*peers)[where % kConnections];
  if (peer == nullptr) {
    peer = world->Connect(world->listeners()[where / kConnections % world->listeners().size()]);
  }
  const Purpose own = peer->listener().purpose;
  switch (what % 8) {
    case 0:
      return peer->Send(input->TakeText(), descriptors);
    case 1: {
      const std::string& capture = world->capture(input->Take<uint8_t>(), own);
      const size_t begin = std::min<size_t>(input->Take<uint16_t>(), capture.size());
      std::string piece = capture.substr(begin, input->Take<uint16_t>());
      const size_t at = input->Take<uint16_t>();
      const uint8_t flip = input->Take<uint8_t>();
      if (!piece.empty()) piece[at % piece.size()] ^= static_cast<char>(flip);
      return peer->Send(piece, descriptors);
    }
    case 2:
      return peer->Repeat(input->Take<uint8_t>());
    case 3:
      (void)peer->Read(1);
      return;
    case 4:
      peer->Finish();
      return peer.reset();
    case 6:
      peer->WillReset();
      return peer.reset();
    case 5:
      return peer.reset();
    default:
      return peer->Send(world->capture(own), descriptors);
  }
}

// Carries out an input, and waits until the listeners have closed what is open at its end.
void Visit(fuzz::Input input, FormedWorld* world) {
  const int64_t before = HeapBytes();
  Peers peers;
  for (int steps = 0; steps < kStepsMax && !input.empty(); ++steps) TakeStep(&input, world, &peers);
  const int64_t held = HeapBytes() - before;
  LOCKSTEP_CHECK(held <= kStepsMax * kConnectionBytesMax)
      << held << " bytes for at most " << kStepsMax << " connections";
  for (const auto& peer : peers) {
    if (peer != nullptr) peer->Finish();
  }
}

// Whether all that visits have allocated is freed after them.
bool LeavesNothing(const fuzz::Input& input, FormedWorld* world) {
  const int64_t before = HeapBytes();
  for (int i = 0; i < kRepetitions; ++i) Visit(input, world);
  world->Check();
  return ComesTrue([&] { return HeapBytes() <= before + kLeftBytesMax; }, Deadline::AfterMs(100));
}

// Steps as an input has them.
std::string Of(size_t connection, size_t listener, int what, absl::string_view rest = "") {
  return absl::StrCat(std::string({static_cast<char>(connection + kConnections * listener), static_cast<char>(what)}),
                      rest);
}
std::string Sends(size_t connection, size_t listener, absl::string_view bytes) {
  std::string steps;
  for (; !bytes.empty(); bytes.remove_prefix(std::min<size_t>(bytes.size(), 255))) {
    steps += Of(connection, listener, 0, fuzz::Text(bytes.substr(0, 255)));
  }
  return steps;
}

}  // namespace

std::vector<std::string> fuzz::Seeds() {
  const FormedWorld& world = FormedWorld::OfThisProcess();
  std::vector<std::string> seeds;
  std::string all;
  for (size_t i = 0; i < world.listeners().size(); ++i) {
    const Purpose purpose = world.listeners()[i].purpose;
    if (i > 0 && purpose == world.listeners()[i - 1].purpose) continue;
    const std::string& capture = world.capture(purpose);
    // As it was heard; a byte changed in the handshake; cut, with a pause; much too much of it.
    seeds.push_back(Sends(0, i, capture.substr(0, 1024)) + Of(0, i, 3) + Of(0, i, 4));
    seeds.push_back(Of(0, i, 1, std::string("\0\0\0\xff\xff\x40\0\1", 8)) + Of(0, i, 4));
    seeds.push_back(Of(0, i, 1, std::string("\0\0\0\x20\0\0\0\0", 8)) + Of(0, i, 3) +
                    Of(0, i, 1, std::string("\0\x20\0\xff\xff\0\0\0", 8)) + Of(0, i, 3) + Of(0, i, 6));
    seeds.push_back(Of(0, i, 7) + Of(0, i, 2, "\x20") + Of(0, i, 5));
    all += Of(i % kConnections, i, 7) + Of(i % kConnections, i, 3);
    if (purpose != Purpose::kLocal) continue;
    // Descriptors beside an empty message, one of a few bytes, a piece of a handshake and the whole.
    seeds.push_back(Of(0, i, kDescriptor, fuzz::Text("")) + Of(0, i, 5));
    seeds.push_back(Of(0, i, 3 * kDescriptor, fuzz::Text("")) + Of(0, i, 4));
    seeds.push_back(Of(0, i, 2 * kDescriptor, fuzz::Text("hello")) + Of(0, i, 3) + Of(0, i, 5));
    seeds.push_back(Of(0, i, 1 + kDescriptor, std::string("\0\0\0\x20\0\0\0\0", 8)) + Of(0, i, 4));
    seeds.push_back(Of(0, i, 7 + 3 * kDescriptor) + Of(0, i, 3) + Of(0, i, 7 + 2 * kDescriptor) + Of(0, i, 4));
  }
  seeds.push_back(all);
  return seeds;
}

}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  lockstep::FormedWorld& world = lockstep::FormedWorld::OfThisProcess();
  static int inputs = 0;
  lockstep::Visit({data, size}, &world);
  if (++inputs % lockstep::kInputsPerCheck != 0 && !lockstep::fuzz::over_a_corpus) return 0;
  world.Check();
  // A table may have grown, but not in each round.
  int rounds = 1;
  while (!lockstep::LeavesNothing({data, size}, &world)) {
    LOCKSTEP_CHECK(++rounds <= lockstep::kRoundsMax) << "memory is left after each of them";
  }
  return 0;
}
