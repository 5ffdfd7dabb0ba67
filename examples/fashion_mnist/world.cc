#include "examples/fashion_mnist/world.h"

#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace fashion_mnist {
namespace {

// Borrows the shape.
lockstep_tensor View(void* data, lockstep_dtype dtype, const int64_t* shape, int dimensions) {
  lockstep_tensor tensor = {};
  tensor.data = data;
  tensor.shape = shape;
  tensor.dimensions = dimensions;
  tensor.dtype = dtype;
  tensor.device_kind = LOCKSTEP_HOST;
  return tensor;
}

}  // namespace

absl::Status TakeStatus(lockstep_error* error) {
  if (error == nullptr) return absl::OkStatus();
  // The two families of codes have the same numbers.
  absl::Status status(static_cast<absl::StatusCode>(lockstep_error_code(error)), lockstep_error_message(error));
  lockstep_error_free(error);
  return status;
}

absl::StatusOr<std::unique_ptr<World>> World::Join(bool alone, const std::string& transport) {
  lockstep_communicator_options options;
  LOCKSTEP_INIT(options);
  options.transport = transport.c_str();
  if (alone) options.world_size = 1;
  lockstep_communicator* communicator = nullptr;
  const absl::Status status = TakeStatus(lockstep_communicator_create(&options, &communicator));
  if (!status.ok()) return status;
  return std::unique_ptr<World>(new World(communicator));
}

absl::Status World::AllReduce(void* scalar, lockstep_dtype dtype, lockstep_reduce_op op) {
  const lockstep_tensor tensor = View(scalar, dtype, nullptr, 0);
  return TakeStatus(lockstep_all_reduce(communicator_.get(), &tensor, &tensor, op, nullptr, nullptr, nullptr));
}

absl::StatusOr<int64_t> World::Sum(int64_t value) {
  const absl::Status status = AllReduce(&value, LOCKSTEP_I64, LOCKSTEP_SUM);
  if (!status.ok()) return status;
  return value;
}

absl::StatusOr<double> World::Mean(double value) {
  const absl::Status status = AllReduce(&value, LOCKSTEP_F64, LOCKSTEP_AVG);
  if (!status.ok()) return status;
  return value;
}

absl::Status World::CheckEqual(uint64_t value) {
  std::vector<uint64_t> values(size());
  const int64_t one = 1;
  const int64_t count = size();
  const lockstep_tensor input = View(&value, LOCKSTEP_U64, &one, 1);
  const lockstep_tensor output = View(values.data(), LOCKSTEP_U64, &count, 1);
  const absl::Status status =
      TakeStatus(lockstep_all_gather(communicator_.get(), &input, &output, nullptr, nullptr, nullptr));
  if (!status.ok()) return status;

  std::vector<int> different;
  for (int rank = 1; rank < size(); ++rank) {
    if (values[rank] != values[0]) different.push_back(rank);
  }
  if (different.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the parameters of rank ", absl::StrJoin(different, ", "), " differ from those of rank 0"));
}

}  // namespace fashion_mnist
