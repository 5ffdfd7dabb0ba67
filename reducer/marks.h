// Marks: which parameters are ready in a backward, and which of them never will be. Pure bookkeeping, without memory or threads.
//
// In a backward a parameter is
//   expected   a gradient will come
//   unused     the embedder said so when the backward began, or (find_unused) it did not come by the end
//   ready      all its marks came
//   missing    by the end, none of those
//
// Static graph: the first backward counts the marks of each parameter, and nothing is ready before its end. Later ones expect as
// many: a parameter is ready at its last mark, and one with another count is a changed graph.
//
// A window goes from one synchronised backward's end to the next: in it gradients accumulate, and a parameter that was used in any of
// its backwards is used.

#ifndef REDUCER_MARKS_H_
#define REDUCER_MARKS_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "reducer/parameter.h"

namespace lockstep {

// Externally synchronised.
class Marks {
 public:
  struct Rules {
    bool find_unused = false;
    bool static_graph = false;
  };

  // `parameters` outlive this. `delayed` ones are not expected, and may be marked more than once.
  Marks(absl::Span<const Parameter> parameters, absl::Span<const size_t> delayed, const Rules& rules);

  // INVALID_ARGUMENT for an unused parameter out of range; FAILED_PRECONDITION where the rules have no unused parameters, or know
  // them already. Nothing changed then. `unused`: all that will not come, or nullopt where that is not known.
  absl::Status Begin(absl::optional<absl::Span<const size_t>> unused);

  // What a mark does.
  enum class Effect {
    kReady,  // the gradient is final
    kWaits,  // it is kept until more marks have come, the end, or (a delayed one) the trigger
  };

  // Of a parameter in range and not ignored. FAILED_PRECONDITION, naming it and what
  // may be the matter, when it was marked before, is unused, or shows that a static graph is none; in the latter cases the end
  // complains as well.
  absl::StatusOr<Effect> Mark(size_t index);

  // What the end of a backward finds out.
  struct Rest {
    std::vector<size_t> ready;    // where nothing was ready before
    std::vector<size_t> unused;   // which nobody had said to be
    std::vector<size_t> missing;  // what should have come
    std::string complaint;        // what is wrong with this backward, or ""
  };
  Rest End();

  // Whether marks are being counted, so that nothing is ready before the end.
  bool counting() const { return rules_.static_graph && !counted_; }
  // Those known to be, as a backward has begun.
  std::vector<size_t> unused() const;

  bool used_in_window(size_t index) const { return window_[index]; }
  // A delayed parameter has a window of its own, which ends when its gradient is taken.
  void TakeDelayed(size_t index) { window_[index] = false; }
  void EndWindow();

  // In the order in which they became ready in this backward.
  const std::vector<size_t>& order() const { return order_; }
  // Whether the same parameters were used in every backward so far, at least two: a static graph would do.
  bool can_be_static() const { return backwards_ > 1 && !varied_; }

 private:
  enum class State { kIgnored, kDelayed, kExpected, kUnused, kReady };

  static constexpr size_t kNamed = 20;  // in a complaint

  std::string Named(size_t index) const;
  absl::Status Complain(const std::string& complaint);
  void AddMissing(absl::Span<const size_t> missing);

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
  std::vector<std::string> complaints_;
  bool unused_are_known_ = false;

  // Of all so far.
  std::vector<bool> used_before_;
  bool varied_ = false;
  int backwards_ = 0;
};

}  // namespace lockstep

#endif  // REDUCER_MARKS_H_
