// The benchmark program: what the mains share.
//
// Started by a user it runs itself again as the ranks of one world on this host; as a rank it joins the world, measures,
// and on rank 0 prints.

#ifndef BENCH_PROGRAM_H_
#define BENCH_PROGRAM_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/reduce_op.h"
#include "bench/exercise.h"
#include "bench/measure.h"

namespace lockstep {
namespace bench {

struct ProgramOptions {
  int ranks = 2;
  std::vector<Exercise> exercises;
  std::vector<int64_t> sizes;
  DType dtype = DType::kF32;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  std::string algorithm;   // as LOCKSTEP_ALGORITHM; empty: chosen by size
  bool symmetric = false;  // vectors lie in memory of the communicator's allocator
  int in_flight = 0;       // calls at once; 0: blocking calls
  bool grouped = false;    // so many calls are launched together
  bool prepared = false;   // collectives are set up once
  MeasureOptions measure;
  bool pin = true;
  std::string transport;  // as LOCKSTEP_TRANSPORT; empty: as that says
  // Also compare with bare sockets, or over "ofi" with the bare provider; needs two ranks.
  bool limits = false;
  int limit_rounds = 15;
  std::vector<int64_t> limit_sizes;
  std::string limits_congestion_control;  // of the bare sockets; empty: the system's default
  std::string limits_host = "127.0.0.1";  // where they meet: rank 0's IPv4 address
  std::string json;                       // a file, or "-" for stdout, where the tables then go to stderr; empty: none
};

// Returns the program's exit status: 0; 1 for failures and wrong elements; 2 for options that do not go together.
int RunProgram(const ProgramOptions& options, char** argv);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_PROGRAM_H_
