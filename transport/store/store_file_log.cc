#include "transport/store/store_file.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "transport/net/little_endian.h"
#include "transport/store/store.h"

namespace lockstep {
namespace {

constexpr absl::string_view kFileMagic("LKSTFILE", 8);
constexpr absl::string_view kRecordMagic("LKSR", 4);
constexpr uint32_t kFileVersion = 1;
constexpr size_t kRecordHeaderBytes = 24;
constexpr size_t kChecksumOffset = 16;

uint64_t Fnv1a(absl::string_view bytes, uint64_t state = 0xcbf29ce484222325) {
  for (const char byte : bytes) state = (state ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  return state;
}

uint64_t Checksum(absl::string_view record) {
  return Fnv1a(record.substr(kRecordHeaderBytes), Fnv1a(record.substr(4, kChecksumOffset - 4)));
}

}  // namespace

std::string StoreFileHeader() {
  std::string header(kFileMagic);
  AppendLittleEndian(&header, kFileVersion, uint32_t{0});
  return header;
}

absl::StatusOr<bool> CheckStoreFileHeader(absl::string_view bytes) {
  const std::string ours = StoreFileHeader();
  const size_t known_bytes = std::min(bytes.size(), kFileMagic.size());
  if (bytes.substr(0, known_bytes) != absl::string_view(ours).substr(0, known_bytes)) {
    return absl::FailedPreconditionError("the file exists and is no store");
  }
  if (bytes.size() < kStoreFileHeaderBytes) return false;
  const uint32_t version = LoadLittleEndian<uint32_t>(bytes.data() + kFileMagic.size());
  if (version != kFileVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("the file is a store of version ", version, ", not ", kFileVersion));
  }
  return true;
}

std::string EncodeStoreRecord(StoreRecordKind kind, absl::string_view key, absl::string_view value) {
  std::string record;
  record.reserve(kRecordHeaderBytes + key.size() + value.size());
  absl::StrAppend(&record, kRecordMagic);
  AppendLittleEndian(&record, static_cast<uint32_t>(kind), static_cast<uint32_t>(key.size()),
                     static_cast<uint32_t>(value.size()), uint64_t{0});
  absl::StrAppend(&record, key, value);
  StoreLittleEndian(Checksum(record), &record[kChecksumOffset]);
  return record;
}

absl::StatusOr<size_t> ReplayStoreRecords(absl::string_view bytes, StoreMap* map) {
  size_t done = 0;
  const auto damaged = [&done](absl::string_view what) {
    return absl::DataLossError(absl::StrCat("damaged ", done, " bytes behind the last good place: ", what));
  };
  while (bytes.size() - done >= kRecordHeaderBytes) {
    const absl::string_view rest = bytes.substr(done);
    if (rest.substr(0, kRecordMagic.size()) != kRecordMagic) return damaged("no record begins there");
    const uint32_t kind = LoadLittleEndian<uint32_t>(rest.data() + 4);
    const size_t key_bytes = LoadLittleEndian<uint32_t>(rest.data() + 8);
    const size_t value_bytes = LoadLittleEndian<uint32_t>(rest.data() + 12);
    if ((kind != 1 && kind != 2) || key_bytes > kStoreKeyBytesMax || value_bytes > kStoreValueBytesMax) {
      return damaged("a record with impossible sizes");
    }
    const size_t record_bytes = kRecordHeaderBytes + key_bytes + value_bytes;
    if (rest.size() < record_bytes) return done;
    const absl::string_view record = rest.substr(0, record_bytes);
    if (LoadLittleEndian<uint64_t>(rest.data() + kChecksumOffset) != Checksum(record)) {
      // A file system may have grown the file before it wrote the bytes.
      if (rest.size() == record_bytes) return done;
      return damaged("a record with a wrong checksum");
    }
    const absl::string_view key = record.substr(kRecordHeaderBytes, key_bytes);
    if (static_cast<StoreRecordKind>(kind) == StoreRecordKind::kSet) {
      LOCKSTEP_RETURN_IF_ERROR(map->Set(key, record.substr(kRecordHeaderBytes + key_bytes)));
    } else {
      map->Delete(key);
    }
    done += record_bytes;
  }
  return done;
}

}  // namespace lockstep
