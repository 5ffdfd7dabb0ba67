// KeptGradients: copies gradients that live in buckets out before the buckets move, and back to their new places.

#ifndef REDUCER_KEPT_GRADIENTS_H_
#define REDUCER_KEPT_GRADIENTS_H_

#include <cstddef>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/device/device.h"
#include "base/device/device_memory.h"
#include "reducer/plan/parameter.h"

namespace lockstep {

class KeptGradients {
 public:
  struct Gradient {
    size_t index = 0;
    const void* view = nullptr;  // where it lived
    size_t at = 0;               // in the memory of all
  };
  // By parameter: where it lives now.
  using ViewAt = std::function<char*(size_t index)>;

  KeptGradients() = default;  // none

  // Copies them out of the device's memory. Blocks, and so does PutBack.
  static absl::StatusOr<KeptGradients> Take(Device* device, absl::Span<const Parameter> parameters,
                                            const ViewAt& view_at);
  absl::Status PutBack(Device* device, absl::Span<const Parameter> parameters, const ViewAt& view_at) const;

  absl::Span<const Gradient> gradients() const { return gradients_; }

 private:
  std::vector<Gradient> gradients_;
  DeviceMemory bytes_;
};

}  // namespace lockstep

#endif  // REDUCER_KEPT_GRADIENTS_H_
