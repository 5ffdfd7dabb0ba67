#include "bench/overlap/occupy.h"

#include <thread>

#include "base/cuda_api.h"
#include "base/cuda_error.h"
#include "base/cuda_guard.h"
#include "base/status.h"
#include "bench/overlap/occupy_cuda.h"

namespace lockstep {
namespace bench {

absl::Status Occupy(Stream& stream, std::chrono::nanoseconds time) {
  const DeviceId device = stream.device();
  if (device.kind == DeviceKind::kHost) {
    return stream.Enqueue([time] {
      std::this_thread::sleep_for(time);
      return absl::OkStatus();
    });
  }
  const CudaGuard guard(TheCudaApi(), device.index);
  LOCKSTEP_RETURN_IF_ERROR(guard.status());
  const int code = internal::LaunchClockWatcher(stream.native(), static_cast<uint64_t>(time.count()));
  return CudaStatus(code, "launch of a kernel that watches the clock", device.index);
}

}  // namespace bench
}  // namespace lockstep
