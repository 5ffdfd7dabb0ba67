/* runner.h as a shared library, for runners in other languages: torch_runner.py. */

#include "runner.h"

int lockstep_runner_library_serve(int argc, char** argv, int (*allreduce)(void* context, float* data, size_t count)) {
  struct lockstep_runner runner;
  memset(&runner, 0, sizeof(runner));
  if (lockstep_runner_begin(&runner, argc, argv) != 0) return 2;
  runner.allreduce = allreduce;
  return lockstep_runner_serve(&runner);
}
