// IpcPage: the words by which the streams of one host's ranks wait for each other, and by which the ranks tell each
// other what streams cannot, in memory that all of them map.
//
// A word has one writer: the stream of one rank, or a host that releases a stream which would wait for ever. Values
// of `ready` and `done` are numbers of a communicator's steps (comm/ipc_communicator.h), cyclic in 32 bits.
//
// Thread-safe. One object for all ranks of a communicator that are in one process, so that CUDA is told of the memory
// once; it goes when the last of them lets go of it.

#ifndef COMM_IPC_PAGE_H_
#define COMM_IPC_PAGE_H_

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device.h"
#include "comm/communicator.h"
#include "transport/shm/shared_memory.h"

namespace lockstep {

// A kernel folds as many sources (kernels/fold_kernels.h).
inline constexpr int kIpcRanksMax = 8;

class IpcPage {
 public:
  // So many pieces of memory are shared in the life of a communicator.
  static constexpr int kMemoriesMax = 4096;
  // The last so many calls of each rank can be compared.
  static constexpr uint64_t kCallsKept = 1024;

  // Collective over `host`, at most kIpcRanksMax ranks of one host. UNAVAILABLE where a rank may not map the others'
  // memory; the same on all, naming it.
  static absl::StatusOr<std::shared_ptr<IpcPage>> Join(Communicator* host, Device* device);

  ~IpcPage();
  IpcPage(const IpcPage&) = delete;
  IpcPage& operator=(const IpcPage&) = delete;

  // In the inbox of rank `to`, of which steps rank `from` has its input in place, and of which it has read all it
  // reads of others.
  std::atomic<uint32_t>* ready(int to, int from) const;
  std::atomic<uint32_t>* done(int to, int from) const;
  // To be tried out by its rank alone.
  std::atomic<uint32_t>* trial(int rank) const;

  // Tells the others what the call of that number (from 1 on) is, by its hash, and finds a rank that has told
  // otherwise; -1 when none has so far. Of two ranks that differ, the one that tells later finds it.
  int CompareCall(int rank, int size, uint64_t number, uint32_t hash);

  // A bit for each rank that has unmapped the others' parts of the memory of that number.
  std::atomic<uint32_t>* left(int memory) const;
  // The rank's, as getpid() tells it.
  pid_t process(int rank) const;
  // Whether that has ended. One that has not been waited for by its parent has not.
  bool HasEnded(int rank) const;

  // Why the communicator failed; the first one stays. To be told before anything is released, so that whoever sees
  // what a released stream has written sees this, too.
  void TellFailure(const absl::Status& status);
  absl::Status failure() const;

 private:
  struct Layout;

  IpcPage(SharedMemory memory, Device* device);

  // Shares the page of this process that has the name, or maps it.
  static absl::StatusOr<std::shared_ptr<IpcPage>> Open(const std::string& name, Device* device);
  static absl::StatusOr<SharedMemory> Map(const std::string& name);

  Layout& layout() const;

  const SharedMemory memory_;
  Device* const device_;
  bool registered_ = false;
};

}  // namespace lockstep

#endif  // COMM_IPC_PAGE_H_
