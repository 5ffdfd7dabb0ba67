// The file store's log: the header and the records of a file that anybody may have written.
//
//   input = repair:u8 file        repair is odd: checksums are made right first, so that what is behind them is reached

#include <limits>

#include "tests/fuzz/fuzz.h"
#include "transport/net/little_endian.h"
#include "transport/store/store_file.h"

namespace lockstep {
namespace {

using Code = absl::StatusCode;

// As in store_file.h: "LKSR" kind:u32 key_bytes:u32 value_bytes:u32 checksum:u64.
constexpr size_t kRecordHeaderBytes = 24;

void RepairChecksums(std::string* log) {
  for (size_t begin = 0; log->size() - begin >= kRecordHeaderBytes;) {
    const uint64_t key_bytes = LoadLittleEndian<uint32_t>(&(*log)[begin + 8]);
    const uint64_t value_bytes = LoadLittleEndian<uint32_t>(&(*log)[begin + 12]);
    if (key_bytes + value_bytes > log->size() - begin - kRecordHeaderBytes) return;
    const auto kind = static_cast<StoreRecordKind>(LoadLittleEndian<uint32_t>(&(*log)[begin + 4]));
    const absl::string_view body = absl::string_view(*log).substr(begin + kRecordHeaderBytes);
    const std::string record = EncodeStoreRecord(kind, body.substr(0, key_bytes), body.substr(key_bytes, value_bytes));
    log->replace(begin, record.size(), record);
    begin += record.size();
  }
}

void Replay(absl::string_view log) {
  StoreMap map(std::numeric_limits<size_t>::max());
  const fuzz::Allocations allocations;
  const absl::StatusOr<size_t> taken = ReplayStoreRecords(log, &map);
  LOCKSTEP_CHECK(allocations.bytes() <= 64 * log.size() + 4096)
      << allocations.bytes() << " bytes allocated for " << log.size();
  fuzz::CheckCode(taken.status(), {Code::kDataLoss});
  if (!taken.ok()) return;
  LOCKSTEP_CHECK(*taken <= log.size());
  // The torn end is no part of it.
  StoreMap again(std::numeric_limits<size_t>::max());
  const absl::StatusOr<size_t> whole = ReplayStoreRecords(log.substr(0, *taken), &again);
  LOCKSTEP_CHECK(whole.ok() && *whole == *taken && again.values() == map.values());
  // As a file is compacted.
  std::string compact;
  for (const auto& [key, value] : map.values()) {
    LOCKSTEP_CHECK(key.size() <= kStoreKeyBytesMax && value.size() <= kStoreValueBytesMax);
    compact += EncodeStoreRecord(StoreRecordKind::kSet, key, value);
  }
  StoreMap compacted(std::numeric_limits<size_t>::max());
  LOCKSTEP_CHECK(ReplayStoreRecords(compact, &compacted).value() == compact.size());
  LOCKSTEP_CHECK(compacted.values() == map.values());
}

}  // namespace

std::vector<std::string> fuzz::Seeds() {
  const std::string log = EncodeStoreRecord(StoreRecordKind::kSet, "key", "value") +
                          EncodeStoreRecord(StoreRecordKind::kSet, "", "") +
                          EncodeStoreRecord(StoreRecordKind::kDelete, "key", "");
  const std::string file = '\1' + StoreFileHeader() + log;
  return {file, '\0' + file.substr(1, file.size() - 4), '\0' + StoreFileHeader()};
}

}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  lockstep::fuzz::Input input(data, size);
  const bool repair = input.Take<uint8_t>() % 2 == 1;
  const absl::string_view file = input.Rest();
  const absl::StatusOr<bool> header = lockstep::CheckStoreFileHeader(file);
  lockstep::fuzz::CheckCode(header.status(), {absl::StatusCode::kFailedPrecondition});
  if (!header.ok() || !*header) return 0;
  std::string log(file.substr(lockstep::kStoreFileHeaderBytes));
  if (repair) lockstep::RepairChecksums(&log);
  lockstep::Replay(log);
  return 0;
}
