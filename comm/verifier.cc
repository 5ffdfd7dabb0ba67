#include "comm/verifier.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "comm/schedule_checks.h"
#include "comm/schedule_memory.h"

namespace lockstep {
namespace {

using Id = ExpressionTable::Id;
constexpr Id kUndefined = ExpressionTable::kUndefined;

// Steps of all ranks are numbered through, rank by rank.
class Verifier {
 public:
  Verifier(absl::Span<const Schedule> all_ranks, bool in_place)
      : all_(all_ranks), in_place_(in_place), expressions_(static_cast<int>(all_ranks.size())) {}

  absl::StatusOr<Proof> Run() {
    LOCKSTEP_RETURN_IF_ERROR(CheckWorld());
    for (const Schedule& schedule : all_) {
      LOCKSTEP_RETURN_IF_ERROR(CheckSteps(schedule, in_place_));
      LOCKSTEP_RETURN_IF_ERROR(CheckRaces(schedule, in_place_));
    }
    NumberSteps();
    LOCKSTEP_RETURN_IF_ERROR(MatchMessages());
    InitializeMemory();
    LOCKSTEP_RETURN_IF_ERROR(Execute());
    LOCKSTEP_RETURN_IF_ERROR(CheckBarrier());
    return CheckOutputs();
  }

 private:
  static constexpr int kNone = -1;

  struct StepState {
    int rank = 0;
    int index = 0;  // in the rank's list
    // Messages: the step at the other end, and the next of this rank with the same peer in the same direction.
    int partner = kNone;
    int next_in_channel = kNone;
    // Steps in `after` that are not complete, the one before it in the channel if that has not started, and Execute
    // itself until it lets the step go.
    int waits_for = 1;
    bool started = false;
    bool complete = false;
    int depth = 0;  // messages in the longest chain that this step has waited for, itself included
    std::vector<int> dependents;
  };

  const Schedule& schedule(int id) const { return all_[states_[id].rank]; }
  const Step& step(int id) const { return schedule(id).steps[states_[id].index]; }
  std::string Describe(int id) const { return DescribeStep(schedule(id), states_[id].index); }
  absl::Status Error(int id, absl::string_view fault) const {
    return StepError(schedule(id), states_[id].index, fault);
  }
  Id& Memory(const Schedule& schedule, Window window, int block) {
    return memory_[schedule.rank.value()][ScheduleMemory(schedule, in_place_).Location(window, block)];
  }

  absl::Status CheckWorld() const;
  void NumberSteps();
  absl::Status MatchMessages();
  void InitializeMemory();

  absl::Status Execute();
  // One dependency less; starts the step when it was the last.
  void Release(int id);
  absl::Status Apply(int id);
  absl::Status Write(int id, int i, Id value);
  absl::Status ReadOperand(int id, int i, Id* value);
  absl::Status CombineInto(int id, int i, Id left, Id right);
  absl::Status Deadlock() const;
  // What the step, and through it its rank, has heard of: barriers only.
  void Hear(int id);

  absl::Status CheckBarrier() const;
  absl::StatusOr<Proof> CheckOutputs();
  absl::Status CheckReduced(int rank, int block, Id value) const;

