#include "tests/packet_capture.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <sys/socket.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "base/status.h"

namespace lockstep {
namespace {

constexpr int kBufferBytes = 64 << 20;
constexpr size_t kPacketBytesMax = 65'536;

uint16_t Read16(absl::string_view packet, size_t at) {
  return static_cast<uint16_t>(static_cast<unsigned char>(packet[at]) << 8 |
                               static_cast<unsigned char>(packet[at + 1]));
}
uint32_t Read32(absl::string_view packet, size_t at) {
  return static_cast<uint32_t>(Read16(packet, at)) << 16 | Read16(packet, at + 2);
}

// A TCP segment (RFC 9293, 3.1) in an IPv4 packet (RFC 791, 3.1).
struct Segment {
  std::tuple<uint32_t, uint16_t, uint16_t> connection;  // source's address and port, target's port
  uint32_t sequence = 0;
  bool begins = false;
  absl::string_view payload;
};

bool Parse(absl::string_view packet, Segment* segment) {
  constexpr size_t kHeaderBytesMin = 20;
  constexpr uint8_t kTcp = 6;
  constexpr unsigned char kSyn = 2;
  if (packet.size() < kHeaderBytesMin || packet[9] != kTcp) return false;
  const size_t ip_bytes = 4 * (static_cast<size_t>(packet[0]) & 15);
  const size_t packet_bytes = std::min<size_t>(packet.size(), Read16(packet, 2));
  const uint32_t source = Read32(packet, 12);
  if (packet_bytes < ip_bytes + kHeaderBytesMin) return false;
  const absl::string_view tcp = packet.substr(ip_bytes, packet_bytes - ip_bytes);
  const size_t tcp_bytes = 4 * (static_cast<size_t>(static_cast<unsigned char>(tcp[12])) >> 4);
  if (tcp.size() < tcp_bytes) return false;
  *segment = {{source, Read16(tcp, 0), Read16(tcp, 2)}, Read32(tcp, 4), (tcp[13] & kSyn) != 0, tcp.substr(tcp_bytes)};
  return true;
}

struct Stream {
  uint32_t next = 0;  // sequence number
  std::string bytes;
};

}  // namespace

absl::StatusOr<PacketCapture> PacketCapture::Start() {
  UniqueFd capture(socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!capture.valid()) return absl::UnavailableError(ErrnoStatus(errno, "packet socket").message());
  // Handshakes are short: data of whoever sends it meanwhile does not fill the buffer. In the IP header (RFC 791, 3.1) the length.
  sock_filter short_ones[] = {BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 2), BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, 4096, 0, 1),
                              BPF_STMT(BPF_RET | BPF_K, 0), BPF_STMT(BPF_RET | BPF_K, UINT32_MAX)};
  const sock_fprog program = {4, short_ones};
  if (setsockopt(capture.get(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)) != 0) {
    return absl::UnavailableError(ErrnoStatus(errno, "filter of a packet socket").message());
  }
  (void)setsockopt(capture.get(), SOL_SOCKET, SO_RCVBUFFORCE, &kBufferBytes, sizeof(kBufferBytes));
  sockaddr_ll loopback = {};
  loopback.sll_family = AF_PACKET;
  loopback.sll_protocol = htons(ETH_P_IP);
  loopback.sll_ifindex = static_cast<int>(if_nametoindex("lo"));
  if (bind(capture.get(), reinterpret_cast<const sockaddr*>(&loopback), sizeof(loopback)) != 0) {
    return absl::UnavailableError(ErrnoStatus(errno, "packet socket on the loopback interface").message());
  }
  return PacketCapture(std::move(capture));
}

std::vector<std::string> PacketCapture::Take(const std::set<uint16_t>& ports, size_t bytes_max) {
  std::map<std::tuple<uint32_t, uint16_t, uint16_t>, Stream> streams;
  std::string packet(kPacketBytesMax, '\0');
  const Deadline deadline = Deadline::AfterMs(10'000);  // others may send faster than this reads
  while (!deadline.passed()) {
    sockaddr_ll from = {};
    socklen_t from_bytes = sizeof(from);
    const ssize_t bytes =
        recvfrom(socket_.get(), &packet[0], packet.size(), 0, reinterpret_cast<sockaddr*>(&from), &from_bytes);
    if (bytes < 0) break;
    // On this interface each packet is seen as it goes and as it comes.
    Segment segment;
    if (from.sll_pkttype == PACKET_OUTGOING || !Parse({packet.data(), static_cast<size_t>(bytes)}, &segment)) continue;
    if (ports.count(std::get<2>(segment.connection)) == 0) continue;
    if (segment.begins) {
      streams[segment.connection] = {segment.sequence + 1, ""};
      continue;
    }
    const auto found = streams.find(segment.connection);
    if (found == streams.end() || segment.sequence != found->second.next) continue;
    found->second.next += static_cast<uint32_t>(segment.payload.size());
    found->second.bytes.append(segment.payload.data(), segment.payload.size());
    if (found->second.bytes.size() > bytes_max) found->second.bytes.resize(bytes_max);
  }
  std::vector<std::string> captures;
  for (auto& [connection, stream] : streams) {
    if (!stream.bytes.empty()) captures.push_back(std::move(stream.bytes));
  }
  return captures;
}

}  // namespace lockstep
