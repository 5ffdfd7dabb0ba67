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

}  // namespace

namespace internal {

const CudaGraphs& LinkedCudaGraphs() {
  static const CudaGraphs graphs = {Begin, End, Launch, Destroy};
  return graphs;
}

}  // namespace internal
}  // namespace lockstep
