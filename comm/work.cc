#include "comm/work.h"

namespace lockstep {

absl::Status Work::Wait(Deadline deadline) {
  if (!done()) {
    if (absl::Status status = state_->Await(deadline); !status.ok()) return status;
  }
  if (!done()) {
    return absl::DeadlineExceededError("the collective is not done yet; it goes on, and its buffers stay borrowed");
  }
  return state_->status();
}

}  // namespace lockstep
