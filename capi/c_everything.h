/* Each call on a communicator, once or so: what is to work on every kind of them. */

#ifndef CAPI_C_EVERYTHING_H_
#define CAPI_C_EVERYTHING_H_

#include <stdint.h>

#include "capi/lockstep.h"

/* On all ranks, at most 16. `shared`: whether the ranks have each other's memory before them (0 in a world of one). Ends the process
 * at what is wrong. */
void UseEverything(lockstep_communicator* communicator, int32_t shared);

#endif /* CAPI_C_EVERYTHING_H_ */
