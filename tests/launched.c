/* What tests/launchers_test.sh has launchers start: makes two communicators of all ranks with default options, one after the other,
 * adds up rank + 1 in each, and says what came out. Arguments:
 *
 *   first, last   where it is compiled with WITH_MPI, it does the same by MPI, before or after that
 *   finalized     as first, and MPI is finalized by then
 *   early         rank 1 ends long before the others
 *   absent        rank 1 makes no communicator, so that the others cannot; they wait for it for two seconds */

#define _POSIX_C_SOURCE 200809L

#include <lockstep.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef WITH_MPI
#include <mpi.h>
#endif

static void Require(lockstep_error* error) {
  if (error == NULL) return;
  fprintf(stderr, "%s\n", lockstep_error_message(error));
  lockstep_error_free(error);
  exit(1);
}

static double SumByLockstep(int64_t setup_timeout_ms, int* rank, int* size) {
  const int64_t count = 1;
  lockstep_communicator_options options;
  lockstep_communicator* communicator = NULL;
  lockstep_tensor tensor;
  double sum = 0;
  LOCKSTEP_INIT(options);
  options.setup_timeout_ms = setup_timeout_ms;
  Require(lockstep_communicator_create(&options, &communicator));
  *rank = lockstep_communicator_rank(communicator);
  *size = lockstep_communicator_size(communicator);
  sum = *rank + 1;
  memset(&tensor, 0, sizeof(tensor));
  tensor.data = &sum;
  tensor.shape = &count;
  tensor.dimensions = 1;
  tensor.dtype = LOCKSTEP_F64;
  Require(lockstep_all_reduce(communicator, &tensor, &tensor, LOCKSTEP_SUM, NULL, NULL, NULL));
  lockstep_communicator_destroy(communicator);
  return sum;
}

#ifdef WITH_MPI
static void SumByMpi(void) {
  int rank, size;
  double sum;
  MPI_Init(NULL, NULL);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  sum = rank + 1;
  MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  printf("MPI: rank %d of %d, sum %g\n", rank, size, sum);
  fflush(stdout);
}
#endif

static int IsRank1(void) {
  const char* const names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"};
  size_t i;
  for (i = 0; i < sizeof(names) / sizeof(names[0]); ++i) {
    const char* const rank = getenv(names[i]);
    if (rank != NULL) return strcmp(rank, "1") == 0;
  }
  return 0;
}

int main(int argc, char** argv) {
  const char* const argument = argc > 1 ? argv[1] : "";
  const int absent = strcmp(argument, "absent") == 0;
  int rank, size, i;
  if (absent && IsRank1()) return sleep(4) != 0;
#ifdef WITH_MPI
  if (strcmp(argument, "last") != 0) SumByMpi();
  if (strcmp(argument, "finalized") == 0) MPI_Finalize();
#endif
  for (i = 0; i < 2; ++i) {
    const double sum = SumByLockstep(absent ? 2000 : 40000, &rank, &size);
    printf("Lockstep: rank %d of %d, sum %g\n", rank, size, sum);
  }
  if (strcmp(argument, "early") == 0 && rank != 1) {
    sleep(2);
    printf("still here: rank %d\n", rank);
  }
#ifdef WITH_MPI
  if (strcmp(argument, "last") == 0) SumByMpi();
  if (strcmp(argument, "finalized") != 0) MPI_Finalize();
#endif
  return 0;
}
