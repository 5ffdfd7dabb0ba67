#include "base/cuda_api.h"
#include "base/cuda_graph_testing.h"

namespace lockstep {

int BeginCapture(void*) { return kCudaNoDevice; }
int EndCapture(void*, void**) { return kCudaNoDevice; }
int LaunchGraph(void*, void*) { return kCudaNoDevice; }
int DestroyGraph(void*) { return kCudaNoDevice; }

}  // namespace lockstep
