/* What the C99 tests of lockstep.h share: checks that end the process, tensors, and two ranks that are processes. */

#ifndef CAPI_C_TESTING_H_
#define CAPI_C_TESTING_H_

/* Before anything is included: mkdtemp, fork. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "capi/lockstep.h"

#define CHECK(condition)                                                                     \
  do {                                                                                       \
    if (!(condition)) {                                                                      \
      fprintf(stderr, "%s:%d: pid %d: %s\n", __FILE__, __LINE__, (int)getpid(), #condition); \
      exit(1);                                                                               \
    }                                                                                        \
  } while (0)

/* Consumes the error. */
static inline void CheckOk(lockstep_error* error, int line) {
  if (error == NULL) return;
  fprintf(stderr, "line %d: error %d: %s\n", line, (int)lockstep_error_code(error), lockstep_error_message(error));
  lockstep_error_free(error);
  exit(1);
}
#define OK(call) CheckOk(call, __LINE__)

static inline void CheckError(lockstep_error* error, lockstep_code code, const char* part, int line) {
  if (lockstep_error_code(error) != code || strstr(lockstep_error_message(error), part) == NULL) {
    fprintf(stderr, "line %d: wanted code %d with '%s', got %d: %s\n", line, (int)code, part,
            (int)lockstep_error_code(error), lockstep_error_message(error));
    exit(1);
  }
  lockstep_error_free(error);
}
#define FAILS(call, code, part) CheckError(call, code, part, __LINE__)

static inline lockstep_tensor Vector(void* data, const int64_t* count, int32_t dtype) {
  lockstep_tensor tensor;
  memset(&tensor, 0, sizeof(tensor));
  tensor.data = data;
  tensor.shape = count;
  tensor.dimensions = 1;
  tensor.dtype = dtype;
  return tensor;
}

/* Runs `run` as rank 0 here and as rank 1 in a forked child, with a folder that both may write to. */
static inline void RunTwoProcesses(void (*run)(int32_t rank, char* folder)) {
  char folder[256];
  const char* root = getenv("TEST_TMPDIR");
  pid_t child;
  int status = 0;
  snprintf(folder, sizeof(folder), "%s/ranks-XXXXXX", root == NULL ? "/tmp" : root);
  CHECK(mkdtemp(folder) != NULL);
  child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    run(1, folder);
    _exit(0);
  }
  run(0, folder);
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

#endif /* CAPI_C_TESTING_H_ */
