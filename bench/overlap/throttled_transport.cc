#include "bench/overlap/throttled_transport.h"

#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "transport/link/message_header.h"

namespace lockstep {

absl::StatusOr<std::unique_ptr<ThrottledTransport>> ThrottledTransport::Create(std::unique_ptr<PollableTransport> inner,
                                                                               double bytes_per_second) {
  if (!(bytes_per_second > 0)) {
    return absl::InvalidArgumentError(absl::StrCat("a link of ", bytes_per_second, " bytes a second"));
  }
  UniqueFd timer(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (timer.get() < 0) return ErrnoStatus(errno, "timerfd_create");
  return std::unique_ptr<ThrottledTransport>(
      new ThrottledTransport(std::move(inner), bytes_per_second, std::move(timer)));
}

ThrottledTransport::ThrottledTransport(std::unique_ptr<PollableTransport> inner, double bytes_per_second,
                                       UniqueFd timer)
    : inner_(std::move(inner)), bytes_per_second_(bytes_per_second), timer_(std::move(timer)) {
  inner_->AppendDescriptors(&descriptors_);
  descriptors_.push_back({timer_.get(), POLLIN, 0});
}

ThrottledTransport::~ThrottledTransport() { (void)Close(Deadline::Now()); }

void ThrottledTransport::Send(Rank target, ChannelId channel, const Envelope& envelope, const void* data, size_t bytes,
                              Operation* operation) {
  const bool peer = target.value() >= 0 && target.value() < size() && target != rank();
  if (!peer || aborted_ || aborted_channels_.contains(channel) || broken_.contains({target.value(), channel})) {
    // It fails at once.
    return inner_->Send(target, channel, envelope, data, bytes, operation);
  }
  const std::chrono::duration<double> carried((bytes + kMessageHeaderBytes) / bytes_per_second_);
  free_at_ =
      std::max(free_at_, Deadline::Clock::now()) + std::chrono::duration_cast<Deadline::Clock::duration>(carried);
  held_.push_back({target, channel, envelope, data, bytes, operation, free_at_});
  if (held_.size() == 1) ArmTimer();
}

void ThrottledTransport::LetGo(const Held& message) {
  Sent& sent = sent_.emplace_back();
  sent.operation.complete = &OnSent;
  sent.transport = this;
  sent.way = {message.target.value(), message.channel};
  sent.callers = message.operation;
  sent.self = std::prev(sent_.end());
  inner_->Send(message.target, message.channel, message.envelope, message.data, message.bytes, &sent.operation);
}

void ThrottledTransport::OnSent(Operation* operation, const absl::Status& status) {
  Sent* const sent = reinterpret_cast<Sent*>(operation);
  ThrottledTransport* const transport = sent->transport;
  Operation* const callers = sent->callers;
  if (!status.ok()) transport->broken_.insert(sent->way);
  transport->sent_.erase(sent->self);
  callers->complete(callers, status);
}

void ThrottledTransport::ArmTimer() {
  itimerspec setting = {};  // all zero: never
  if (!held_.empty()) {
    const auto since_boot = held_.front().due.time_since_epoch();
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since_boot);
    setting.it_value.tv_sec = seconds.count();
    setting.it_value.tv_nsec = std::chrono::nanoseconds(since_boot - seconds).count();
  }
  const int set = timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &setting, nullptr);
  LOCKSTEP_CHECK(set == 0) << "timerfd_settime: errno " << errno;
}

bool ThrottledTransport::Progress() {
  bool moved = false;
  if (!held_.empty() && held_.front().due <= Deadline::Clock::now()) {
    while (!held_.empty() && held_.front().due <= Deadline::Clock::now()) {
      // Its completion may post others.
      const Held due = held_.front();
      held_.pop_front();
      LetGo(due);
    }
    ArmTimer();
    moved = true;
  }
  return inner_->Progress() || moved;
}

void ThrottledTransport::WaitForEvent(Deadline deadline) {
  bool event = false;
  if (inner_->BeginWait()) {
    std::vector<pollfd> descriptors = descriptors_;
    (void)poll(descriptors.data(), descriptors.size(), deadline.remaining_ms());
    event = std::any_of(descriptors.begin(), descriptors.end() - 1, [](const pollfd& one) { return one.revents != 0; });
  }
  inner_->EndWait(event);
}

void ThrottledTransport::Complete(const std::vector<Operation*>& operations, const absl::Status& status) {
  for (Operation* const operation : operations) operation->complete(operation, status);
}

void ThrottledTransport::AbortChannel(ChannelId channel, const absl::Status& status) {
  aborted_channels_.insert(channel);
  std::vector<Operation*> dropped;
  std::deque<Held> kept;
  for (const Held& held : held_) {
    if (held.channel == channel) {
      dropped.push_back(held.operation);
    } else {
      kept.push_back(held);
    }
  }
  held_.swap(kept);
  ArmTimer();
  inner_->AbortChannel(channel, status);
  Complete(dropped, status);
}

void ThrottledTransport::Abort(const absl::Status& status) {
  aborted_ = true;
  std::vector<Operation*> dropped;
  for (const Held& held : held_) dropped.push_back(held.operation);
  held_.clear();
  ArmTimer();
  inner_->Abort(status);
  Complete(dropped, status);
}

absl::Status ThrottledTransport::Close(Deadline deadline) {
  while (!held_.empty() && !deadline.passed()) {
    if (!Progress()) WaitForEvent(deadline);
  }
  if (held_.empty()) {
    aborted_ = true;
    return inner_->Close(deadline);
  }
  Abort(absl::CancelledError("throttled transport: closed"));
  inner_->Close(deadline).IgnoreError();
  return absl::DeadlineExceededError("throttled transport: closed before every send was under way");
}

}  // namespace lockstep
