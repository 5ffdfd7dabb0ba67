#include "transport/control/control_barriers.h"

#include <algorithm>
#include <chrono>

#include "base/rank.h"

namespace lockstep {
namespace control {
namespace {

constexpr size_t kBarriersMax = 1024;

PostedMessages Compose(const std::set<int>& entered, uint64_t request) {
  PostedMessages messages;
  messages.request = request;
  for (const int rank : entered) messages.messages.emplace_back(Rank(rank), "");
  return messages;
}

}  // namespace

std::vector<Barriers::Answer> Barriers::Enter(int rank, const EnterBarrier& enter, TimePoint now) {
  const Key key = {enter.channel, enter.sequence};
  const auto [found, added] = barriers_.try_emplace(key);
  Barrier& barrier = found->second;
  if (added) {
    barrier.count = enter.count;
    age_.push_back(key);
    if (age_.size() > kBarriersMax) Remove(age_.front());
  }
  std::vector<Answer> answers;
  if (barrier.over) {
    answers.push_back({rank, Compose(barrier.entered, enter.request)});
    barrier.late.insert(rank);
  } else {
    barrier.entered.insert(rank);
    barrier.waiting[rank] = enter.request;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(TimePoint::max() - now).count();
    if (enter.timeout_ms < static_cast<uint64_t>(left)) {
      barrier.due = std::min(barrier.due, now + std::chrono::milliseconds(enter.timeout_ms));
    }
    if (barrier.entered.size() >= barrier.count) answers = End(&barrier);
  }
  // Nobody can come any more.
  if (barrier.entered.size() + barrier.late.size() >= barrier.count) Remove(key);
  return answers;
}

std::vector<Barriers::Answer> Barriers::Expire(TimePoint now) {
  std::vector<Answer> answers;
  for (auto& [key, barrier] : barriers_) {
    if (barrier.over || now < barrier.due) continue;
    const std::vector<Answer> of_one = End(&barrier);
    answers.insert(answers.end(), of_one.begin(), of_one.end());
  }
  return answers;
}

Barriers::TimePoint Barriers::next_event() const {
  TimePoint next = TimePoint::max();
  for (const auto& [key, barrier] : barriers_) {
    if (!barrier.over) next = std::min(next, barrier.due);
  }
  return next;
}

void Barriers::Forget(int rank) {
  for (auto& [key, barrier] : barriers_) barrier.waiting.erase(rank);
}

std::vector<Barriers::Answer> Barriers::End(Barrier* barrier) {
  std::vector<Answer> answers;
  for (const auto& [rank, request] : barrier->waiting) answers.push_back({rank, Compose(barrier->entered, request)});
  barrier->waiting.clear();
  barrier->over = true;
  return answers;
}

void Barriers::Remove(const Key& key) {
  const Key removed = key;  // which may be one of those that go
  barriers_.erase(removed);
  age_.erase(std::find(age_.begin(), age_.end(), removed));
}

}  // namespace control
}  // namespace lockstep
