// Records of data in worlds whose ranks are processes. Tampering: three ranks pause between all-reduces. Meanwhile the test, which has
// CAP_NET_RAW and has captured their segments, injects one into a data connection: with the sender's addresses and ports and the next
// sequence number, so that the receiver's kernel takes it and acknowledges it. The receiving rank must fail with what is wrong, all ranks
// must hear of it, and no rank may have a wrong result.

#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "base/fork.h"
#include "base/status.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "comm/communicator.h"
#include "comm/schedule/schedule.h"
#include "comm/world/world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/hindrances.h"
#include "tests/process_worlds.h"
#include "tests/processes.h"
#include "transport/link/record_stream.h"
#include "transport/net/little_endian.h"
#include "transport/store/store_tcp_client.h"
#include "transport/store/store_tcp_server.h"

namespace lockstep {
namespace {

using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

constexpr int kRanks = 3;

Deadline Soon() { return Deadline::AfterMs(40'000); }

// ---- In the processes

absl::Status AllReduce(Communicator* self) {
  std::vector<float> data(1000, 1.0f);
  LOCKSTEP_RETURN_IF_ERROR(
      self->Run(MakeRequest(Collective::kAllReduce, DType::kF32, data.size(), data.data(), data.data())));
  const bool right = std::all_of(data.begin(), data.end(), [](float value) { return value == kRanks; });
  return right ? absl::OkStatus() : absl::InternalError("a wrong result");
}

absl::StatusOr<std::unique_ptr<World>> CreateOverTcp(const RankProcess& self) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<TcpStoreClient> store, ConnectToTestStore(self.arguments()[0]));
  WorldOptions options = ProcessWorldOptions(self, store.get());
  options.transport = "tcp";
  options.interface = "=lo";
  return World::Create(options);
}

// Sends its description. At each message from the test it reduces with the others, and sends the status, until the message is "end".
LOCKSTEP_RANK_FUNCTION(TamperedRank) {
  // Records of our own, and none of the kernel's TLS.
  LOCKSTEP_RETURN_IF_ERROR(Refuse({SYS_setsockopt, ENOENT, 2, TCP_ULP}));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<World> world, CreateOverTcp(self));
  LOCKSTEP_RETURN_IF_ERROR(self.Send(world->communicator()->Describe()));
  for (;;) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::string message, self.Receive(Soon()));
    if (message == "end") return absl::OkStatus();
    LOCKSTEP_RETURN_IF_ERROR(self.Send(AllReduce(world->communicator()).ToString()));
  }
}

LOCKSTEP_RANK_FUNCTION(RankThatWantsRecordsIfItIsTheLast) {
  if (self.rank() == self.size() - 1) setenv("LOCKSTEP_SECURITY_LOCAL", "1", 1);
  return CreateOverTcp(self).status();
}

// ---- In the test

// One direction of a connection.
struct Flow {
  uint32_t sequence = 0;      // of the next byte
  uint32_t acknowledged = 0;  // the next byte of the other direction
  bool ended = false;
  std::string payload;  // the last segment's
};

// Captures and injects TCP segments on IPv4's loopback interface. Used by one thread.
class SegmentInjector {
 public:
  using End = std::pair<in_addr_t, in_port_t>;  // in the network's byte order
  using Connection = std::pair<End, End>;       // source and target

