#include "base/device/cuda/cuda_graph_testing.h"

#include <atomic>

namespace lockstep {
namespace {

// Released by who replaces it, acquired by who calls.
std::atomic<const internal::CudaGraphs*> replaced{nullptr};

const internal::CudaGraphs& Graphs() {
  const internal::CudaGraphs* const graphs = replaced.load(std::memory_order_acquire);
  return graphs == nullptr ? internal::LinkedCudaGraphs() : *graphs;
}

}  // namespace

int BeginCapture(void* stream) { return Graphs().begin_capture(stream); }
int EndCapture(void* stream, void** graph) { return Graphs().end_capture(stream, graph); }
int LaunchGraph(void* graph, void* stream) { return Graphs().launch(graph, stream); }
int DestroyGraph(void* graph) { return Graphs().destroy(graph); }

namespace internal {

void ReplaceCudaGraphs(const CudaGraphs* graphs) { replaced.store(graphs, std::memory_order_release); }

}  // namespace internal
}  // namespace lockstep
