#include "transport/composite.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lockstep {
namespace {

// How often the first transport is asked for once that the others are.
constexpr int kProgressOfFirst = 8;

}  // namespace

absl::StatusOr<std::unique_ptr<CompositeTransport>> CompositeTransport::Create(
    std::vector<std::unique_ptr<PollableTransport>> transports, std::vector<int> routes) {
  const auto invalid = [](auto... what) {
    return absl::InvalidArgumentError(absl::StrCat("composite transport: ", what...));
  };
  if (transports.empty()) return invalid("of no transports");
  const int size = transports.front()->size();
  const Rank rank = transports.front()->rank();
  for (const auto& transport : transports) {
    if (transport->size() != size || transport->rank() != rank) {
      return invalid(transport->name(), " is of rank ", transport->rank().value(), " of ", transport->size(), ", ",
                     transports.front()->name(), " of rank ", rank.value(), " of ", size);
    }
  }
  if (routes.size() != size) return invalid(routes.size(), " routes for a world of ", size, " ranks");
  routes[rank.value()] = 0;
  for (int peer = 0; peer < size; ++peer) {
    if (routes[peer] < 0 || routes[peer] >= transports.size()) {
      return invalid("the route to rank ", peer, " is ", routes[peer], " of ", transports.size());
    }
  }
  return std::unique_ptr<CompositeTransport>(new CompositeTransport(std::move(transports), std::move(routes)));
}

CompositeTransport::CompositeTransport(std::vector<std::unique_ptr<PollableTransport>> transports,
                                       std::vector<int> routes)
    : transports_(std::move(transports)), routes_(std::move(routes)) {
  for (const auto& transport : transports_) {
    absl::StrAppend(&name_, name_.empty() ? "" : "+", transport->name());
    transport->AppendDescriptors(&descriptors_);
    descriptors_end_.push_back(descriptors_.size());
  }
}

bool CompositeTransport::Progress() {
  bool moved = transports_.front()->Progress();
  if (++progress_of_first_alone_ < kProgressOfFirst && !event_seen_.load(std::memory_order_relaxed)) return moved;
  progress_of_first_alone_ = 0;
  event_seen_.store(false, std::memory_order_relaxed);
  for (size_t i = 1; i < transports_.size(); ++i) moved |= transports_[i]->Progress();
  return moved;
}

void CompositeTransport::WaitForEvent(Deadline deadline) {
  // Any number of threads may wait, each with a copy of its own.
  std::vector<pollfd> descriptors = descriptors_;
  size_t begun = 0;
  bool sleep = true;
  while (sleep && begun < transports_.size()) sleep = transports_[begun++]->BeginWait();
  // Once all have begun, whatever happens to any of them is seen here.
  if (sleep) {
    (void)poll(descriptors.data(), descriptors.size(), deadline.remaining_ms());
    event_seen_.store(true, std::memory_order_relaxed);
  }
  for (size_t i = 0; i < begun; ++i) {
    const auto first = descriptors.begin() + static_cast<std::ptrdiff_t>(i == 0 ? 0 : descriptors_end_[i - 1]);
    const auto end = descriptors.begin() + static_cast<std::ptrdiff_t>(descriptors_end_[i]);
    transports_[i]->EndWait(sleep && std::any_of(first, end, [](const pollfd& one) { return one.revents != 0; }));
  }
}

void CompositeTransport::AbortChannel(ChannelId channel, const absl::Status& status) {
  for (const auto& transport : transports_) transport->AbortChannel(channel, status);
}

void CompositeTransport::Abort(const absl::Status& status) {
  for (const auto& transport : transports_) transport->Abort(status);
}

absl::Status CompositeTransport::Close(Deadline deadline) {
  // Together, not one after the other: a peer may read from one only after it got something from another.
  const auto pending = [](const auto& transport) { return transport->sends_pending(); };
  while (std::any_of(transports_.begin(), transports_.end(), pending) && !deadline.passed()) {
    if (!Progress()) WaitForEvent(deadline);
  }
  absl::Status status;
  for (const auto& transport : transports_) status.Update(transport->Close(Deadline::Now()));
  return status;
}

}  // namespace lockstep
