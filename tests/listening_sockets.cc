#include "tests/listening_sockets.h"

#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/types/optional.h"
#include "base/random.h"
#include "base/status.h"

namespace lockstep {
namespace {

// A socket of the kernel's, by which descriptors and tables are matched.
using Inode = std::string;

std::set<Inode> SocketsOf(pid_t process) {
  std::set<Inode> inodes;
  const std::string folder = absl::StrCat("/proc/", process, "/fd");
  DIR* const entries = opendir(folder.c_str());
  if (entries == nullptr) return inodes;
  while (const dirent* entry = readdir(entries)) {
    char target[64];
    const ssize_t bytes = readlink(absl::StrCat(folder, "/", entry->d_name).c_str(), target, sizeof(target));
    absl::string_view text(target, bytes < 0 ? 0 : static_cast<size_t>(bytes));
    if (absl::ConsumePrefix(&text, "socket:[") && absl::ConsumeSuffix(&text, "]")) inodes.emplace(text);
  }
  closedir(entries);
  return inodes;
}

// The words of each line of a table, but the heading.
std::vector<std::vector<std::string>> ReadTable(const std::string& path) {
  std::vector<std::vector<std::string>> rows;
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) rows.push_back(absl::StrSplit(line, ' ', absl::SkipEmpty()));
  return rows;
}

// "0100007F:0FA0": words of the address in the machine's order, as %08X prints them.
absl::optional<SocketAddress> ParseKernelAddress(const std::string& text) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
  std::vector<uint32_t> words(parts.first.size() / 8);
  for (size_t i = 0; i < words.size(); ++i) {
    if (!absl::SimpleHexAtoi(parts.first.substr(8 * i, 8), &words[i])) return absl::nullopt;
  }
  uint32_t port = 0;
  if (!absl::SimpleHexAtoi(parts.second, &port)) return absl::nullopt;
  if (words.size() == 1) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = words[0];
    address.sin_port = htons(static_cast<uint16_t>(port));
    if (address.sin_addr.s_addr == htonl(INADDR_ANY)) address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return SocketAddress::From(reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  }
  if (words.size() != 4) return absl::nullopt;
  sockaddr_in6 address = {};
  address.sin6_family = AF_INET6;
  std::memcpy(&address.sin6_addr, words.data(), sizeof(address.sin6_addr));
  address.sin6_port = htons(static_cast<uint16_t>(port));
  if (IN6_IS_ADDR_UNSPECIFIED(&address.sin6_addr)) address.sin6_addr = in6addr_loopback;
  return SocketAddress::From(reinterpret_cast<const sockaddr*>(&address), sizeof(address));
}

}  // namespace

std::vector<ListeningSocket> ListeningSocketsOf(const std::vector<pid_t>& processes) {
  std::set<ListeningSocket> sockets;
  for (const pid_t process : processes) {
    const std::set<Inode> own = SocketsOf(process);
    const auto is_own = [&](const std::string& inode) { return own.count(inode) > 0; };
    for (const char* table : {"tcp", "tcp6"}) {
      // sl local remote state queues timer retransmits uid timeout inode ...; state 0A is LISTEN.
      for (const auto& row : ReadTable(absl::StrCat("/proc/", process, "/net/", table))) {
        if (row.size() < 10 || row[3] != "0A" || !is_own(row[9])) continue;
        const absl::optional<SocketAddress> address = ParseKernelAddress(row[1]);
        if (address.has_value()) sockets.insert({address->family(), SOCK_STREAM, address->ToString()});
      }
    }
    // number references protocol flags type state inode path; flag 0x10000 is that of listeners.
    for (const auto& row : ReadTable(absl::StrCat("/proc/", process, "/net/unix"))) {
      if (row.size() < 8 || row[3] != "00010000" || row[7][0] != '@' || !is_own(row[6])) continue;
      sockets.insert({AF_UNIX, row[4] == "0005" ? SOCK_SEQPACKET : SOCK_STREAM, row[7]});
    }
  }
  return std::vector<ListeningSocket>(sockets.begin(), sockets.end());
}

std::set<uint16_t> PortsOf(const std::vector<ListeningSocket>& sockets) {
  std::set<uint16_t> ports;
  for (const ListeningSocket& socket : sockets) {
    if (socket.family != AF_UNIX) ports.insert(SocketAddress::Parse(socket.name)->port());
  }
  return ports;
}

absl::StatusOr<UniqueFd> BeginConnect(const ListeningSocket& listener, size_t source) {
  UniqueFd socket(::socket(listener.family, listener.type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return ErrnoStatus(errno, "socket");
  int connected = 0;
  if (listener.family == AF_UNIX) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    const size_t bytes = std::min(listener.name.size(), sizeof(address.sun_path));
    std::memcpy(address.sun_path, listener.name.data(), bytes);
    address.sun_path[0] = '\0';  // written as @
    connected = connect(socket.get(), reinterpret_cast<const sockaddr*>(&address),
                        static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + bytes));
  } else {
    const absl::StatusOr<SocketAddress> address = SocketAddress::Parse(listener.name);
    if (!address.ok()) return address.status();
    if (address->family() == AF_INET && address->loopback()) {
      sockaddr_in own = {};
      own.sin_family = AF_INET;
      own.sin_addr.s_addr = htonl(static_cast<uint32_t>(INADDR_LOOPBACK + source % 4));
      const int one = 1;
      (void)setsockopt(socket.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof(one));
      (void)bind(socket.get(), reinterpret_cast<const sockaddr*>(&own), sizeof(own));
    }
    // A reset leaves nothing behind in TIME_WAIT.
    const linger reset = {1, 0};
    (void)setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    connected = connect(socket.get(), address->get(), address->length());
  }
  if (connected != 0 && errno != EINPROGRESS) return ErrnoStatus(errno, absl::StrCat("connect to ", listener.name));
  return socket;
}

absl::StatusOr<SocketAddress> FreeAddress() {
  absl::StatusOr<UniqueFd> listener;
  for (int attempt = 0; attempt < 100; ++attempt) {
    LOCKSTEP_ASSIGN_OR_RETURN(const uint64_t number, RandomNumber());
    LOCKSTEP_ASSIGN_OR_RETURN(const SocketAddress address,
                              SocketAddress::Parse(absl::StrCat("127.0.0.1:", 10'000 + number % 20'000)));
    listener = Listen(address);
    if (listener.ok()) return address;
  }
  return listener.status();
}

}  // namespace lockstep
