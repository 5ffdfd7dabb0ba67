// The entry points of the fake NCCL.

#include "tests/fake_nccl.h"

#include <cstddef>
#include <cstdlib>
#include <map>
#include <utility>
#include <vector>

#include "tests/fake_nccl_calls.h"
#include "tests/fake_nccl_library.h"
#include "transport/nccl/nccl_abi.h"

namespace lockstep {
namespace nccl {
namespace {

// The group of this thread.
thread_local int depth = 0;
thread_local std::map<std::pair<Comm*, void*>, std::vector<Call>> group;

Result Add(const char* function, const Call& call, Comm* comm, void* stream) {
  if (const Result result = Library::Get()->Enter(function); result != kSuccess) return result;
  // NCCL has nothing to do.
  if (call.count == 0) return kSuccess;
  group[{comm, stream}].push_back(call);
  if (depth > 0) return kSuccess;
  return Library::Get()->Begin(std::exchange(group, {}));
}

}  // namespace
}  // namespace nccl
}  // namespace lockstep

#define LOCKSTEP_EXPORT extern "C" __attribute__((visibility("default")))
#define LOCKSTEP_ENTER(function)                                                                \
  if (const Result result = Library::Get()->Enter(function); result != kSuccess) return result; \
  static_assert(true)

using lockstep::nccl::Add;
using lockstep::nccl::Comm;
using lockstep::nccl::Config;
using lockstep::nccl::DataType;
using lockstep::nccl::Kind;
using lockstep::nccl::kSuccess;
using lockstep::nccl::kSum;
using lockstep::nccl::kUnhandledCudaError;
using lockstep::nccl::Library;
using lockstep::nccl::RedOp;
using lockstep::nccl::Result;
using lockstep::nccl::UniqueId;

LOCKSTEP_EXPORT lockstep::FakeNccl* LockstepFakeNccl() { return Library::Get(); }

