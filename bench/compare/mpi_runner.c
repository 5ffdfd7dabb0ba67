/* A rank of Open MPI or MPICH in bench:compare: MPI_Allreduce in place. Usage: mpirun -n SIZE
 * mpi_runner FOLDER BYTES_MAX; MPI tells rank and size. */

#include <mpi.h>

#include "runner.h"

static int allreduce(void* context, float* data, size_t count) {
  (void)context;
  return MPI_Allreduce(MPI_IN_PLACE, data, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD) == MPI_SUCCESS ? 0 : -1;
}

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  MPI_Init(&argc, &argv);
  struct lockstep_runner runner;
  memset(&runner, 0, sizeof(runner));
  runner.folder = argv[1];
  runner.bytes_max = strtoull(argv[2], NULL, 10);
  MPI_Comm_rank(MPI_COMM_WORLD, &runner.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &runner.size);
  runner.allreduce = allreduce;
  const int status = lockstep_runner_serve(&runner);
  /* MPI_Finalize waits for the other ranks, of which one may be gone. */
  if (status != 0) MPI_Abort(MPI_COMM_WORLD, status);
  MPI_Finalize();
  return status;
}
