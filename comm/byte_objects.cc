#include "comm/byte_objects.h"

#include <cstdint>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace lockstep {
namespace {

constexpr int64_t kBytesMax = int64_t{1} << 30;

absl::Status CheckSize(int64_t bytes, int rank) {
  if (bytes >= 0 && bytes <= kBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the byte object of rank ", rank, " has ", bytes, " B, which is more than 1 GiB"));
}

// Every rank's size.
absl::StatusOr<std::vector<int64_t>> GatherSizes(Communicator* communicator, const std::string& bytes) {
  const int64_t mine = static_cast<int64_t>(bytes.size());
  std::vector<int64_t> sizes(communicator->size());
  CollectiveRequest request = MakeRequest(Collective::kAllGather, DType::kI64, sizes.size(), &mine, sizes.data());
  LOCKSTEP_RETURN_IF_ERROR(communicator->Run(request));
  for (int r = 0; r < communicator->size(); ++r) LOCKSTEP_RETURN_IF_ERROR(CheckSize(sizes[r], r));
  return sizes;
}

absl::StatusOr<std::vector<std::string>> Gather(Communicator* communicator, Collective collective,
                                                const std::string& bytes, Rank root) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int64_t> sizes, GatherSizes(communicator, bytes));
  const bool here = collective == Collective::kAllGather || communicator->rank() == root;
  CollectiveRequest request;
  request.collective = collective;
  request.root = root;
  request.counts = sizes;
  request.count = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  std::string all(here ? request.count : 0, '\0');
  request.input = bytes.data();
  request.output = all.data();
  LOCKSTEP_RETURN_IF_ERROR(communicator->Run(request));
  std::vector<std::string> objects;
  size_t begin = 0;
  for (const int64_t size : sizes) {
    if (here) objects.push_back(all.substr(begin, size));
    begin += size;
  }
  return objects;
}

}  // namespace

absl::Status BroadcastBytes(Communicator* communicator, std::string* bytes, Rank root) {
  int64_t size = static_cast<int64_t>(bytes->size());
  CollectiveRequest request = MakeRequest(Collective::kBroadcast, DType::kI64, 1, &size, &size);
  request.root = root;
  LOCKSTEP_RETURN_IF_ERROR(communicator->Run(request));
  LOCKSTEP_RETURN_IF_ERROR(CheckSize(size, root.value()));
  bytes->resize(size);
  request.dtype = DType::kU8;
  request.count = size;
  request.input = bytes->data();
  request.output = bytes->data();
  return communicator->Run(request);
}

absl::StatusOr<std::vector<std::string>> GatherBytes(Communicator* communicator, const std::string& bytes, Rank root) {
  return Gather(communicator, Collective::kGather, bytes, root);
}

absl::StatusOr<std::vector<std::string>> AllGatherBytes(Communicator* communicator, const std::string& bytes) {
  return Gather(communicator, Collective::kAllGather, bytes, Rank(0));
}

}  // namespace lockstep