  const absl::Span<const Schedule> all_;
  const bool in_place_;
  ExpressionTable expressions_;
  std::vector<int> first_step_;  // of each rank
  std::vector<StepState> states_;
  std::vector<int> ready_;                // started, and (for a message) its partner too
  std::vector<std::vector<Id>> memory_;   // [rank][location]
  std::vector<std::vector<bool>> heard_;  // [step][rank]: whose entering precedes the step's completion
};

absl::Status Verifier::CheckWorld() const {
  if (all_.empty()) return absl::InternalError("there are no schedules");
  const Schedule& first = all_[0];
  const int size = static_cast<int>(all_.size());
  for (int rank = 0; rank < size; ++rank) {
    const Schedule& schedule = all_[rank];
    const auto error = [&](absl::string_view fault) {
      return absl::InternalError(absl::StrCat("rank ", rank, ": the schedule ", fault));
    };
    if (schedule.rank.value() != rank) return error(absl::StrCat("is that of rank ", schedule.rank.value()));
    if (schedule.size != size) {
      return error(absl::StrCat("is for a world of ", schedule.size, ", and there are ", size));
    }
    if (schedule.collective != first.collective || schedule.root != first.root || schedule.blocks != first.blocks) {
      return error("differs from rank 0's in collective, root or number of blocks");
    }
    if (schedule.root.value() < 0 || schedule.root.value() >= size) return error("has a root outside the world");
    const bool is_by_rank =
        first.collective == Collective::kAllGather || first.collective == Collective::kReduceScatter;
    const bool is_barrier = first.collective == Collective::kBarrier;
    if (schedule.scratch_blocks < 0 || (is_by_rank && schedule.blocks != size) ||
        (is_barrier && schedule.blocks + schedule.scratch_blocks != 0) || (!is_barrier && schedule.blocks < 1)) {
      return error(absl::StrCat("has ", schedule.blocks, " blocks and ", schedule.scratch_blocks, " of scratch"));
    }
  }
  return absl::OkStatus();
}

void Verifier::NumberSteps() {
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
        if (earlier == Step::kNone) continue;
        ++state.waits_for;
        states_[first + earlier].dependents.push_back(first + static_cast<int>(index));
      }
      states_.push_back(std::move(state));
    }
  }
}

absl::Status Verifier::MatchMessages() {
  // Of each (sender, receiver): the messages in the list order of either side.
  struct Channel {
    std::vector<int> sends, receives;
  };
  const size_t size = all_.size();
  std::vector<Channel> channels(size * size);
  for (int id = 0; id < static_cast<int>(states_.size()); ++id) {
    if (!IsMessage(step(id).kind)) continue;
    const size_t self = states_[id].rank, peer = step(id).peer.value();
    const bool is_send = step(id).kind == Step::Kind::kSend;
    std::vector<int>& side = is_send ? channels[self * size + peer].sends : channels[peer * size + self].receives;
    if (!side.empty()) {
      states_[side.back()].next_in_channel = id;
      ++states_[id].waits_for;
    }
    side.push_back(id);
  }
  for (const Channel& channel : channels) {
    const size_t matched = std::min(channel.sends.size(), channel.receives.size());
    for (size_t i = 0; i < matched; ++i) {
      const int send = channel.sends[i], receive = channel.receives[i];
      const int sent = step(send).source.blocks, taken = step(receive).target.blocks;
      if (sent != taken) {
        return Error(send, absl::StrCat("sends ", sent, " blocks, but ", Describe(receive), " takes ", taken));
      }
      states_[send].partner = receive;
      states_[receive].partner = send;
    }
    const auto counts = [&] {
      return absl::StrCat(" (", channel.sends.size(), " messages are sent that way and ", channel.receives.size(),
                          " received)");
    };
    if (matched < channel.sends.size()) {
      return Error(channel.sends[matched], absl::StrCat("sends a message that is never received", counts()));
    }
    if (matched < channel.receives.size()) {
      return Error(channel.receives[matched], absl::StrCat("waits for a message that is never sent", counts()));
    }
  }
  return absl::OkStatus();
}

void Verifier::InitializeMemory() {
  for (const Schedule& schedule : all_) {
    const ScheduleMemory memory(schedule, in_place_);
    memory_.emplace_back(memory.locations(), kUndefined);
    for (int block = 0; block < schedule.blocks; ++block) {
      if (memory.WhyAbsent(Window::kInput, block) != nullptr) continue;
      Memory(schedule, Window::kInput, block) = expressions_.Leaf(schedule.rank, block);
    }
  }
  if (all_[0].collective == Collective::kBarrier) {
    heard_.assign(states_.size(), std::vector<bool>(all_.size()));
  }
}

