#include <cuda_runtime.h>

#include "base/cuda_probe_internal.h"

namespace lockstep {
namespace internal {
namespace {

constexpr int kWritten = 0x10C57E9;

// One thread.
__global__ void WriteInt(int* target, int value) { *target = value; }

std::string Describe(const char* attempt, cudaError_t error) {
  return std::string(attempt) + ": " + cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")";
}

std::string WriteAndRead(int* target) {
  WriteInt<<<1, 1>>>(target, kWritten);
  cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) return Describe("kernel launch", error);
  int read = 0;
  // On the default stream, hence after the kernel; its errors surface here too.
  error = cudaMemcpy(&read, target, sizeof(read), cudaMemcpyDeviceToHost);
  if (error != cudaSuccess) return Describe("cudaMemcpy", error);
  return read == kWritten ? "" : "the kernel wrote " + std::to_string(read) + " instead of " + std::to_string(kWritten);
}

}  // namespace

CudaCount CountCudaDevices() {
  CudaCount devices;
  const cudaError_t error = cudaGetDeviceCount(&devices.count);
  if (error == cudaSuccess) return devices;
  cudaGetLastError();  // clears the error, which is ours and nobody else's
  return {0, Describe("cudaGetDeviceCount", error)};
}

std::string RunCudaSelfTest() {
  int* target = nullptr;
  cudaError_t error = cudaSetDevice(0);
  if (error != cudaSuccess) return Describe("cudaSetDevice", error);
  error = cudaMalloc(&target, sizeof(int));
  if (error != cudaSuccess) return Describe("cudaMalloc", error);
  const std::string result = WriteAndRead(target);
  cudaFree(target);
  return result;
}

}  // namespace internal
}  // namespace lockstep