LOCKSTEP_EXPORT Result ncclGetVersion(int* version) {
  LOCKSTEP_ENTER("ncclGetVersion");
  *version = Library::Get()->version();
  return kSuccess;
}
LOCKSTEP_EXPORT Result ncclGetUniqueId(UniqueId* id) {
  LOCKSTEP_ENTER("ncclGetUniqueId");
  *id = Library::Get()->NewId();
  return kSuccess;
}
LOCKSTEP_EXPORT Result ncclCommInitRankConfig(Comm** comm, int size, UniqueId id, int rank, Config* config) {
  LOCKSTEP_ENTER("ncclCommInitRankConfig");
  return Library::Get()->Create(comm, size, id, rank, *config);
}
LOCKSTEP_EXPORT Result ncclCommSplit(Comm* comm, int color, int key, Comm** part, Config*) {
  LOCKSTEP_ENTER("ncclCommSplit");
  return Library::Get()->Split(comm, color, key, part);
}
LOCKSTEP_EXPORT Result ncclCommDestroy(Comm* comm) {
  LOCKSTEP_ENTER("ncclCommDestroy");
  return Library::Get()->End(comm, /*abort=*/false);
}
LOCKSTEP_EXPORT Result ncclCommAbort(Comm* comm) {
  LOCKSTEP_ENTER("ncclCommAbort");
  return Library::Get()->End(comm, /*abort=*/true);
}
LOCKSTEP_EXPORT Result ncclCommGetAsyncError(Comm* comm, Result* error) {
  LOCKSTEP_ENTER("ncclCommGetAsyncError");
  return Library::Get()->State(comm, error);
}
LOCKSTEP_EXPORT const char* ncclGetErrorString(Result) { return "words for the result"; }
LOCKSTEP_EXPORT const char* ncclGetLastError(Comm*) { return "the last error\n"; }
LOCKSTEP_EXPORT Result ncclRedOpCreatePreMulSum(RedOp* op, void* scalar, DataType type, int, Comm* comm) {
  LOCKSTEP_ENTER("ncclRedOpCreatePreMulSum");
  return Library::Get()->MakeOperator(op, scalar, type, comm);
}
LOCKSTEP_EXPORT Result ncclRedOpDestroy(RedOp op, Comm* comm) {
  LOCKSTEP_ENTER("ncclRedOpDestroy");
  return Library::Get()->DeleteOperator(op, comm);
}
LOCKSTEP_EXPORT Result ncclReduce(const char* input, char* output, size_t count, DataType type, RedOp op, int root,
                                  Comm* comm, void* stream) {
  return Add("ncclReduce", {Kind::kReduce, input, output, count, type, op, root}, comm, stream);
}
LOCKSTEP_EXPORT Result ncclBroadcast(const char* input, char* output, size_t count, DataType type, int root, Comm* comm,
                                     void* stream) {
  return Add("ncclBroadcast", {Kind::kBroadcast, input, output, count, type, kSum, root}, comm, stream);
}
LOCKSTEP_EXPORT Result ncclAllReduce(const char* input, char* output, size_t count, DataType type, RedOp op, Comm* comm,
                                     void* stream) {
  return Add("ncclAllReduce", {Kind::kAllReduce, input, output, count, type, op, 0}, comm, stream);
}
LOCKSTEP_EXPORT Result ncclReduceScatter(const char* input, char* output, size_t count, DataType type, RedOp op,
                                         Comm* comm, void* stream) {
  return Add("ncclReduceScatter", {Kind::kReduceScatter, input, output, count, type, op, 0}, comm, stream);
}
LOCKSTEP_EXPORT Result ncclAllGather(const char* input, char* output, size_t count, DataType type, Comm* comm,
                                     void* stream) {
  return Add("ncclAllGather", {Kind::kAllGather, input, output, count, type, kSum, 0}, comm, stream);
}
LOCKSTEP_EXPORT Result ncclSend(const char* data, size_t count, DataType type, int peer, Comm* comm, void* stream) {
  return Add("ncclSend", {Kind::kSend, data, nullptr, count, type, kSum, peer}, comm, stream);
}
LOCKSTEP_EXPORT Result ncclRecv(char* data, size_t count, DataType type, int peer, Comm* comm, void* stream) {
  return Add("ncclRecv", {Kind::kReceive, nullptr, data, count, type, kSum, peer}, comm, stream);
}
LOCKSTEP_EXPORT Result ncclGroupStart() {
  LOCKSTEP_ENTER("ncclGroupStart");
  ++lockstep::nccl::depth;
  return kSuccess;
}
LOCKSTEP_EXPORT Result ncclGroupEnd() {
  LOCKSTEP_ENTER("ncclGroupEnd");
  if (--lockstep::nccl::depth > 0) return kSuccess;
  return Library::Get()->Begin(std::exchange(lockstep::nccl::group, {}));
}
LOCKSTEP_EXPORT Result ncclMemAlloc(void** memory, size_t bytes) {
  LOCKSTEP_ENTER("ncclMemAlloc");
  // NCCL's is aligned to more.
  constexpr size_t kAlignment = 256;
  // More than a GPU has, and than a sanitizer lets anybody ask for.
  constexpr size_t kMemoryBytes = size_t{1} << 39;
  if (bytes > kMemoryBytes) return kUnhandledCudaError;
  *memory = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  return *memory == nullptr ? kUnhandledCudaError : kSuccess;
}
LOCKSTEP_EXPORT Result ncclMemFree(void* memory) {
  LOCKSTEP_ENTER("ncclMemFree");
  std::free(memory);
  return kSuccess;
}
LOCKSTEP_EXPORT Result ncclCommRegister(Comm* comm, void* memory, size_t, void** handle) {
  LOCKSTEP_ENTER("ncclCommRegister");
  *handle = memory;
  return Library::Get()->Register(comm, memory);
}
LOCKSTEP_EXPORT Result ncclCommDeregister(Comm* comm, void* handle) {
  LOCKSTEP_ENTER("ncclCommDeregister");
  return Library::Get()->Deregister(comm, handle);
}