  // Captures what goes from and to these ports from now on.
  // ERRORS  UNAVAILABLE  this process may not (CAP_NET_RAW)
  static absl::StatusOr<SegmentInjector> Open(const std::vector<uint16_t>& ports) {
    constexpr uint32_t kProtocolAt = 9, kPortsAt = 20;  // of a packet without options
    std::vector<sock_filter> program = {
        BPF_STMT(BPF_LD | BPF_B | BPF_ABS, kProtocolAt),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, IPPROTO_TCP, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, 0),
    };
    for (const uint32_t at : {kPortsAt, kPortsAt + 2}) {
      for (const uint16_t port : ports) {
        program.push_back(BPF_STMT(BPF_LD | BPF_H | BPF_ABS, at));
        program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, port, 0, 1));
        program.push_back(BPF_STMT(BPF_RET | BPF_K, UINT32_MAX));
      }
    }
    program.push_back(BPF_STMT(BPF_RET | BPF_K, 0));
    const sock_fprog filter = {static_cast<unsigned short>(program.size()), program.data()};
    sockaddr_ll loopback = {};
    loopback.sll_family = AF_PACKET;
    loopback.sll_protocol = htons(ETH_P_IP);
    loopback.sll_ifindex = static_cast<int>(if_nametoindex("lo"));
    SegmentInjector made;
    made.packet_socket_ = UniqueFd(socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    made.raw_socket_ = UniqueFd(socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_RAW));
    if (!made.packet_socket_.valid() || !made.raw_socket_.valid() ||
        setsockopt(made.packet_socket_.get(), SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof(filter)) != 0 ||
        bind(made.packet_socket_.get(), reinterpret_cast<const sockaddr*>(&loopback), sizeof(loopback)) != 0) {
      return absl::UnavailableError(ErrnoStatus(errno, "a packet and a raw socket").message());
    }
    return made;
  }

  // All flows, as of now.
  const std::map<Connection, Flow>& Capture() {
    std::string packet(65'536, '\0');
    for (;;) {
      sockaddr_ll from = {};
      socklen_t from_bytes = sizeof(from);
      const ssize_t bytes =
          recvfrom(packet_socket_.get(), &packet[0], packet.size(), 0, reinterpret_cast<sockaddr*>(&from), &from_bytes);
      if (bytes < 0) return flows_;
      // On this interface each packet is seen as it goes and as it comes.
      if (from.sll_pkttype != PACKET_OUTGOING) Take(absl::string_view(packet).substr(0, static_cast<size_t>(bytes)));
    }
  }

  // Sends the bytes as the source of the connection would, and waits until the target's kernel has acknowledged them. `ends`: nothing
  // follows them.
  // REQUIRES  both directions were captured
  absl::Status Inject(const Connection& connection, absl::string_view payload, bool ends) {
    const Flow flow = flows_[connection];
    Packet packet = {};
    packet.ip.version = 4;
    packet.ip.ihl = 5;
    packet.ip.ttl = 64;
    packet.ip.protocol = IPPROTO_TCP;
    std::tie(packet.ip.saddr, packet.tcp.source) = connection.first;
    std::tie(packet.ip.daddr, packet.tcp.dest) = connection.second;
    packet.tcp.seq = htonl(flow.sequence);
    packet.tcp.ack_seq = htonl(flow.acknowledged);
    packet.tcp.doff = sizeof(packet.tcp) / 4;
    packet.tcp.ack = packet.tcp.psh = 1;
    packet.tcp.fin = ends ? 1 : 0;
    packet.tcp.window = htons(UINT16_MAX);
    packet.tcp.check = Checksum(packet, payload);
    std::string bytes(reinterpret_cast<const char*>(&packet), sizeof(packet));
    bytes.append(payload.data(), payload.size());
    sockaddr_in target = {};
    target.sin_family = AF_INET;
    target.sin_addr.s_addr = packet.ip.daddr;
    if (sendto(raw_socket_.get(), bytes.data(), bytes.size(), 0, reinterpret_cast<const sockaddr*>(&target),
               sizeof(target)) != static_cast<ssize_t>(bytes.size())) {
      return ErrnoStatus(errno, "sendto of a raw socket");
    }
    const Deadline deadline = Soon();
    const Connection back = {connection.second, connection.first};
    while (Capture().at(back).acknowledged != flow.sequence + payload.size() + (ends ? 1 : 0)) {
      if (deadline.passed()) return absl::DeadlineExceededError("the target's kernel does not take the segment");
      pollfd captured = {packet_socket_.get(), POLLIN, 0};
      (void)poll(&captured, 1, 100);
    }
    return absl::OkStatus();
  }

 private:
  struct Packet {
    iphdr ip;
    tcphdr tcp;
  };

  void Take(absl::string_view bytes) {
    Packet packet;
    if (bytes.size() < sizeof(packet)) return;
    std::memcpy(&packet, bytes.data(), sizeof(packet));
    const size_t header_bytes = sizeof(packet.ip) + size_t{4} * packet.tcp.doff;
    bytes = bytes.substr(0, ntohs(packet.ip.tot_len));
    Flow& flow = flows_[{{packet.ip.saddr, packet.tcp.source}, {packet.ip.daddr, packet.tcp.dest}}];
    flow.acknowledged = ntohl(packet.tcp.ack_seq);
    flow.ended |= packet.tcp.fin || packet.tcp.rst;
    if (packet.tcp.syn) flow.sequence = ntohl(packet.tcp.seq) + 1;
    if (bytes.size() <= header_bytes) return;
    flow.payload = std::string(bytes.substr(header_bytes));
    flow.sequence = ntohl(packet.tcp.seq) + static_cast<uint32_t>(flow.payload.size());
  }

  // Of TCP, over the addresses too (RFC 9293, 3.1).
  static uint16_t Checksum(const Packet& packet, absl::string_view payload) {
    std::string summed;
    const auto append = [&](const auto& value) { summed.append(reinterpret_cast<const char*>(&value), sizeof(value)); };
    append(packet.ip.saddr);
    append(packet.ip.daddr);
    append(htons(IPPROTO_TCP));
    append(htons(static_cast<uint16_t>(sizeof(packet.tcp) + payload.size())));
    append(packet.tcp);
    summed.append(payload.data(), payload.size());
    if (summed.size() % 2 != 0) summed.push_back('\0');
    uint32_t sum = 0;
    for (size_t at = 0; at < summed.size(); at += 2) {
      uint16_t word;
      std::memcpy(&word, &summed[at], sizeof(word));
      sum += word;
    }
    while (sum > UINT16_MAX) sum = (sum & UINT16_MAX) + (sum >> 16);
    return static_cast<uint16_t>(~sum);
  }

  UniqueFd packet_socket_, raw_socket_;
  std::map<Connection, Flow> flows_;
};

