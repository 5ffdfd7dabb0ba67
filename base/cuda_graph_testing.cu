#include "base/cuda_graph_testing.h"

#include <cuda_runtime.h>

namespace lockstep {

int BeginCapture(void* stream) {
  return cudaStreamBeginCapture(static_cast<cudaStream_t>(stream), cudaStreamCaptureModeGlobal);
}

int EndCapture(void* stream, void** graph) {
  cudaGraph_t captured = nullptr;
  cudaError_t error = cudaStreamEndCapture(static_cast<cudaStream_t>(stream), &captured);
  if (error != cudaSuccess) return error;
  cudaGraphExec_t executable = nullptr;
  error = cudaGraphInstantiate(&executable, captured, 0);
  cudaGraphDestroy(captured);
  *graph = executable;
  return error;
}

int LaunchGraph(void* graph, void* stream) {
  return cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), static_cast<cudaStream_t>(stream));
}

int DestroyGraph(void* graph) { return cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)); }

}  // namespace lockstep
