/* runner.h as a shared library, for runners in other languages: torch_runner.py. */

#include "runner.h"

int lockstep_runner_library_serve(const char* folder, int rank, int size, size_t bytes_max,
                                  int (*allreduce)(void* context, float* data, size_t count)) {
  struct lockstep_runner runner;
  memset(&runner, 0, sizeof(runner));
  runner.folder = folder;
  runner.rank = rank;
  runner.size = size;
  runner.bytes_max = bytes_max;
  runner.allreduce = allreduce;
  return lockstep_runner_serve(&runner);
}
