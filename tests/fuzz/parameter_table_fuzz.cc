// A parameter table as rank 0 sends it to the ranks whose own table differs.

#include "reducer/plan/parameter.h"
#include "tests/fuzz/fuzz.h"

namespace lockstep {
namespace {

using Code = absl::StatusCode;

std::vector<Parameter> Table() {
  std::vector<Parameter> table(3);
  table[0].name = "layer1.weight";
  table[0].shape = {512, 784};
  table[1].dtype = DType::kComplex64;
  table[1].shape = {2, 3};
  table[1].strides = {1, 2};
  table[1].ignored = true;
  table[2].name = "embedding";
  table[2].shape = {1000, 16};
  table[2].sparse = true;
  return table;
}

}  // namespace

std::vector<std::string> fuzz::Seeds() {
  std::vector<Parameter> on_device = Table();
  on_device.resize(2);
  for (Parameter& parameter : on_device) parameter.device = {DeviceKind::kCuda, 0};
  return {Serialize(Table()), Serialize(on_device), Serialize({})};
}

}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;  // NOLINT: nothing else is here
  const std::string bytes(data, data + size);
  const fuzz::Allocations allocations;
  const absl::StatusOr<std::vector<Parameter>> table = DeserializeParameters(bytes);
  LOCKSTEP_CHECK(allocations.bytes() <= 64 * size + 4096) << allocations.bytes() << " bytes allocated for " << size;
  fuzz::CheckCode(table.status(), {Code::kDataLoss});
  if (!table.ok()) return 0;
  LOCKSTEP_CHECK(Serialize(*table) == bytes) << "not what was read";
  LOCKSTEP_CHECK(FirstDifference(0, *table, 1, *table).ok());
  LOCKSTEP_CHECK(FirstDifference(0, *table, 1, Table()).ok() == (bytes == Serialize(Table())));
  fuzz::CheckCode(CheckParameters(*table), {Code::kInvalidArgument, Code::kUnimplemented});
  for (size_t i = 0; i < table->size(); ++i) LOCKSTEP_CHECK(!Describe(i, (*table)[i]).empty());
  return 0;
}
