// The embedder's streams. Each is borrowed, by its handle, when it is first passed.

#ifndef CAPI_STREAMS_H_
#define CAPI_STREAMS_H_

#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "base/mutex.h"
#include "capi/lockstep.h"

namespace lockstep {
namespace capi {

// Thread-safe. What it gives out lives as long as it does.
class Streams {
 public:
  // The stream of `device`, which is null if there is only the host. Null for NULL, which means the host, inline.
  // ERRORS  INVALID_ARGUMENT  the stream is of another device
  //         UNIMPLEMENTED     it is a stream of the host
  absl::StatusOr<Stream*> Find(const lockstep_stream* stream, Device* device) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  Mutex mu_;
  std::map<void*, std::unique_ptr<Stream>> streams_ ABSL_GUARDED_BY(mu_);
};

// The stream for the embedder. Its handle is the device's own or, for a stream of the host, which only a hook gets, our Stream*.
lockstep_stream ToStream(const Stream& stream);

}  // namespace capi
}  // namespace lockstep

#endif  // CAPI_STREAMS_H_
