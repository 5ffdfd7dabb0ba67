// Captures what is issued in a CUDA stream into a graph, for tests: by CUDA, or by the fake that stands in for it
// (base/device/cuda/cuda_api_testing.h). And two kernels for tests. Plain C++, so that nvcc sees no Abseil.

#ifndef BASE_DEVICE_CUDA_CUDA_GRAPH_TESTING_H_
#define BASE_DEVICE_CUDA_CUDA_GRAPH_TESTING_H_

#include <atomic>
#include <cstddef>

namespace lockstep {

namespace internal {

struct CudaGraphs {
  int (*begin_capture)(void* stream);
  int (*end_capture)(void* stream, void** graph);
  int (*launch)(void* graph, void* stream);
  int (*destroy)(void* graph);
};

// CUDA's: defined, as the kernels are, by cuda_graph_testing.cu or, in a build without CUDA, by its stub.
const CudaGraphs& LinkedCudaGraphs();

// Null: CUDA's. Released by who replaces it, acquired by who calls.
inline std::atomic<const CudaGraphs*> cuda_graphs_replacement{nullptr};
// Puts others in the place of CUDA's, or those back (null).
inline void ReplaceCudaGraphs(const CudaGraphs* graphs) {
  cuda_graphs_replacement.store(graphs, std::memory_order_release);
}
inline const CudaGraphs& Graphs() {
  const CudaGraphs* const graphs = cuda_graphs_replacement.load(std::memory_order_acquire);
  return graphs == nullptr ? LinkedCudaGraphs() : *graphs;
}

// ---- Kernels, in the order of a cudaStream_t. Both return CUDA's code.

// Copies between memory that the device reaches, pinned memory of the host included: between two places on the host
// cudaMemcpyAsync keeps its caller until it is done.
int CopyByKernel(void* target, const void* source, size_t bytes, void* stream);
// *target = value.
int LaunchWriteInt(int* target, int value, void* stream);

}  // namespace internal

// All return CUDA's code. The handles are a cudaStream_t and a cudaGraphExec_t. The mode is
// cudaStreamCaptureModeGlobal, the strictest: until the end, what is unsafe in a capture ends it, on whichever thread
// it is done.
inline int BeginCapture(void* stream) { return internal::Graphs().begin_capture(stream); }
inline int EndCapture(void* stream, void** graph) { return internal::Graphs().end_capture(stream, graph); }
inline int LaunchGraph(void* graph, void* stream) { return internal::Graphs().launch(graph, stream); }
inline int DestroyGraph(void* graph) { return internal::Graphs().destroy(graph); }

}  // namespace lockstep

#endif  // BASE_DEVICE_CUDA_CUDA_GRAPH_TESTING_H_
