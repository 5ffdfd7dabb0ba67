#include "transport/net/interface.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <tuple>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/clipped.h"
#include "base/status.h"

namespace lockstep {
namespace {

// The 4 or 16 bytes of an address, in network order.
struct AddressBytes {
  const unsigned char* data = nullptr;
  int bits = 0;
};

AddressBytes BytesOf(const sockaddr* address) {
  AddressBytes bytes;
  if (address->sa_family == AF_INET) {
    bytes.data = reinterpret_cast<const unsigned char*>(&reinterpret_cast<const sockaddr_in*>(address)->sin_addr);
    bytes.bits = 32;
  } else if (address->sa_family == AF_INET6) {
    bytes.data = reinterpret_cast<const unsigned char*>(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
    bytes.bits = 128;
  }
  return bytes;
}

bool LinkLocal(const SocketAddress& address) {
  const AddressBytes bytes = BytesOf(address.get());
  if (bytes.bits == 32) return bytes.data[0] == 169 && bytes.data[1] == 254;
  return bytes.bits == 128 && bytes.data[0] == 0xfe && (bytes.data[1] & 0xc0) == 0x80;
}

// Whether the first bits of two addresses are equal.
bool Share(int bits, const SocketAddress& one, const SocketAddress& other) {
  if (one.family() != other.family()) return false;
  const unsigned char* const a = BytesOf(one.get()).data;
  const unsigned char* const b = BytesOf(other.get()).data;
  const int whole_bytes = bits / 8;
  if (std::memcmp(a, b, static_cast<size_t>(whole_bytes)) != 0) return false;
  const int rest_bits = bits % 8;
  return rest_bits == 0 || (a[whole_bytes] ^ b[whole_bytes]) >> (8 - rest_bits) == 0;
}

// One entry of a selection, without its ^.
struct Entry {
  enum Kind { kNamePrefix, kNameExactly, kSubnet };

  Kind kind = kNamePrefix;
  std::string text;  // the name, or the subnet as written
  SocketAddress network;
  int prefix_length = 0;

  bool Matches(const InterfaceAddress& candidate) const {
    switch (kind) {
      case kNamePrefix:
        return absl::StartsWith(candidate.name, text);
      case kNameExactly:
        return candidate.name == text;
      case kSubnet:
        break;
    }
    return Share(prefix_length, candidate.address, network);
  }

  std::string Mismatch() const {
    switch (kind) {
      case kNamePrefix:
        return absl::StrCat("does not begin with ", Clipped(text));
      case kNameExactly:
        return absl::StrCat("is not ", Clipped(text));
      case kSubnet:
        break;
    }
    return absl::StrCat("not in ", Clipped(text));
  }
};

struct Selection {
  std::vector<Entry> wanted;
  std::vector<Entry> unwanted;
};

absl::StatusOr<Entry> ParseEntry(absl::string_view text) {
  Entry entry;
  entry.text = std::string(text);
  if (absl::ConsumePrefix(&text, "=")) {
    if (text.empty()) return absl::InvalidArgumentError("no interface name after '='");
    entry.kind = Entry::kNameExactly;
    entry.text = std::string(text);
    return entry;
  }
  if (text.empty()) return absl::InvalidArgumentError("empty entry");
  const size_t slash = text.find('/');
  const auto parse_address = [](absl::string_view address) {
    return SocketAddress::Parse(
        absl::StrCat(absl::StrContains(address, ":") ? absl::StrCat("[", address, "]") : address, ":0"));
  };
  if (slash == absl::string_view::npos) {
    if (parse_address(text).ok()) {
      return absl::InvalidArgumentError(absl::StrCat("an address needs its prefix length, as in ", text,
                                                     absl::StrContains(text, ":") ? "/128" : "/32"));
    }
    return entry;
  }
  absl::StatusOr<SocketAddress> network = parse_address(text.substr(0, slash));
  if (!network.ok()) return absl::InvalidArgumentError("no numeric IPv4 or IPv6 address before '/'");
  entry.kind = Entry::kSubnet;
  entry.network = *network;
  const absl::string_view length = text.substr(slash + 1);
  const int bits = BytesOf(network->get()).bits;
  if (length.empty() || length.find_first_not_of("0123456789") != absl::string_view::npos ||
      !absl::SimpleAtoi(length, &entry.prefix_length) || entry.prefix_length > bits) {
    return absl::InvalidArgumentError(absl::StrCat("the prefix length is a number from 0 to ", bits));
  }
  return entry;
}

absl::StatusOr<Selection> ParseSelection(absl::string_view text) {
  Selection selection;
  text = absl::StripAsciiWhitespace(text);
  if (text.empty()) return selection;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    part = absl::StripAsciiWhitespace(part);
    absl::string_view rest = part;
    const bool negative = absl::ConsumePrefix(&rest, "^");
    absl::StatusOr<Entry> entry = ParseEntry(rest);
    if (!entry.ok())
      return Annotate(entry.status(),
                      absl::StrCat("interface selection '", Clipped(text), "', entry '", Clipped(part), "'"));
    (negative ? selection.unwanted : selection.wanted).push_back(*std::move(entry));
  }
  return selection;
}

std::string Describe(const InterfaceAddress& candidate) {
  return absl::StrCat(candidate.name, " ", candidate.address.HostString());
}

// How well a candidate fits: the smaller, the better. Only the first three are about what the user wants; IPv4 goes
// before IPv6 so that ranks on machines of different make choose alike.
using Preference = std::tuple<size_t /*wanted entry*/, bool /*loopback*/, bool /*link-local*/, bool /*IPv6*/>;

// Empty `reason` when the candidate may be chosen.
Preference Judge(const InterfaceAddress& candidate, const Selection& selection, bool allow_loopback,
                 std::string* reason) {
  const SocketAddress& address = candidate.address;
  size_t position = 0;
  if (!candidate.up) *reason = "is down";
  for (const Entry& entry : selection.unwanted) {
    if (!reason->empty()) break;
    if (entry.Matches(candidate))
      *reason = absl::StrCat("excluded by ^", entry.kind == Entry::kNameExactly ? "=" : "", entry.text);
  }
  if (reason->empty() && !selection.wanted.empty()) {
    while (position < selection.wanted.size() && !selection.wanted[position].Matches(candidate)) ++position;
    if (position == selection.wanted.size()) {
      *reason = absl::StrJoin(selection.wanted, ", ",
                              [](std::string* out, const Entry& entry) { out->append(entry.Mismatch()); });
    }
  }
  if (reason->empty() && selection.wanted.empty() && address.loopback() && !allow_loopback) {
    *reason = "loopback, which other machines cannot reach";
  }
  return Preference(position, address.loopback(), LinkLocal(address), address.family() == AF_INET6);
}

}  // namespace

absl::StatusOr<std::vector<InterfaceAddress>> ListInterfaceAddresses() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return ErrnoStatus(errno, "list the network interfaces (getifaddrs)");
  const auto cleanup = absl::MakeCleanup([first] { freeifaddrs(first); });
  std::vector<InterfaceAddress> result;
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    InterfaceAddress address;
    address.name = entry->ifa_name;
    address.address =
        SocketAddress::From(entry->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6))
            .WithPort(0);
    // Running as well: a bridge without members or a card without a cable is "up" and leads nowhere.
    address.up = (entry->ifa_flags & IFF_UP) != 0 && (entry->ifa_flags & IFF_RUNNING) != 0;
    if (entry->ifa_netmask != nullptr) {
      const AddressBytes mask = BytesOf(entry->ifa_netmask);
      for (int bit = 0; bit < mask.bits; ++bit) address.prefix_length += mask.data[bit / 8] >> (7 - bit % 8) & 1;
    }
    result.push_back(std::move(address));
  }
  return result;
}

