#include "reducer/kept_gradients.h"

#include <memory>

#include "base/deadline.h"
#include "base/status.h"

namespace lockstep {

absl::StatusOr<KeptGradients> KeptGradients::Take(Device* device, absl::Span<const Parameter> parameters,
                                                  const ViewAt& view_at) {
  KeptGradients kept;
  size_t bytes = 0;
  for (size_t index = 0; index < parameters.size(); ++index) {
    if (parameters[index].ignored || parameters[index].sparse) continue;
    kept.gradients_.push_back({index, view_at(index), bytes});
    bytes += parameters[index].bytes();
  }
  LOCKSTEP_ASSIGN_OR_RETURN(kept.bytes_, DeviceMemory::Allocate(device, bytes));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device->CreateStream("lockstep-keep"));
  for (const Gradient& gradient : kept.gradients_) {
    LOCKSTEP_RETURN_IF_ERROR(
        stream->Copy(kept.bytes_.data() + gradient.at, gradient.view, parameters[gradient.index].bytes()));
  }
  LOCKSTEP_RETURN_IF_ERROR(stream->Synchronize(Deadline::Infinite()));
  return kept;
}

absl::Status KeptGradients::PutBack(Device* device, absl::Span<const Parameter> parameters,
                                    const ViewAt& view_at) const {
  if (gradients_.empty()) return absl::OkStatus();
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device->CreateStream("lockstep-keep"));
  for (const Gradient& gradient : gradients_) {
    LOCKSTEP_RETURN_IF_ERROR(
        stream->Copy(view_at(gradient.index), bytes_.data() + gradient.at, parameters[gradient.index].bytes()));
  }
  return stream->Synchronize(Deadline::Infinite());
}

}  // namespace lockstep
