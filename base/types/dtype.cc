#include "base/types/dtype.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/clipped.h"

namespace lockstep {
namespace {

enum class Kind : uint8_t { kBool, kInteger, kFloat, kComplex };

struct Traits {
  const char* name;
  size_t size;
  Kind kind;
};

// Indexed by the dtype's number.
constexpr Traits kTraits[kDTypeCount] = {
    {"bool", 1, Kind::kBool},    {"u8", 1, Kind::kInteger},        {"i8", 1, Kind::kInteger},
    {"i32", 4, Kind::kInteger},  {"u32", 4, Kind::kInteger},       {"i64", 8, Kind::kInteger},
    {"u64", 8, Kind::kInteger},  {"f16", 2, Kind::kFloat},         {"bf16", 2, Kind::kFloat},
    {"f32", 4, Kind::kFloat},    {"f64", 8, Kind::kFloat},         {"f8e4m3", 1, Kind::kFloat},
    {"f8e5m2", 1, Kind::kFloat}, {"complex64", 8, Kind::kComplex}, {"complex128", 16, Kind::kComplex},
};

const Traits* Find(DType dtype) { return IsValid(dtype) ? &kTraits[static_cast<int>(dtype)] : nullptr; }

bool IsKind(DType dtype, Kind kind) {
  const Traits* traits = Find(dtype);
  return traits != nullptr && traits->kind == kind;
}

}  // namespace

bool IsValid(DType dtype) { return static_cast<int>(dtype) < kDTypeCount; }

size_t SizeOf(DType dtype) {
  const Traits* traits = Find(dtype);
  return traits != nullptr ? traits->size : 0;
}

std::string Name(DType dtype) {
  const Traits* traits = Find(dtype);
  return traits != nullptr ? traits->name : absl::StrCat("dtype(", static_cast<int>(dtype), ")");
}

absl::StatusOr<DType> ParseDType(absl::string_view name) {
  std::string names;
  for (DType dtype : kAllDTypes) {
    if (name == kTraits[static_cast<int>(dtype)].name) return dtype;
    absl::StrAppend(&names, names.empty() ? "" : ", ", kTraits[static_cast<int>(dtype)].name);
  }
  return absl::InvalidArgumentError(absl::StrCat("\"", Clipped(name), "\" is no dtype; there are ", names));
}

bool IsFloat(DType dtype) { return IsKind(dtype, Kind::kFloat); }
bool IsInteger(DType dtype) { return IsKind(dtype, Kind::kInteger); }
bool IsComplex(DType dtype) { return IsKind(dtype, Kind::kComplex); }

DType RealOf(DType dtype) {
  if (dtype == DType::kComplex64) return DType::kF32;
  if (dtype == DType::kComplex128) return DType::kF64;
  return dtype;
}

}  // namespace lockstep
