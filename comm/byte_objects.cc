#include "comm/byte_objects.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/error_info.h"
#include "base/rank_list.h"
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

bool IsRefusal(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsFailedPrecondition(status) || absl::IsUnimplemented(status);
}

absl::StatusOr<RankError> CompareResults(Communicator* communicator, const absl::Status& mine) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> codes,
                            AllGatherBytes(communicator, absl::StrCat(static_cast<int>(mine.code()))));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> messages, AllGatherBytes(communicator, PackMessage(mine)));
  RankError first;
  for (int r = 0; r < communicator->size(); ++r) {
    int code = 0;
    if (!absl::SimpleAtoi(codes[r], &code)) return absl::InternalError(absl::StrCat("rank ", r, " sent no code"));
    if (code == 0) continue;
    const absl::Status status = WithFailedRank(UnpackMessage(static_cast<absl::StatusCode>(code), messages[r]),
                                               communicator->WorldRank(Rank(r)).value());
    if (first.rank < 0 || (IsRefusal(first.status) && !IsRefusal(status))) first = {r, status};
  }
  return first;
}

absl::Status AgreeThatAllCan(Communicator* communicator, const absl::Status& mine) {
  LOCKSTEP_ASSIGN_OR_RETURN(const RankError first, CompareResults(communicator, mine));
  if (first.rank < 0 || !mine.ok()) return mine;
  return Reworded(first.status, absl::StatusCode::kUnavailable,
                  absl::StrCat("rank ", first.rank, ": ", first.status.message()));
}

absl::Status AgreeOnCalls(Communicator* communicator, const std::string& mine) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> all, AllGatherBytes(communicator, mine));
  if (std::all_of(all.begin(), all.end(), [&](const std::string& other) { return other == all[0]; })) {
    return absl::OkStatus();
  }
  std::string text;
  for (int r = 0; r < communicator->size(); ++r) {
    absl::StrAppend(&text, r == 0 ? "" : "; ", "rank ", r, " called ", all[r]);
  }
  return WithFailedRank(absl::FailedPreconditionError(absl::StrCat("the ranks' collectives differ: ", text)),
                        communicator->WorldRank(Rank(OddOne(all))).value());
}

}  // namespace lockstep
