#include "comm/communicator.h"

#include <utility>

namespace lockstep {

absl::Status Communicator::Enqueue(const CollectiveRequest& request, Stream* stream,
                                   absl::AnyInvocable<void(const absl::Status&)> done) {
  return stream->Enqueue([this, request, done = std::move(done)]() mutable {
    done(Run(request));
    return absl::OkStatus();
  });
}

}  // namespace lockstep
