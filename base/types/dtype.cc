#include "base/types/dtype.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/clipped.h"
#include "base/types/bfloat16.h"
#include "base/types/float16.h"
#include "base/types/float8.h"

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
#define LOCKSTEP_DTYPE_BOOL(number, id, name, Type) {#name, sizeof(Type), Kind::kBool},
#define LOCKSTEP_DTYPE_INTEGER(number, id, name, Type) {#name, sizeof(Type), Kind::kInteger},
#define LOCKSTEP_DTYPE_NARROW(number, id, name, Type, ...) {#name, sizeof(Type), Kind::kFloat},
#define LOCKSTEP_DTYPE_FLOAT(...) LOCKSTEP_DTYPE_NARROW(__VA_ARGS__)
#define LOCKSTEP_DTYPE_COMPLEX(number, id, name, Part, part) {#name, 2 * sizeof(Part), Kind::kComplex},
#include "base/types/dtypes.inc"
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
#define LOCKSTEP_DTYPE_COMPLEX(number, id, name, Part, part) \
  if (dtype == DType::k##id) return DType::k##part;
#include "base/types/dtypes.inc"
  return dtype;
}

}  // namespace lockstep
