#include "reducer/replicas/compare_replicas.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/types/optional.h"
#include "base/deadline.h"
#include "base/device/device_memory.h"
#include "base/device/tensor_view.h"
#include "base/error_info.h"
#include "base/rank_list.h"
#include "base/status.h"
#include "kernels/cpu/cast.h"
#include "kernels/cpu/flatten.h"
#include "reducer/plan/agreement.h"
#include "reducer/replicas/replica_hash.h"

namespace lockstep {
namespace {

constexpr size_t kChunkBytes = size_t{1} << 20;
constexpr size_t kParts = 512;        // into which a range that differs is cut, again and again
constexpr size_t kShownBytes = 4096;  // bytes of a range that is gathered itself
constexpr size_t kValuesShownMax = 4;

// Stands for the hash of a tensor that a rank does not have.
constexpr uint64_t kAbsent = 0;
uint64_t Present(uint64_t hash) { return hash == kAbsent ? 1 : hash; }

// Reads tensors, wherever they are. A device's error is kept, and must not keep this rank from what the others wait for: the tensor counts
// as absent.
class Reader {
 public:
  Reader(absl::Span<const Parameter> tensors, absl::Span<const void* const> data, const CompareOptions& options)
      : tensors_(tensors), data_(data), options_(options) {}

  bool has(size_t tensor) const { return !data_.empty() && data_[tensor] != nullptr; }
  const absl::Status& status() const { return status_; }

  uint64_t Hash(const TensorRange& range) {
    const Parameter& tensor = tensors_[range.tensor];
    if (!has(range.tensor)) return kAbsent;
    if (tensor.device.kind == DeviceKind::kHost) return Present(HashOf(tensor, data_[range.tensor], range, 0));
    Parameter chunk;  // on the host
    chunk.dtype = tensor.dtype;
    uint64_t hash = 0;
    const size_t step = kChunkBytes / SizeOf(tensor.dtype);
    for (size_t done = 0; done < range.count; done += step) {
      const size_t count = std::min(step, range.count - done);
      const char* const read = ReadFromDevice({range.tensor, range.first + done, count});
      if (read == nullptr) return kAbsent;
      chunk.shape = {static_cast<int64_t>(count)};
      hash = HashOf(chunk, read, {0, 0, count}, hash);
    }
    return Present(hash);
  }

  // RETURNS false if that cannot be read. REQUIRES has(range.tensor)
  bool Read(const TensorRange& range, char* target) {
    const Parameter& tensor = tensors_[range.tensor];
    const size_t size = SizeOf(tensor.dtype);
    if (tensor.device.kind != DeviceKind::kHost) {
      const char* const read = ReadFromDevice(range);
      if (read != nullptr) std::memcpy(target, read, range.count * size);
      return read != nullptr;
    }
    const auto view = TensorView::Create(const_cast<void*>(data_[range.tensor]), tensor.dtype, tensor.shape,
                                         tensor.strides, tensor.device);
    status_.Update(view.status());
    if (view.ok()) kernels::ReadElements(*view, range.first, range.count, target, tensor.dtype, 1.0);
    return view.ok();
  }

 private:
  // REQUIRES at most kChunkBytes. RETURNS memory that is borrowed until the next call; null on an error.
  const char* ReadFromDevice(const TensorRange& range) {
    const absl::Status read = ReadInto(range);
    status_.Update(read);
    return read.ok() ? staging_.data() : nullptr;
  }

  absl::Status ReadInto(const TensorRange& range) {
    if (staging_.data() == nullptr) {
      LOCKSTEP_ASSIGN_OR_RETURN(staging_, DeviceMemory::AllocateOnHost(options_.device, kChunkBytes));
    }
    if (options_.stream == nullptr && own_stream_ == nullptr) {
      LOCKSTEP_ASSIGN_OR_RETURN(own_stream_, options_.device->CreateStream("lockstep-check"));
    }
    Stream& stream = options_.stream == nullptr ? *own_stream_ : *options_.stream;
    const size_t size = SizeOf(tensors_[range.tensor].dtype);
    const char* const begin = static_cast<const char*>(data_[range.tensor]) + range.first * size;
    LOCKSTEP_RETURN_IF_ERROR(stream.Copy(staging_.data(), begin, range.count * size));
    return stream.Synchronize(Deadline::Infinite());
  }

