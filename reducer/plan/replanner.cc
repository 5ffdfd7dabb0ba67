#include "reducer/plan/replanner.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>

#include "absl/status/status.h"
#include "base/deadline.h"
#include "base/log.h"
#include "base/rank.h"
#include "base/status.h"

namespace lockstep {
namespace {

// A note has room for so much.
constexpr size_t kPlanTextMax = size_t{64} << 10;
constexpr std::chrono::seconds kPlanTimeout{30};
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
  const BucketGroups groups = GroupByCaps(parameters_, *rules_, Completed(order));
  // A rank that has had no inputs yet has no order.
  own_order_ = order.empty() ? order : Joined(groups);
  const uint64_t topic = first_topic_ + plans_;
  if (communicator_->rank() == Rank(0)) {
    std::string text = PlanToText(parameters_, groups);
    if (text.size() > kPlanTextMax || !fits(LayOut(parameters_, *rules_, groups))) {
      LOCKSTEP_LOG(kInfo) << "buckets stay as they are: a plan in the order of gradients "
                          << (text.size() > kPlanTextMax ? "is too long to be sent"
                                                         : "needs more memory than there is");
      text.clear();  // posted like a plan, so that all ranks take the next request for a new one
    }
    communicator_->PostMessage(topic, text);
  }
  // Asks for the plan now, so that the answer is here when Take needs it.
  (void)communicator_->AwaitMessages(topic, 1, Deadline::Now());
}

void Replanner::WarnOfDisorder(const BucketGroups& groups) const {
  const std::vector<size_t> planned = Joined(groups);
  const size_t first = std::mismatch(planned.begin(), planned.end(), own_order_.begin()).first - planned.begin();
  LOCKSTEP_LOG(kWarning)
      << "rank " << communicator_->rank().value()
      << " computes its gradients in another order than rank 0, as when ranks take different branches "
      << "of a model: where " << Describe(planned[first], parameters_[planned[first]]) << " comes next on rank 0, "
      << Describe(own_order_[first], parameters_[own_order_[first]]) << " does here, and so on for "
      << static_cast<int>(100 * disorder_)
      << " % of all pairs of parameters. The averages are right all the same. But buckets are filled "
      << "and sent in rank 0's order, so this rank sends late, all ranks wait for it, and little of the "
      << "communication is hidden behind the backward pass. (Said once, whatever other reducers do.)";
}

absl::StatusOr<BucketGroups> Replanner::Take() {
  const auto messages = communicator_->AwaitMessages(first_topic_ + plans_, 1, Deadline::After(kPlanTimeout));
  std::string text;
  if (!absl::IsUnimplemented(messages.status())) {
    LOCKSTEP_RETURN_IF_ERROR(Annotate(messages.status(), "rank 0's bucket plan"));
    text = messages->front().second;
  }
  BucketGroups groups;
  if (!text.empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(groups, PlanFromText(parameters_, *rules_, text));
  }
  ++plans_;
  requested_ = false;
  // Against what this rank would have planned: buckets of one dtype follow no order to the letter.
  disorder_ = groups.empty() || own_order_.empty() ? 0 : Disorder(Joined(groups), own_order_);
  static std::atomic<bool> warned{false};  // says nothing about other memory
  if (disorder_ > kMuchDisorder && !warned.exchange(true, std::memory_order_relaxed)) WarnOfDisorder(groups);
  return groups;
}

}  // namespace lockstep
