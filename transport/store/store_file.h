// A store in one file that all ranks can open: no server, no port, any number of processes of one machine (or of
// several, where the file system's locks work across machines, as NFS 4's do).
//
// The file is a log of changes; docs/wire_formats.md explains it.
//
//   file    = "LKSTFILE"  version:u32  zero:u32  { record }             numbers are little-endian
//   record  = "LKSR"  kind:u32  key_bytes:u32  value_bytes:u32  checksum:u64  key  value
//   kind    = 1 set | 2 delete                                         a delete has no value
//
// The checksum is FNV-1a, 64 bits, over kind, key_bytes, value_bytes, key and value. A killed writer may leave an incomplete record at
// the end of the file: a torn end. No reader has applied it, and the next writer cuts it off.

#ifndef TRANSPORT_STORE_STORE_FILE_H_
#define TRANSPORT_STORE_STORE_FILE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "base/fork.h"
#include "base/mutex.h"
#include "transport/store/store.h"
#include "transport/store/store_memory.h"

namespace lockstep {

// Changes are appended to the file under flock. Each process replays those that it has not seen yet. If a process is killed, its lock
// is free, and the next writer cuts off an incomplete record. Wait polls every 1 to 20 ms.
//
// When most of the file is about deleted keys, a writer replaces it by a shorter one, by renaming: if it dies, one of the two is left
// whole. Other processes notice at their next access. If the writer may not (a folder that it cannot write to, another user's file, a
// symbolic link), the file grows.
//
// The file stays when the job has ended, and the next job finds what is left in it. So each job uses its own path, or a job id.
class FileStore : public Store {
 public:
  // Creates the file if there is none, readable by its owner only.
  // ERRORS  FAILED_PRECONDITION  the file is something else; it is left alone
  //         PERMISSION_DENIED    it is neither this user's nor root's, or others may read or write it: they could tell ranks
  //                              anything, and the job's secret may stand there. Calls return it too, if such a file has taken the
  //                              place of the one that was opened
  static absl::StatusOr<std::unique_ptr<FileStore>> Open(const std::string& path, Deadline deadline);

  std::string Describe() const override;

 protected:
  absl::StatusOr<std::string> Perform(const StoreCall& call, Deadline deadline) override;

 private:
  FileStore(UniqueFd file, std::string path);

  // Runs `body` with the file locked and map_ up to date; no other thread of this object is inside. With LOCK_EX the file has no torn
  // end.
  absl::Status Locked(int lock, absl::string_view key, Deadline deadline, const std::function<absl::Status()>& body);
  // Opens the file that has replaced the open one; false if none has.
  absl::StatusOr<bool> Follow();
  absl::Status CatchUp(bool exclusive);
  // Replaces the file by a shorter one, if that is worth it and possible.
  void Compact();
  absl::Status Append(absl::string_view record);

  const std::string path_;
  const uint64_t fork_generation_;

  Mutex mu_;
  CondVar free_;
  // flock belongs to the open file, not to the thread, so threads exclude each other by `busy_`. Whoever set it owns what follows.
  bool busy_ ABSL_GUARDED_BY(mu_) = false;
  UniqueFd file_;
  StoreMap map_;
  int64_t replayed_bytes_ = 0;  // of the file, its header included
  int64_t compact_at_bytes_;
};

// ---- The log: pure functions on bytes, for FileStore and its tests.

inline constexpr size_t kStoreFileHeaderBytes = 16;

std::string StoreFileHeader();

// RETURNS  true if the header is complete; false if it was cut short (mostly an empty file)
// ERRORS   FAILED_PRECONDITION  a file that begins with `bytes` is not one of ours
absl::StatusOr<bool> CheckStoreFileHeader(absl::string_view bytes);

enum class StoreRecordKind { kSet = 1, kDelete = 2 };

std::string EncodeStoreRecord(StoreRecordKind kind, absl::string_view key, absl::string_view value);

// Applies the records in `bytes`.
// RETURNS  the bytes that they take: fewer than all if the end is torn
// ERRORS   DATA_LOSS  something before the end is not a record
absl::StatusOr<size_t> ReplayStoreRecords(absl::string_view bytes, StoreMap* map);

}  // namespace lockstep

#endif  // TRANSPORT_STORE_STORE_FILE_H_