  const absl::Span<const Parameter> tensors_;
  const absl::Span<const void* const> data_;
  const CompareOptions& options_;
  std::unique_ptr<Stream> own_stream_;
  DeviceMemory staging_;
  absl::Status status_;
};

// The ranks that have each value, the value of the lowest rank first. Those without one are left out.
template <typename Value>
std::vector<std::pair<Value, std::vector<int>>> Group(int ranks, const std::function<absl::optional<Value>(int)>& of) {
  std::vector<std::pair<Value, std::vector<int>>> groups;
  for (int rank = 0; rank < ranks; ++rank) {
    const absl::optional<Value> value = of(rank);
    if (!value.has_value()) continue;
    auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& other) { return other.first == *value; });
    if (group == groups.end()) group = groups.insert(group, {*value, {}});
    group->second.push_back(rank);
  }
  return groups;
}

class Comparison {
 public:
  Comparison(Communicator& communicator, absl::Span<const Parameter> tensors, absl::Span<const void* const> data,
             const CompareOptions& options)
      : communicator_(communicator), tensors_(tensors), options_(options), reader_(tensors, data, options) {}

  absl::StatusOr<bool> Run() {
    std::vector<uint64_t> mine(tensors_.size());
    for (size_t t = 0; t < mine.size(); ++t) {
      mine[t] = reader_.Hash({t, 0, static_cast<size_t>(tensors_[t].elements())});
    }
    LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<uint64_t> all, Gather(mine));
    absl::optional<size_t> first;
    size_t different = 0;
    bool complete = true;
    std::vector<bool> odd(communicator_.size(), false);  // differs from a majority
    for (size_t t = 0; t < mine.size(); ++t) {
      const auto groups = GroupHashes(all, mine.size(), t);
      size_t ranks = 0;
      for (const auto& group : groups) ranks += group.second.size();
      complete = complete && ranks == odd.size();
      if (groups.size() < 2) continue;
      ++different;
      if (!first.has_value()) first = t;
      for (const auto& most : groups) {
        if (2 * most.second.size() <= ranks) continue;
        for (const auto& group : groups) {
          for (const int rank : group.second) odd[rank] = odd[rank] || &group != &most;
        }
      }
    }
    if (!first.has_value()) {
      LOCKSTEP_RETURN_IF_ERROR(reader_.status());
      return complete;
    }
    std::vector<int> odd_ranks;
    for (size_t rank = 0; rank < odd.size(); ++rank) {
      if (odd[rank]) odd_ranks.push_back(static_cast<int>(rank));
    }
    LOCKSTEP_ASSIGN_OR_RETURN(const std::string where, Locate(*first));
    std::string text = absl::StrCat("replicas differ in ", different, " of ", tensors_.size(), " tensors");
    if (!odd_ranks.empty()) {
      absl::StrAppend(&text, "; ", RankList(odd_ranks), odd_ranks.size() == 1 ? " differs" : " differ",
                      " from the majority");
    }
    absl::Status error = absl::DataLossError(absl::StrCat(text, ". The first is ", where));
    error = WithParameter(std::move(error), *first);
    return odd_ranks.empty() ? error : WithFailedRank(error, communicator_.WorldRank(Rank(odd_ranks[0])).value());
  }

 private:
  template <typename T>
  absl::StatusOr<std::vector<T>> Gather(const std::vector<T>& mine) {
    LOCKSTEP_RETURN_IF_ERROR(CheckOutsideGroup(communicator_));
    std::vector<T> all(mine.size() * communicator_.size());
    CollectiveRequest request =
        MakeRequest(Collective::kAllGather, DType::kU8, all.size() * sizeof(T), mine.data(), all.data());
    request.by_holder = options_.by_holder;
    request.timeout = options_.timeout;
    LOCKSTEP_RETURN_IF_ERROR(communicator_.Run(request));
    return all;
  }

  std::vector<std::pair<uint64_t, std::vector<int>>> GroupHashes(const std::vector<uint64_t>& all, size_t count,
                                                                 size_t index) const {
    return Group<uint64_t>(communicator_.size(), [&](int rank) {
      const uint64_t hash = all[rank * count + index];
      return hash == kAbsent ? absl::optional<uint64_t>() : hash;
    });
  }

  // "parameter 3 'fc.weight' (f32[10, 5]), at [1, 7]: rank 1 has 0.5 (0x3f000000), ranks 0, 2-3 have 0.25 (0x3e800000)".
  absl::StatusOr<std::string> Locate(size_t tensor) {
    TensorRange range = {tensor, 0, static_cast<size_t>(tensors_[tensor].elements())};
    const size_t size = SizeOf(tensors_[tensor].dtype);
    const std::string name = Describe(tensor, tensors_[tensor]);
    while (range.count * size > kShownBytes) {
      const size_t step = (range.count + kParts - 1) / kParts;
      std::vector<uint64_t> mine(kParts, kAbsent);
      const auto part = [&range, step](size_t p) {
        const size_t begin = std::min(p * step, range.count);
        return TensorRange{range.tensor, range.first + begin, std::min(step, range.count - begin)};
      };
      for (size_t p = 0; p < kParts; ++p) {
        mine[p] = reader_.Hash(part(p));
      }
      LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<uint64_t> all, Gather(mine));
      size_t p = 0;
      while (p < kParts && GroupHashes(all, kParts, p).size() < 2) ++p;
      if (p == kParts) return absl::StrCat(name, ", which changed while it was compared");
      range = part(p);
    }
    // A byte ahead says whether the rank has the tensor.
    std::vector<char> mine(1 + range.count * size, 0);
    if (reader_.has(tensor)) mine[0] = reader_.Read(range, mine.data() + 1) ? 1 : 0;
    LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<char> all, Gather(mine));
    for (size_t i = 0; i < range.count; ++i) {
      const auto groups = Group<std::string>(communicator_.size(), [&](int rank) {
        const char* const values = all.data() + rank * mine.size();
        return values[0] == 0 ? absl::optional<std::string>() : std::string(values + 1 + i * size, size);
      });
      if (groups.size() < 2) continue;
      return absl::StrCat(name, ", at ", Place(tensor, range.first + i), ": ", Values(tensor, groups));
    }
    return absl::StrCat(name, ", which changed while it was compared");
  }

  std::string Values(size_t tensor, std::vector<std::pair<std::string, std::vector<int>>> groups) const {
    // The values of the fewest ranks come first.
    std::stable_sort(groups.begin(), groups.end(),
                     [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
    std::vector<std::string> texts;
    for (const auto& [bytes, ranks] : groups) {
      if (texts.size() == kValuesShownMax) {
        texts.push_back("...");
        break;
      }
      texts.push_back(
          absl::StrCat(RankList(ranks), ranks.size() == 1 ? " has " : " have ", Value(tensors_[tensor].dtype, bytes)));
    }
    return absl::StrJoin(texts, ", ");
  }

  // The value and its bits, the highest byte first.
  static std::string Value(DType dtype, const std::string& bytes) {
    const std::string bits = absl::StrCat("0x", absl::BytesToHexString(std::string(bytes.rbegin(), bytes.rend())));
    if (!IsFloat(dtype)) return bits;
    double value = 0;
    return kernels::CastScaled(DType::kF64, &value, dtype, bytes.data(), 1, 1.0).ok()
               ? absl::StrFormat("%.9g (%s)", value, bits)
               : bits;
  }

  // The indices of the element that is at this place of the tensor's memory.
  std::string Place(size_t tensor, size_t element) const {
    const Parameter& parameter = tensors_[tensor];
    const auto view = GeometryOf(parameter);
    std::vector<size_t> dimensions(parameter.shape.size());
    for (size_t d = 0; d < dimensions.size(); ++d) dimensions[d] = d;
    if (view.ok() && view->dense()) {
      std::stable_sort(dimensions.begin(), dimensions.end(),
                       [&view](size_t a, size_t b) { return view->strides()[a] > view->strides()[b]; });
    }
    std::vector<int64_t> place(dimensions.size(), 0);
    for (size_t d = dimensions.size(); d-- > 0;) {
      const auto extent = static_cast<size_t>(parameter.shape[dimensions[d]]);
      place[dimensions[d]] = static_cast<int64_t>(element % extent);
      element /= extent;
    }
    return absl::StrCat("[", absl::StrJoin(place, ", "), "]");
  }

  Communicator& communicator_;
  const absl::Span<const Parameter> tensors_;
  const CompareOptions& options_;
  Reader reader_;
};

}  // namespace

absl::StatusOr<bool> CompareReplicas(Communicator& communicator, absl::Span<const Parameter> tensors,
                                     absl::Span<const void* const> data, const CompareOptions& options) {
  return Comparison(communicator, tensors, data, options).Run();
}

}  // namespace lockstep
