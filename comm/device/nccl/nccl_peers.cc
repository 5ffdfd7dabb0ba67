#include "comm/device/nccl/nccl_peers.h"

#include <cstdint>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/device/cuda/cuda_device.h"
#include "base/env.h"
#include "comm/topology/host.h"
#include "nlohmann/json.hpp"
#include "transport/nccl/nccl_library.h"

namespace lockstep {
namespace {

std::string VersionName(int version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

}  // namespace

NcclPeer ThisNcclPeer(DeviceId device) {
  NcclPeer peer;
  // NCCL takes ranks with different NCCL_HOSTID for ranks on different hosts.
  peer.host = GetEnv("NCCL_HOSTID").value_or(HostId());
  const absl::StatusOr<const NcclLibrary*> library = Nccl();
  if (!library.ok()) {
    peer.error = std::string(library.status().message());
    return peer;
  }
  peer.version = (*library)->version();
  peer.shares_gpu = peer.version >= nccl::VersionCode(2, 30, 3) && GetEnv("NCCL_MULTI_RANK_GPU_ENABLE") == "1";
  absl::StatusOr<std::string> gpu = CudaPciAddress(device.index);
  if (gpu.ok()) {
    peer.gpu = *std::move(gpu);
  } else {
    peer.error = std::string(gpu.status().message());
  }
  return peer;
}

std::string Encode(const NcclPeer& peer) {
  const nlohmann::json json = {{"error", peer.error},
                               {"version", peer.version},
                               {"host", peer.host},
                               {"gpu", peer.gpu},
                               {"shares_gpu", peer.shares_gpu}};
  // NCCL's and CUDA's texts need not be UTF-8.
  return json.dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
}

absl::StatusOr<NcclPeer> DecodeNcclPeer(absl::string_view text) {
  const nlohmann::json json = nlohmann::json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  NcclPeer peer;
  const auto take = [&json](const char* key, auto* value, bool is_right) {
    if (is_right) json.at(key).get_to(*value);
    return is_right;
  };
  const auto has = [&json](const char* key, nlohmann::json::value_t type) {
    return json.is_object() && json.contains(key) && json.at(key).type() == type;
  };
  using Type = nlohmann::json::value_t;
  const auto has_int = [&](const char* key) {
    return has(key, Type::number_unsigned) && json.at(key).get<uint64_t>() <= std::numeric_limits<int>::max();
  };
  const bool valid =
      take("error", &peer.error, has("error", Type::string)) && take("version", &peer.version, has_int("version")) &&
      take("host", &peer.host, has("host", Type::string)) && take("gpu", &peer.gpu, has("gpu", Type::string)) &&
      take("shares_gpu", &peer.shares_gpu, has("shares_gpu", Type::boolean));
  if (!valid) return absl::InvalidArgumentError(absl::StrCat("not what a rank says of its NCCL: ", text));
  return peer;
}

absl::Status CheckNcclPeers(const std::vector<NcclPeer>& peers) {
  for (size_t r = 0; r < peers.size(); ++r) {
    if (!peers[r].error.empty()) return absl::UnavailableError(absl::StrCat("rank ", r, ": ", peers[r].error));
  }
  std::map<std::pair<std::string, std::string>, size_t> gpus;
  for (size_t r = 0; r < peers.size(); ++r) {
    if (peers[r].version != peers[0].version) {
      return absl::FailedPreconditionError(absl::StrCat("rank 0 has NCCL ", VersionName(peers[0].version), " and rank ",
                                                        r, " NCCL ", VersionName(peers[r].version),
                                                        ": they must be the same"));
    }
    const auto [it, is_first] = gpus.emplace(std::make_pair(peers[r].host, peers[r].gpu), r);
    if (is_first || peers[r].shares_gpu) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "ranks ", it->second, " and ", r, " are both on the GPU ", peers[r].gpu, " of one host, which NCCL ",
        VersionName(peers[r].version),
        " refuses. Give each rank a GPU of its own, or the host communicator's transport (staged), or, for tests, each "
        "process its own NCCL_HOSTID with NCCL_SOCKET_IFNAME=lo"));
  }
  return absl::OkStatus();
}

}  // namespace lockstep
