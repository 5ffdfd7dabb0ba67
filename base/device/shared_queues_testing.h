// Streams of the host that share queues, as the streams of a GPU do: for devices that tests make of the host.
//
// A GPU has few queues, which are first in, first out, and streams take turns in having one: a stream that waits holds
// up what is issued later to others of its queue. One thread runs the closures of all streams. What may hang there for
// one of these reasons hangs here.

#ifndef BASE_DEVICE_SHARED_QUEUES_TESTING_H_
#define BASE_DEVICE_SHARED_QUEUES_TESTING_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/device/device.h"
#include "base/mutex.h"

namespace lockstep {

// Thread-safe. Outlives its streams.
class SharedQueues {
 public:
  // At least one.
  explicit SharedQueues(int queues);
  ~SharedQueues();
  SharedQueues(const SharedQueues&) = delete;
  SharedQueues& operator=(const SharedQueues&) = delete;

  // As a stream of HostDevice(), whose events it takes. Once it is destroyed, what it has not run is skipped when the
  // queue comes to it.
  std::unique_ptr<Stream> NewStream();

 private:
  Mutex closures_mu_;  // held while a closure runs; outlives the queues
  std::vector<std::unique_ptr<Stream>> queues_;

  Mutex mu_;
  size_t next_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace lockstep

#endif  // BASE_DEVICE_SHARED_QUEUES_TESTING_H_
