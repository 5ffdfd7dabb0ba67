#include "reducer/plan/replanner.h"

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/device/host_device.h"
#include "base/log.h"
#include "base/rank.h"

namespace lockstep {
namespace {

// A note has room for so much.
constexpr size_t kPlanTextMax = size_t{64} << 10;
// How soon a fetch sees that it is to stop.
constexpr int kFetchSliceMs = 100;
// Beyond this a rank's buckets are hardly ever full in the order in which they are launched.
constexpr double kMuchDisorder = 0.25;

std::vector<size_t> Joined(const BucketGroups& groups) {
  std::vector<size_t> order;
  for (const std::vector<size_t>& group : groups) order.insert(order.end(), group.begin(), group.end());
  return order;
}

}  // namespace

double Disorder(absl::Span<const size_t> a, absl::Span<const size_t> b) {
  if (a.size() < 2) return 0;
  std::vector<size_t> place(*std::max_element(a.begin(), a.end()) + 1);
  for (size_t i = 0; i < a.size(); ++i) place[a[i]] = i;
  // Of each pair. A plan that can be sent has some 12,000 parameters at most, and is taken once in a while.
  uint64_t swapped = 0;
  for (size_t j = 1; j < b.size(); ++j) {
    for (size_t i = 0; i < j; ++i) swapped += place[b[i]] > place[b[j]];
  }
  const double pairs = static_cast<double>(a.size()) * static_cast<double>(a.size() - 1) / 2;
  return static_cast<double>(swapped) / pairs;
}

Replanner::Replanner(Communicator* communicator, uint64_t first_topic, absl::Span<const Parameter> parameters,
                     const PlanRules* rules)
    : communicator_(communicator), first_topic_(first_topic), parameters_(parameters), rules_(rules) {}

Replanner::~Replanner() {
  stop_.store(true, std::memory_order_relaxed);
  fetching_.reset();
}

void Replanner::Request() {
  if (std::exchange(under_way_, true)) return;
  recording_ = true;
  const uint64_t topic = first_topic_ + plans_++;
  if (communicator_->rank() == Rank(0)) return;
  auto stream = HostDevice()->CreateStream("lockstep-plan");
  absl::Status fetching = stream.status();
  if (stream.ok()) {
    fetching_ = *std::move(stream);
    fetching = fetching_->Enqueue([this, topic] {
      Fetch(topic);
      return absl::OkStatus();
    });
  }
  if (!fetching.ok()) LOCKSTEP_LOG(kWarning) << "no new bucket plan: it cannot be fetched: " << fetching.message();
}

void Replanner::Fetch(uint64_t topic) {
  while (!stop_.load(std::memory_order_relaxed)) {
    const Deadline slice = Deadline::AfterMs(kFetchSliceMs);
    const auto notes = communicator_->AwaitMessages(topic, 1, slice);
    // Before its time it is the communicator's failure, whose code may be this one. Then every call returns immediately.
    if (absl::IsDeadlineExceeded(notes.status()) && slice.passed()) continue;
    if (!notes.ok() || notes->empty()) return;  // the communicator is over
    const std::string& text = notes->front().second;
    absl::StatusOr<BucketGroups> groups = text.empty() ? BucketGroups() : PlanFromText(parameters_, *rules_, text);
    if (!groups.ok()) {
      LOCKSTEP_LOG(kError) << "rank 0's bucket plan is not taken: " << groups.status().message();
      return;
    }
    groups_ = *std::move(groups);
    held_.store(true, std::memory_order_release);
    return;
  }
}

std::vector<size_t> Replanner::Completed(const std::vector<size_t>& order) const {
  std::vector<bool> taken(parameters_.size(), false);
  std::vector<size_t> completed;
  const auto take = [&](size_t index) {
    if (!taken[index]) completed.push_back(index);
    taken[index] = true;
  };
  std::vector<bool> expected(parameters_.size(), false);
  const std::vector<size_t> all = ExpectedOrder(parameters_, *rules_);
  for (const size_t index : all) expected[index] = true;
  for (const size_t index : order) {
    if (expected[index]) take(index);
  }
  for (const size_t index : all) take(index);
  return completed;
}

void Replanner::Record(const std::vector<size_t>& order, const std::function<bool(const BucketPlan&)>& fits) {
  if (!recording_) return;
  recording_ = false;
  own_order_ = Completed(order);
  if (communicator_->rank() != Rank(0)) return;
  BucketGroups groups = GroupByCaps(parameters_, *rules_, own_order_);
  std::string text = PlanToText(parameters_, groups);
  if (text.size() > kPlanTextMax || !fits(LayOut(parameters_, *rules_, groups))) {
    LOCKSTEP_LOG(kInfo) << "buckets stay as they are: a plan in the order of gradients "
                        << (text.size() > kPlanTextMax ? "is too long to be sent" : "needs more memory than there is");
    // Told and agreed on like a plan, so that all ranks take the next request for a new one at the same step.
    text.clear();
    groups.clear();
  }
  communicator_->PostMessage(first_topic_ + plans_ - 1, text);
  groups_ = std::move(groups);
  held_.store(true, std::memory_order_release);
}

void Replanner::WarnOfDisorder() const {
  const std::vector<size_t> planned = Joined(groups_);
  const std::vector<size_t> own = Joined(GroupByCaps(parameters_, *rules_, own_order_));
  const size_t first = std::mismatch(planned.begin(), planned.end(), own.begin()).first - planned.begin();
  LOCKSTEP_LOG(kWarning)
      << "rank " << communicator_->rank().value()
      << " computes its gradients in another order than rank 0, as when ranks take different branches "
      << "of a model: where " << Describe(planned[first], parameters_[planned[first]]) << " comes next on rank 0, "
      << Describe(own[first], parameters_[own[first]]) << " does here, and so on for "
      << static_cast<int>(100 * disorder_)
      << " % of all pairs of parameters. The averages are right all the same. But buckets are filled "
      << "and sent in rank 0's order, so this rank sends late, all ranks wait for it, and little of the "
      << "communication is hidden behind the backward pass. (Said once, whatever other reducers do.)";
}

BucketGroups Replanner::Take() {
  fetching_.reset();
  // Relaxed: the fetching thread has ended, and only this thread touches groups_.
  held_.store(false, std::memory_order_relaxed);
  under_way_ = false;
  // Against what this rank would have planned: buckets of one dtype follow no order to the letter.
  const bool comparable = !groups_.empty() && !own_order_.empty();
  disorder_ = comparable ? Disorder(Joined(groups_), Joined(GroupByCaps(parameters_, *rules_, own_order_))) : 0;
  static std::atomic<bool> warned{false};  // says nothing about other memory
  if (disorder_ > kMuchDisorder && !warned.exchange(true, std::memory_order_relaxed)) WarnOfDisorder();
  return std::exchange(groups_, {});
}

}  // namespace lockstep
