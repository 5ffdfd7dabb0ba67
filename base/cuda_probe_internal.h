// What cuda_probe.cc needs from CUDA: defined by cuda_probe.cu or, in a build without CUDA, by cuda_probe_stub.cc.
// Plain C++, so that nvcc sees no Abseil.

#ifndef BASE_CUDA_PROBE_INTERNAL_H_
#define BASE_CUDA_PROBE_INTERNAL_H_

#include <string>

namespace lockstep {
namespace internal {

// An empty error is success.
struct CudaCount {
  int count = 0;
  std::string error;
};

CudaCount CountCudaDevices();

// Returns the error.
std::string RunCudaSelfTest();

}  // namespace internal
}  // namespace lockstep

#endif  // BASE_CUDA_PROBE_INTERNAL_H_
