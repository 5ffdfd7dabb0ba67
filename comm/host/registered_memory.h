// RegisteredMemory: buffers of a communicator's allocator that its ranks do not share. A transport whose device needs registered memory
// registers them once (Transport::RegisterMemory) instead of for each message.

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

// Shared by a communicator and its buffers, which may outlive it. Thread-safe; callers do not hold the engine's mutex.
class RegisteredMemory : public std::enable_shared_from_this<RegisteredMemory> {
 public:
  // The engine outlives the first call of Close.
  explicit RegisteredMemory(ProgressEngine* engine) : engine_(engine) {}

  // A buffer of zeros. A transport that cannot register it can still send from it.
  // ERRORS  INVALID_ARGUMENT    0 bytes
  //         RESOURCE_EXHAUSTED  there is no memory
  absl::StatusOr<std::unique_ptr<SymmetricBuffer>> Allocate(size_t bytes);

  // The communicator is over: deregisters all buffers. They stay valid as ordinary memory.
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
