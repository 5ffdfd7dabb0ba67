// Memory of a fake CUDA's devices that several processes map, each with a fake of its own: what FakeCuda's IPC
// handles stand for.
//
// Of whole granules (base/cuda_ipc.h): a handle of anything smaller would stand for its neighbours, too, which the
// fake refuses. Thread-safe.

#ifndef BASE_CUDA_IPC_TESTING_H_
#define BASE_CUDA_IPC_TESTING_H_

#include <cstddef>

#include "base/cuda_api.h"

namespace lockstep {

class FakeIpc {
 public:
  // Whether allocations of so many bytes are such memory.
  static bool Takes(size_t bytes);

  // Null when there is no memory.
  static void* Allocate(size_t bytes);
  // False for what is no such memory.
  static bool Free(void* memory);

  // The functions of CUDA: its codes.
  static int GetHandle(CudaIpcHandle* handle, void* memory);
  static int Open(void** memory, const CudaIpcHandle& handle);
  static int Close(void* memory);
};

}  // namespace lockstep

#endif  // BASE_CUDA_IPC_TESTING_H_
