// Tensors of other libraries: DLPack's DLTensor, and lockstep_tensor of the C ABI. Any numbers; the arrays are as long as they say, where
// that is a length that is accepted, and empty otherwise.
//
//   input = code:u8 bits:u8 lanes:u16 device_type:i32 device_id:i32 dimensions:i32 data:u64 byte_offset:u64 null:u8 { extent:i64 }
//                                                                     null: bit 0 no shape, bit 1 no strides

#include <memory>

#include "base/device/dlpack.h"
#include "base/device/tensor_view.h"
#include "capi/tensor.h"
#include "tests/fuzz/fuzz.h"
#include "transport/net/little_endian.h"

namespace lockstep {
namespace {

using Code = absl::StatusCode;

void CheckView(const TensorView& view) {
  LOCKSTEP_CHECK(view.shape().size() <= TensorView::kMaxRank && view.strides().size() == view.shape().size());
  LOCKSTEP_CHECK(IsValid(view.dtype()));
  size_t elements = 1;
  for (const int64_t extent : view.shape()) {
    LOCKSTEP_CHECK(extent >= 0);
    elements *= static_cast<size_t>(extent);
  }
  LOCKSTEP_CHECK(view.elements() == elements) << view.ToString();
  LOCKSTEP_CHECK(elements == 0 || view.data() != nullptr);
  LOCKSTEP_CHECK(!view.contiguous() || view.dense()) << view.ToString();
  LOCKSTEP_CHECK(elements == 0 || Overlap(view, view)) << view.ToString();
  LOCKSTEP_CHECK(SameLayout(view, view) && !view.ToString().empty());
}

std::string Seed(uint8_t code, uint8_t bits, int device_type, const std::vector<int64_t>& shape,
                 const std::vector<int64_t>& strides) {
  std::string seed;
  AppendLittleEndian(&seed, code, bits, uint16_t{1}, static_cast<uint32_t>(device_type), uint32_t{0},
                     static_cast<uint32_t>(shape.size()), uint64_t{1} << 20, uint64_t{64},
                     static_cast<uint8_t>(strides.empty() ? 2 : 0));
  for (const int64_t extent : shape) AppendLittleEndian(&seed, static_cast<uint64_t>(extent));
  for (const int64_t stride : strides) AppendLittleEndian(&seed, static_cast<uint64_t>(stride));
  return seed;
}

}  // namespace

std::vector<std::string> fuzz::Seeds() {
  return {
      Seed(LOCKSTEP_DL_FLOAT, 32, LOCKSTEP_DL_CPU, {2, 3}, {}),
      Seed(LOCKSTEP_DL_BFLOAT, 16, LOCKSTEP_DL_CUDA, {2, 3}, {1, 2}),
      Seed(LOCKSTEP_DL_COMPLEX, 64, LOCKSTEP_DL_CUDA_HOST, {}, {}),
      Seed(LOCKSTEP_DL_INT, 64, LOCKSTEP_DL_CUDA_MANAGED, {0, 5}, {5, 1}),
      Seed(LOCKSTEP_DL_BOOL, 8, LOCKSTEP_DL_CPU, {4, 1, 4}, {8, 0, 1}),
  };
}

}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;  // NOLINT: nothing else is here
  fuzz::Input input(data, size);
  lockstep_dl_tensor given = {};
  given.dtype.code = input.Take<uint8_t>();
  given.dtype.bits = input.Take<uint8_t>();
  given.dtype.lanes = input.Take<uint16_t>();
  given.device.device_type = static_cast<int32_t>(input.Take<uint32_t>());
  given.device.device_id = static_cast<int32_t>(input.Take<uint32_t>());
  given.ndim = static_cast<int32_t>(input.Take<uint32_t>());
  given.data = reinterpret_cast<void*>(input.Take<uint64_t>());
  given.byte_offset = input.Take<uint64_t>();
  const auto null = input.Take<uint8_t>();
  const bool possible = given.ndim >= 0 && given.ndim <= static_cast<int>(TensorView::kMaxRank);
  const size_t dimensions = possible ? given.ndim : 0;
  // Arrays of no elements have addresses, too.
  const auto shape = std::make_unique<int64_t[]>(dimensions);
  const auto strides = std::make_unique<int64_t[]>(dimensions);
  for (size_t i = 0; i < dimensions; ++i) shape[i] = static_cast<int64_t>(input.Take<uint64_t>());
  for (size_t i = 0; i < dimensions; ++i) strides[i] = static_cast<int64_t>(input.Take<uint64_t>());
  given.shape = null & 1 ? nullptr : shape.get();
  given.strides = null & 2 ? nullptr : strides.get();

  const absl::StatusOr<TensorView> view = FromDlpack(given);
  fuzz::CheckCode(view.status(), {Code::kInvalidArgument});
  if (view.ok()) CheckView(*view);

  lockstep_tensor tensor = {};
  lockstep_error* const error = lockstep_tensor_from_dlpack(&given, &tensor);
  LOCKSTEP_CHECK((error == nullptr) == view.ok());
  lockstep_error_free(error);
  if (!view.ok()) {
    tensor.data = given.data;
    tensor.shape = given.shape;
    tensor.strides = given.strides;
    tensor.dimensions = given.ndim;
    tensor.dtype = static_cast<lockstep_dtype>(given.dtype.code);
    tensor.device_kind = given.device.device_type;
    tensor.device_index = given.device.device_id;
  }
  const absl::StatusOr<TensorView> ours = capi::ToTensorView(&tensor, "tensor");
  fuzz::CheckCode(ours.status(), {Code::kInvalidArgument});
  LOCKSTEP_CHECK(ours.ok() || !view.ok()) << ours.status().ToString();
  if (ours.ok()) CheckView(*ours);
  return 0;
}