// The number of the record that follows these. -1 if the bytes are not one or more records.
int64_t NextNumber(absl::string_view records) {
  int64_t next = -1;
  while (records.size() >= kRecordOverheadBytes) {
    uint32_t bytes, key;
    uint64_t number;
    LoadLittleEndians(reinterpret_cast<const unsigned char*>(records.data()), &bytes, &key, &number);
    if (bytes > records.size() - kRecordOverheadBytes) return -1;
    next = static_cast<int64_t>(number) + 1;
    records.remove_prefix(kRecordOverheadBytes + bytes);
  }
  return records.empty() ? next : -1;
}

class WorldRecordsTest : public ::testing::Test {
 protected:
  void Start(const char* function, std::vector<std::pair<std::string, std::string>> environment) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(store_, ServeTestStore());
    ProcessGroup::Options options;
    options.size = kRanks;
    options.arguments = {store_->address().ToString()};
    options.environment = std::move(environment);
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(ranks_, ProcessGroup::Start(function, options));
  }

  std::vector<std::string> Receive() {
    std::vector<std::string> messages;
    for (int rank = 0; rank < kRanks; ++rank) {
      absl::StatusOr<std::string> message = ranks_->Receive(rank, Soon());
      messages.push_back(message.ok() ? *std::move(message) : message.status().ToString());
    }
    return messages;
  }
  // The ranks' statuses.
  std::vector<std::string> AllReduce() {
    for (int rank = 0; rank < kRanks; ++rank) EXPECT_THAT(ranks_->Send(rank, "all-reduce"), IsOk());
    return Receive();
  }

  std::unique_ptr<TcpStoreServer> store_;
  std::unique_ptr<ProcessGroup> ranks_;
};

enum class Attack { kGarbage, kRepeat, kForge, kCut };

const char* Name(Attack attack) {
  constexpr const char* kNames[] = {"Garbage", "Repeat", "Forge", "Cut"};
  return kNames[static_cast<int>(attack)];
}

class TamperedRecordsTest : public WorldRecordsTest,
                            public ::testing::WithParamInterface<std::tuple<const char*, Attack>> {};

