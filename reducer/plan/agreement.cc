#include "reducer/plan/agreement.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/device/device.h"
#include "base/error_info.h"
#include "base/rank_list.h"
#include "base/status.h"
#include "xxhash.h"

namespace lockstep {
namespace {

// What each rank first tells: cheap, whatever the size of the table.
struct Digest {
  uint64_t table = 0;
  uint64_t table_bytes = 0;
  uint64_t settings = 0;
  uint64_t bad = 0;

  friend bool operator==(const Digest& a, const Digest& b) {
    return a.table == b.table && a.table_bytes == b.table_bytes && a.settings == b.settings && a.bad == b.bad;
  }
};

// Room for one complaint a rank; longer ones are cut.
using Complaint = std::array<char, 1024>;

// Of each rank's settings; likewise.
using ShownSettings = std::array<char, 2048>;

template <typename Text>
Text Cut(const std::string& text) {
  Text cut = {};
  text.copy(cut.data(), cut.size() - 1);
  return cut;
}

// Of another rank's, which need not have ended it.
template <typename Text>
absl::string_view TextOf(const Text& cut) {
  return {cut.data(), strnlen(cut.data(), cut.size())};
}

template <typename T>
absl::StatusOr<std::vector<T>> Gather(Communicator& communicator, const T& mine, bool by_holder) {
  LOCKSTEP_RETURN_IF_ERROR(CheckOutsideGroup(communicator));
  std::vector<T> all(communicator.size());
  CollectiveRequest request;
  request.collective = Collective::kAllGather;
  request.count = all.size() * sizeof(T);
  request.input = &mine;
  request.output = all.data();
  request.by_holder = by_holder;
  LOCKSTEP_RETURN_IF_ERROR(communicator.Run(request));
  return all;
}

absl::Status BroadcastFromZero(Communicator& communicator, std::string& bytes, bool by_holder) {
  CollectiveRequest request;
  request.collective = Collective::kBroadcast;
  request.count = bytes.size();
  request.input = bytes.data();
  request.output = bytes.data();
  request.by_holder = by_holder;
  return communicator.Run(request);
}

// Of each setting that differs the values, in the order of the lowest ranks that have them.
std::string SettingsThatDiffer(const std::vector<ShownSettings>& by_rank) {
  struct Group {
    std::string value;
    std::vector<int> ranks;
  };
  std::vector<std::string> names;
  std::map<std::string, std::vector<Group>> groups_of;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    for (const absl::string_view setting : absl::StrSplit(TextOf(by_rank[rank]), "; ", absl::SkipEmpty())) {
      const std::pair<std::string, std::string> parts = absl::StrSplit(setting, absl::MaxSplits(": ", 1));
      std::vector<Group>& groups = groups_of[parts.first];
      if (groups.empty()) names.push_back(parts.first);
      auto group =
          std::find_if(groups.begin(), groups.end(), [&](const Group& other) { return other.value == parts.second; });
      if (group == groups.end()) group = groups.insert(group, {parts.second, {}});
      group->ranks.push_back(static_cast<int>(rank));
    }
  }
  std::vector<std::string> differences;
  for (const std::string& name : names) {
    const std::vector<Group>& groups = groups_of[name];
    if (groups.size() == 1) continue;
    differences.push_back(
        absl::StrCat(name, ": ", absl::StrJoin(groups, ", ", [](std::string* out, const Group& group) {
                       absl::StrAppend(out, group.value, " on ", RankList(group.ranks));
                     })));
  }
  // In what was cut off.
  if (differences.empty()) differences.push_back(absl::StrCat("behind ", TextOf(by_rank[0]), "..."));
  return absl::StrCat("the options differ: ", absl::StrJoin(differences, "; "));
}

absl::Status CheckDense(const Communicator& communicator, absl::string_view what,
                        absl::Span<const TensorView> tensors) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    const bool reached = tensors[i].device().kind == DeviceKind::kHost || tensors[i].device() == communicator.device();
    if (reached && tensors[i].dense()) continue;
    const std::string or_there =
        communicator.accelerator() == nullptr ? "" : absl::StrCat(" or ", Name(communicator.device()));
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": tensor ", i, " ", tensors[i].ToString(), " is not dense memory on the host", or_there));
  }
  return absl::OkStatus();
}

