/* WAY CULPRIT: a rank of a job, of which rank CULPRIT fails in its fourth step: exit, signal or memory. */

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "capi/lockstep.h"

static int Fails(lockstep_error* error) {
  if (error == NULL) return 0;
  lockstep_error_free(error);
  return 1;
}

static void FailAs(const char* way) {
  if (strcmp(way, "exit") == 0) exit(3);
  if (strcmp(way, "signal") == 0) raise(SIGKILL);
  for (;;) { /* until its control group is out of memory */
    volatile char* const kept = malloc(4096);
    if (kept != NULL) kept[0] = 1;
  }
}

int main(int argc, char** argv) {
  lockstep_communicator* communicator = NULL;
  lockstep_tensor scalar;
  float value = 1;
  int step;
  memset(&scalar, 0, sizeof(scalar));
  scalar.data = &value;
  scalar.dtype = LOCKSTEP_F32;
  if (argc != 3 || Fails(lockstep_communicator_create(NULL, &communicator))) return 1;
  for (step = 0; step < 1000; ++step) {
    if (step == 3 && lockstep_communicator_rank(communicator) == atoi(argv[2])) FailAs(argv[1]);
    if (Fails(lockstep_all_reduce(communicator, &scalar, &scalar, LOCKSTEP_SUM, NULL, NULL, NULL))) return 1;
  }
  return 0;
}