TEST_P(TamperedRecordsTest, AnInjectedSegmentEndsTheWorldOnAllRanks) {
  const auto [level, attack] = GetParam();
  if (const auto made = SegmentInjector::Open({}); !made.ok()) GTEST_SKIP() << made.status();
  ASSERT_NO_FATAL_FAILURE(Start("TamperedRank", {{"LOCKSTEP_SECURITY", level}, {"LOCKSTEP_SECURITY_LOCAL", "1"}}));
  const std::vector<std::string> descriptions = Receive();
  if (!absl::StrContains(descriptions[0], "security: ")) {
    const absl::Status end = ranks_->Wait(0, Soon());
    if (absl::StrContains(end.message(), "install a filter of system calls")) GTEST_SKIP() << end;
  }
  ASSERT_THAT(descriptions, Each(HasSubstr(absl::StrCat("security: ", level))));
  // Where ranks 1 and 2 listen.
  std::vector<uint16_t> ports;
  for (const absl::string_view piece : absl::StrSplit(descriptions[0], " over tcp 127.0.0.1:")) {
    int port = 0;
    if (absl::SimpleAtoi(piece.substr(0, piece.find_first_not_of("0123456789")), &port)) ports.push_back(port);
  }
  ASSERT_EQ(ports.size(), 2) << descriptions[0];
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(SegmentInjector injector, SegmentInjector::Open(ports));
  ASSERT_THAT(AllReduce(), Each("OK"));

  SegmentInjector::Connection connection;
  Flow flow;
  for (const auto& [between, candidate] : injector.Capture()) {
    const uint16_t port = ntohs(between.second.second);
    if ((port == ports[0] || port == ports[1]) && !candidate.ended && NextNumber(candidate.payload) > 0) {
      connection = between;
      flow = candidate;
    }
  }
  ASSERT_FALSE(flow.payload.empty());
  const int target = ntohs(connection.second.second) == ports[0] ? 1 : 2;
  std::string payload = flow.payload;
  std::string what = "DATA_LOSS: .*recv from";
  std::string defect = "record [0-9]+ was altered, or is not from this connection";
  const auto as_next = [&] {
    StoreLittleEndian(static_cast<uint64_t>(NextNumber(flow.payload)), reinterpret_cast<unsigned char*>(&payload[8]));
  };
  switch (attack) {
    case Attack::kGarbage:
      payload.assign(100, 'x');
      break;
    case Attack::kRepeat:
      defect = "record [0-9]+ came where [0-9]+ was due: lost, repeated or out of order";
      break;
    case Attack::kForge:
      // Right in all but its tag.
      as_next();
      break;
    case Attack::kCut:
      // Whatever is seen first, at either end: the other one gets a reset.
      what = "ABORTED: .*(recv from|send to)";
      defect = "connection (closed by peer|lost)";
      as_next();
      payload.resize(kRecordOverheadBytes);
      break;
  }
  ASSERT_THAT(injector.Inject(connection, payload, attack == Attack::kCut), IsOk());

  const std::string error = absl::StrCat("^", what, " rank [0-9] over tcp 127.0.0.1:[0-9]+: ", defect);
  const std::vector<std::string> statuses = AllReduce();
  EXPECT_THAT(statuses[target], ContainsRegex(error));
  // The other ranks may have had all data by then.
  EXPECT_THAT(statuses, Each(AnyOf("OK", ContainsRegex(error))));
  EXPECT_THAT(AllReduce(), Each(ContainsRegex(error)));
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_THAT(ranks_->Send(rank, "end"), IsOk());
  EXPECT_THAT(ranks_->WaitAll(Soon()), Each(IsOk()));
}

INSTANTIATE_TEST_SUITE_P(
    Attacks, TamperedRecordsTest,
    ::testing::Combine(::testing::Values("authenticate", "encrypt"),
                       ::testing::Values(Attack::kGarbage, Attack::kRepeat, Attack::kForge, Attack::kCut)),
    [](const auto& info) { return absl::StrCat(std::get<0>(info.param), Name(std::get<1>(info.param))); });

TEST_F(WorldRecordsTest, InsideAHostAreWantedByAllRanksOrByNone) {
  ASSERT_NO_FATAL_FAILURE(Start("RankThatWantsRecordsIfItIsTheLast", {}));
  EXPECT_THAT(
      ranks_->WaitAll(Soon()),
      Each(StatusIs(Code::kFailedPrecondition, HasSubstr("LOCKSTEP_SECURITY_LOCAL: no on ranks 0-1, yes on rank 2"))));
}

}  // namespace
}  // namespace lockstep
