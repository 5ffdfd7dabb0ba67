// What tests of bucket views share: a replica's gradients that live in a reducer's buckets. The replica's own memory
// says what they are to be, and what they were.

#ifndef REDUCER_REDUCER_VIEW_TESTING_H_
#define REDUCER_REDUCER_VIEW_TESTING_H_

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "base/device.h"
#include "base/status.h"
#include "base/status_matchers.h"
#include "base/tensor_view.h"
#include "gtest/gtest.h"
#include "kernels/cpu/flatten.h"
#include "reducer/reducer.h"
#include "reducer/reducer_testing.h"

namespace lockstep {
namespace testing {

// Between views of one dtype and shape, each with the table's strides or, where those leave gaps, row-major.
inline void CopyView(const TensorView& source, const TensorView& target) {
  std::vector<char> flat(source.bytes() + 1);
  const kernels::ViewPiece from = {&source, 0};
  const kernels::ViewPiece to = {&target, 0};
  LOCKSTEP_ASSERT_OK(kernels::FlattenViews({&from, 1}, flat.data(), source.dtype(), 1));
  LOCKSTEP_ASSERT_OK(kernels::UnflattenViews({&to, 1}, flat.data(), source.dtype(), 1));
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
