#include "transport/tcp/zero_copy_sends.h"

#include <linux/errqueue.h>
#include <netinet/in.h>

#include <cstring>

#include "base/check.h"

namespace lockstep {

absl::optional<ReleasedSends> ParseReleasedSends(msghdr* message) {
  for (cmsghdr* control = CMSG_FIRSTHDR(message); control != nullptr; control = CMSG_NXTHDR(message, control)) {
    const bool from_ipv4 = control->cmsg_level == IPPROTO_IP && control->cmsg_type == IP_RECVERR;
    const bool from_ipv6 = control->cmsg_level == IPPROTO_IPV6 && control->cmsg_type == IPV6_RECVERR;
    if ((!from_ipv4 && !from_ipv6) || control->cmsg_len < CMSG_LEN(sizeof(sock_extended_err))) continue;
    sock_extended_err said;
    std::memcpy(&said, CMSG_DATA(control), sizeof(said));
    if (said.ee_errno != 0 || said.ee_origin != SO_EE_ORIGIN_ZEROCOPY) continue;
    return ReleasedSends{said.ee_info, said.ee_data, (said.ee_code & SO_EE_CODE_ZEROCOPY_COPIED) != 0};
  }
  return absl::nullopt;
}

void ZeroCopySends::Add(uint64_t position) {
  LOCKSTEP_CHECK(!full());
  sends_[next_++ % kOutstandingMax] = {position, /*released=*/false};
}

void ZeroCopySends::Release(const ReleasedSends& released) {
  for (uint32_t number = oldest_; number != next_; ++number) {
    const bool within = number - released.first <= released.last - released.first;
    if (within) sends_[number % kOutstandingMax].released = true;
  }
  while (!empty() && sends_[oldest_ % kOutstandingMax].released) ++oldest_;
}

}  // namespace lockstep