bool SameNetwork(const InterfaceAddress& interface, const SocketAddress& address) {
  return interface.prefix_length > 0 && Share(interface.prefix_length, interface.address, address);
}

absl::StatusOr<InterfaceChoice> ChooseInterface(const std::vector<InterfaceAddress>& candidates,
                                                absl::string_view selection_text, WorldHosts hosts) {
  if (hosts == WorldHosts::kOne && selection_text.empty()) selection_text = "=lo";
  LOCKSTEP_ASSIGN_OR_RETURN(const Selection selection, ParseSelection(selection_text));

  const InterfaceAddress* best = nullptr;
  Preference best_preference;
  std::vector<std::string> reasons(candidates.size());
  for (size_t i = 0; i < candidates.size(); ++i) {
    const Preference preference = Judge(candidates[i], selection, hosts != WorldHosts::kSeveral, &reasons[i]);
    if (!reasons[i].empty()) continue;
    // Strictly less: among equals the system's order decides.
    if (best == nullptr || preference < best_preference) {
      best = &candidates[i];
      best_preference = preference;
    }
  }

  InterfaceChoice choice;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (&candidates[i] == best) continue;
    if (reasons[i].empty()) reasons[i] = absl::StrCat("usable, but ", Describe(*best), " is preferred");
    choice.rejected.push_back(absl::StrCat(Describe(candidates[i]), ": ", reasons[i]));
  }
  if (best == nullptr) {
    const bool apart = hosts == WorldHosts::kSeveral && selection_text.empty();
    return absl::NotFoundError(
        absl::StrCat(apart ? "the ranks are on several hosts, which reach each other by no loopback: " : "",
                     "no network interface fits ",
                     selection_text.empty() ? "(no selection)" : absl::StrCat("'", Clipped(selection_text), "'"), ": ",
                     choice.rejected.empty() ? "this machine has none" : absl::StrJoin(choice.rejected, "; ")));
  }
  choice.chosen = *best;
  return choice;
}

}  // namespace lockstep
