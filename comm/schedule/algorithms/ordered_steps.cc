#include <algorithm>
#include <utility>
#include <vector>

#include "comm/schedule/algorithms/algorithms.h"

namespace lockstep::algorithms {

Step OrderedSteps::Make(Step::Kind kind, int peer, Operand source, Operand target) {
  Step step;
  step.kind = kind;
  step.peer = Rank(peer);
  step.source = source;
  step.target = target;
  return step;
}

void OrderedSteps::Send(Operand source, int peer) {
  Step step = Make(Step::Kind::kSend, peer, source, Nothing());
  step.round = round_;
  Append(std::move(step), /*reads_source=*/true, /*writes_target=*/false);
}

void OrderedSteps::Receive(int peer, Operand target) {
  Append(Make(Step::Kind::kReceive, peer, Nothing(), target), /*reads_source=*/false, /*writes_target=*/true);
}

void OrderedSteps::ReceiveReduce(int peer, Operand source, Operand target) {
  Append(Make(Step::Kind::kReceiveReduce, peer, source, target), /*reads_source=*/true, /*writes_target=*/true);
}

void OrderedSteps::Copy(Operand source, Operand target) {
  Append(Make(Step::Kind::kCopy, 0, source, target), /*reads_source=*/true, /*writes_target=*/true);
}

void OrderedSteps::ReduceMany(std::vector<Operand> terms, Operand target) {
  Step step = Make(Step::Kind::kReduceMany, 0, Nothing(), target);
  step.terms = std::move(terms);
  Append(std::move(step), /*reads_source=*/false, /*writes_target=*/true);
}

Schedule OrderedSteps::Finish(int blocks, int scratch_blocks) {
  schedule_.blocks = blocks;
  schedule_.scratch_blocks = scratch_blocks;
  return std::move(schedule_);
}

OrderedSteps::Location& OrderedSteps::At(Mode mode, Window window, int block) {
  const bool is_one = mode == kInPlace && in_place_ == InPlace::kOneMemory && window == Window::kOutput;
  std::vector<Location>& locations = memory_[mode][static_cast<int>(is_one ? Window::kInput : window)];
  if (block >= static_cast<int>(locations.size())) locations.resize(block + 1);
  return locations[block];
}

void OrderedSteps::Append(Step step, bool reads_source, bool writes_target) {
  const int32_t index = static_cast<int32_t>(schedule_.steps.size());
  std::vector<int32_t> after;
  // Neighbouring blocks mostly have the same past.
  const auto wait_for = [&](int32_t earlier) {
    if (earlier != Step::kNone && earlier != index && (after.empty() || after.back() != earlier)) {
      after.push_back(earlier);
    }
  };
  for (Mode mode : {kOutOfPlace, kInPlace}) {
    const auto each = [&](const Operand& operand, const auto& visit) {
      for (int i = 0; i < operand.blocks; ++i) visit(At(mode, operand.window, operand.block + i));
    };
    // In place, a copy onto itself is no access.
    if (mode == kInPlace && step.kind == Step::Kind::kCopy && step.source.blocks > 0 &&
        &At(mode, step.source.window, step.source.block) == &At(mode, step.target.window, step.target.block)) {
      continue;
    }
    const auto read = [&](Location& location) {
      wait_for(location.writer);
      location.readers.push_back(index);
    };
    if (reads_source) each(step.source, read);
    for (const Operand& term : step.terms) each(term, read);
    if (!writes_target) continue;
    each(step.target, [&](Location& location) {
      for (int32_t reader : location.readers) wait_for(reader);
      wait_for(location.writer);
      location.writer = index;
      location.readers.clear();
    });
  }
  Prune(&after);
  step.after.assign(after.begin(), after.end());
  schedule_.steps.push_back(std::move(step));
}

void OrderedSteps::Prune(std::vector<int32_t>* after) {
  std::sort(after->begin(), after->end());
  after->erase(std::unique(after->begin(), after->end()), after->end());
  if (after->size() < 2) return;
  const int32_t index = static_cast<int32_t>(schedule_.steps.size());
  visited_.resize(index, Step::kNone);
  // Everything that one of them waits for, back to the earliest of them.
  std::vector<int32_t> open(*after);
  while (!open.empty()) {
    const int32_t step = open.back();
    open.pop_back();
    for (int32_t earlier : schedule_.steps[step].after) {
      if (earlier < after->front() || visited_[earlier] == index) continue;
      visited_[earlier] = index;
      open.push_back(earlier);
    }
  }
  after->erase(std::remove_if(after->begin(), after->end(), [&](int32_t step) { return visited_[step] == index; }),
               after->end());
}

}  // namespace lockstep::algorithms
