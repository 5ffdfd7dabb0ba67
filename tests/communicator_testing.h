// What tests of communicators share: collectives as data, so that suites cover their combinations; inputs; the reference of outputs;
// buffers with guards.

#ifndef TESTS_COMMUNICATOR_TESTING_H_
#define TESTS_COMMUNICATOR_TESTING_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/deadline.h"
#include "base/device/device.h"
#include "base/rank.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "comm/communicator.h"
#include "comm/schedule/schedule.h"
#include "gtest/gtest.h"

namespace lockstep {

inline constexpr Collective kAllCollectives[kCollectiveCount] = {
    Collective::kAllReduce, Collective::kBroadcast,     Collective::kReduce,
    Collective::kAllGather, Collective::kReduceScatter, Collective::kBarrier,
    Collective::kGather,    Collective::kScatter,       Collective::kAllToAll};

// No test waits longer for anything. Generous: sanitizers on a busy machine are slow.
inline Deadline CommTestDeadline() { return Deadline::AfterMs(120'000); }

// One collective of all ranks.
struct CollectiveCase {
  Collective collective = Collective::kAllReduce;
  Algorithm algorithm = Algorithm::kAuto;
  DType dtype = DType::kF32;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  size_t count = 0;      // of the collectives with a block for each rank: of one block
  bool unequal = false;  // of those: blocks are up to six elements longer than that, and some are empty
  bool in_place = false;
  bool background = false;
  uint32_t seed = 1;         // of the inputs
  bool random_bits = false;  // inputs are any bits at all: results differ from the reference by rounding
};

std::string ToString(const CollectiveCase& c);

// Elements of each rank's block, of the collectives that have them.
std::vector<int64_t> BlockCounts(const CollectiveCase& c, int size);

// Of an all-to-all: elements that go from one rank to another.
int64_t PairCount(const CollectiveCase& c, int source, int target);

// A rank's factor of a premultiplied sum.
double FactorOf(int rank);

// The inputs of all ranks, and what each rank's output must be. Immutable.
//
// kernels/reference_testing.h computes the outputs in rank order. Inputs are such that sums and products of floats are exact, except for
// averages over a number of ranks that is no power of two.
class CaseReference {
 public:
  CaseReference(const CollectiveCase& c, int size);

  // The same numbers by another algorithm, in another place or mode.
  CaseReference(const CaseReference& other, const CollectiveCase& variant) : CaseReference(other) { case_ = variant; }
  static bool IsVariant(const CollectiveCase& a, const CollectiveCase& b);

  const CollectiveCase& collective() const { return case_; }
  int size() const { return size_; }

  // The whole vector, or the rank's block of it, as the collective has it.
  const std::vector<char>& input(int rank) const { return data_->inputs[rank]; }

  // Empty if the rank has no output.
  absl::Span<const char> expected(int rank) const;

  // By how much an element of the output may differ; 0: not at all.
  double tolerance() const;

 private:
  struct Data {
    std::vector<std::vector<char>> inputs;
    std::vector<char> result;                  // the whole vector
    std::vector<std::vector<char>> exchanged;  // of an all-to-all: each rank's output
  };

  CollectiveCase case_;
  int size_;
  std::shared_ptr<const Data> data_;  // shared by variants
};

// "" if the arrays are equal within the tolerance; otherwise where they differ.
std::string Difference(DType dtype, absl::Span<const char> expected, const char* actual, double tolerance);

// Memory for one rank's buffers, one behind the other. It starts anew when all have been given back.
class CaseArena {
 public:
  CaseArena(char* data, size_t bytes) : data_(data), bytes_(bytes) {}

  // Null if there is no room.
  char* Take(size_t bytes);
  void GiveBack() { --taken_; }

 private:
  char* const data_;
  const size_t bytes_;
  size_t begin_ = 0;  // of what is free
  int taken_ = 0;
};

// Where the buffers of a case are. With a device: in memory of the host that the device reaches (Device::AllocateOnHost), and requests
// name the device. With an arena: there, while it has room. Both outlive the buffers.
struct CaseMemory {
  Device* device = nullptr;
  CaseArena* arena = nullptr;
};

// Bytes with a guard zone on each side that nobody may write. The data begins at an odd multiple of `alignment`.
class GuardedBuffer {
 public:
  GuardedBuffer(size_t bytes, size_t alignment, CaseMemory memory = {});

  char* data() { return bytes_.get() + begin_; }
  size_t size() const { return size_; }
  bool GuardsIntact() const;

 private:
  // Of all bytes, guards included.
  std::unique_ptr<char, std::function<void(char*)>> bytes_;
  size_t begin_ = 0;
  size_t size_ = 0;
};

// One rank's buffers of one case, and the check of them. The reference outlives it.
class CaseRun {
 public:
  CaseRun(const CaseReference& reference, Rank rank, CaseMemory memory = {});

  const CollectiveRequest& request() const { return request_; }

  // After the collective succeeded: "" if the output is right, the input unchanged where it must be, and the memory around both
  // unwritten; otherwise what is wrong.
  std::string Check();

  // For comparing ranks with each other.
  std::vector<char> output() const;

 private:
  const CaseReference& reference_;
  const int rank_;
  GuardedBuffer input_;
  GuardedBuffer output_;
  std::vector<int64_t> counts_;
  std::vector<int64_t> output_counts_;
  CollectiveRequest request_;
};

// The communicators of a world, by rank, and what keeps them alive.
struct TestCommunicators {
  std::shared_ptr<void> owner;
  std::vector<Communicator*> ranks;
  std::vector<CaseArena> symmetric = {};  // memory of the communicator's allocator, by rank; empty: ordinary memory
};

// UNAVAILABLE: not on this machine or not of this size, which is skipped; any other error fails the test.
struct CommunicatorFactory {
  std::string name;
  std::function<absl::StatusOr<TestCommunicators>(int size)> create;
  bool checked = false;                         // Start waits until all ranks have called
  CaseMemory memory = {};                       // of the cases' buffers
  bool shares_memory = false;                   // ranks of one host: collectives in shared memory, too
  bool announces_failures = false;              // by a control channel, which names the rank that caused them
  std::function<Device*(Rank)> device_of = {};  // where ranks have devices of their own, instead of memory.device
};

inline std::string CommunicatorFactoryName(const ::testing::TestParamInfo<CommunicatorFactory>& info) {
  return info.param.name;
}

// Expects that the error of a collective names the collective, its number if it was started, and at its end the cause `ended`, the
// communicator's status(); and that its ErrorInfo says the same.
void ExpectErrorOf(Collective collective, const absl::Status& error, const absl::Status& ended);

}  // namespace lockstep

#endif  // TESTS_COMMUNICATOR_TESTING_H_
