// Buffers of a communicator's allocator that its ranks do not share: the transport keeps them (Transport::RegisterMemory), so
// that a device which is to be told of memory is told once.

#ifndef COMM_HOST_KEPT_MEMORY_H_
#define COMM_HOST_KEPT_MEMORY_H_

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
class KeptMemory : public std::enable_shared_from_this<KeptMemory> {
 public:
  // The engine outlives the first call of Close.
  explicit KeptMemory(ProgressEngine* engine) : engine_(engine) {}

  // Zeros. A transport that cannot keep it carries it all the same. INVALID_ARGUMENT for 0 bytes; RESOURCE_EXHAUSTED when
  // there is no memory.
  absl::StatusOr<std::unique_ptr<SymmetricBuffer>> Allocate(size_t bytes);

  // The communicator is over: its transport forgets all of it. Buffers remain memory like any other.
  void Close();

 private:
  class Buffer;

  void Keep(const SymmetricBuffer& buffer);
  void Forget(const SymmetricBuffer& buffer);

  Mutex mu_;  // before the engine's
  ProgressEngine* engine_ ABSL_GUARDED_BY(mu_);
  std::map<const char*, size_t> kept_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lockstep

#endif  // COMM_HOST_KEPT_MEMORY_H_
