// RegisteredMemory: buffers of a communicator's allocator that its ranks do not share. A transport whose device needs memory registered
// registers them once (Transport::RegisterMemory), rather than for each message.

#ifndef COMM_HOST_REGISTERED_MEMORY_H_
#define COMM_HOST_REGISTERED_MEMORY_H_

#include <cstddef>
#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "comm/engine/progress_engine.h"
#include "comm/symmetric_buffer.h"

namespace lockstep {

// Shared by a communicator and its buffers, which may outlive it. Thread-safe; nobody holds the engine's mutex.
class RegisteredMemory : public std::enable_shared_from_this<RegisteredMemory> {
 public:
  // The engine outlives the first call of Close.
  explicit RegisteredMemory(ProgressEngine* engine) : engine_(engine) {}

  // A buffer of zeros. A transport that cannot register it sends from it all the same.
  // ERRORS  INVALID_ARGUMENT    0 bytes
  //         RESOURCE_EXHAUSTED  there is no memory
  absl::StatusOr<std::unique_ptr<SymmetricBuffer>> Allocate(size_t bytes);

  // The communicator is over: all of it is deregistered. Buffers remain memory like any other.
  void Close();

 private:
  void Register(const SymmetricBuffer& buffer);
  void Deregister(const SymmetricBuffer& buffer);

  Mutex mu_;  // before the engine's
  ProgressEngine* engine_ ABSL_GUARDED_BY(mu_);
  std::map<const char*, size_t> registered_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lockstep

#endif  // COMM_HOST_REGISTERED_MEMORY_H_
