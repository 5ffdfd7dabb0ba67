// Captures what is issued in a CUDA stream into a graph, for tests. Plain C++; a build without CUDA has a stub.

#ifndef BASE_CUDA_GRAPH_TESTING_H_
#define BASE_CUDA_GRAPH_TESTING_H_

namespace lockstep {

// All return CUDA's code. The handles are a cudaStream_t and a cudaGraphExec_t. The mode is
// cudaStreamCaptureModeGlobal, the strictest: until the end, what is unsafe in a capture ends it, on whichever thread
// it is done.
int BeginCapture(void* stream);
int EndCapture(void* stream, void** graph);
int LaunchGraph(void* graph, void* stream);
int DestroyGraph(void* graph);

}  // namespace lockstep

#endif  // BASE_CUDA_GRAPH_TESTING_H_