absl::Status Verifier::Execute() {
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

void Verifier::Release(int id) {
  // A loop over the channel, since starting one message may allow the next to start.
  while (id != kNone && --states_[id].waits_for == 0) {
    StepState& state = states_[id];
    state.started = true;
    if (state.partner == kNone || states_[state.partner].started) ready_.push_back(id);
    id = state.next_in_channel;
  }
}

// Carries out a local step, or a message with both its ends.
absl::Status Verifier::Apply(int id) {
  if (!heard_.empty()) Hear(id);
  if (ScheduleMemory(schedule(id), in_place_).IsVoid(step(id))) return absl::OkStatus();
  const int partner = states_[id].partner;
  const bool is_message = partner != kNone;
  const int reader = is_message && step(id).kind != Step::Kind::kSend ? partner : id;
  const int writer = is_message && step(id).kind == Step::Kind::kSend ? partner : id;
  for (int i = 0; i < step(writer).target.blocks; ++i) {
    Id value = kUndefined;
    LOCKSTEP_RETURN_IF_ERROR(ReadOperand(reader, i, &value));
    if (step(writer).kind == Step::Kind::kReceiveReduce) {
      Id own = kUndefined;
      LOCKSTEP_RETURN_IF_ERROR(ReadOperand(writer, i, &own));
      LOCKSTEP_RETURN_IF_ERROR(CombineInto(writer, i, own, value));
    } else if (step(writer).kind == Step::Kind::kReduce) {
      const Operand& target = step(writer).target;
      const Id own = Memory(schedule(writer), target.window, target.block + i);
      if (own == kUndefined) return Error(writer, "adds to a target that was never written");
      LOCKSTEP_RETURN_IF_ERROR(CombineInto(writer, i, own, value));
    } else {
      LOCKSTEP_RETURN_IF_ERROR(Write(writer, i, value));
    }
  }
  return absl::OkStatus();
}

absl::Status Verifier::ReadOperand(int id, int i, Id* value) {
  const Operand& source = step(id).source;
  *value = Memory(schedule(id), source.window, source.block + i);
  return *value == kUndefined ? Error(id, "reads memory that was never written") : absl::OkStatus();
}

absl::Status Verifier::CombineInto(int id, int i, Id left, Id right) {
  if (expressions_.block(left) != expressions_.block(right)) {
    return Error(id,
                 absl::StrCat("combines block ", expressions_.block(left), " with block ", expressions_.block(right)));
  }
  const int shared = expressions_.SharedLeaf(left, right);
  if (shared >= 0) return Error(id, absl::StrCat("adds the contribution of rank ", shared, " a second time"));
  return Write(id, i, expressions_.Combine(left, right));
}

absl::Status Verifier::Write(int id, int i, Id value) {
  const Operand& target = step(id).target;
  const int block = target.block + i;
  // Scratch has its blocks' sizes in turn.
  const int sized_as = target.window == Window::kScratch ? block % schedule(id).blocks : block;
  if (expressions_.block(value) != sized_as && ScheduleMemory(schedule(id), in_place_).HasUnequalBlocks()) {
    return Error(id, absl::StrCat("writes block ", expressions_.block(value), " where block ", sized_as,
                                  " belongs, which may be smaller"));
  }
  Memory(schedule(id), target.window, block) = value;
  return absl::OkStatus();
}

void Verifier::Hear(int id) {
  const int partner = states_[id].partner;
  for (int end : {id, partner}) {
    if (end == kNone) continue;
    std::vector<bool>& heard = heard_[end];
    heard[states_[end].rank] = true;
    for (int32_t earlier : step(end).after) {
      if (earlier == Step::kNone) continue;
      const std::vector<bool>& before = heard_[first_step_[states_[end].rank] + earlier];
      for (size_t rank = 0; rank < heard.size(); ++rank) heard[rank] = heard[rank] || before[rank];
    }
  }
  if (partner == kNone) return;
  // A message tells the receiver what the sender knew; a send's completion tells the sender nothing.
  const bool is_send = step(id).kind == Step::Kind::kSend;
  const std::vector<bool>& sent = heard_[is_send ? id : partner];
  std::vector<bool>& received = heard_[is_send ? partner : id];
  for (size_t rank = 0; rank < sent.size(); ++rank) received[rank] = received[rank] || sent[rank];
}

absl::Status Verifier::Deadlock() const {
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

absl::Status Verifier::CheckBarrier() const {
  if (all_[0].collective != Collective::kBarrier) return absl::OkStatus();
  for (const Schedule& schedule : all_) {
    const int rank = schedule.rank.value();
    std::vector<bool> heard(all_.size());
    heard[rank] = true;
    for (size_t index = 0; index < schedule.steps.size(); ++index) {
      const std::vector<bool>& at_step = heard_[first_step_[rank] + index];
      for (size_t other = 0; other < heard.size(); ++other) heard[other] = heard[other] || at_step[other];
    }
    const auto missing = std::find(heard.begin(), heard.end(), false);
    if (missing != heard.end()) {
      return absl::InternalError(absl::StrCat("rank ", rank, " may leave the barrier before rank ",
                                              missing - heard.begin(), " has entered it"));
    }
  }
  return absl::OkStatus();
}

absl::Status Verifier::CheckReduced(int rank, int block, Id value) const {
  const auto error = [&](absl::string_view fault) {
    return absl::InternalError(absl::StrCat("rank ", rank, ": output[", block, "] ends as ",
                                            expressions_.ToString(value), " of block ", expressions_.block(value),
                                            fault));
  };
  if (expressions_.block(value) != block) return error("");
  const int missing = expressions_.MissingLeaf(value);
  if (missing >= 0) return error(absl::StrCat(", without the contribution of rank ", missing));
  if (all_[0].collective != Collective::kAllReduce) return absl::OkStatus();
  const Id of_first = memory_[0][ScheduleMemory(all_[0], in_place_).Location(Window::kOutput, block)];
  if (expressions_.Canonical(value) != expressions_.Canonical(of_first)) {
    return error(absl::StrCat(", on rank 0 as ", expressions_.ToString(of_first), ": the bits may differ"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Proof> Verifier::CheckOutputs() {
  std::vector<std::vector<Id>> outputs;
  for (const Schedule& schedule : all_) {
    const ScheduleMemory memory(schedule, in_place_);
    const int rank = schedule.rank.value();
    outputs.emplace_back(schedule.blocks, kUndefined);
    for (int block = 0; block < schedule.blocks; ++block) {
      if (memory.WhyAbsent(Window::kOutput, block) != nullptr) continue;
      const Id value = Memory(schedule, Window::kOutput, block);
      outputs.back()[block] = value;
      if (value == kUndefined) {
        return absl::InternalError(absl::StrCat("rank ", rank, ": output[", block, "] is never written"));
      }
      if (HasReduction(schedule.collective)) {
        LOCKSTEP_RETURN_IF_ERROR(CheckReduced(rank, block, value));
        continue;
      }
      const Rank owner = schedule.collective == Collective::kBroadcast ? schedule.root : Rank(block);
      if (value != expressions_.Leaf(owner, block)) {
        return absl::InternalError(absl::StrCat("rank ", rank, ": output[", block, "] ends as ",
                                                expressions_.ToString(value), " of block ", expressions_.block(value),
                                                ", not as rank ", owner.value(), "'s input"));
      }
    }
  }
  int message_depth = 0;
  for (const StepState& state : states_) message_depth = std::max(message_depth, state.depth);
  return Proof(std::move(expressions_), std::move(outputs), message_depth);
}

}  // namespace

Proof::Proof(ExpressionTable expressions, std::vector<std::vector<ExpressionTable::Id>> outputs, int message_depth)
    : expressions_(std::move(expressions)), outputs_(std::move(outputs)), message_depth_(message_depth) {}

std::string Proof::Expression(Rank rank, int block) const {
  return expressions_.ToString(outputs_[rank.value()][block]);
}

absl::StatusOr<Proof> Prove(absl::Span<const Schedule> all_ranks, bool in_place) {
  return Verifier(all_ranks, in_place).Run();
}

absl::Status Verify(absl::Span<const Schedule> all_ranks, bool in_place) { return Prove(all_ranks, in_place).status(); }

}  // namespace lockstep
