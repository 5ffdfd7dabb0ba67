#include "tests/fake_nccl_library.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/types/dtype.h"
#include "kernels/reference_testing.h"

namespace lockstep {
namespace nccl {

void Library::Reset() {
  MutexLock lock(&mu_);
  version_ = VersionCode(2, 28, 9);
  looks_ = 2;
  failures_.clear();
  calls_.clear();
  hanging_ = -1;
  misuses_ = 0;
}

void Library::set_version(int version) {
  MutexLock lock(&mu_);
  version_ = version;
}

void Library::set_launch(int (*launch)(void*, void (*)(void*), void*), int (*capturing)(void*, bool*)) {
  MutexLock lock(&mu_);
  launch_ = launch;
  capturing_ = capturing;
}

void Library::set_looks(int looks) {
  MutexLock lock(&mu_);
  looks_ = looks;
}

void Library::Fail(const char* function, Result result, int nth) {
  MutexLock lock(&mu_);
  failures_[function] = {result, nth};
}

void Library::HangInit(int rank) {
  MutexLock lock(&mu_);
  hanging_ = rank;
}

void Library::FailLater(int rank, Result result) {
  MutexLock lock(&mu_);
  for (Comm* const comm : comms_) {
    if (comm->rank == rank) comm->error = result;
  }
}

int Library::calls(const char* function) const {
  MutexLock lock(&mu_);
  const auto it = calls_.find(function);
  return it == calls_.end() ? 0 : it->second;
}

int Library::communicators() const {
  MutexLock lock(&mu_);
  return static_cast<int>(comms_.size());
}

int Library::operators() const {
  MutexLock lock(&mu_);
  int count = 0;
  for (const Comm* const comm : comms_) count += static_cast<int>(comm->operators.size());
  return count;
}

int Library::registrations() const {
  MutexLock lock(&mu_);
  int count = 0;
  for (const Comm* const comm : comms_) count += static_cast<int>(comm->registered.size());
  return count;
}

int Library::misuses() const {
  MutexLock lock(&mu_);
  return misuses_;
}

Config Library::last_config() const {
  MutexLock lock(&mu_);
  return last_config_;
}

Result Library::Enter(const char* function) {
  MutexLock lock(&mu_);
  ++calls_[function];
  const auto it = failures_.find(function);
  if (it == failures_.end() || --it->second.second > 0) return kSuccess;
  const Result result = it->second.first;
  failures_.erase(it);
  return result;
}

int Library::version() const {
  MutexLock lock(&mu_);
  return version_;
}

UniqueId Library::NewId() {
  MutexLock lock(&mu_);
  UniqueId id = {};
  const uint64_t number = ++ids_;
  std::memcpy(id.bytes, &number, sizeof(number));
  return id;
}

Result Library::Create(Comm** comm, int size, const UniqueId& id, int rank, const Config& config) {
  MutexLock lock(&mu_);
  last_config_ = config;
  uint64_t number = 0;
  std::memcpy(&number, id.bytes, sizeof(number));
  std::shared_ptr<Clique>& clique = cliques_[number];
  if (clique == nullptr) clique = std::make_shared<Clique>();
  clique->size = size;
  *comm = NewComm(clique, rank, config);
  return kInProgress;
}

Result Library::Split(Comm* comm, int color, int key, Comm** part) {
  MutexLock lock(&mu_);
  if (!MayBeAsked(comm)) return kInvalidArgument;
  comm->split = comm->splits++;
  comm->clique->splits[comm->split].asked[comm->rank] = {color, key};
  comm->part = part;
  comm->part_there = false;
  *part = nullptr;
  comm->looks = looks_;
  // As NCCL 2.28 answers, whose communicator is under way all the same.
  return kSuccess;
}

Result Library::State(Comm* comm, Result* state) {
  MutexLock lock(&mu_);
  if (!Exists(comm)) return kInvalidArgument;
  *state = Progress(comm);
  return kSuccess;
}

Result Library::End(Comm* comm, bool abort) {
  MutexLock lock(&mu_);
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

Result Library::MakeOperator(RedOp* op, const void* scalar, DataType type, Comm* comm) {
  MutexLock lock(&mu_);
  if (!MayBeAsked(comm)) return kInvalidArgument;
  const DType dtype = DTypeOf(type);
  uint64_t code = 0;
  std::memcpy(&code, scalar, SizeOf(dtype));
  const int made = kFirstOperator + static_cast<int>(++ids_);
  comm->operators[made] = kernels::ReferenceDecode(dtype, code);
  *op = static_cast<RedOp>(made);
  return kSuccess;
}

Result Library::DeleteOperator(RedOp op, Comm* comm) {
  MutexLock lock(&mu_);
  if (Exists(comm) && comm->operators.erase(op) == 1) return kSuccess;
  ++misuses_;
  return kInvalidArgument;
}

Result Library::Begin(const std::map<std::pair<Comm*, void*>, std::vector<Call>>& group) {
  MutexLock lock(&mu_);
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

Result Library::Register(Comm* comm, void* memory) {
  MutexLock lock(&mu_);
  if (!MayBeAsked(comm)) return kInvalidArgument;
  comm->registered.insert(memory);
  return kSuccess;
}

Result Library::Deregister(Comm* comm, void* memory) {
  MutexLock lock(&mu_);
  if (Exists(comm) && comm->registered.erase(memory) == 1) return kSuccess;
  ++misuses_;
  return kInvalidArgument;
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
    std::shared_ptr<Meeting>* meeting = nullptr;
    if (call.kind == Kind::kSend) {
      meeting = &clique.messages[{comm->rank, call.peer}][comm->sends[call.peer]++];
    } else if (call.kind == Kind::kReceive) {
      meeting = &clique.messages[{call.peer, comm->rank}][comm->receives[call.peer]++];
    } else {
      meeting = &clique.meetings[{0, comm->collectives++}];
    }
    if (*meeting == nullptr) *meeting = std::make_shared<Meeting>();
    launch->meetings.push_back(*meeting);
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
  launch->meetings.clear();
  for (size_t i = 0; i < launch->calls.size(); ++i) {
    std::shared_ptr<Meeting>& meeting = launch->comm->clique->meetings[{launch->captured, launch->collectives++}];
    if (meeting == nullptr) meeting = std::make_shared<Meeting>();
    launch->meetings.push_back(meeting);
  }
  ++launch->comm->running;
  library.CarryOut(*launch);
  --launch->comm->running;
  library.changed_.SignalAll();
}

void Library::Run(Launch* launch) {
  const std::unique_ptr<Launch> owned(launch);
  Library& library = *launch->library;
  MutexLock lock(&library.mu_);
  library.CarryOut(*launch);
  --launch->comm->running;
  library.changed_.SignalAll();
}

void Library::CarryOut(Launch& launch) {
  Comm* const comm = launch.comm;
  if (comm->aborted) return;
  // In a message the receiver is no rank: it may be the sender, too.
  constexpr int kReceiver = -1;
  const auto place = [comm](const Call& call) { return call.kind == Kind::kReceive ? kReceiver : comm->rank; };
  const auto parties = [comm](const Call& call) {
    return call.kind == Kind::kSend || call.kind == Kind::kReceive ? 2 : comm->clique->size;
  };
  for (size_t i = 0; i < launch.calls.size(); ++i) launch.meetings[i]->calls[place(launch.calls[i])] = launch.calls[i];
  changed_.SignalAll();
  // Nobody may read what an aborted rank brought: its memory is its own again.
  const auto leave = [&] {
    for (size_t i = 0; i < launch.calls.size(); ++i) launch.meetings[i]->calls.erase(place(launch.calls[i]));
  };
  std::vector<std::vector<char>> outputs;
  for (size_t i = 0; i < launch.calls.size(); ++i) {
    const Call& call = launch.calls[i];
    Meeting& meeting = *launch.meetings[i];
    if (!Await(comm, [&] { return static_cast<int>(meeting.calls.size()) == parties(call); })) return leave();
    if (call.kind == Kind::kReceive) {
      const Call& sent = meeting.calls.rbegin()->second;
      if (sent.count != call.count) ++misuses_;
      outputs.emplace_back(sent.input, sent.input + std::min(sent.count, call.count));
    } else if (call.kind == Kind::kSend) {
      outputs.emplace_back();
    } else {
      if (!SameCall(call, meeting.calls.begin()->second)) ++misuses_;
      outputs.push_back(OutputOf(meeting, comm->rank));
    }
    ++meeting.over;
  }
  changed_.SignalAll();
  for (size_t i = 0; i < launch.calls.size(); ++i) {
    const Meeting& meeting = *launch.meetings[i];
    if (!Await(comm, [&] { return meeting.over == parties(launch.calls[i]); })) return leave();
    if (!outputs[i].empty()) std::memcpy(launch.calls[i].output, outputs[i].data(), outputs[i].size());
  }
}

}  // namespace nccl
}  // namespace lockstep
