#include "reducer/buffers/buffer_sync.h"

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "comm/schedule/schedule.h"

namespace lockstep {
namespace {

// Of the ranks that have not joined; -1: there is none.
absl::StatusOr<Rank> HighestWithInputs(Communicator& channel, bool joined, std::chrono::milliseconds timeout) {
  const int64_t mine = joined ? -1 : channel.rank().value();
  int64_t highest = -1;
  CollectiveRequest request;
  request.collective = Collective::kAllReduce;
  request.dtype = DType::kI64;
  request.op = ReduceOp::kMax;
  request.count = 1;
  request.input = &mine;
  request.output = &highest;
  request.timeout = timeout;
  LOCKSTEP_RETURN_IF_ERROR(channel.Run(request));
  return Rank(static_cast<int>(highest));
}

// As far as ranks must have the same: whether they come in place is each rank's own affair.
std::string Settings(const BufferOptions& options) {
  return absl::StrCat("root: ", options.root.value(),
                      "; after_forward: ", options.when == BufferOptions::When::kAfterForward ? "yes" : "no",
                      "; hook: ", options.hook ? "given" : "none");
}

}  // namespace

absl::StatusOr<std::unique_ptr<BufferSync>> BufferSync::Create(Communicator* communicator, BufferOptions options,
                                                               absl::Span<const TensorView> buffers) {
  absl::Status local = options.local;
  if (options.root.value() < 0 || options.root.value() >= communicator->size()) {
    local.Update(absl::InvalidArgumentError(
        absl::StrCat("buffers: root ", options.root.value(), " is not a rank of a world of ", communicator->size())));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> channel, communicator->Duplicate());
  std::unique_ptr<BufferSync> sync(new BufferSync(std::move(channel), std::move(options), buffers));
  LOCKSTEP_ASSIGN_OR_RETURN(sync->set_,
                            BufferSet::Create(sync->channel_.get(), local, buffers, Settings(sync->options_)));
  return sync;
}

absl::StatusOr<FreshBuffers> BufferSync::Run(absl::Span<const TensorView> buffers, bool joined,
                                             std::chrono::milliseconds timeout) {
  if (!joined) due_ = false;
  if (options_.hook) {
    LOCKSTEP_RETURN_IF_ERROR(Annotate(options_.hook(channel(), buffers), "the buffer hook"));
    return FreshBuffers();
  }
  BufferSet& set = part_ == nullptr ? *set_ : *part_set_;
  Rank root = options_.root;
  if (options_.highest_with_inputs) {
    LOCKSTEP_ASSIGN_OR_RETURN(root, HighestWithInputs(channel(), joined, timeout));
    if (root.value() < 0) return FreshBuffers();
  }
  if (!options_.in_place && options_.when == BufferOptions::When::kBeforeForward) {
    return set.Broadcast(absl::OkStatus(), buffers, root, timeout);
  }
  LOCKSTEP_RETURN_IF_ERROR(set.BroadcastInPlace(absl::OkStatus(), buffers, root, timeout));
  return FreshBuffers();
}

absl::Status BufferSync::Regroup(int ranks_joined, bool joined) {
  const bool grown = ranks_joined > ranks_joined_ && ranks_joined < channel_->size();
  ranks_joined_ = ranks_joined;
  if (!grown || !takes_part_) return absl::OkStatus();
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> part,
                            channel().Split(joined ? -1 : 0, channel().rank().value()));
  takes_part_ = !joined;
  part_set_.reset();
  part_ = std::move(part);
  if (joined) return absl::OkStatus();
  LOCKSTEP_ASSIGN_OR_RETURN(part_set_, BufferSet::Create(part_.get(), absl::OkStatus(), like_));
  return absl::OkStatus();
}

void BufferSync::Restart() {
  part_set_.reset();
  part_.reset();
  takes_part_ = true;
  ranks_joined_ = 0;
}

}  // namespace lockstep
