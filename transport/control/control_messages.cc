#include "transport/control/control_messages.h"

#include <algorithm>
#include <chrono>

#include "base/rank.h"

namespace lockstep {
namespace control {
namespace {

constexpr size_t kTopicsMax = 64;
constexpr size_t kWaitsPerRankMax = 64;
constexpr size_t kTopicBytesMax = size_t{2} << 20;
constexpr size_t kShortPostedBytes = 64;
constexpr size_t kBarriersMax = 1024;

PostedMessages Compose(const std::set<int>& entered, uint64_t request) {
  PostedMessages messages;
  messages.request = request;
  for (const int rank : entered) messages.messages.emplace_back(Rank(rank), "");
  return messages;
}

}  // namespace

std::vector<Answer> MessageBoard::Post(int rank, const PostMessage& post) {
  const Key key = {post.channel, post.topic};
  const auto [found, added] = topics_.try_emplace(key);
  if (added) {
    age_.push_back(key);
    if (age_.size() > kTopicsMax) {
      topics_.erase(age_.front());
      age_.pop_front();
    }
  }
  Topic& topic = found->second;
  std::string& text = topic.texts[rank];
  topic.bytes -= text.size();
  text = post.text.substr(0, topic.bytes + post.text.size() > kTopicBytesMax ? kShortPostedBytes : kPostedBytesMax);
  topic.bytes += text.size();

  std::vector<Answer> answers;
  const auto over = [&](const Wait& wait) {
    if (wait.await.channel != post.channel || wait.await.topic != post.topic || topic.texts.size() < wait.await.count) {
      return false;
    }
    answers.push_back({wait.rank, Compose(topic, wait.await.request)});
    return true;
  };
  waits_.erase(std::remove_if(waits_.begin(), waits_.end(), over), waits_.end());
  return answers;
}

absl::optional<PostedMessages> MessageBoard::Await(int rank, const AwaitMessages& await) {
  const auto found = topics_.find({await.channel, await.topic});
  if (await.count == 0 && found == topics_.end()) return Compose(Topic(), await.request);
  if (found != topics_.end() && found->second.texts.size() >= await.count) {
    return Compose(found->second, await.request);
  }
  const auto ours = [rank](const Wait& wait) { return wait.rank == rank; };
  if (std::count_if(waits_.begin(), waits_.end(), ours) < kWaitsPerRankMax) waits_.push_back({rank, await});
  return absl::nullopt;
}

void MessageBoard::Drop(int rank, uint64_t request) {
  const auto dropped = [=](const Wait& wait) { return wait.rank == rank && wait.await.request == request; };
  waits_.erase(std::remove_if(waits_.begin(), waits_.end(), dropped), waits_.end());
}

void MessageBoard::Forget(int rank) {
  const auto ours = [rank](const Wait& wait) { return wait.rank == rank; };
  waits_.erase(std::remove_if(waits_.begin(), waits_.end(), ours), waits_.end());
}

PostedMessages MessageBoard::Compose(const Topic& topic, uint64_t request) {
  PostedMessages messages;
  messages.request = request;
  for (const auto& [rank, text] : topic.texts) messages.messages.emplace_back(Rank(rank), text);
  return messages;
}

std::vector<Answer> Barriers::Enter(int rank, const EnterBarrier& enter, TimePoint now) {
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

std::vector<Answer> Barriers::Expire(TimePoint now) {
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

std::vector<Answer> Barriers::End(Barrier* barrier) {
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
