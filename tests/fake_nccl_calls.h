// What the calls of the fake NCCL's (tests/fake_nccl.h) do with memory. Pure.

#ifndef TESTS_FAKE_NCCL_CALLS_H_
#define TESTS_FAKE_NCCL_CALLS_H_

#include <cstddef>
#include <map>
#include <vector>

#include "base/types/dtype.h"
#include "transport/nccl/nccl_abi.h"

namespace lockstep {
namespace nccl {

// Operators from here on are premultiplied sums.
inline constexpr int kFirstOperator = 100;

enum class Kind { kAllReduce, kReduce, kBroadcast, kAllGather, kReduceScatter, kSend, kReceive };

struct Call {
  Kind kind;
  const char* input;
  char* output;
  size_t count;
  DataType type;
  int op;
  int peer;
  double factor = 1;
};

// What all ranks' calls number n come together in, or one message.
struct Meeting {
  std::map<int, Call> calls;  // by rank
  int over = 0;               // ranks that have read the others' inputs
};

DType DTypeOf(DataType type);

// Whether two ranks have called the same.
bool SameCall(const Call& a, const Call& b);

// What the rank's output becomes once all ranks' calls are there; reductions are folded in rank order.
std::vector<char> OutputOf(const Meeting& meeting, int rank);

}  // namespace nccl
}  // namespace lockstep

#endif  // TESTS_FAKE_NCCL_CALLS_H_
