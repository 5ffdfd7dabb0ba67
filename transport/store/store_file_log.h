// The file of a FileStore: a log of changes. Pure functions on bytes; docs/wire_formats.md explains it.
//
//   file    = "LKSTFILE"  version:u32  zero:u32  { record }             numbers are little-endian
//   record  = "LKSR"  kind:u32  key_bytes:u32  value_bytes:u32  checksum:u64  key  value
//   kind    = 1 set | 2 delete                                         a delete has no value
//
// The checksum is FNV-1a, 64 bits, over kind, key_bytes, value_bytes, key and value. A killed writer may leave an incomplete record at
// the end of the file: a torn end. No reader has applied it, and the next writer cuts it off.

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

#endif  // TRANSPORT_STORE_STORE_FILE_LOG_H_
