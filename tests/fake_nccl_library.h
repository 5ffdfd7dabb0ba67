// The state of the fake NCCL (tests/fake_nccl.h), and what its entry points do with it.

#ifndef TESTS_FAKE_NCCL_LIBRARY_H_
#define TESTS_FAKE_NCCL_LIBRARY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/deadline.h"
#include "base/mutex.h"
#include "tests/fake_nccl.h"
#include "tests/fake_nccl_calls.h"
#include "transport/nccl/nccl_abi.h"

namespace lockstep {
namespace nccl {

// No test waits longer.
inline constexpr int kLongestMs = 120'000;

// The communicators of one world.
struct Clique {
  int size = 0;
  int joined = 0;
  // By captured group, 0 for all that are not, and how many there were of it before.
  std::map<std::pair<uint64_t, uint64_t>, std::shared_ptr<Meeting>> meetings;
  std::map<std::pair<int, int>, std::map<uint64_t, std::shared_ptr<Meeting>>> messages;  // by source and target
  struct Split {
    std::map<int, std::pair<int, int>> asked;  // rank -> colour, key
    std::map<int, std::shared_ptr<Clique>> parts;
  };
  std::map<uint64_t, Split> splits;
};

struct Comm {
  std::shared_ptr<Clique> clique;
  int rank = 0;
  Config config;
  Result error = kSuccess;
  bool ready = false;
  bool aborted = false;
  int running = 0;  // host functions
  // What is under way.
  int looks = 0;
  std::vector<std::pair<void*, std::vector<Call>>> launches;  // by stream
  Comm** part = nullptr;
  bool part_there = false;
  uint64_t split = 0;
  uint64_t splits = 0;
  uint64_t collectives = 0;
  uint64_t captured = 0;  // groups
  std::map<int, uint64_t> sends;
  std::map<int, uint64_t> receives;
  std::map<int, double> operators;
  std::set<void*> registered;
};

class Library final : public FakeNccl {
 public:
  static Library* Get() {
    static Library* const library = new Library;
    return library;
  }

  void Reset() override;
  void set_version(int version) override;
  void set_launch(int (*launch)(void*, void (*)(void*), void*), int (*capturing)(void*, bool*)) override;
  void set_looks(int looks) override;
  void Fail(const char* function, Result result, int nth) override;
  void HangInit(int rank) override;
  void FailLater(int rank, Result result) override;
  int calls(const char* function) const override;
  int communicators() const override;
  int operators() const override;
  int registrations() const override;
  int misuses() const override;
  Config last_config() const override;

  // ---- What NCCL's functions call, after Enter: it counts them, and answers what a test has asked for.

  Result Enter(const char* function);
  int version() const;
  UniqueId NewId();
  Result Create(Comm** comm, int size, const UniqueId& id, int rank, const Config& config);
  Result Split(Comm* comm, int color, int key, Comm** part);
  Result State(Comm* comm, Result* state);
  Result End(Comm* comm, bool abort);
  Result MakeOperator(RedOp* op, const void* scalar, DataType type, Comm* comm);
  Result DeleteOperator(RedOp op, Comm* comm);
  Result Register(Comm* comm, void* memory);
  Result Deregister(Comm* comm, void* memory);
  // The end of a group, of one call or more.
  Result Begin(const std::map<std::pair<Comm*, void*>, std::vector<Call>>& group);

 private:
  // A host function: the calls of one group on one stream.
  struct Launch {
    Library* library;
    Comm* comm;
    std::vector<std::shared_ptr<Meeting>> meetings;  // of each call
    std::vector<Call> calls;
    uint64_t captured = 0;     // which group of the communicator's, from 1; 0: none
    uint64_t collectives = 0;  // of a captured one, that were carried out
  };

  bool Exists(Comm* comm) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Nothing may be asked of a communicator before it has done what it was asked for: before it has split.
  bool MayBeAsked(Comm* comm) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Comm* NewComm(const std::shared_ptr<Clique>& clique, int rank, const Config& config)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Comm* NewPart(Comm* comm, Clique::Split* split, int color) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A look at what is under way: moves it on.
  Result Progress(Comm* comm) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Enqueue(Comm* comm, void* stream, std::vector<Call> calls) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Capture(std::unique_ptr<Launch> launch, void* stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // On the stream.
  static void Run(Launch* launch);
  static void Replay(Launch* launch);
  void CarryOut(Launch& launch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // False when the communicator was aborted meanwhile.
  template <typename Condition>
  bool Await(Comm* comm, const Condition& condition) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const Deadline deadline = Deadline::AfterMs(kLongestMs);
    while (!comm->aborted && !condition() && changed_.WaitUntil(&mu_, deadline)) {
    }
    return !comm->aborted;
  }

  mutable Mutex mu_;
  CondVar changed_;
  int version_ ABSL_GUARDED_BY(mu_) = VersionCode(2, 28, 9);
  int looks_ ABSL_GUARDED_BY(mu_) = 2;
  int hanging_ ABSL_GUARDED_BY(mu_) = -1;
  int (*launch_)(void*, void (*)(void*), void*) ABSL_GUARDED_BY(mu_) = nullptr;
  int (*capturing_)(void*, bool*) ABSL_GUARDED_BY(mu_) = nullptr;
  std::vector<std::unique_ptr<Launch>> captured_ ABSL_GUARDED_BY(mu_);  // graphs may repeat them at any time
  std::map<std::string, std::pair<Result, int>> failures_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, int> calls_ ABSL_GUARDED_BY(mu_);
  int misuses_ ABSL_GUARDED_BY(mu_) = 0;
  Config last_config_ ABSL_GUARDED_BY(mu_);
  uint64_t ids_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<uint64_t, std::shared_ptr<Clique>> cliques_ ABSL_GUARDED_BY(mu_);
  std::set<Comm*> comms_ ABSL_GUARDED_BY(mu_);
};

}  // namespace nccl
}  // namespace lockstep

#endif  // TESTS_FAKE_NCCL_LIBRARY_H_
