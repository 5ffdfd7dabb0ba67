// BufferSync: broadcasts a model's buffers once per synchronised step, on a channel of its own.
//
// With uneven inputs, ranks that have joined leave it. A rank still takes part in the step in which it joins, since the others learn that
// at the end of the step; then the ranks with inputs form a subgroup. The root is the highest rank that has inputs, as in DDP: a small
// all-reduce before each broadcast finds it.

#ifndef REDUCER_BUFFERS_BUFFER_SYNC_H_
#define REDUCER_BUFFERS_BUFFER_SYNC_H_

#include <chrono>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/device/tensor_view.h"
#include "base/rank.h"
#include "comm/communicator.h"
#include "reducer/buffers/buffers.h"

namespace lockstep {

// Instead of a broadcast. Every rank that takes part calls it with its own buffers, in place, and the channel's communicator.
using BufferHook = std::function<absl::Status(Communicator& channel, absl::Span<const TensorView> buffers)>;

struct BufferOptions {
  enum class When { kBeforeForward, kAfterForward };

  Rank root{0};
  bool highest_with_inputs = false;  // the root is the highest rank with inputs instead
  // If false, buffers arrive in fresh memory, so nothing is overwritten that a later backward pass still reads. After
  // the forward pass, and with a hook, it is always in place.
  bool in_place = false;
  When when = When::kBeforeForward;
  BufferHook hook;
  absl::Status local;  // why this rank cannot take part, which Create then tells the others, or OK
};

// Used by one thread at a time.
class BufferSync {
 public:
  // Collective. The communicator outlives the result. ERRORS  those of BufferSet::Create, and of a split
  static absl::StatusOr<std::unique_ptr<BufferSync>> Create(Communicator* communicator, BufferOptions options,
                                                            absl::Span<const TensorView> buffers);

  const BufferOptions& options() const { return options_; }

  // Collective among the ranks that take part; `joined` if this rank has no inputs. RETURNS no views if it is in place,
  // or if all ranks have joined at once. timeout 0: the communicator's.
  absl::StatusOr<FreshBuffers> Run(absl::Span<const TensorView> buffers, bool joined,
                                   std::chrono::milliseconds timeout = std::chrono::milliseconds(0));

  // Whether a Run is due: at first, and from the end of a synchronised step to the next Run of a rank with inputs.
  bool due() const { return due_; }
  void StepEnded() { due_ = true; }
  // A step is over in which `ranks_joined` ranks had no inputs; `joined` if this is one of them. If there are more than
  // before, but not all ranks, they take part no longer; that is collective.
  absl::Status Regroup(int ranks_joined, bool joined);
  // From now on all ranks take part again.
  void Restart();

 private:
  BufferSync(std::unique_ptr<Communicator> channel, BufferOptions options, absl::Span<const TensorView> buffers)
      : channel_(std::move(channel)), options_(std::move(options)), like_(buffers.begin(), buffers.end()) {}

  // The communicator of the ranks that take part now.
  Communicator& channel() { return part_ == nullptr ? *channel_ : *part_; }

  const std::unique_ptr<Communicator> channel_;
  const BufferOptions options_;
  const std::vector<TensorView> like_;  // only dtypes and geometry are looked at
  std::unique_ptr<BufferSet> set_;
  std::unique_ptr<Communicator> part_;  // null: all ranks
  std::unique_ptr<BufferSet> part_set_;
  bool takes_part_ = true;
  int ranks_joined_ = 0;  // as of the last step
  bool due_ = true;
};

}  // namespace lockstep

#endif  // REDUCER_BUFFERS_BUFFER_SYNC_H_
