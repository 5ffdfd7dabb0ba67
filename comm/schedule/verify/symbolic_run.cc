#include "comm/schedule/verify/symbolic_run.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "comm/schedule/schedule_memory.h"

namespace lockstep {

SymbolicRun::SymbolicRun(absl::Span<const Schedule> all_ranks, bool in_place)
    : all_(all_ranks),
      in_place_(in_place),
      blocks_may_differ_(ScheduleMemory(all_ranks[0], in_place).HasUnequalBlocks()),
      expressions_(static_cast<int>(all_ranks.size())),
      words_(static_cast<int>(all_ranks.size() + 63) / 64) {}

absl::Status SymbolicRun::Run() {
  NumberSteps();
  InitializeMemory();
  if (UsesSharedMemory(all_[0].algorithm)) return ExecuteInSharedMemory();
  LOCKSTEP_RETURN_IF_ERROR(MatchMessages());
  return Execute();
}

ExpressionTable::Id SymbolicRun::Output(int rank, int block) const {
  return memory_[rank][ScheduleMemory(all_[rank], in_place_).Location(Window::kOutput, block)];
}

int SymbolicRun::message_depth() const {
  int depth = 0;
  for (const StepState& state : states_) depth = std::max(depth, state.depth);
  return depth;
}

int SymbolicRun::FirstUnheard(int rank) const {
  std::vector<uint64_t> heard(words_);
  heard[rank / 64] |= uint64_t{1} << (rank % 64);
  for (size_t index = 0; index < all_[rank].steps.size(); ++index) {
    const uint64_t* const at_step = &heard_[(first_step_[rank] + index) * words_];
    for (int word = 0; word < words_; ++word) heard[word] |= at_step[word];
  }
  for (int other = 0; other < static_cast<int>(all_.size()); ++other) {
    if ((heard[other / 64] >> (other % 64) & 1) == 0) return other;
  }
  return -1;
}

void SymbolicRun::NumberSteps() {
  size_t steps = 0;
  for (const Schedule& schedule : all_) steps += schedule.steps.size();
  states_.reserve(steps);
  for (const Schedule& schedule : all_) {
    const int first = static_cast<int>(states_.size());
    first_step_.push_back(first);
    for (size_t index = 0; index < schedule.steps.size(); ++index) {
      StepState state;
      state.rank = schedule.rank.value();
      state.index = static_cast<int>(index);
      for (int32_t earlier : schedule.steps[index].after) {
        ++state.waits_for;
        states_[first + earlier].dependents.push_back(first + static_cast<int>(index));
      }
      states_.push_back(std::move(state));
    }
  }
}

absl::Status SymbolicRun::MatchMessages() {
  // By channel, which is (sender, receiver): the messages in the list order of either side, sends first.
  struct Message {
    std::pair<int, int> channel;
    bool is_receive;
    int id;
    bool operator<(const Message& other) const {
      return std::tie(channel, is_receive, id) < std::tie(other.channel, other.is_receive, other.id);
    }
  };
  std::vector<Message> messages;
  for (int id = 0; id < static_cast<int>(states_.size()); ++id) {
    if (!IsMessage(step(id).kind)) continue;
    const int self = states_[id].rank, peer = step(id).peer.value();
    const bool is_receive = step(id).kind != Step::Kind::kSend;
    messages.push_back({is_receive ? std::make_pair(peer, self) : std::make_pair(self, peer), is_receive, id});
  }
  std::sort(messages.begin(), messages.end());
  for (size_t begin = 0, end = 0; begin < messages.size(); begin = end) {
    std::vector<int> sends, receives;
    for (; end < messages.size() && messages[end].channel == messages[begin].channel; ++end) {
      std::vector<int>& side = messages[end].is_receive ? receives : sends;
      const int id = messages[end].id;
      if (!side.empty()) {
        states_[side.back()].next_in_channel = id;
        ++states_[id].waits_for;
      }
      side.push_back(id);
    }
    const size_t matched = std::min(sends.size(), receives.size());
    for (size_t i = 0; i < matched; ++i) {
      const int send = sends[i], receive = receives[i];
      const int sent = step(send).source.blocks, taken = step(receive).target.blocks;
      if (sent != taken) {
        return Error(send, absl::StrCat("sends ", sent, " blocks, but ", Describe(receive), " takes ", taken));
      }
      states_[send].partner = receive;
      states_[receive].partner = send;
    }
    const auto counts = [&] {
      return absl::StrCat(" (", sends.size(), " messages are sent that way and ", receives.size(), " received)");
    };
    if (matched < sends.size()) {
      return Error(sends[matched], absl::StrCat("sends a message that is never received", counts()));
    }
    if (matched < receives.size()) {
      return Error(receives[matched], absl::StrCat("waits for a message that is never sent", counts()));
    }
  }
  return absl::OkStatus();
}

void SymbolicRun::InitializeMemory() {
  for (const Schedule& schedule : all_) {
    const ScheduleMemory memory(schedule, in_place_);
    memory_.emplace_back(memory.locations(), kUndefined);
    for (int block = 0; block < schedule.blocks; ++block) {
      if (memory.WhyAbsent(Window::kInput, block) != nullptr) continue;
      Memory(schedule, {Window::kInput, block, 1}, 0) = expressions_.Leaf(schedule.rank, block);
    }
  }
  if (all_[0].collective == Collective::kBarrier) {
    heard_.assign(states_.size() * words_, 0);
  }
}

absl::Status SymbolicRun::Execute() {
  for (int id = 0; id < static_cast<int>(states_.size()); ++id) Release(id);
  size_t completed = 0;
  while (!ready_.empty()) {
    const int id = ready_.back();
    ready_.pop_back();
    const int partner = states_[id].partner;
    const int depth = partner == kNone ? states_[id].depth : std::max(states_[id].depth, states_[partner].depth) + 1;
    LOCKSTEP_RETURN_IF_ERROR(Apply(id));
    for (int end : {id, partner}) {
      if (end == kNone) continue;
      states_[end].depth = depth;
      states_[end].complete = true;
      ++completed;
    }
    for (int end : {id, partner}) {
      if (end == kNone) continue;
      for (int dependent : states_[end].dependents) {
        states_[dependent].depth = std::max(states_[dependent].depth, depth);
        Release(dependent);
      }
    }
  }
  return completed == states_.size() ? absl::OkStatus() : Deadlock();
}

absl::Status SymbolicRun::ExecuteInSharedMemory() {
  std::vector<int> at = first_step_;
  const auto end_of = [this](size_t rank) { return first_step_[rank] + static_cast<int>(all_[rank].steps.size()); };
  int barriers = 0;
  while (true) {
    for (size_t rank = 0; rank < all_.size(); ++rank) {
      for (; at[rank] != end_of(rank) && !IsBarrier(step(at[rank]).kind); ++at[rank]) {
        states_[at[rank]].depth = barriers;
        LOCKSTEP_RETURN_IF_ERROR(Apply(at[rank]));
      }
    }
    if (at[0] == end_of(0)) return absl::OkStatus();
    ++barriers;
    LOCKSTEP_RETURN_IF_ERROR(PassBarrier(at));
    for (int& id : at) states_[id++].depth = barriers;
  }
}

absl::Status SymbolicRun::PassBarrier(absl::Span<const int> ids) {
  if (!heard_.empty()) {
    for (int id : ids) std::fill_n(Heard(id), words_, ~uint64_t{0});
  }
  if (step(ids[0]).kind != Step::Kind::kShare) return absl::OkStatus();
  for (int giver : ids) {
    Id value = kUndefined;
    if (step(giver).source.blocks > 0) LOCKSTEP_RETURN_IF_ERROR(Read(giver, step(giver).source, 0, &value));
    for (int id : ids) Memory(schedule(id), step(id).target, states_[giver].rank) = value;
  }
  return absl::OkStatus();
}

void SymbolicRun::Release(int id) {
  // A loop over the channel, since starting one message may allow the next to start.
  while (id != kNone && --states_[id].waits_for == 0) {
    StepState& state = states_[id];
    state.started = true;
    if (state.partner == kNone || states_[state.partner].started) ready_.push_back(id);
    id = state.next_in_channel;
  }
}

absl::Status SymbolicRun::Apply(int id) {
  if (!heard_.empty()) Hear(id);
  if (ScheduleMemory(schedule(id), in_place_).IsVoid(step(id))) return absl::OkStatus();
  const int partner = states_[id].partner;
  const bool is_message = partner != kNone;
  const int reader = is_message && step(id).kind != Step::Kind::kSend ? partner : id;
  const int writer = is_message && step(id).kind == Step::Kind::kSend ? partner : id;
  for (int i = 0; i < step(writer).target.blocks; ++i) {
    LOCKSTEP_RETURN_IF_ERROR(step(writer).kind == Step::Kind::kReduceMany ? FoldInto(writer, i)
                                                                          : MoveInto(writer, i, reader));
  }
  return absl::OkStatus();
}

absl::Status SymbolicRun::MoveInto(int writer, int i, int reader) {
  Id value = kUndefined, own = kUndefined;
  LOCKSTEP_RETURN_IF_ERROR(Read(reader, step(reader).source, i, &value));
  if (step(writer).kind != Step::Kind::kReceiveReduce) return Write(writer, i, value);
  LOCKSTEP_RETURN_IF_ERROR(Read(writer, step(writer).source, i, &own));
  LOCKSTEP_RETURN_IF_ERROR(CheckCombinable(writer, own, value));
  return Write(writer, i, expressions_.Combine(own, value));
}
absl::Status SymbolicRun::Read(int id, const Operand& operand, int i, Id* value) {
  *value = Memory(schedule(id), operand, i);
  if (*value == kUndefined) return Error(id, "reads memory that was never written");
  if (!Fits(id, operand, i, *value)) {
    return Error(id, absl::StrCat("reads block ", expressions_.block(*value), " as if it were block ",
                                  operand.sized_as() + i, ", which may be smaller"));
  }
  return absl::OkStatus();
}

absl::Status SymbolicRun::CheckCombinable(int id, Id left, Id right) const {
  if (expressions_.block(left) != expressions_.block(right)) {
    return Error(id,
                 absl::StrCat("combines block ", expressions_.block(left), " with block ", expressions_.block(right)));
  }
  const int shared = expressions_.SharedLeaf(left, right);
  if (shared >= 0) return Error(id, absl::StrCat("adds the contribution of rank ", shared, " a second time"));
  return absl::OkStatus();
}

absl::Status SymbolicRun::FoldInto(int id, int i) {
  const std::vector<Operand>& terms = step(id).terms;
  Id sum = kUndefined;
  LOCKSTEP_RETURN_IF_ERROR(Read(id, terms[0], i, &sum));
  for (size_t k = 1; k < terms.size(); ++k) {
    Id value = kUndefined;
    LOCKSTEP_RETURN_IF_ERROR(Read(id, terms[k], i, &value));
    LOCKSTEP_RETURN_IF_ERROR(CheckCombinable(id, sum, value));
    sum = k + 1 < terms.size() ? expressions_.Accumulate(sum, value) : expressions_.Combine(sum, value);
  }
  return Write(id, i, sum);
}

bool SymbolicRun::Fits(int id, const Operand& operand, int i, Id value) const {
  if (!blocks_may_differ_) return true;
  const ScheduleMemory memory(schedule(id), in_place_);
  // What rank r sends to rank s is as large as what s receives from r, and as nothing else.
  if (schedule(id).collective == Collective::kAllToAll && operand.window == Window::kOutput) {
    return expressions_.LeafRank(value) == operand.block + i && expressions_.block(value) == memory.OwnerOf(operand);
  }
  return expressions_.block(value) == operand.sized_as() + i;
}

absl::Status SymbolicRun::Write(int id, int i, Id value) {
  LOCKSTEP_RETURN_IF_ERROR(WriteTo(id, step(id).target, i, value));
  for (const Operand& target : step(id).more_targets) LOCKSTEP_RETURN_IF_ERROR(WriteTo(id, target, i, value));
  return absl::OkStatus();
}

absl::Status SymbolicRun::WriteTo(int id, const Operand& target, int i, Id value) {
  if (!Fits(id, target, i, value)) {
    return Error(id, absl::StrCat("writes block ", expressions_.block(value), " where block ", target.sized_as() + i,
                                  " belongs, which may be smaller"));
  }
  Memory(schedule(id), target, i) = value;
  return absl::OkStatus();
}

void SymbolicRun::Hear(int id) {
  const auto learn = [this](int step, int from) {
    for (int word = 0; word < words_; ++word) Heard(step)[word] |= Heard(from)[word];
  };
  const int partner = states_[id].partner;
  for (int end : {id, partner}) {
    if (end == kNone) continue;
    const int rank = states_[end].rank;
    Heard(end)[rank / 64] |= uint64_t{1} << (rank % 64);
    for (int32_t earlier : step(end).after) learn(end, first_step_[rank] + earlier);
  }
  if (partner == kNone) return;
  // A message tells the receiver what the sender knew; a send's completion tells the sender nothing.
  const bool is_send = step(id).kind == Step::Kind::kSend;
  learn(is_send ? partner : id, is_send ? id : partner);
}

absl::Status SymbolicRun::Deadlock() const {
  std::string text = "deadlock";
  const char* separator = ": ";
  int named = 0;
  for (int id = 0; id < static_cast<int>(states_.size()) && named < 4; ++id) {
    if (!states_[id].started || states_[id].complete) continue;
    absl::StrAppend(&text, separator, Describe(id), " waits for ", Describe(states_[id].partner),
                    ", which cannot start");
    separator = "; ";
    ++named;
  }
  return absl::InternalError(text);
}

}  // namespace lockstep
