// Structs of the C ABI, whose size the caller says: options of communicators and reducers, parameter tables. The memory is as long as they
// say. Pointers in them are valid or null.
//
//   input = kind:u8 nulls:u8 struct_size:u16 fields

#include <algorithm>
#include <array>
#include <cstring>

#include "base/device/tensor_view.h"
#include "capi/error.h"
#include "capi/reducer_options.h"
#include "tests/fuzz/fuzz.h"
#include "transport/net/little_endian.h"

namespace lockstep {
namespace {

using Code = absl::StatusCode;

constexpr size_t kStructBytesMax = 1024;

// A struct as long as it says, filled from the input.
std::vector<char> Struct(fuzz::Input* input) {
  const size_t struct_size = input->Take<uint16_t>() % kStructBytesMax;
  // What is shorter than its first field is no struct.
  std::vector<char> memory(std::max(struct_size, sizeof(size_t)));
  const absl::string_view fields = input->Take(memory.size() - sizeof(size_t));
  std::memcpy(memory.data(), &struct_size, sizeof(size_t));
  if (!fields.empty()) std::memcpy(memory.data() + sizeof(size_t), fields.data(), fields.size());
  return memory;
}

template <typename Options>
absl::StatusOr<Options> Read(fuzz::Input* input) {
  const std::vector<char> memory = Struct(input);
  Options options = {};
  const absl::Status status = capi::ReadOptions(reinterpret_cast<const Options*>(memory.data()), "options", &options);
  fuzz::CheckCode(status, {Code::kInvalidArgument, Code::kUnimplemented});
  if (!status.ok()) return status;
  LOCKSTEP_CHECK(options.struct_size == sizeof(Options));
  const size_t known = std::min(memory.size(), sizeof(Options));
  LOCKSTEP_CHECK(std::memcmp(reinterpret_cast<const char*>(&options) + sizeof(size_t), memory.data() + sizeof(size_t),
                             known - sizeof(size_t)) == 0);
  // Fields that the caller's header lacks are 0.
  for (size_t i = known; i < sizeof(Options); ++i) LOCKSTEP_CHECK(reinterpret_cast<const char*>(&options)[i] == 0);
  return options;
}

// Two rows of one length, as a caller has them.
std::vector<char> Rows(uint8_t nulls, fuzz::Input* input) {
  std::vector<char> rows = Struct(input);
  const size_t stride = rows.size();
  rows.resize(2 * stride);
  std::memcpy(rows.data() + stride, rows.data(), stride);
  static const auto extents = [] {
    std::array<int64_t, TensorView::kMaxRank> made;
    made.fill(1);
    made[0] = 4;
    return made;
  }();
  for (int i = 0; i < 2; ++i) {
    auto* const row = rows.data() + i * stride;
    const auto set = [&](size_t offset, const void* pointer) {
      if (offset + sizeof(pointer) <= stride) std::memcpy(row + offset, &pointer, sizeof(pointer));
    };
    set(offsetof(lockstep_parameter, name), nulls & 1 ? nullptr : "p");
    set(offsetof(lockstep_parameter, shape), nulls & 2 ? nullptr : extents.data());
    set(offsetof(lockstep_parameter, strides), nulls & 4 ? nullptr : extents.data());
  }
  return rows;
}

void ReadReducerOptions(uint8_t nulls, fuzz::Input* input) {
  absl::StatusOr<lockstep_reducer_options> given = Read<lockstep_reducer_options>(input);
  if (!given.ok()) return;
  static const int64_t caps[] = {0, 1024, -1};
  static const size_t delayed[] = {0, 1, 1};
  given->bucket_caps_bytes = nulls & 1 ? nullptr : caps;
  given->bucket_cap_count %= 4;
  given->delayed = nulls & 2 ? nullptr : delayed;
  given->delayed_count %= 4;
  given->plan = nulls & 4 ? nullptr : "plan";
  given->gradient_memory = nulls & 8 ? nullptr : nulls & 16 ? "in_place" : "copied";
  given->trace_path = nullptr;
  given->optimizer_step = nullptr;
  given->hook_issue = nullptr;
  given->hook_start = nullptr;
  given->hook_release = nullptr;
  given->on_drift = nullptr;
  const std::vector<char> rows = Rows(nulls, input);
  given->replicas = nulls & 32 ? nullptr : reinterpret_cast<const lockstep_parameter*>(rows.data());
  given->replica_count %= 3;
  const absl::StatusOr<ReducerOptions> options = capi::ToReducerOptions(*given, nullptr);
  fuzz::CheckCode(options.status(), {Code::kInvalidArgument});
  if (!options.ok()) return;
  LOCKSTEP_CHECK(!options->bucket_caps_bytes.empty());
  for (const size_t cap : options->bucket_caps_bytes) LOCKSTEP_CHECK(cap <= INT64_MAX) << cap;
}

void ReadParameters(uint8_t nulls, fuzz::Input* input) {
  const std::vector<char> rows = Rows(nulls, input);
  const auto table = capi::ToParameters(reinterpret_cast<const lockstep_parameter*>(rows.data()), 2);
  fuzz::CheckCode(table.status(), {Code::kInvalidArgument, Code::kUnimplemented});
  if (table.ok()) {
    fuzz::CheckCode(CheckParameters(*table), {Code::kInvalidArgument, Code::kUnimplemented});
  }
}

template <typename Options>
std::string Seed(int kind, const Options& options) {
  std::string seed;
  AppendLittleEndian(&seed, static_cast<uint8_t>(kind), uint8_t{0}, static_cast<uint16_t>(sizeof(Options)));
  return seed.append(reinterpret_cast<const char*>(&options) + sizeof(size_t), sizeof(Options) - sizeof(size_t));
}

}  // namespace

std::vector<std::string> fuzz::Seeds() {
  lockstep_communicator_options communicator = {};
  communicator.world_size = 2;
  communicator.chunk_bytes = 4096;
  lockstep_reducer_options reducer = {};
  reducer.bucket_cap_bytes = 1 << 20;
  reducer.hook = LOCKSTEP_HOOK_FP16_COMPRESS;
  lockstep_reducer_options list = {};
  list.bucket_cap_count = 2;
  list.averaging = LOCKSTEP_AVERAGING_PREDIVIDE;
  list.predivide_factor = 2;
  lockstep_parameter parameter = {};
  parameter.dtype = LOCKSTEP_F32;
  parameter.dimensions = 2;
  lockstep_reducer_options checked = {};
  checked.replica_count = 2;
  return {Seed(0, communicator), Seed(1, reducer), Seed(1, list), Seed(2, parameter),
          // Without its kind and nulls.
          Seed(1, checked) + Seed(2, parameter).substr(2)};
}

}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  lockstep::fuzz::Input input(data, size);
  const int kind = input.Take<uint8_t>() % 3;
  const auto nulls = input.Take<uint8_t>();
  if (kind == 0) (void)lockstep::Read<lockstep_communicator_options>(&input);
  if (kind == 1) lockstep::ReadReducerOptions(nulls, &input);
  if (kind == 2) lockstep::ReadParameters(nulls, &input);
  return 0;
}
