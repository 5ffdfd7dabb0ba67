// IpcMemory: memory of one GPU or several of a host, a part of each rank, all of which all ranks reach.
//
// A rank's part is an allocation by its device, which the ranks of other processes open and those of this process
// just use.
//
// Lifetime. A part must not be freed before it is closed by all others, and nobody may wait for that in a destructor.
// So a rank that gives its memory up closes the others' parts, tells so in the page, and keeps its own until all have
// told, or have ended: it is freed when the next such memory is made or given up. In the process's end all is freed
// anyway.

#ifndef COMM_IPC_MEMORY_H_
#define COMM_IPC_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device.h"
#include "comm/communicator.h"
#include "comm/ipc_page.h"

namespace lockstep {

// Immutable, and so thread-safe.
class IpcMemory {
 public:
  // Collective over `host`. `bytes` of each rank, uninitialised; `number`: of the memory in the page, used once,
  // equal on all ranks. RESOURCE_EXHAUSTED where there is no memory; UNAVAILABLE where it cannot be shared, and,
  // naming that rank, on the others.
  static absl::StatusOr<std::unique_ptr<IpcMemory>> Create(Communicator* host, Device* device,
                                                           std::shared_ptr<IpcPage> page, int number, size_t bytes);

  // Nothing that this rank has enqueued uses it any more.
  ~IpcMemory();
  IpcMemory(const IpcMemory&) = delete;
  IpcMemory& operator=(const IpcMemory&) = delete;

  char* part(int rank) const { return parts_[rank]; }
  char* mine() const { return parts_[rank_]; }
  size_t bytes() const { return bytes_; }
  int number() const { return number_; }

 private:
  IpcMemory(Device* device, std::shared_ptr<IpcPage> page, int number, int rank, int size, size_t bytes);

  // This rank's part, and what the others need of it.
  absl::StatusOr<std::string> Offer();
  absl::Status Map(int rank, const std::string& offer);

  Device* const device_;
  const std::shared_ptr<IpcPage> page_;  // shared with other memory and the communicator
  const int number_;
  const int rank_;
  const size_t bytes_;
  // Constant after Create. By rank.
  std::vector<char*> parts_;
  std::vector<bool> opened_;  // of another process
};

}  // namespace lockstep

#endif  // COMM_IPC_MEMORY_H_