// Strides too: what is row-major here and channels-last there must not be copied byte by byte.
std::vector<Parameter> AsTable(absl::string_view what, absl::Span<const TensorView> tensors) {
  std::vector<Parameter> table;
  for (const TensorView& tensor : tensors) {
    Parameter entry;
    entry.name = absl::StrCat("of the ", what);
    entry.dtype = tensor.dtype();
    entry.device = tensor.device();
    entry.shape.assign(tensor.shape().begin(), tensor.shape().end());
    if (!tensor.contiguous()) entry.strides.assign(tensor.strides().begin(), tensor.strides().end());
    table.push_back(std::move(entry));
  }
  return table;
}

}  // namespace

absl::Status AgreeOnParameters(Communicator& communicator, const absl::Status& local, const std::string& settings,
                               absl::Span<const Parameter> parameters, bool by_holder, absl::string_view what) {
  const std::string table = Serialize(parameters);
  Digest mine;
  mine.table = XXH3_64bits(table.data(), table.size());
  mine.table_bytes = table.size();
  mine.settings = XXH3_64bits(settings.data(), settings.size());
  mine.bad = local.ok() ? 0 : 1;
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<Digest> digests, Gather(communicator, mine, by_holder));
  const bool alike = std::all_of(digests.begin(), digests.end(), [&](const Digest& d) { return d == digests[0]; });
  if (alike && mine.bad == 0) return absl::OkStatus();

  // Somebody differs: compare with rank 0, and let everybody hear what everybody found.
  std::string reference = communicator.rank() == Rank(0) ? table : std::string(digests[0].table_bytes, '\0');
  LOCKSTEP_RETURN_IF_ERROR(BroadcastFromZero(communicator, reference, by_holder));

  std::string text;
  const int rank = communicator.rank().value();
  if (!local.ok()) {
    text = PackMessage(Annotate(local, absl::StrCat("rank ", rank, " cannot take part")));
  } else if (digests[0].bad == 0 && reference != table) {
    const auto others = DeserializeParameters(reference);
    const absl::Status differs = others.ok() ? FirstDifference(0, *others, rank, parameters) : others.status();
    text = PackMessage(what.empty() ? differs : Annotate(differs, what));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<Complaint> complaints,
                            Gather(communicator, Cut<Complaint>(text), by_holder));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<ShownSettings> shown,
                            Gather(communicator, Cut<ShownSettings>(settings), by_holder));
  if (!local.ok()) return local;
  std::vector<std::pair<uint64_t, uint64_t>> tables;
  std::vector<uint64_t> shown_as;
  for (const Digest& digest : digests) {
    tables.emplace_back(digest.table, digest.table_bytes);
    shown_as.push_back(digest.settings);
  }
  const auto blaming = [&communicator](absl::Status status, int r) {
    return WithFailedRank(std::move(status), communicator.WorldRank(Rank(r)).value());
  };
  for (size_t r = 0; r < complaints.size(); ++r) {
    if (complaints[r][0] == '\0') continue;
    return blaming(UnpackMessage(absl::StatusCode::kFailedPrecondition, TextOf(complaints[r])),
                   digests[r].bad != 0 ? static_cast<int>(r) : OddOne(tables));
  }
  if (std::count(shown_as.begin(), shown_as.end(), shown_as[0]) != communicator.size()) {
    return blaming(absl::FailedPreconditionError(SettingsThatDiffer(shown)), OddOne(shown_as));
  }
  return absl::InternalError("the ranks' parameter tables differ, but no difference was found");
}

absl::Status AgreeOnTensors(Communicator& communicator, const absl::Status& local, absl::string_view what,
                            const std::string& settings, absl::Span<const TensorView> tensors) {
  absl::Status complaint = local;
  complaint.Update(CheckDense(communicator, what, tensors));
  return AgreeOnParameters(communicator, complaint, settings, AsTable(what, tensors));
}

}  // namespace lockstep
