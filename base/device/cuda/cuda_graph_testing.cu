#include "base/device/cuda/cuda_graph_testing.h"

#include <cuda_runtime.h>

namespace lockstep {
namespace {

int Begin(void* stream) {
  return cudaStreamBeginCapture(static_cast<cudaStream_t>(stream), cudaStreamCaptureModeGlobal);
}

int End(void* stream, void** graph) {
  cudaGraph_t captured = nullptr;
  cudaError_t error = cudaStreamEndCapture(static_cast<cudaStream_t>(stream), &captured);
  if (error != cudaSuccess) return error;
  cudaGraphExec_t executable = nullptr;
  error = cudaGraphInstantiate(&executable, captured, 0);
  cudaGraphDestroy(captured);
  *graph = executable;
  return error;
}

int Launch(void* graph, void* stream) {
  return cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), static_cast<cudaStream_t>(stream));
}

int Destroy(void* graph) { return cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)); }

constexpr int kThreads = 256;

__global__ void CopyBytes(char* target, const char* source, size_t bytes) {
  for (size_t i = blockIdx.x * size_t{kThreads} + threadIdx.x; i < bytes; i += size_t{gridDim.x} * kThreads) {
    target[i] = source[i];
  }
}

// One thread.
__global__ void WriteInt(int* target, int value) { *target = value; }

}  // namespace

namespace internal {

const CudaGraphs& LinkedCudaGraphs() {
  static const CudaGraphs graphs = {Begin, End, Launch, Destroy};
  return graphs;
}

int CopyByKernel(void* target, const void* source, size_t bytes, void* stream) {
  if (bytes == 0) return cudaSuccess;
  const size_t blocks_needed = (bytes + kThreads - 1) / kThreads;
  const auto blocks = static_cast<unsigned int>(blocks_needed < 1024 ? blocks_needed : 1024);
  CopyBytes<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<char*>(target),
                                                                        static_cast<const char*>(source), bytes);
  return cudaGetLastError();
}

int LaunchWriteInt(int* target, int value, void* stream) {
  WriteInt<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(target, value);
  return cudaGetLastError();
}

}  // namespace internal
}  // namespace lockstep
