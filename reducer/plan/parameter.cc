#include "reducer/plan/parameter.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/device/tensor_view.h"
#include "base/error_info.h"
#include "base/status.h"

namespace lockstep {
namespace {

constexpr uint64_t kCountMax = uint64_t{1} << 24;  // of parameters, dimensions, characters: bounds what is allocated

constexpr int64_t kDeviceKindCount = static_cast<int64_t>(DeviceKind::kCuda) + 1;

// What a bucket adds to a gradient at most: the gap behind it, and the mark.
constexpr size_t kRoundingBytesMax = 512;

void PutNumber(std::string& bytes, int64_t value) {
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(static_cast<uint64_t>(value) >> (8 * i)));
}

void PutNumbers(std::string& bytes, const std::vector<int64_t>& values) {
  PutNumber(bytes, values.size());
  for (const int64_t value : values) PutNumber(bytes, value);
}

// Reads what the above wrote; `ok` turns false at the first thing that does not fit and stays so.
struct Reader {
  const std::string& bytes;
  size_t at = 0;
  bool ok = true;

  int64_t Number() {
    if (!ok || bytes.size() - at < 8) {
      ok = false;
      return 0;
    }
    uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value |= static_cast<uint64_t>(static_cast<unsigned char>(bytes[at + i])) << (8 * i);
    at += 8;
    return static_cast<int64_t>(value);
  }
  uint64_t Count() {
    const uint64_t count = Number();
    if (count > kCountMax) ok = false;
    return ok ? count : 0;
  }
  std::vector<int64_t> Numbers() {
    std::vector<int64_t> values;
    for (uint64_t left = Count(); ok && left > 0; --left) values.push_back(Number());
    return values;
  }
  // A number below `count`.
  int64_t Below(int64_t count) {
    const int64_t value = Number();
    if (value < 0 || value >= count) ok = false;
    return ok ? value : 0;
  }
  std::string Text() {
    const uint64_t size = Count();
    if (!ok || bytes.size() - at < size) {
      ok = false;
      return "";
    }
    at += size;
    return bytes.substr(at - size, size);
  }
};

std::string Shape(const std::vector<int64_t>& values) { return absl::StrCat("[", absl::StrJoin(values, ", "), "]"); }

// "parameter 3 'layer1.weight'", "parameter 3".
std::string Named(size_t index, const Parameter& parameter) {
  return parameter.name.empty() ? absl::StrCat("parameter ", index)
                                : absl::StrCat("parameter ", index, " '", parameter.name, "'");
}

// A shared weight that is listed once for each of its uses would be reduced as often.
absl::Status CheckNames(absl::Span<const Parameter> parameters) {
  std::map<absl::string_view, size_t> index_of;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].name.empty()) continue;
    const auto [first, added] = index_of.emplace(parameters[i].name, i);
    if (added) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("parameters ", first->second, " and ", i, " have the same name '", parameters[i].name,
                     "': a shared weight is listed once, and other parameters have different names or none"));
  }
  return absl::OkStatus();
}

std::string Layout(const std::vector<int64_t>& strides) {
  return strides.empty() ? "row-major" : absl::StrCat("strides ", Shape(strides));
}

std::string Use(const Parameter& parameter) {
  if (parameter.ignored) return "ignored";
  return parameter.sparse ? "sparse" : "reduced";
}

}  // namespace

int64_t Parameter::elements() const {
  int64_t product = 1;
  for (const int64_t extent : shape) product *= extent;
  return product;
}

std::string Describe(size_t index, const Parameter& parameter) {
  return absl::StrCat(Named(index, parameter), " (", Name(parameter.dtype), Shape(parameter.shape), ")");
}

// As CheckParameters; `*at` is the parameter that an error is about, if it is about one.
static absl::Status CheckTable(absl::Span<const Parameter> parameters, absl::optional<size_t>* at) {
  if (parameters.empty()) {
    return absl::InvalidArgumentError("a reducer needs at least one parameter: the table is empty");
  }
  if (std::all_of(parameters.begin(), parameters.end(), [](const Parameter& p) { return p.ignored; })) {
    return absl::InvalidArgumentError("a reducer needs at least one parameter: all of the table are ignored");
  }
  LOCKSTEP_RETURN_IF_ERROR(CheckNames(parameters));
  size_t total_bytes = 0;
  const Parameter* first = nullptr;  // that is not ignored
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = parameters[i];
    const std::string where = Named(i, parameter);
    if (parameter.ignored) continue;
    *at = i;
    if (!IsFloat(parameter.dtype) && !IsComplex(parameter.dtype)) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": gradients are floats or complex numbers, not ", Name(parameter.dtype)));
    }
    if (first == nullptr) first = &parameter;
    if (parameter.device != first->device) {
      return absl::InvalidArgumentError(absl::StrCat(where, " is on ", Name(parameter.device), ", and '", first->name,
                                                     "' on ", Name(first->device),
                                                     ": a reducer's gradients are on one device"));
    }
    if (parameter.sparse && parameter.device.kind != DeviceKind::kHost) {
      return absl::UnimplementedError(
          absl::StrCat(where, ": sparse gradients on ", Name(parameter.device), ": mark them on the host"));
    }
    // Any non-null address serves: only the geometry is looked at, and the check of alignment is satisfied by this one.
    void* const stand_in = reinterpret_cast<void*>(uintptr_t{1} << 20);
    const auto view =
        TensorView::Create(stand_in, parameter.dtype, parameter.shape, parameter.strides, parameter.device);
    if (!view.ok()) return Annotate(view.status(), where);
    if (parameter.sparse && (parameter.shape.empty() || !view->contiguous())) {
      return absl::InvalidArgumentError(absl::StrCat(
          where, ": a sparse gradient has rows: its shape has a first dimension, and ", "its strides are row-major"));
    }
    if (__builtin_add_overflow(total_bytes, parameter.bytes() + kRoundingBytesMax, &total_bytes)) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": the gradients up to this one have more bytes than there are addresses"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckParameters(absl::Span<const Parameter> parameters) {
  absl::optional<size_t> at;
  const absl::Status status = CheckTable(parameters, &at);
  return at.has_value() ? WithParameter(status, *at) : status;
}

