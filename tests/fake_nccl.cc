// See fake_nccl.h. From top to bottom: what calls do with memory, the library's state, and NCCL's entry points.

#include "tests/fake_nccl.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/deadline.h"
#include "base/mutex.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "kernels/reference_testing.h"

namespace lockstep::nccl {

// ---- What calls do with memory.

// Operators from here on are premultiplied sums.
constexpr int kFirstOperator = 100;

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

// The n-th calls of all ranks, or both sides of one message.
struct Match {
  std::map<int, Call> calls;  // by rank
  int over = 0;               // ranks that have read the others' inputs
  std::vector<char> reduced;  // of an all-reduce, from the first rank that has them all
};

DType DTypeOf(DataType type) {
  static constexpr DType kTypes[] = {DType::kI8,  DType::kU8,   DType::kI32,    DType::kU32,
                                     DType::kI64, DType::kU64,  DType::kF16,    DType::kF32,
                                     DType::kF64, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2};
  return kTypes[type];
}

// The sum, or the like, of `count` elements from `offset` on of all ranks' inputs.
std::vector<char> Reduced(const Match& match, size_t offset, size_t count) {
  const Call& first = match.calls.begin()->second;
  const DType dtype = DTypeOf(first.type);
  const size_t bytes = SizeOf(dtype);
  const int size = static_cast<int>(match.calls.size());
  static constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMax, ReduceOp::kMin};
  const bool average = first.op == kAvg;
  std::vector<char> result;
  for (const auto& [rank, call] : match.calls) {
    std::vector<char> term(call.input + offset * bytes, call.input + (offset + count) * bytes);
    const double factor = average && !IsInteger(dtype) ? 1.0 / size : call.factor;
    if (factor != 1) kernels::ReferenceScale(dtype, term.data(), term.data(), count, factor);
    if (result.empty() && rank == match.calls.begin()->first) {
      result = std::move(term);
    } else {
      const ReduceOp op = first.op < kAvg ? kOps[first.op] : ReduceOp::kSum;
      kernels::ReferenceCombine(dtype, op, result.data(), result.data(), term.data(), count);
    }
  }
  if (average && IsInteger(dtype)) kernels::ReferenceDivideTowardZero(dtype, result.data(), count, size);
  return result;
}

// Whether two ranks have called the same.
bool SameCall(const Call& a, const Call& b) {
  return a.kind == b.kind && a.count == b.count && a.type == b.type && (a.op == b.op || a.op >= kFirstOperator) &&
         a.peer == b.peer;
}

// What the rank's output becomes once all ranks' calls are there. Reductions are in rank order.
std::vector<char> OutputOf(Match& match, int rank) {
  const Call& call = match.calls.at(rank);
  const size_t bytes = call.count * SizeOf(DTypeOf(call.type));
  switch (call.kind) {
    case Kind::kAllReduce:
      if (match.reduced.empty()) match.reduced = Reduced(match, 0, call.count);
      return match.reduced;
    case Kind::kReduce:
      return rank == call.peer ? Reduced(match, 0, call.count) : std::vector<char>();
    case Kind::kReduceScatter:
      return Reduced(match, rank * call.count, call.count);
    case Kind::kBroadcast: {
      const char* const input = match.calls.at(call.peer).input;
      return std::vector<char>(input, input + bytes);
    }
    case Kind::kAllGather: {
      std::vector<char> all;
      for (const auto& [r, other] : match.calls) all.insert(all.end(), other.input, other.input + bytes);
      return all;
    }
    case Kind::kSend:
    case Kind::kReceive:
      break;
  }
  return {};
}

// ---- The state

// No test waits longer.
constexpr int kLongestMs = 120'000;

// The communicators of one world.
struct Clique {
  int size = 0;
  int joined = 0;
  // By captured group, 0 for all that are not, and how many there were of it before.
  std::map<std::pair<uint64_t, uint64_t>, std::shared_ptr<Match>> matches;
  std::map<std::pair<int, int>, std::map<uint64_t, std::shared_ptr<Match>>> messages;  // by source and target
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

