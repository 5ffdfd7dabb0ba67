// ReadySet: which parameters are ready in a backward, and which never will be. Pure bookkeeping, without memory or threads.
//
// In a backward a parameter is
//   expected   a gradient will come
//   unused     the embedder said so when the backward began or later, or (find_unused) it did not come by the end
//   ready      all its marks came
//   missing    by the end, none of those
//
// A refused mark counts as none, and is on record until a mark of the same parameter is accepted. If one is still on record at the end, the
// backward is incomplete: the embedder had a gradient that is not in the average.
//
// Static graph: the first backward counts the marks of each parameter, and nothing is ready before its end. Later backwards expect as many:
// a parameter is ready at its last mark. Another count means that the graph changed.
//
// A window lasts from the end of one synchronised backward to the end of the next. Gradients accumulate in it, and a parameter that was
// used in any of its backwards is used.

#ifndef REDUCER_READY_SET_H_
#define REDUCER_READY_SET_H_

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "reducer/plan/parameter.h"

namespace lockstep {

// Externally synchronised.
class ReadySet {
 public:
  struct Rules {
    bool find_unused = false;
    bool static_graph = false;
  };

  // `parameters` outlive this. `delayed` parameters are not expected, and may be marked more than once.
  ReadySet(absl::Span<const Parameter> parameters, absl::Span<const size_t> delayed, const Rules& rules);

  // A backward begins. `unused`: the parameters that will not be marked; nullopt if that is not known.
  // ERRORS  INVALID_ARGUMENT     an index out of range
  //         FAILED_PRECONDITION  the rules have no unused parameters, or know them already
  //         Nothing was changed.
  absl::Status Begin(absl::optional<absl::Span<const size_t>> unused);

  // What a mark does.
  enum class Effect {
    kReady,  // the gradient is final
    kWaits,  // it is kept until more marks have come, the end, or (a delayed one) the trigger
  };

  // REQUIRES  the parameter is in range and not ignored
  // ERRORS    FAILED_PRECONDITION  it was marked before, is unused, or does not fit the static graph. No later mark of it can be
  //                                accepted in this backward.
  absl::StatusOr<Effect> Mark(size_t index);
  bool takes_marks(size_t index) const {
    return states_[index] == State::kExpected || states_[index] == State::kDelayed;
  }
  // No gradient of the parameter comes in this backward, though it was not named as unused.
  // ERRORS  FAILED_PRECONDITION  the rules have no unused parameters; it was marked before, or a mark was refused
  absl::Status MarkUnused(size_t index);
  // A mark of the parameter was refused elsewhere, with that error.
  void Refuse(size_t index, const absl::Status& error) { refused_.emplace(index, error.message()); }

  // What is known at the end of a backward.
  struct Rest {
    std::vector<size_t> ready;           // those that were not ready before
    std::vector<size_t> unused;          // and not named when the backward began
    std::vector<size_t> missing;         // parameters whose gradient did not come, or was refused
    std::string complaint;               // what is wrong with this backward, or ""
    absl::optional<size_t> first_wrong;  // the parameter that the complaint names first
  };
  // `accumulates`: a backward without sync. A gradient that is missing in it may have come before, or may yet come, unless the graph is
  // static.
  // `cut_short`: marks may be missing. Then nothing is found unused, and what is being counted is missing and counted again.
  Rest End(bool accumulates = false, bool cut_short = false);

  // Whether marks are being counted, so that nothing is ready before the end.
  bool counting() const { return rules_.static_graph && !counted_; }
  bool is_unused(size_t index) const { return states_[index] == State::kUnused; }
  bool is_ready(size_t index) const { return states_[index] == State::kReady; }
  // The parameters known to be unused when a backward has begun.
  std::vector<size_t> unused() const;

  bool used_in_window(size_t index) const { return window_[index]; }
  // A delayed parameter has a window of its own, which ends when its gradient is taken.
  void TakeDelayed(size_t index) { window_[index] = false; }
  void EndWindow();

  // In the order in which they became ready in this backward.
  const std::vector<size_t>& order() const { return order_; }
  // Whether a static graph would do: the same parameters were used in every backward so far, at least two.
  bool can_be_static() const { return backwards_ > 1 && !varied_; }

 private:
  enum class State { kIgnored, kDelayed, kExpected, kUnused, kReady };

  static constexpr size_t kNamed = 20;  // in a complaint

  std::string Named(size_t index) const { return Describe(index, parameters_[index]); }
  absl::Status Refused(size_t index, const std::string& why);
  std::string Complaint(absl::Span<const size_t> missing) const;
  std::string NoGradientCame(absl::Span<const size_t> missing) const;

  const absl::Span<const Parameter> parameters_;
  const Rules rules_;
  std::vector<State> initial_;
  std::vector<bool> window_;
  bool counted_ = false;
  std::vector<int> counts_;  // of a static graph

  // Of this backward.
  std::vector<State> states_;
  std::vector<int> marks_;
  std::vector<size_t> order_;
  std::map<size_t, std::string> refused_;  // by parameter, the first error since a mark of it was accepted
  bool unused_are_known_ = false;

  // Of all so far.
  std::vector<bool> used_before_;
  bool varied_ = false;
  int backwards_ = 0;
};

}  // namespace lockstep

#endif  // REDUCER_READY_SET_H_
