// The embedder's streams, borrowed by their handles when they are first seen.

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
  // Of `device`, null where there is none but the host. Null for NULL, which is the host, inline. INVALID_ARGUMENT for a stream of
  // another device, UNIMPLEMENTED for one of the host's.
  absl::StatusOr<Stream*> Find(const lockstep_stream* stream, Device* device) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  Mutex mu_;
  std::map<void*, std::unique_ptr<Stream>> streams_ ABSL_GUARDED_BY(mu_);
};

// As the embedder sees it. A device's by its own handle; a host's, which only a hook is given, by ours.
lockstep_stream ToStream(const Stream& stream);

}  // namespace capi
}  // namespace lockstep

#endif  // CAPI_STREAMS_H_