  void Reset() override {
    MutexLock lock(&mu_);
    version_ = VersionCode(2, 28, 9);
    looks_ = 2;
    failures_.clear();
    calls_.clear();
    hanging_ = -1;
    misuses_ = 0;
  }
  void set_version(int version) override { Set(&version_, version); }
  void set_launch(int (*launch)(void*, void (*)(void*), void*), int (*capturing)(void*, bool*)) override {
    MutexLock lock(&mu_);
    launch_ = launch;
    capturing_ = capturing;
  }
  void set_looks(int looks) override { Set(&looks_, looks); }
  void Fail(const char* function, Result result, int nth) override {
    MutexLock lock(&mu_);
    failures_[function] = {result, nth};
  }
  void HangInit(int rank) override { Set(&hanging_, rank); }
  void FailLater(int rank, Result result) override {
    MutexLock lock(&mu_);
    for (Comm* const comm : comms_) {
      if (comm->rank == rank) comm->error = result;
    }
  }
  int calls(const char* function) const override {
    MutexLock lock(&mu_);
    const auto it = calls_.find(function);
    return it == calls_.end() ? 0 : it->second;
  }
  int communicators() const override {
    MutexLock lock(&mu_);
    return static_cast<int>(comms_.size());
  }
  int operators() const override {
    MutexLock lock(&mu_);
    int count = 0;
    for (const Comm* const comm : comms_) count += static_cast<int>(comm->operators.size());
    return count;
  }
  int registrations() const override {
    MutexLock lock(&mu_);
    int count = 0;
    for (const Comm* const comm : comms_) count += static_cast<int>(comm->registered.size());
    return count;
  }
  int misuses() const override {
    MutexLock lock(&mu_);
    return misuses_;
  }
  Config last_config() const override {
    MutexLock lock(&mu_);
    return last_config_;
  }

  // ---- For NCCL's functions, which are below.

  // Begins every function: counts the call, and answers what a test has asked for.
  Result Enter(const char* function) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The end of a group, of one call or more.
  Result Begin(const std::map<std::pair<Comm*, void*>, std::vector<Call>>& group) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The end of a communicator.
  Result End(Comm* comm, bool abort) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  void Set(int* member, int value) {
    MutexLock lock(&mu_);
    *member = value;
  }

