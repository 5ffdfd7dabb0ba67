#include "reducer/agreement.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/device.h"
#include "base/error_info.h"
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

// Of each rank's settings, so that both fit into a complaint.
constexpr size_t kSettingsShownMax = 480;

template <typename T>
absl::StatusOr<std::vector<T>> Gather(Communicator& communicator, const T& mine) {
  std::vector<T> all(communicator.size());
  CollectiveRequest request;
  request.collective = Collective::kAllGather;
  request.count = all.size() * sizeof(T);
  request.input = &mine;
  request.output = all.data();
  LOCKSTEP_RETURN_IF_ERROR(communicator.Run(request));
  return all;
}

absl::Status BroadcastFromZero(Communicator& communicator, std::string& bytes) {
  CollectiveRequest request;
  request.collective = Collective::kBroadcast;
  request.count = bytes.size();
  request.input = bytes.data();
  request.output = bytes.data();
  return communicator.Run(request);
}

// Settings are phrases between ", ", as many on every rank.
std::string SettingsThatDiffer(const std::string& a, int rank_a, const std::string& b, int rank_b) {
  const std::vector<std::string> of_a = absl::StrSplit(a, ", ");
  const std::vector<std::string> of_b = absl::StrSplit(b, ", ");
  std::vector<std::string> differences;
  for (size_t i = 0; i < std::min(of_a.size(), of_b.size()); ++i) {
    if (of_a[i] == of_b[i]) continue;
    differences.push_back(absl::StrCat(of_a[i], " on rank ", rank_a, ", ", of_b[i], " on rank ", rank_b));
  }
  // In what was cut off.
  if (differences.empty()) {
    differences.push_back(absl::StrCat(a, "... on rank ", rank_a, ", ", b, "... on rank ", rank_b));
  }
  return absl::StrCat("the settings differ: ", absl::StrJoin(differences, "; "));
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
                               absl::Span<const Parameter> parameters) {
  const std::string table = Serialize(parameters);
  Digest mine;
  mine.table = XXH3_64bits(table.data(), table.size());
  mine.table_bytes = table.size();
  mine.settings = XXH3_64bits(settings.data(), settings.size());
  mine.bad = local.ok() ? 0 : 1;
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<Digest> digests, Gather(communicator, mine));
  const bool alike = std::all_of(digests.begin(), digests.end(), [&](const Digest& d) { return d == digests[0]; });
  if (alike && mine.bad == 0) return absl::OkStatus();

  // Somebody differs: compare with rank 0, and let everybody hear what everybody found.
  std::string reference = communicator.rank() == Rank(0) ? table : std::string(digests[0].table_bytes, '\0');
  LOCKSTEP_RETURN_IF_ERROR(BroadcastFromZero(communicator, reference));
  std::string shown = settings.substr(0, kSettingsShownMax);
  shown.resize(kSettingsShownMax);
  std::string shown_by_zero = shown;
  LOCKSTEP_RETURN_IF_ERROR(BroadcastFromZero(communicator, shown_by_zero));

  std::string text;
  const int rank = communicator.rank().value();
  if (!local.ok()) {
    text = PackMessage(Annotate(local, absl::StrCat("rank ", rank, " cannot take part")));
  } else if (digests[0].bad == 0 && reference != table) {
    const auto others = DeserializeParameters(reference);
    text = others.ok() ? FirstDifference(0, *others, rank, parameters) : std::string(others.status().message());
  } else if (digests[0].bad == 0 && mine.settings != digests[0].settings) {
    text = SettingsThatDiffer(shown_by_zero.c_str(), 0, shown.c_str(), rank);
  }
  Complaint complaint = {};
  text.copy(complaint.data(), complaint.size() - 1);
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<Complaint> complaints, Gather(communicator, complaint));
  if (!local.ok()) return local;
  for (size_t r = 0; r < complaints.size(); ++r) {
    if (complaints[r][0] == '\0') continue;
    return WithFailedRank(UnpackMessage(absl::StatusCode::kFailedPrecondition, complaints[r].data()),
                          communicator.WorldRank(Rank(static_cast<int>(r))).value());
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
