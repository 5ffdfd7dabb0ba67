// Texts that ranks send each other when a world is set up: what they say of their NCCL.

#include "comm/device/nccl/nccl_peers.h"
#include "tests/fuzz/fuzz.h"

namespace lockstep {
namespace {

using Code = absl::StatusCode;

// Most are texts of errors: several copies, in which a byte may be nine.
void CheckAllocated(const fuzz::Allocations& allocations, absl::string_view text) {
  LOCKSTEP_CHECK(allocations.bytes() <= 256 * text.size() + 4096)
      << allocations.bytes() << " bytes allocated for " << text.size();
}

void ReadNcclPeer(absl::string_view text) {
  const fuzz::Allocations allocations;
  const absl::StatusOr<NcclPeer> peer = DecodeNcclPeer(text);
  CheckAllocated(allocations, text);
  fuzz::CheckCode(peer.status(), {Code::kInvalidArgument});
  if (!peer.ok()) return;
  const absl::StatusOr<NcclPeer> again = DecodeNcclPeer(Encode(*peer));
  LOCKSTEP_CHECK(again.ok() && again->error == peer->error && again->version == peer->version &&
                 again->host == peer->host && again->gpu == peer->gpu && again->shares_gpu == peer->shares_gpu)
      << Encode(*peer);
  fuzz::CheckCode(CheckNcclPeers({*peer, *peer}), {Code::kUnavailable, Code::kFailedPrecondition});
}

}  // namespace

std::vector<std::string> fuzz::Seeds() {
  NcclPeer peer;
  peer.version = 22809;
  peer.host = "4f1c22aa/4026531840";
  peer.gpu = "0000:01:00.0";
  peer.shares_gpu = true;
  NcclPeer without;
  without.error = "there is no libnccl.so.2";
  return {Encode(peer), Encode(without)};
}

}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  lockstep::ReadNcclPeer(text);
  return 0;
}
