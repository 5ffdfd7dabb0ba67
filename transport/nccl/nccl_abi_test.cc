// Compares the part of NCCL's interface that we declare ourselves with NCCL's header, where the compiler finds it.

#include "transport/nccl/nccl_abi.h"

#if __has_include(<nccl.h>) && __has_include(<cuda_runtime.h>)
#include <nccl.h>
#define LOCKSTEP_HAS_NCCL_HEADER 1
#endif

#include <cstddef>
#include <type_traits>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

TEST(NcclAbi, IsNcclsHeaders) {
#ifndef LOCKSTEP_HAS_NCCL_HEADER
  GTEST_SKIP() << "no nccl.h here";
#else
  static_assert(sizeof(nccl::UniqueId) == sizeof(ncclUniqueId) && alignof(nccl::UniqueId) == alignof(ncclUniqueId));
  static_assert(std::is_trivially_copyable_v<nccl::UniqueId>);

  static_assert(nccl::kSuccess == static_cast<int>(ncclSuccess));
  static_assert(nccl::kUnhandledCudaError == static_cast<int>(ncclUnhandledCudaError));
  static_assert(nccl::kSystemError == static_cast<int>(ncclSystemError));
  static_assert(nccl::kInternalError == static_cast<int>(ncclInternalError));
  static_assert(nccl::kInvalidArgument == static_cast<int>(ncclInvalidArgument));
  static_assert(nccl::kInvalidUsage == static_cast<int>(ncclInvalidUsage));
  static_assert(nccl::kRemoteError == static_cast<int>(ncclRemoteError));
  static_assert(nccl::kInProgress == static_cast<int>(ncclInProgress));

  static_assert(nccl::kInt8 == static_cast<int>(ncclInt8));
  static_assert(nccl::kUint8 == static_cast<int>(ncclUint8));
  static_assert(nccl::kInt32 == static_cast<int>(ncclInt32));
  static_assert(nccl::kUint32 == static_cast<int>(ncclUint32));
  static_assert(nccl::kInt64 == static_cast<int>(ncclInt64));
  static_assert(nccl::kUint64 == static_cast<int>(ncclUint64));
  static_assert(nccl::kFloat16 == static_cast<int>(ncclFloat16));
  static_assert(nccl::kFloat32 == static_cast<int>(ncclFloat32));
  static_assert(nccl::kFloat64 == static_cast<int>(ncclFloat64));
  static_assert(nccl::kBfloat16 == static_cast<int>(ncclBfloat16));

  static_assert(nccl::kSum == static_cast<int>(ncclSum));
  static_assert(nccl::kProd == static_cast<int>(ncclProd));
  static_assert(nccl::kMax == static_cast<int>(ncclMax));
  static_assert(nccl::kMin == static_cast<int>(ncclMin));
  static_assert(nccl::kAvg == static_cast<int>(ncclAvg));
  static_assert(nccl::kScalarOnHost == static_cast<int>(ncclScalarHostImmediate));

  static_assert(nccl::VersionCode(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH) == NCCL_VERSION_CODE);

#if NCCL_VERSION_CODE >= 21800
  static_assert(sizeof(nccl::Config) <= sizeof(ncclConfig_t));
  static_assert(offsetof(nccl::Config, blocking) == offsetof(ncclConfig_t, blocking));
  static_assert(offsetof(nccl::Config, cga_cluster_size) == offsetof(ncclConfig_t, cgaClusterSize));
  static_assert(offsetof(nccl::Config, min_ctas) == offsetof(ncclConfig_t, minCTAs));
  static_assert(offsetof(nccl::Config, max_ctas) == offsetof(ncclConfig_t, maxCTAs));
  static_assert(offsetof(nccl::Config, net_name) == offsetof(ncclConfig_t, netName));
  static_assert(offsetof(nccl::Config, split_share) == offsetof(ncclConfig_t, splitShare));
  static_assert(nccl::kUndefined == NCCL_CONFIG_UNDEF_INT && nccl::kNoColor == NCCL_SPLIT_NOCOLOR);
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  EXPECT_EQ(nccl::Config().magic, theirs.magic);
#endif
#if NCCL_VERSION_CODE >= 22400
  static_assert(nccl::kFloat8e4m3 == static_cast<int>(ncclFloat8e4m3));
  static_assert(nccl::kFloat8e5m2 == static_cast<int>(ncclFloat8e5m2));
#endif
#endif
}

}  // namespace
}  // namespace lockstep
