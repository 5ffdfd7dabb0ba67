#include "base/device/dlpack.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/device/device.h"
#include "base/device/tensor_view.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::IsEmpty;

alignas(256) char memory[4096];

// A float matrix of 2 x 3 that a caller would hand us; the arrays belong to it.
struct Matrix {
  Matrix() {
    tensor.data = memory;
    tensor.device = {LOCKSTEP_DL_CPU, 0};
    tensor.ndim = 2;
    tensor.dtype = {LOCKSTEP_DL_FLOAT, 32, 1};
    tensor.shape = shape;
    tensor.strides = strides;
  }

  int64_t shape[2] = {2, 3};
  int64_t strides[2] = {3, 1};
  lockstep_dl_tensor tensor = {};
};

auto Refused(const std::string& rule) { return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(rule)); }

TEST(DlpackTest, MatrixBecomesAView) {
  Matrix matrix;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const TensorView view, FromDlpack(matrix.tensor));
  EXPECT_EQ(view.data(), memory);
  EXPECT_EQ(view.dtype(), DType::kF32);
  EXPECT_THAT(view.shape(), ElementsAre(2, 3));
  EXPECT_THAT(view.strides(), ElementsAre(3, 1));
  EXPECT_EQ(view.device(), DeviceId());
}

TEST(DlpackTest, NullStridesMeanRowMajor) {
  Matrix matrix;
  matrix.tensor.strides = nullptr;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const TensorView view, FromDlpack(matrix.tensor));
  EXPECT_THAT(view.strides(), ElementsAre(3, 1));
}

TEST(DlpackTest, ByteOffsetIsAdded) {
  Matrix matrix;
  matrix.tensor.byte_offset = 64;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const TensorView view, FromDlpack(matrix.tensor));
  EXPECT_EQ(view.data(), memory + 64);
  matrix.tensor.byte_offset = 2;
  EXPECT_THAT(FromDlpack(matrix.tensor), Refused("is not aligned to 4 bytes"));
  matrix.tensor.byte_offset = std::numeric_limits<uint64_t>::max();
  EXPECT_THAT(FromDlpack(matrix.tensor), Refused("leaves the address space"));
}

TEST(DlpackTest, ByteOffsetDoesNotHideNullData) {
  Matrix matrix;
  matrix.tensor.data = nullptr;
  matrix.tensor.byte_offset = 64;
  EXPECT_THAT(FromDlpack(matrix.tensor), Refused("null data"));
  matrix.shape[0] = 0;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const TensorView view, FromDlpack(matrix.tensor));
  EXPECT_EQ(view.data(), nullptr);
}

TEST(DlpackTest, ScalarNeedsNoShape) {
  Matrix matrix;
  matrix.tensor.ndim = 0;
  matrix.tensor.shape = nullptr;
  matrix.tensor.strides = nullptr;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const TensorView view, FromDlpack(matrix.tensor));
  EXPECT_THAT(view.shape(), IsEmpty());
  EXPECT_EQ(view.elements(), 1);
}

TEST(DlpackTest, DevicesThatHoldHostOrCudaMemory) {
  const struct {
    int32_t type;
    DeviceId device;
  } cases[] = {
      {LOCKSTEP_DL_CPU, DeviceId()},
      {LOCKSTEP_DL_CUDA_HOST, DeviceId()},
      {LOCKSTEP_DL_CUDA, {DeviceKind::kCuda, 2}},
      {LOCKSTEP_DL_CUDA_MANAGED, {DeviceKind::kCuda, 2}},
  };
  for (const auto& c : cases) {
    Matrix matrix;
    matrix.tensor.device = {c.type, 2};
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const TensorView view, FromDlpack(matrix.tensor));
    EXPECT_EQ(view.device(), c.device) << c.type;
  }
}

TEST(DlpackTest, WhatHasNoMeaningHereIsRefusedByName) {
  const auto refusal = [](auto change) {
    Matrix matrix;
    change(&matrix.tensor);
    return FromDlpack(matrix.tensor).status();
  };
  EXPECT_THAT(refusal([](auto* t) { t->device.device_type = 10; }), Refused("device type 10 is not supported"));
  EXPECT_THAT(refusal([](auto* t) { t->device = {LOCKSTEP_DL_CUDA, -1}; }), Refused("CUDA device -1"));
  EXPECT_THAT(refusal([](auto* t) { t->dtype.lanes = 4; }), Refused("4 lanes"));
  EXPECT_THAT(refusal([](auto* t) { t->dtype.lanes = 0; }), Refused("0 lanes"));
  EXPECT_THAT(refusal([](auto* t) { t->dtype = {LOCKSTEP_DL_INT, 16, 1}; }), Refused("type code 0 with 16 bits"));
  EXPECT_THAT(refusal([](auto* t) { t->dtype = {3, 64, 1}; }), Refused("type code 3 with 64 bits"));
  EXPECT_THAT(refusal([](auto* t) { t->dtype = {8, 8, 1}; }), Refused("type code 8 with 8 bits"));
  EXPECT_THAT(refusal([](auto* t) { t->ndim = -1; }), Refused("ndim is -1"));
  EXPECT_THAT(refusal([](auto* t) { t->ndim = 33; }), Refused("33 dimensions"));
  EXPECT_THAT(refusal([](auto* t) { t->shape = nullptr; }), Refused("null shape with ndim 2"));
  EXPECT_THAT(refusal([](auto* t) { t->strides[0] = 0; }), Refused("overlap"));
  EXPECT_THAT(refusal([](auto* t) { t->shape[1] = -3; }), Refused("negative extent"));
}

// The numbers of dlpack.h 1.1, written out: they must not follow ours.
TEST(DlpackTest, EveryDTypeAndLayoutIsTaken) {
  const struct {
    DType dtype;
    uint8_t code;
    uint8_t bits;
  } cases[] = {
      {DType::kBool, 6, 8},    {DType::kU8, 1, 8},         {DType::kI8, 0, 8},           {DType::kI32, 0, 32},
      {DType::kU32, 1, 32},    {DType::kI64, 0, 64},       {DType::kU64, 1, 64},         {DType::kF16, 2, 16},
      {DType::kBF16, 4, 16},   {DType::kF32, 2, 32},       {DType::kF64, 2, 64},         {DType::kF8E4M3, 10, 8},
      {DType::kF8E5M2, 12, 8}, {DType::kComplex64, 5, 64}, {DType::kComplex128, 5, 128},
  };
  static_assert(std::size(cases) == kDTypeCount, "a dtype without its code");
  std::vector<int64_t> shape = {2, 3, 4};
  for (const auto& c : cases) {
    for (std::vector<int64_t> strides : {std::vector<int64_t>{20, 5, 1}, {60, 1, 3}, {40, 10, 2}}) {
      const lockstep_dl_tensor tensor = {memory,       {LOCKSTEP_DL_CUDA, 1}, 3, {c.code, c.bits, 1},
                                         shape.data(), strides.data(),        0};
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(const TensorView view, FromDlpack(tensor));
      EXPECT_EQ(view.data(), memory);
      EXPECT_EQ(view.dtype(), c.dtype);
      EXPECT_EQ(view.device(), (DeviceId{DeviceKind::kCuda, 1}));
      EXPECT_THAT(view.shape(), ElementsAreArray(shape));
      EXPECT_THAT(view.strides(), ElementsAreArray(strides));
    }
  }
}

}  // namespace
}  // namespace lockstep