DeviceId DeviceOf(absl::Span<const Parameter> parameters) {
  for (const Parameter& parameter : parameters) {
    if (!parameter.ignored) return parameter.device;
  }
  return DeviceId();
}

std::string Serialize(absl::Span<const Parameter> parameters) {
  std::string bytes;
  PutNumber(bytes, parameters.size());
  for (const Parameter& parameter : parameters) {
    PutNumber(bytes, parameter.name.size());
    bytes += parameter.name;
    PutNumber(bytes, static_cast<int64_t>(parameter.dtype));
    PutNumber(bytes, static_cast<int64_t>(parameter.device.kind));
    PutNumbers(bytes, parameter.shape);
    PutNumbers(bytes, parameter.strides);
    PutNumber(bytes, parameter.ignored ? 1 : 0);
    // How the gradient of an ignored one would come makes no difference.
    PutNumber(bytes, parameter.sparse && !parameter.ignored ? 1 : 0);
  }
  return bytes;
}

absl::StatusOr<std::vector<Parameter>> DeserializeParameters(const std::string& bytes) {
  Reader reader{bytes};
  std::vector<Parameter> parameters;
  for (uint64_t left = reader.Count(); reader.ok && left > 0; --left) {
    Parameter parameter;
    parameter.name = reader.Text();
    parameter.dtype = static_cast<DType>(reader.Below(kDTypeCount));
    parameter.device.kind = static_cast<DeviceKind>(reader.Below(kDeviceKindCount));
    parameter.shape = reader.Numbers();
    parameter.strides = reader.Numbers();
    parameter.ignored = reader.Below(2) != 0;
    parameter.sparse = reader.Below(parameter.ignored ? 1 : 2) != 0;
    parameters.push_back(std::move(parameter));
  }
  if (!reader.ok || reader.at != bytes.size()) return absl::DataLossError("a parameter table arrived damaged");
  return parameters;
}

absl::Status FirstDifference(int rank_a, absl::Span<const Parameter> a, int rank_b, absl::Span<const Parameter> b) {
  if (a.size() != b.size()) {
    if (a.size() < b.size()) return FirstDifference(rank_b, b, rank_a, a);
    size_t i = 0;
    while (i < b.size() && a[i].name == b[i].name) ++i;
    return WithParameter(absl::FailedPreconditionError(
                             absl::StrCat("rank ", rank_a, " has ", a.size(), " parameters and rank ", rank_b, " has ",
                                          b.size(), ": they differ from ", Named(i, a[i]), " of rank ", rank_a, " on")),
                         i);
  }
  for (size_t i = 0; i < a.size(); ++i) {
    const auto differ = [&](absl::string_view what, absl::string_view of_a, absl::string_view of_b) {
      return WithParameter(
          absl::FailedPreconditionError(absl::StrCat(what, " of ", Named(i, a[i]), " differs: ", of_a, " on rank ",
                                                     rank_a, ", ", of_b, " on rank ", rank_b)),
          i);
    };
    if (a[i].name != b[i].name) {
      const auto or_none = [](const std::string& name) { return name.empty() ? "none" : name; };
      return differ("the name", or_none(a[i].name), or_none(b[i].name));
    }
    if (a[i].dtype != b[i].dtype) return differ("the dtype", Name(a[i].dtype), Name(b[i].dtype));
    if (a[i].device.kind != b[i].device.kind) {
      return differ("the device", Name(a[i].device.kind), Name(b[i].device.kind));
    }
    if (a[i].shape != b[i].shape) return differ("the shape", Shape(a[i].shape), Shape(b[i].shape));
    if (a[i].strides != b[i].strides) return differ("the layout", Layout(a[i].strides), Layout(b[i].strides));
    if (Use(a[i]) != Use(b[i])) return differ("the use", Use(a[i]), Use(b[i]));
  }
  return absl::OkStatus();
}

}  // namespace lockstep
