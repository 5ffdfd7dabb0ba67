// The kernels behind a few C functions, for compare_with_pytorch.py. Each returns null, or the text of an error that is
// valid until the calling thread's next call. Streams are the caller's cudaStream_t.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/device/cuda/cuda_device.h"
#include "base/device/device.h"
#include "base/device/tensor_view.h"
#include "base/status.h"
#include "base/types/dtype.h"
#include "bench/model.h"
#include "kernels/bucket_kernels.h"
#include "kernels/cuda/flatten.h"

namespace lockstep {
namespace bench {
namespace {

// Arrays of f32 that follow each other in the flat array, without gaps.
struct List {
  std::unique_ptr<Stream> stream;
  std::vector<TensorView> views;
  std::vector<kernels::BucketPiece> pieces;
};

absl::Status MakeList(void* const* data, const int64_t* counts, int64_t size, int device_index, void* stream,
                      std::unique_ptr<List>& made) {
  LOCKSTEP_ASSIGN_OR_RETURN(Device* const device, CudaDevice(device_index));
  LOCKSTEP_RETURN_IF_ERROR(kernels::cuda::Preload(device_index));
  auto list = std::make_unique<List>();
  LOCKSTEP_ASSIGN_OR_RETURN(list->stream, device->BorrowStream(stream));
  for (int64_t i = 0; i < size; ++i) {
    LOCKSTEP_ASSIGN_OR_RETURN(TensorView view, TensorView::Create(data[i], DType::kF32, {counts[i]}, {}, device->id()));
    list->views.push_back(std::move(view));
  }
  size_t offset = 0;
  for (const TensorView& view : list->views) {
    kernels::BucketPiece piece;
    piece.view = &view;
    piece.offset = offset;
    list->pieces.push_back(piece);
    offset += view.elements();
  }
  made = std::move(list);
  return absl::OkStatus();
}

const char* TextOf(const absl::Status& status) {
  thread_local std::string text;
  if (status.ok()) return nullptr;
  text = status.ToString();
  return text.c_str();
}

}  // namespace
}  // namespace bench
}  // namespace lockstep

#define LOCKSTEP_BENCH_EXPORT extern "C" __attribute__((visibility("default")))

// How many parameters the model has, -1 for an unknown one; their elements, as far as `capacity` goes.
LOCKSTEP_BENCH_EXPORT int64_t lockstep_bench_model(const char* name, int64_t* counts, int64_t capacity) {
  const auto model = lockstep::bench::FindModel(name);
  if (!model.ok()) return -1;
  const auto size = static_cast<int64_t>(model->parameters.size());
  for (int64_t i = 0; i < size && i < capacity; ++i) counts[i] = model->parameters[i].elements();
  return size;
}

// Destroy the list before the stream.
LOCKSTEP_BENCH_EXPORT const char* lockstep_bench_list_create(void* const* data, const int64_t* counts, int64_t size,
                                                             int device, void* stream, void** out_list) {
  std::unique_ptr<lockstep::bench::List> list;
  const absl::Status status = lockstep::bench::MakeList(data, counts, size, device, stream, list);
  *out_list = list.release();
  return lockstep::bench::TextOf(status);
}

LOCKSTEP_BENCH_EXPORT void lockstep_bench_list_destroy(void* list) { delete static_cast<lockstep::bench::List*>(list); }

// `dtype` is a number of base/types/dtype.h.
LOCKSTEP_BENCH_EXPORT const char* lockstep_bench_flatten(const void* list, void* flat, int dtype, double factor) {
  const auto& of = *static_cast<const lockstep::bench::List*>(list);
  return lockstep::bench::TextOf(lockstep::kernels::cuda::FlattenViews(
      of.pieces, {}, flat, static_cast<lockstep::DType>(dtype), factor, *of.stream));
}

LOCKSTEP_BENCH_EXPORT const char* lockstep_bench_unflatten(const void* list, const void* flat, int dtype,
                                                           double factor) {
  const auto& of = *static_cast<const lockstep::bench::List*>(list);
  return lockstep::bench::TextOf(lockstep::kernels::cuda::UnflattenViews(
      of.pieces, flat, static_cast<lockstep::DType>(dtype), factor, nullptr, *of.stream));
}
