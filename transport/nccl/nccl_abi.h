// The part of NCCL's binary interface that we use, in plain types: NCCL is found when a program runs, so we build
// without its header. After nccl.h of NCCL 2.28.9 (https://github.com/NVIDIA/nccl, src/nccl.h.in); nccl_library_test.cc
// compares the two where the toolkit has that header.

#ifndef TRANSPORT_NCCL_NCCL_ABI_H_
#define TRANSPORT_NCCL_NCCL_ABI_H_

#include <array>
#include <climits>
#include <cstddef>

namespace lockstep {
namespace nccl {

// What nccl.h calls ncclComm_t points to one.
struct Comm;

struct UniqueId {
  char bytes[128];
};

enum Result : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

enum DataType : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kUint32 = 3,
  kInt64 = 4,
  kUint64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
  kFloat8e4m3 = 10,  // from 2.24
  kFloat8e5m2 = 11,
};

// Others are made by RedOpCreatePreMulSum.
enum RedOp : int { kSum = 0, kProd = 1, kMax = 2, kMin = 3, kAvg = 4 };

inline constexpr int kScalarOnHost = 1;  // ncclScalarHostImmediate
inline constexpr int kUndefined = INT_MIN;
inline constexpr unsigned int kConfigMagic = 0xcafebeef;
inline constexpr int kNoColor = -1;

// 2.18.3: 21803. (Up to 2.8 versions were counted otherwise.)
constexpr int VersionCode(int major, int minor, int patch) { return major * 10000 + minor * 100 + patch; }

// As of 2.18. NCCL reads as many bytes as `size` says and knows the rest as undefined, so any later version takes it;
// an earlier one is told the size that it had.
struct Config {
  size_t size = sizeof(Config);
  unsigned int magic = kConfigMagic;
  unsigned int version = VersionCode(2, 18, 0);
  int blocking = kUndefined;
  int cga_cluster_size = kUndefined;  // from 2.17
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;  // from 2.18
};

// The entry points, by their names without "nccl". Streams are cudaStream_t.
struct Api {
  Result (*GetVersion)(int* version);
  Result (*GetUniqueId)(UniqueId* id);
  Result (*CommInitRankConfig)(Comm** comm, int size, UniqueId id, int rank, Config* config);  // 2.14
  Result (*CommDestroy)(Comm* comm);
  Result (*CommAbort)(Comm* comm);
  Result (*CommGetAsyncError)(Comm* comm, Result* error);
  const char* (*GetErrorString)(Result result);
  const char* (*GetLastError)(Comm* comm);  // 2.13
  Result (*RedOpCreatePreMulSum)(RedOp* op, void* scalar, DataType type, int residence, Comm* comm);
  Result (*RedOpDestroy)(RedOp op, Comm* comm);
  Result (*Reduce)(const void* input, void* output, size_t count, DataType type, RedOp op, int root, Comm* comm,
                   void* stream);
  Result (*Broadcast)(const void* input, void* output, size_t count, DataType type, int root, Comm* comm, void* stream);
  Result (*AllReduce)(const void* input, void* output, size_t count, DataType type, RedOp op, Comm* comm, void* stream);
  Result (*ReduceScatter)(const void* input, void* output, size_t output_count, DataType type, RedOp op, Comm* comm,
                          void* stream);
  Result (*AllGather)(const void* input, void* output, size_t input_count, DataType type, Comm* comm, void* stream);
  Result (*Send)(const void* data, size_t count, DataType type, int peer, Comm* comm, void* stream);
  Result (*Recv)(void* data, size_t count, DataType type, int peer, Comm* comm, void* stream);
  Result (*GroupStart)();
  Result (*GroupEnd)();
  // Null in libraries that are older than this.
  Result (*CommSplit)(Comm* comm, int color, int key, Comm** part, Config* config);  // 2.18
  Result (*MemAlloc)(void** memory, size_t bytes);                                   // 2.19
  Result (*MemFree)(void* memory);
  Result (*CommRegister)(Comm* comm, void* memory, size_t bytes, void** handle);
  Result (*CommDeregister)(Comm* comm, void* handle);
};

}  // namespace nccl

// One call of NCCL's as data, so that what a collective becomes (comm/device/nccl/nccl_plan.h) is a pure function.
struct NcclCall {
  enum class Kind { kAllReduce, kReduce, kBroadcast, kAllGather, kReduceScatter, kSend, kReceive };

  Kind kind = Kind::kAllReduce;
  const void* input = nullptr;  // of all but kReceive
  void* output = nullptr;       // of all but kSend; kReduce: of the root
  size_t count = 0;             // as NCCL counts: kAllGather and kReduceScatter of one block, in elements of `type`
  nccl::DataType type = nccl::kUint8;
  nccl::RedOp op = nccl::kSum;
  int peer = 0;  // kReduce, kBroadcast: the root
  // The input is multiplied by this, encoded as `type`, before it is summed; `op` counts for nothing then.
  bool scaled = false;
  std::array<unsigned char, 8> factor = {};
};

}  // namespace lockstep

#endif  // TRANSPORT_NCCL_NCCL_ABI_H_
