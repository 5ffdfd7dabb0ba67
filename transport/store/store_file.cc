#include "transport/store/store_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdio>
#include <limits>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/optional.h"
#include "base/limits.h"
#include "base/status.h"
#include "transport/net/little_endian.h"
#include "transport/secure/user.h"

namespace lockstep {
namespace {

// A shorter file is of no use.
constexpr int64_t kCompactBytesMin = 16 << 10;
constexpr int64_t kReadBytes = 256 << 10;
constexpr std::chrono::milliseconds kPauseMin(1);
constexpr std::chrono::milliseconds kPauseMax(20);

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

// False when the deadline has passed; else sleeps, longer each time.
bool Pause(std::chrono::milliseconds* pause, Deadline deadline) {
  if (deadline.passed()) return false;
  std::this_thread::sleep_until(std::min(Deadline::Clock::now() + *pause, deadline.time()));
  *pause = std::min(*pause * 2, kPauseMax);
  return true;
}

absl::StatusOr<int64_t> FileBytes(int file) {
  struct stat status = {};
  if (fstat(file, &status) != 0) return ErrnoStatus(errno, "fstat");
  return static_cast<int64_t>(status.st_size);
}

absl::Status MissingTrust(absl::string_view what) {
  return absl::PermissionDeniedError(
      absl::StrCat(what, ": it must be of this process's user (", geteuid(), ") or of root; use another path"));
}

// Of what was opened, so that nobody can put another file there in between.
absl::Status CheckTrust(int file, const std::string& path) {
  struct stat status = {};
  if (fstat(file, &status) != 0) return ErrnoStatus(errno, "fstat");
  if (!S_ISREG(status.st_mode)) return absl::FailedPreconditionError("not a regular file");
  const bool trusted_owner = IsThisUser(status.st_uid) || IsRoot(status.st_uid);
  if (trusted_owner && (status.st_mode & (S_IRGRP | S_IWGRP | S_IROTH | S_IWOTH)) == 0) return absl::OkStatus();
  const std::string what =
      absl::StrFormat("the file is of %s and has mode %04o", DescribeUser(status.st_uid), status.st_mode & 07777);
  if (trusted_owner) {
    return absl::PermissionDeniedError(
        absl::StrCat(what, ", so that others may read or write it: chmod go-rw ", path, ", or use another path"));
  }
  return MissingTrust(what);
}

// Opens the path as open() does, but follows a symbolic link in its last place only if the link is this user's or root's: another user
// could lead ranks to any file of theirs.
absl::StatusOr<UniqueFd> OpenTrusted(std::string path, int flags) {
  constexpr int kLinksMax = 40;  // as the kernel
  for (int links = 0; links < kLinksMax; ++links) {
    UniqueFd file(open(path.c_str(), flags | O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | O_NOFOLLOW, 0600));
    if (file.valid()) return file;
    if (errno != ELOOP) return ErrnoStatus(errno, "open");
    const UniqueFd link(open(path.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    struct stat status = {};
    if (!link.valid() || fstat(link.get(), &status) != 0) return ErrnoStatus(errno, "open the symbolic link");
    if (!IsThisUser(status.st_uid) && !IsRoot(status.st_uid)) {
      return MissingTrust(absl::StrCat("the symbolic link ", path, " is of ", DescribeUser(status.st_uid)));
    }
    char target[PATH_MAX];
    const ssize_t bytes = readlinkat(link.get(), "", target, sizeof(target));
    if (bytes < 0) return ErrnoStatus(errno, "read the symbolic link");
    const bool absolute = bytes > 0 && target[0] == '/';
    path = absl::StrCat(absolute ? "" : path.substr(0, path.rfind('/') + 1), absl::string_view(target, bytes));
  }
  return ErrnoStatus(ELOOP, "open");
}

// Appends to *out.
absl::Status ReadAt(int file, int64_t offset, int64_t bytes, std::string* out) {
  size_t done = out->size();
  offset -= static_cast<int64_t>(done);
  out->resize(done + static_cast<size_t>(bytes));
  while (done < out->size()) {
    const ssize_t count = pread(file, &(*out)[done], out->size() - done, offset + static_cast<int64_t>(done));
    if (count == 0) return absl::DataLossError("the file became shorter while it was locked");
    if (count < 0 && errno != EINTR) return ErrnoStatus(errno, "read");
    if (count > 0) done += static_cast<size_t>(count);
  }
  return absl::OkStatus();
}

absl::Status WriteAt(int file, int64_t offset, absl::string_view bytes) {
  if (const std::string why = WhyNoFile(offset + bytes.size()); !why.empty()) {
    return absl::ResourceExhaustedError(absl::StrCat("write ", bytes.size(), " bytes at ", offset, ": ", why));
  }
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t count = pwrite(file, bytes.data() + done, bytes.size() - done, offset + static_cast<int64_t>(done));
    if (count < 0 && errno != EINTR) return ErrnoStatus(errno, "write");
    if (count > 0) done += static_cast<size_t>(count);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<FileStore>> FileStore::Open(const std::string& path, Deadline deadline) {
  absl::StatusOr<UniqueFd> file = OpenTrusted(path, O_CREAT);
  if (!file.ok()) return Annotate(file.status(), absl::StrCat("store file://", path));
  auto store = absl::WrapUnique(new FileStore(*std::move(file), path));
  LOCKSTEP_RETURN_IF_ERROR(Annotate(CheckTrust(store->file_.get(), path), store->Describe()));
  // Writes the header, or says at once that this is another sort of file.
  LOCKSTEP_RETURN_IF_ERROR(store->Locked(LOCK_EX, "", deadline, [] { return absl::OkStatus(); }));
  return store;
}

FileStore::FileStore(UniqueFd file, std::string path)
    : path_(std::move(path)),
      fork_generation_(ForkGeneration()),
      file_(std::move(file)),
      map_(std::numeric_limits<size_t>::max()),
      compact_at_bytes_(kCompactBytesMin) {}

std::string FileStore::Describe() const { return absl::StrCat("store file://", path_); }

absl::StatusOr<std::string> FileStore::Perform(const StoreCall& call, Deadline deadline) {
  const bool reads = call.op == StoreOp::kGet || call.op == StoreOp::kWait;
  for (auto pause = kPauseMin;;) {
    absl::optional<std::string> result;
    LOCKSTEP_RETURN_IF_ERROR(Locked(reads ? LOCK_SH : LOCK_EX, call.key, deadline, [&]() -> absl::Status {
      const std::string* const value = map_.Find(call.key);
      const absl::string_view before = value == nullptr ? absl::string_view() : absl::string_view(*value);
      // What changes nothing writes nothing.
      std::string record;
      if (call.op == StoreOp::kSet) record = EncodeStoreRecord(StoreRecordKind::kSet, call.key, call.first);
      if (call.op == StoreOp::kCompareAndSet && before == call.first) {
        record = EncodeStoreRecord(StoreRecordKind::kSet, call.key, call.second);
      }
      if (call.op == StoreOp::kDelete && value != nullptr) {
        record = EncodeStoreRecord(StoreRecordKind::kDelete, call.key, "");
      }
      if (!record.empty()) LOCKSTEP_RETURN_IF_ERROR(Append(record));
      LOCKSTEP_ASSIGN_OR_RETURN(result, map_.Perform(call));
      return absl::OkStatus();
    }));
    if (result.has_value()) return *std::move(result);
    if (!Pause(&pause, deadline)) {
      return absl::DeadlineExceededError(
          absl::StrCat(Describe(), ": wait for ", DescribeStoreKey(call.key), ": not there by the deadline"));
    }
  }
}

absl::Status FileStore::Locked(int lock, absl::string_view key, Deadline deadline,
                               const std::function<absl::Status()>& body) {
  if (ForkGeneration() != fork_generation_) {
    return absl::FailedPreconditionError(absl::StrCat(Describe(), ": made before a fork, not usable in the child"));
  }
  const auto too_late = [&](absl::string_view who) {
    return absl::DeadlineExceededError(
        absl::StrCat(Describe(), ": ", DescribeStoreKey(key), ": ", who, " held the lock until the deadline"));
  };
  {
    MutexLock hold(&mu_);
    while (busy_) {
      if (!free_.WaitUntil(&mu_, deadline) && busy_) return too_late("another thread");
    }
    busy_ = true;
  }
  const auto leave = absl::MakeCleanup([this] {
    MutexLock hold(&mu_);
    busy_ = false;
    free_.SignalOne();
  });

  // The lock of a file whose place another has taken keeps nobody out.
  for (absl::StatusOr<bool> moved = true; *moved;) {
    for (auto pause = kPauseMin; flock(file_.get(), lock | LOCK_NB) != 0;) {
      if (errno != EWOULDBLOCK && errno != EINTR) return ErrnoStatus(errno, absl::StrCat(Describe(), ": flock"));
      if (!Pause(&pause, deadline)) return too_late("another process");
    }
    moved = Follow();
    if (!moved.ok()) {
      (void)flock(file_.get(), LOCK_UN);
      return Annotate(moved.status(), Describe());
    }
  }
  absl::Status status = CatchUp(lock == LOCK_EX);
  if (status.ok()) status = body();
  if (status.ok() && lock == LOCK_EX) Compact();
  (void)flock(file_.get(), LOCK_UN);
  return Annotate(status, Describe());
}

absl::StatusOr<bool> FileStore::Follow() {
  struct stat open_file = {};
  struct stat there = {};
  if (fstat(file_.get(), &open_file) != 0) return ErrnoStatus(errno, "fstat");
  // Opened, not looked up by name alone: a network's file system may remember names for some seconds.
  absl::StatusOr<UniqueFd> file = OpenTrusted(path_, 0);
  if (absl::IsPermissionDenied(file.status())) return file.status();
  if (!file.ok() && !absl::IsResourceExhausted(file.status())) return false;  // removed: this store keeps the open file
  if ((file.ok() ? fstat(file->get(), &there) : stat(path_.c_str(), &there)) != 0) return false;
  if (there.st_dev == open_file.st_dev && there.st_ino == open_file.st_ino) return false;
  if (!file.ok()) return ErrnoStatus(EMFILE, "open what has taken the file's place");
  LOCKSTEP_RETURN_IF_ERROR(CheckTrust(file->get(), path_));
  file_ = *std::move(file);
  map_ = StoreMap(std::numeric_limits<size_t>::max());
  replayed_bytes_ = 0;
  return true;
}

void FileStore::Compact() {
  if (replayed_bytes_ < compact_at_bytes_) return;
  std::string rest = StoreFileHeader();
  for (const auto& [key, value] : map_.values()) {
    absl::StrAppend(&rest, EncodeStoreRecord(StoreRecordKind::kSet, key, value));
  }
  const int64_t rest_bytes = static_cast<int64_t>(rest.size());
  compact_at_bytes_ = std::max(kCompactBytesMin, 4 * rest_bytes);
  if (replayed_bytes_ < compact_at_bytes_) return;
  compact_at_bytes_ = 2 * replayed_bytes_;  // if it cannot be done now
  struct stat status = {};
  if (lstat(path_.c_str(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_uid != geteuid()) return;
  // The lock keeps out everybody who would do the same: what is there was left by one who was killed.
  const std::string next = absl::StrCat(path_, ".next");
  (void)unlink(next.c_str());
  UniqueFd file(open(next.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOCTTY | O_NOFOLLOW, 0600));
  if (!file.valid()) return;
  if (fchmod(file.get(), status.st_mode & 07777) != 0 || !WriteAt(file.get(), 0, rest).ok() ||
      rename(next.c_str(), path_.c_str()) != 0) {
    (void)unlink(next.c_str());
    return;
  }
  file_ = std::move(file);
  replayed_bytes_ = rest_bytes;
  compact_at_bytes_ = std::max(kCompactBytesMin, 4 * rest_bytes);
}

absl::Status FileStore::CatchUp(bool exclusive) {
  LOCKSTEP_ASSIGN_OR_RETURN(int64_t file_bytes, FileBytes(file_.get()));
  if (file_bytes < replayed_bytes_) {
    return absl::DataLossError(absl::StrCat("the file was cut to ", file_bytes, " bytes by somebody else"));
  }
  if (replayed_bytes_ == 0) {
    std::string header;
    LOCKSTEP_RETURN_IF_ERROR(ReadAt(file_.get(), 0, std::min<int64_t>(file_bytes, kStoreFileHeaderBytes), &header));
    LOCKSTEP_ASSIGN_OR_RETURN(const bool complete, CheckStoreFileHeader(header));
    if (!complete) {
      // Whoever was creating the file was killed in the middle, or it is us. Nothing has been stored yet.
      if (!exclusive) return absl::OkStatus();
      LOCKSTEP_RETURN_IF_ERROR(WriteAt(file_.get(), 0, StoreFileHeader()));
      file_bytes = kStoreFileHeaderBytes;
    }
    replayed_bytes_ = kStoreFileHeaderBytes;
  }
  // In pieces, so that little more than the largest record is in memory at once, whatever the file has become.
  std::string unfinished;
  for (int64_t read_bytes = replayed_bytes_; read_bytes < file_bytes;) {
    const int64_t piece_bytes = std::min(kReadBytes, file_bytes - read_bytes);
    LOCKSTEP_RETURN_IF_ERROR(ReadAt(file_.get(), read_bytes, piece_bytes, &unfinished));
    read_bytes += piece_bytes;
    LOCKSTEP_ASSIGN_OR_RETURN(const size_t replayed, ReplayStoreRecords(unfinished, &map_));
    unfinished.erase(0, replayed);
    replayed_bytes_ += static_cast<int64_t>(replayed);
  }
  if (exclusive && replayed_bytes_ < file_bytes && ftruncate(file_.get(), replayed_bytes_) != 0) {
    return ErrnoStatus(errno, "cut off a torn record");
  }
  return absl::OkStatus();
}

absl::Status FileStore::Append(absl::string_view record) {
  const absl::Status written = WriteAt(file_.get(), replayed_bytes_, record);
  if (written.ok()) {
    replayed_bytes_ += static_cast<int64_t>(record.size());
    return written;
  }
  // A full disk, as a rule. Should this fail as well, the next writer does it.
  if (ftruncate(file_.get(), replayed_bytes_) != 0)
    return Annotate(written, "and the torn record could not be cut off");
  return written;
}

// ---- The log.

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
