// The buffers of AllocateOnDevice that all ranks map, and what they share with their communicator, which either may
// outlive.

#ifndef COMM_IPC_BUFFERS_H_
#define COMM_IPC_BUFFERS_H_

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/device.h"
#include "base/mutex.h"
#include "comm/ipc_memory.h"
#include "comm/symmetric_buffer.h"

namespace lockstep {

// Thread-safe.
class IpcBuffers {
 public:
  // A place in memory that all ranks map; null memory is nowhere.
  struct Place {
    const IpcMemory* memory = nullptr;
    size_t offset = 0;
  };

  // `last`: an event that every call of the communicator's is recorded in, when it has been issued.
  explicit IpcBuffers(std::unique_ptr<Event> last) : last_(std::move(last)) {}
  IpcBuffers(const IpcBuffers&) = delete;
  IpcBuffers& operator=(const IpcBuffers&) = delete;

  Event* last() const { return last_.get(); }

  // Where the bytes lie, all of them in one buffer. Good as long as that is there.
  Place Find(const void* data, size_t bytes) const ABSL_LOCKS_EXCLUDED(mu_);

  // Takes the memory in. The buffer, when it is destroyed, waits for the calls that were issued before, 10 s at most.
  static std::unique_ptr<SymmetricBuffer> Add(const std::shared_ptr<IpcBuffers>& buffers,
                                              std::unique_ptr<IpcMemory> memory);

 private:
  class Buffer;

  const std::unique_ptr<Event> last_;

  mutable Mutex mu_;
  std::vector<const IpcMemory*> memories_ ABSL_GUARDED_BY(mu_);
};

// Lets go of memory that streams may still use: leaked, with a warning, as the device does not come to its end.
void LeakIpcMemory(std::unique_ptr<IpcMemory> memory, const absl::Status& reason);

}  // namespace lockstep

#endif  // COMM_IPC_BUFFERS_H_
