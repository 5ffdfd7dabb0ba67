#include "tests/noting_communicator.h"

#include "absl/strings/str_cat.h"

namespace lockstep {
namespace testing {

void MemoryMessageBoard::Post(Rank rank, uint64_t topic, const std::string& text) {
  MutexLock lock(&mu_);
  topics_[topic][rank.value()] = text;
  posted_.SignalAll();
}

absl::StatusOr<std::vector<std::pair<Rank, std::string>>> MemoryMessageBoard::Await(uint64_t topic, int count,
                                                                                    Deadline deadline) {
  MutexLock lock(&mu_);
  const std::map<int, std::string>& texts = topics_[topic];
  while (static_cast<int>(texts.size()) < count) {
    if (!posted_.WaitUntil(&mu_, deadline)) {
      return absl::DeadlineExceededError(absl::StrCat("there are ", texts.size(), " messages, not ", count));
    }
  }
  std::vector<std::pair<Rank, std::string>> notes;
  for (const auto& [rank, text] : texts) notes.emplace_back(Rank(rank), text);
  return notes;
}

}  // namespace testing
}  // namespace lockstep
