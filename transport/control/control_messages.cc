#include "transport/control/control_messages.h"

#include <algorithm>

namespace lockstep {
namespace control {
namespace {

constexpr size_t kTopicsMax = 64;
constexpr size_t kWaitsPerRankMax = 64;
constexpr size_t kTopicBytesMax = size_t{2} << 20;
constexpr size_t kShortPostedBytes = 64;

}  // namespace

std::vector<MessageBoard::Answer> MessageBoard::Post(int rank, const PostMessage& post) {
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

}  // namespace control
}  // namespace lockstep
