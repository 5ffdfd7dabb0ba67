// The file of a FileStore: a log of changes. Pure functions on bytes; docs/wire_formats.md explains it.
//
//   file    = "LKSTFILE"  version:u32  zero:u32  { record }             numbers are little-endian
//   record  = "LKSR"  kind:u32  key_bytes:u32  value_bytes:u32  checksum:u64  key  value
//   kind    = 1 set | 2 delete                                         a delete has no value
//
// The checksum is FNV-1a, 64 bits, over kind, key_bytes, value_bytes, key and value. A writer that is killed leaves the
// beginning of a record at the end of the file: that is torn, nobody saw it take effect, and the next writer cuts it
// off.

#ifndef TRANSPORT_STORE_STORE_FILE_LOG_H_
#define TRANSPORT_STORE_STORE_FILE_LOG_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "transport/store/store_map.h"

namespace lockstep {

inline constexpr size_t kStoreFileHeaderBytes = 16;

std::string StoreFileHeader();

// FAILED_PRECONDITION when a file that begins with `bytes` is none of ours; true when the header is complete, false
// when it was cut short (an empty file, most of the time).
absl::StatusOr<bool> CheckStoreFileHeader(absl::string_view bytes);

enum class StoreRecordKind { kSet = 1, kDelete = 2 };

std::string EncodeStoreRecord(StoreRecordKind kind, absl::string_view key, absl::string_view value);

// Applies the records at the front of `bytes` and returns how many bytes they were; less than all when the rest is
// torn. DATA_LOSS when bytes that are followed by others are no record.
absl::StatusOr<size_t> ReplayStoreRecords(absl::string_view bytes, StoreMap* map);

}  // namespace lockstep

#endif  // TRANSPORT_STORE_STORE_FILE_LOG_H_