  // A host function: the calls of one group on one stream.
  struct Launch {
    Library* library;
    Comm* comm;
    std::vector<std::shared_ptr<Match>> matches;  // of each call
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
  void Execute(Launch& launch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
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

Result Library::Enter(const char* function) {
  ++calls_[function];
  const auto it = failures_.find(function);
  if (it == failures_.end() || --it->second.second > 0) return kSuccess;
  const Result result = it->second.first;
  failures_.erase(it);
  return result;
}

Result Library::End(Comm* comm, bool abort) {
  if (!Exists(comm)) return kInvalidArgument;
  if (!abort && (comm->running > 0 || !comm->launches.empty())) ++misuses_;
  if (!abort && !comm->operators.empty()) ++misuses_;
  if (!abort && comm->part != nullptr) ++misuses_;
  comm->aborted = true;
  changed_.SignalAll();
  const Deadline deadline = Deadline::AfterMs(kLongestMs);
  while (comm->running > 0 && changed_.WaitUntil(&mu_, deadline)) {
  }
  comms_.erase(comm);
  delete comm;
  return kSuccess;
}

Result Library::Begin(const std::map<std::pair<Comm*, void*>, std::vector<Call>>& group) {
  for (const auto& [where, calls] : group) {
    Comm* const comm = where.first;
    if (!MayBeAsked(comm)) return kInvalidArgument;
    if (!comm->launches.empty()) ++misuses_;
    comm->launches.emplace_back(where.second, calls);
    comm->looks = looks_;
    for (Call& call : comm->launches.back().second) {
      if (call.op < kFirstOperator) continue;
      call.factor = comm->operators.at(call.op);
    }
  }
  return group.empty() ? kSuccess : kInProgress;
}

bool Library::Exists(Comm* comm) {
  if (comms_.count(comm) == 1) return true;
  ++misuses_;
  return false;
}

bool Library::MayBeAsked(Comm* comm) {
  if (!Exists(comm)) return false;
  if (comm->part == nullptr) return true;
  ++misuses_;
  return false;
}

Comm* Library::NewComm(const std::shared_ptr<Clique>& clique, int rank, const Config& config) {
  auto* const comm = new Comm;
  comm->clique = clique;
  comm->rank = rank;
  comm->config = config;
  comm->looks = looks_;
  ++clique->joined;
  comms_.insert(comm);
  return comm;
}

Result Library::Progress(Comm* comm) {
  if (comm->error != kSuccess) return comm->error;
  if ((comm->rank == hanging_ && !comm->ready) || comm->clique->joined < comm->clique->size) return kInProgress;
  if (comm->looks > 0) {
    --comm->looks;
    return kInProgress;
  }
  comm->ready = true;
  if (comm->part != nullptr) {
    Clique::Split& split = comm->clique->splits[comm->split];
    if (static_cast<int>(split.asked.size()) < comm->clique->size) return kInProgress;
    const auto [color, key] = split.asked[comm->rank];
    // As with NCCL 2.28, the part is there before this one is done.
    if (!std::exchange(comm->part_there, true)) {
      if (color != kNoColor) *comm->part = NewPart(comm, &split, color);
      comm->looks = looks_;
      return kInProgress;
    }
    comm->part = nullptr;
  }
  for (auto& [stream, calls] : comm->launches) Enqueue(comm, stream, std::move(calls));
  comm->launches.clear();
  return kSuccess;
}

Comm* Library::NewPart(Comm* comm, Clique::Split* split, int color) {
  std::vector<std::pair<int, int>> order;  // key, rank
  for (const auto& [rank, asked] : split->asked) {
    if (asked.first == color) order.emplace_back(asked.second, rank);
  }
  std::sort(order.begin(), order.end());
  std::shared_ptr<Clique>& clique = split->parts[color];
  if (clique == nullptr) clique = std::make_shared<Clique>();
  clique->size = static_cast<int>(order.size());
  const auto mine = std::find(order.begin(), order.end(), std::make_pair(split->asked[comm->rank].second, comm->rank));
  return NewComm(clique, static_cast<int>(mine - order.begin()), comm->config);
}

void Library::Enqueue(Comm* comm, void* stream, std::vector<Call> calls) {
  bool capturing = false;
  if (capturing_ != nullptr && capturing_(stream, &capturing) == 0 && capturing) {
    return Capture(std::unique_ptr<Launch>(new Launch{this, comm, {}, std::move(calls)}), stream);
  }
  auto* const launch = new Launch{this, comm, {}, std::move(calls)};
  Clique& clique = *comm->clique;
  for (const Call& call : launch->calls) {
    std::shared_ptr<Match>* match = nullptr;
    if (call.kind == Kind::kSend) {
      match = &clique.messages[{comm->rank, call.peer}][comm->sends[call.peer]++];
    } else if (call.kind == Kind::kReceive) {
      match = &clique.messages[{call.peer, comm->rank}][comm->receives[call.peer]++];
    } else {
      match = &clique.matches[{0, comm->collectives++}];
    }
    if (*match == nullptr) *match = std::make_shared<Match>();
    launch->matches.push_back(*match);
  }
  ++comm->running;
  if (launch_(
          stream, [](void* argument) { Run(static_cast<Launch*>(argument)); }, launch) != 0) {
    ++misuses_;
    --comm->running;
    delete launch;
  }
}

void Library::Capture(std::unique_ptr<Launch> launch, void* stream) {
  launch->captured = ++launch->comm->captured;
  const auto replay = [](void* argument) { Replay(static_cast<Launch*>(argument)); };
  if (launch_(stream, replay, launch.get()) != 0) ++misuses_;
  captured_.push_back(std::move(launch));
}

void Library::Replay(Launch* launch) {
  Library& library = *launch->library;
  MutexLock lock(&library.mu_);
  // A graph may not be launched when its communicator is gone.
  if (!library.Exists(launch->comm)) return;
  launch->matches.clear();
  for (size_t i = 0; i < launch->calls.size(); ++i) {
    std::shared_ptr<Match>& match = launch->comm->clique->matches[{launch->captured, launch->collectives++}];
    if (match == nullptr) match = std::make_shared<Match>();
    launch->matches.push_back(match);
  }
  ++launch->comm->running;
  library.Execute(*launch);
  --launch->comm->running;
  library.changed_.SignalAll();
}

void Library::Run(Launch* launch) {
  const std::unique_ptr<Launch> owned(launch);
  Library& library = *launch->library;
  MutexLock lock(&library.mu_);
  library.Execute(*launch);
  --launch->comm->running;
  library.changed_.SignalAll();
}

void Library::Execute(Launch& launch) {
  Comm* const comm = launch.comm;
  if (comm->aborted) return;
  // In a message the receiver is no rank: it may be the sender, too.
  constexpr int kReceiver = -1;
  const auto place = [comm](const Call& call) { return call.kind == Kind::kReceive ? kReceiver : comm->rank; };
  const auto parties = [comm](const Call& call) {
    return call.kind == Kind::kSend || call.kind == Kind::kReceive ? 2 : comm->clique->size;
  };
  for (size_t i = 0; i < launch.calls.size(); ++i) launch.matches[i]->calls[place(launch.calls[i])] = launch.calls[i];
  changed_.SignalAll();
  // Nobody may read what an aborted rank brought: its memory is its own again.
  const auto leave = [&] {
    for (size_t i = 0; i < launch.calls.size(); ++i) launch.matches[i]->calls.erase(place(launch.calls[i]));
  };
  std::vector<std::vector<char>> outputs;
  for (size_t i = 0; i < launch.calls.size(); ++i) {
    const Call& call = launch.calls[i];
    Match& match = *launch.matches[i];
    if (!Await(comm, [&] { return static_cast<int>(match.calls.size()) == parties(call); })) return leave();
    if (call.kind == Kind::kReceive) {
      const Call& sent = match.calls.rbegin()->second;
      if (sent.count != call.count) ++misuses_;
      outputs.emplace_back(sent.input, sent.input + std::min(sent.count, call.count));
    } else if (call.kind == Kind::kSend) {
      outputs.emplace_back();
    } else {
      if (!SameCall(call, match.calls.begin()->second)) ++misuses_;
      outputs.push_back(OutputOf(match, comm->rank));
    }
    ++match.over;
  }
  changed_.SignalAll();
  for (size_t i = 0; i < launch.calls.size(); ++i) {
    const Match& match = *launch.matches[i];
    if (!Await(comm, [&] { return match.over == parties(launch.calls[i]); })) return leave();
    if (!outputs[i].empty()) std::memcpy(launch.calls[i].output, outputs[i].data(), outputs[i].size());
  }
}

// ---- NCCL's functions

// The group of this thread.
thread_local int depth = 0;
thread_local std::map<std::pair<Comm*, void*>, std::vector<Call>> group;

Result Add(const char* function, const Call& call, Comm* comm, void* stream) {
  Library& library = *Library::Get();
  MutexLock lock(&library.mu_);
  if (const Result result = library.Enter(function); result != kSuccess) return result;
  // NCCL has nothing to do.
  if (call.count == 0) return kSuccess;
  group[{comm, stream}].push_back(call);
  if (depth > 0) return kSuccess;
  return library.Begin(std::exchange(group, {}));
}

#define LOCKSTEP_EXPORT extern "C" __attribute__((visibility("default")))
// The lock is held until the function returns.
#define LOCKSTEP_ENTER()                                                                \
  Library& library = *Library::Get();                                                   \
  MutexLock lock(&library.mu_);                                                         \
  if (const Result result = library.Enter(__func__); result != kSuccess) return result; \
  static_assert(true)

LOCKSTEP_EXPORT FakeNccl* LockstepFakeNccl() { return Library::Get(); }

LOCKSTEP_EXPORT Result ncclGetVersion(int* version) {
  LOCKSTEP_ENTER();
  *version = library.version_;
  return kSuccess;
}
LOCKSTEP_EXPORT Result ncclGetUniqueId(UniqueId* id) {
  LOCKSTEP_ENTER();
  *id = {};
  const uint64_t number = ++library.ids_;
  std::memcpy(id->bytes, &number, sizeof(number));
  return kSuccess;
}
LOCKSTEP_EXPORT Result ncclCommInitRankConfig(Comm** comm, int size, UniqueId id, int rank, Config* config) {
  LOCKSTEP_ENTER();
  library.last_config_ = *config;
  uint64_t number = 0;
  std::memcpy(&number, id.bytes, sizeof(number));
  std::shared_ptr<Clique>& clique = library.cliques_[number];
  if (clique == nullptr) clique = std::make_shared<Clique>();
  clique->size = size;
  *comm = library.NewComm(clique, rank, *config);
  return kInProgress;
}
LOCKSTEP_EXPORT Result ncclCommSplit(Comm* comm, int color, int key, Comm** part, Config*) {
  LOCKSTEP_ENTER();
  if (!library.MayBeAsked(comm)) return kInvalidArgument;
  comm->split = comm->splits++;
  comm->clique->splits[comm->split].asked[comm->rank] = {color, key};
  comm->part = part;
  comm->part_there = false;
  *part = nullptr;
  comm->looks = library.looks_;
  // As NCCL 2.28 answers, whose communicator is under way all the same.
  return kSuccess;
}
LOCKSTEP_EXPORT Result ncclCommDestroy(Comm* comm) {
  LOCKSTEP_ENTER();
  return library.End(comm, /*abort=*/false);
}
LOCKSTEP_EXPORT Result ncclCommAbort(Comm* comm) {
  LOCKSTEP_ENTER();
  return library.End(comm, /*abort=*/true);
}
LOCKSTEP_EXPORT Result ncclCommGetAsyncError(Comm* comm, Result* error) {
  LOCKSTEP_ENTER();
  if (!library.Exists(comm)) return kInvalidArgument;
  *error = library.Progress(comm);
  return kSuccess;
}
LOCKSTEP_EXPORT const char* ncclGetErrorString(Result) { return "words for the result"; }
LOCKSTEP_EXPORT const char* ncclGetLastError(Comm*) { return "the last error\n"; }
LOCKSTEP_EXPORT Result ncclRedOpCreatePreMulSum(RedOp* op, void* scalar, DataType type, int, Comm* comm) {
  LOCKSTEP_ENTER();
  if (!library.MayBeAsked(comm)) return kInvalidArgument;
  const DType dtype = DTypeOf(type);
  uint64_t code = 0;
  std::memcpy(&code, scalar, SizeOf(dtype));
  const int made = kFirstOperator + static_cast<int>(++library.ids_);
  comm->operators[made] = kernels::ReferenceDecode(dtype, code);
  *op = static_cast<RedOp>(made);
  return kSuccess;
}
LOCKSTEP_EXPORT Result ncclRedOpDestroy(RedOp op, Comm* comm) {
  LOCKSTEP_ENTER();
  if (library.Exists(comm) && comm->operators.erase(op) == 1) return kSuccess;
  ++library.misuses_;
  return kInvalidArgument;
}
LOCKSTEP_EXPORT Result ncclReduce(const char* input, char* output, size_t count, DataType type, RedOp op, int root,
                                  Comm* comm, void* stream) {
  return Add(__func__, {Kind::kReduce, input, output, count, type, op, root}, comm, stream);
}
LOCKSTEP_EXPORT Result ncclBroadcast(const char* input, char* output, size_t count, DataType type, int root, Comm* comm,
                                     void* stream) {
  return Add(__func__, {Kind::kBroadcast, input, output, count, type, kSum, root}, comm, stream);
}
LOCKSTEP_EXPORT Result ncclAllReduce(const char* input, char* output, size_t count, DataType type, RedOp op, Comm* comm,
                                     void* stream) {
  return Add(__func__, {Kind::kAllReduce, input, output, count, type, op, 0}, comm, stream);
}
LOCKSTEP_EXPORT Result ncclReduceScatter(const char* input, char* output, size_t count, DataType type, RedOp op,
                                         Comm* comm, void* stream) {
  return Add(__func__, {Kind::kReduceScatter, input, output, count, type, op, 0}, comm, stream);
}
LOCKSTEP_EXPORT Result ncclAllGather(const char* input, char* output, size_t count, DataType type, Comm* comm,
                                     void* stream) {
  return Add(__func__, {Kind::kAllGather, input, output, count, type, kSum, 0}, comm, stream);
}
LOCKSTEP_EXPORT Result ncclSend(const char* data, size_t count, DataType type, int peer, Comm* comm, void* stream) {
  return Add(__func__, {Kind::kSend, data, nullptr, count, type, kSum, peer}, comm, stream);
}
LOCKSTEP_EXPORT Result ncclRecv(char* data, size_t count, DataType type, int peer, Comm* comm, void* stream) {
  return Add(__func__, {Kind::kReceive, nullptr, data, count, type, kSum, peer}, comm, stream);
}
LOCKSTEP_EXPORT Result ncclGroupStart() {
  LOCKSTEP_ENTER();
  ++depth;
  return kSuccess;
}
LOCKSTEP_EXPORT Result ncclGroupEnd() {
  LOCKSTEP_ENTER();
  if (--depth > 0) return kSuccess;
  return library.Begin(std::exchange(group, {}));
}
LOCKSTEP_EXPORT Result ncclMemAlloc(void** memory, size_t bytes) {
  LOCKSTEP_ENTER();
  // NCCL's is aligned to more.
  constexpr size_t kAlignment = 256;
  // More than a GPU has, and than a sanitizer lets anybody ask for.
  constexpr size_t kMemoryBytes = size_t{1} << 39;
  if (bytes > kMemoryBytes) return kUnhandledCudaError;
  *memory = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  return *memory == nullptr ? kUnhandledCudaError : kSuccess;
}
LOCKSTEP_EXPORT Result ncclMemFree(void* memory) {
  LOCKSTEP_ENTER();
  std::free(memory);
  return kSuccess;
}
LOCKSTEP_EXPORT Result ncclCommRegister(Comm* comm, void* memory, size_t, void** handle) {
  LOCKSTEP_ENTER();
  *handle = memory;
  if (!library.MayBeAsked(comm)) return kInvalidArgument;
  comm->registered.insert(memory);
  return kSuccess;
}
LOCKSTEP_EXPORT Result ncclCommDeregister(Comm* comm, void* handle) {
  LOCKSTEP_ENTER();
  if (library.Exists(comm) && comm->registered.erase(handle) == 1) return kSuccess;
  ++library.misuses_;
  return kInvalidArgument;
}

}  // namespace lockstep::nccl
