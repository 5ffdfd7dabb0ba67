#include "comm/schedule_checks.h"

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "comm/schedule_memory.h"

namespace lockstep {
namespace {

const char* WindowName(Window window) {
  return window == Window::kInput ? "input" : window == Window::kOutput ? "output" : "scratch";
}

absl::Status CheckOperand(const Schedule& schedule, const ScheduleMemory& memory, size_t index,
                          const Operand& operand) {
  if (operand.blocks < 0) return StepError(schedule, index, "has an operand of a negative number of blocks");
  for (int64_t block = operand.block; block < int64_t{operand.block} + operand.blocks; ++block) {
    if (const char* why = memory.WhyAbsent(operand.window, block)) {
      return StepError(schedule, index,
                       absl::StrCat("uses ", WindowName(operand.window), "[", block, "], which ", why));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckStep(const Schedule& schedule, const ScheduleMemory& memory, size_t index) {
  const Step& step = schedule.steps[index];
  if (static_cast<int>(step.kind) > static_cast<int>(Step::Kind::kReduce)) {
    return StepError(schedule, index, "is of no known kind");
  }
  if (IsMessage(step.kind)) {
    const int peer = step.peer.value();
    if (peer < 0 || peer >= schedule.size) return StepError(schedule, index, "has a peer outside the world");
    if (step.peer == schedule.rank) return StepError(schedule, index, "has the rank itself as its peer");
  }
  for (int32_t earlier : step.after) {
    if (earlier == Step::kNone) continue;
    if (earlier < 0 || earlier >= static_cast<int64_t>(index)) {
      return StepError(schedule, index, absl::StrCat("waits for #", earlier, ", which is no earlier step"));
    }
  }
  const bool reads = ReadsSource(step.kind), writes = WritesTarget(step.kind);
  if (reads) LOCKSTEP_RETURN_IF_ERROR(CheckOperand(schedule, memory, index, step.source));
  if (writes) LOCKSTEP_RETURN_IF_ERROR(CheckOperand(schedule, memory, index, step.target));
  if (writes && step.target.window == Window::kInput && step.target.blocks > 0) {
    return StepError(schedule, index, "writes the input");
  }
  if (reads && writes) {
    if (step.source.blocks != step.target.blocks) {
      return StepError(
          schedule, index,
          absl::StrCat("has ", step.source.blocks, " blocks as its source and ", step.target.blocks, " as its target"));
    }
    const int distance = memory.Location(step.source) - memory.Location(step.target);
    if (distance != 0 && distance < step.source.blocks && -distance < step.source.blocks) {
      return StepError(schedule, index, "has a source and a target that overlap");
    }
  }
  return absl::OkStatus();
}

struct Access {
  int step;
  bool writes;
};

}  // namespace

std::string DescribeStep(const Schedule& schedule, size_t index) {
  return absl::StrCat("rank ", schedule.rank.value(), ", step #", index, " (", ToString(schedule.steps[index]), ")");
}

absl::Status StepError(const Schedule& schedule, size_t index, absl::string_view fault) {
  return absl::InternalError(absl::StrCat(DescribeStep(schedule, index), " ", fault));
}

absl::Status CheckSteps(const Schedule& schedule, bool in_place) {
  const ScheduleMemory memory(schedule, in_place);
  for (size_t index = 0; index < schedule.steps.size(); ++index) {
    LOCKSTEP_RETURN_IF_ERROR(CheckStep(schedule, memory, index));
  }
  return absl::OkStatus();
}

absl::Status CheckRaces(const Schedule& schedule, bool in_place) {
  const ScheduleMemory memory(schedule, in_place);
  const int steps = static_cast<int>(schedule.steps.size());

  // ancestors[step]: the set of steps complete before it starts, as a row of bits.
  const size_t words = (steps + 63) / 64;
  std::vector<uint64_t> ancestors(words * steps);
  for (int step = 0; step < steps; ++step) {
    uint64_t* row = &ancestors[step * words];
    for (int32_t earlier : schedule.steps[step].after) {
      if (earlier == Step::kNone) continue;
      const uint64_t* earlier_row = &ancestors[earlier * words];
      for (int word = 0; word <= earlier / 64; ++word) row[word] |= earlier_row[word];
      row[earlier / 64] |= uint64_t{1} << (earlier % 64);
    }
  }

  std::vector<std::vector<Access>> accesses(memory.locations());
  const auto note = [&](const Operand& operand, int step, bool writes) {
    for (int i = 0; i < operand.blocks; ++i) accesses[memory.Location(operand) + i].push_back({step, writes});
  };
  for (int index = 0; index < steps; ++index) {
    const Step& step = schedule.steps[index];
    if (memory.IsVoid(step)) continue;
    if (ReadsSource(step.kind)) note(step.source, index, /*writes=*/false);
    if (WritesTarget(step.kind)) note(step.target, index, /*writes=*/true);
  }
  for (const std::vector<Access>& at_location : accesses) {
    for (size_t i = 0; i < at_location.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        const Access &earlier = at_location[j], &later = at_location[i];
        if (earlier.step == later.step || (!earlier.writes && !later.writes)) continue;
        if ((ancestors[later.step * words + earlier.step / 64] >> (earlier.step % 64) & 1) != 0) continue;
        return StepError(
            schedule, later.step,
            absl::StrCat("races with step #", earlier.step, " (", ToString(schedule.steps[earlier.step]), ")",
                         in_place ? " in place" : "", ": both touch the same block, and neither waits for the other"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace lockstep
