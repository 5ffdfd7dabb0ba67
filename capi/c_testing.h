/* What the C99 tests share: checks that end the process, ranks as processes, and a model. */

#ifndef CAPI_C_TESTING_H_
#define CAPI_C_TESTING_H_

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "capi/lockstep.h"

#define CHECK(condition)                                                      \
  do {                                                                        \
    if (!(condition)) {                                                       \
      fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                                \
    }                                                                         \
  } while (0)

/* Both free the error. */
#define OK(call) CheckOk(call, __FILE__, __LINE__)
#define FAILS(call, code, part) CheckError(call, code, part, __FILE__, __LINE__)
#define INVALID(call, part) FAILS(call, LOCKSTEP_INVALID_ARGUMENT, part)
#define MISUSED(call, part) FAILS(call, LOCKSTEP_FAILED_PRECONDITION, part)

void CheckOk(lockstep_error* error, const char* file, int line);
/* The error has this code, and `part` in its message. */
void CheckError(lockstep_error* error, lockstep_code code, const char* part, const char* file, int line);

/* The code of an error about one rank's argument: INVALID_ARGUMENT on that rank, FAILED_PRECONDITION on the others. */
lockstep_code CodeOfRefusal(int is_mine);

/* Borrows the count. */
lockstep_tensor Vector(void* data, const int64_t* count, int32_t dtype);

lockstep_parameter Parameter(const char* name, const int64_t* shape, int32_t dimensions, lockstep_dtype dtype);

/* Runs rank 0 here and the others in children, with an empty folder for all; returns when all have passed. REQUIRES: the process
 * has made no handle. */
void RunRanks(int32_t size, void (*run)(int32_t rank, int32_t size, const char* folder));

/* The same on a communicator of them all, which is still usable at the end. */
void RunWorld(int32_t size, void (*run)(lockstep_communicator* communicator));

/* On a world of one, in this process. */
void RunAlone(void (*run)(lockstep_communicator* communicator));

/* A communicator whose store is the file `name` of the folder. Calls with equal name and size make one world. MeetWith copies the
 * rest from `others`. */
lockstep_communicator* MeetWith(int32_t rank, int32_t size, const char* folder, const char* name,
                                const lockstep_communicator_options* others);
lockstep_communicator* Meet(int32_t rank, int32_t size, const char* folder, const char* name);

/* A world of one. */
lockstep_communicator* Alone(void);

/* Makes each call that works on every kind of communicator about once. Every rank calls it; at most 16. `shared`: whether the ranks share
 * memory (0 in a world of one). */
void UseEverything(lockstep_communicator* communicator, int32_t shared);

/* Three parameters of one f32, "zero" to "two", with memory for their gradients, which is -1 at first. */
#define PARAMETERS 3
typedef struct Model {
  lockstep_parameter table[PARAMETERS];
  float values[PARAMETERS];
  lockstep_tensor gradients[PARAMETERS];
} Model;

void InitModel(Model* model);

/* Every gradient in a bucket of its own. */
lockstep_reducer_options OneEach(void);

/* Of the model's first `count` parameters. NULL: of a new one. */
lockstep_reducer* CreateReducer(lockstep_communicator* communicator, const Model* model, size_t count,
                                const lockstep_reducer_options* options);

void BeginWithoutSync(lockstep_reducer* reducer);
void Mark(lockstep_reducer* reducer, Model* model, size_t index, float value);

/* Runs a step in which every gradient is *value, and sets *value to their average. Returns the step's result. */
lockstep_error* Step(lockstep_reducer* reducer, size_t count, float* value);

/* The average of a parameter that some rank used. */
float AverageOf(lockstep_reducer* reducer, size_t index);

#endif /* CAPI_C_TESTING_H_ */
