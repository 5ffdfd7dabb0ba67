// What tests of bucket views share: a replica's gradients that live in a reducer's buckets. The replica's own memory
// says what they are to be, and what they were.

#ifndef REDUCER_REDUCER_VIEW_TESTING_H_
#define REDUCER_REDUCER_VIEW_TESTING_H_

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "base/device/device.h"
#include "base/device/tensor_view.h"
#include "base/status.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "kernels/cpu/flatten.h"
#include "reducer/reducer.h"
#include "reducer/reducer_testing.h"
#include "tests/test_device.h"

namespace lockstep {
namespace testing {

// The same elements, which the host reaches, for its kernels.
inline TensorView HostView(const TensorView& view) {
  return TensorView::Create(view.data(), view.dtype(), view.shape(), view.strides(), DeviceId()).value();
}

// The elements of a view as a block, and back: row-major where it has gaps, else as they are in memory. A view with gaps is one that the
// host reaches.
inline void TakeOut(const TensorView& view, ReachableVector<char>* flat) {
  flat->resize(view.bytes());
  if (view.dense()) return CopyAnywhere(flat->data(), view.data(), view.bytes());
  const TensorView source = HostView(view);
  LOCKSTEP_ASSERT_OK(kernels::FlattenViews({{&source, 0}}, flat->data(), view.dtype(), 1));
}
inline void PutIn(const ReachableVector<char>& flat, const TensorView& view) {
  if (view.dense()) return CopyAnywhere(view.data(), flat.data(), view.bytes());
  const TensorView target = HostView(view);
  LOCKSTEP_ASSERT_OK(kernels::UnflattenViews({{&target, 0}}, flat.data(), view.dtype(), 1));
}

// Between views of one dtype and shape, each with the table's strides or, where those leave gaps, row-major.
inline void CopyView(const TensorView& source, const TensorView& target) {
  ReachableVector<char> flat;
  TakeOut(source, &flat);
  PutIn(flat, target);
}

inline TensorView ViewOf(const Reducer& reducer, size_t index) {
  const auto view = reducer.GradientView(index);
  LOCKSTEP_EXPECT_OK(view);
  return view.ok() ? *view : TensorView();
}

// The replica's gradients into their views, and back.
inline void ToViews(const Replica& replica, const Reducer& reducer) {
  for (const size_t index : replica.order()) CopyView(replica.gradient(index), ViewOf(reducer, index));
}
inline void FromViews(const Reducer& reducer, Replica& replica) {
  for (const size_t index : replica.order()) CopyView(ViewOf(reducer, index), replica.gradient(index));
}

inline void MarkViews(Reducer& reducer, const std::vector<size_t>& order, Stream* stream = nullptr) {
  for (const size_t index : order) LOCKSTEP_EXPECT_OK(reducer.MarkReady(index, ViewOf(reducer, index), stream));
}

// A step whose gradients live in buckets, and whose averages are the replica's in the end.
inline absl::Status RunStepInViews(Reducer& reducer, Replica& replica, int step, const std::vector<size_t>& order) {
  LOCKSTEP_RETURN_IF_ERROR(reducer.BeginBackward({}));
  replica.Compute(step);
  ToViews(replica, reducer);
  MarkViews(reducer, order);
  LOCKSTEP_RETURN_IF_ERROR(reducer.EndBackward(nullptr));
  FromViews(reducer, replica);
  return absl::OkStatus();
}

}  // namespace testing
}  // namespace lockstep

#endif  // REDUCER_REDUCER_VIEW_TESTING_H_
