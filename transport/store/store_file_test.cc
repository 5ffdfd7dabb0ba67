#include "transport/store/store_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "base/fork_testing.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/hindrances.h"
#include "tests/store_conformance.h"
#include "transport/store/store_memory.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Deadline Soon() { return Deadline::AfterMs(20'000); }

// A new path in the test's own folder; nothing is there yet.
std::string NewPath() {
  static std::atomic<int> count{0};
  return absl::StrCat(testing::TempDir(), "/store", getpid(), "_", count++);
}

std::string Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

void AppendTo(const std::string& path, absl::string_view bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::app);
  file << bytes;
  (void)chmod(path.c_str(), 0600);  // whatever the umask
}

StoreWorld FileWorld() {
  return {[path = NewPath()] { return FileStore::Open(path, Soon()); }};
}

INSTANTIATE_TEST_SUITE_P(File, StoreConformance, testing::Values(StoreWorldFactory(FileWorld)));

class FileStoreTest : public ::testing::Test {
 protected:
  const std::string path_ = NewPath();
  const std::unique_ptr<FileStore> store_ = FileStore::Open(path_, Soon()).value();
};

TEST(FileStore, IsCreatedForItsOwnerOnlyAndSurvivesItsLastUser) {
  const std::string path = NewPath();
  {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto store, FileStore::Open(path, Soon()));
    ASSERT_THAT(store->Set("k", "v", Soon()), IsOk());
    EXPECT_EQ(store->Describe(), "store file://" + path);
  }
  struct stat status = {};
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0077, 0u);
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto again, FileStore::Open(path, Soon()));
  EXPECT_THAT(again->Get("k", Soon()), IsOkAndHolds("v"));
}

TEST(FileStore, AnotherSortOfFileIsRefusedAndLeftAlone) {
  const std::string path = NewPath();
  for (const char* text : {"my thesis", "x"}) {
    (void)unlink(path.c_str());
    AppendTo(path, text);
    EXPECT_THAT(FileStore::Open(path, Soon()),
                StatusIs(absl::StatusCode::kFailedPrecondition, AllOf(HasSubstr(path), HasSubstr("is no store"))));
    EXPECT_EQ(Contents(path), text);
  }
  ASSERT_EQ(mkfifo((path + "fifo").c_str(), 0600), 0);
  EXPECT_THAT(FileStore::Open(path + "fifo", Soon()),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("not a regular file")));
}

TEST(FileStore, AFileThatOthersMayReadOrWriteIsRefusedAndLeftAlone) {
  const std::string path = NewPath();
  { LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto store, FileStore::Open(path, Soon())); }
  for (const mode_t mode : {0620, 0602, 0640, 0604, 0666, 0777}) {
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
    EXPECT_THAT(FileStore::Open(path, Soon()),
                StatusIs(absl::StatusCode::kPermissionDenied,
                         AllOf(StartsWith("store file://" + path), HasSubstr(absl::StrCat("of user ", geteuid())),
                               HasSubstr(absl::StrFormat("mode %04o", mode)), HasSubstr("chmod go-rw " + path))));
  }
  EXPECT_EQ(Contents(path), StoreFileHeader());
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  EXPECT_THAT(FileStore::Open(path, Soon()), IsOk());
}

TEST(FileStore, AnotherUsersFileIsRefused) {
  const std::string path = NewPath();
  { LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto store, FileStore::Open(path, Soon())); }
  if (chown(path.c_str(), 12345, 12345) != 0) GTEST_SKIP() << "this process cannot give files away";
  EXPECT_THAT(FileStore::Open(path, Soon()),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       AllOf(HasSubstr(path), HasSubstr("of user 12345 and has mode 0600"), HasSubstr("(0)"))));
}

TEST_F(FileStoreTest, AFileThatTakesThePlaceIsCheckedToo) {
  ASSERT_THAT(store_->Set("k", "v", Soon()), IsOk());
  const std::string other = NewPath();
  AppendTo(other, StoreFileHeader() + EncodeStoreRecord(StoreRecordKind::kSet, "k", "forged"));
  ASSERT_EQ(chmod(other.c_str(), 0666), 0);
  ASSERT_EQ(rename(other.c_str(), path_.c_str()), 0);
  const auto refused =
      StatusIs(absl::StatusCode::kPermissionDenied, AllOf(StartsWith("store file://" + path_), HasSubstr("mode 0666")));
  EXPECT_THAT(store_->Get("k", Soon()), refused);
  EXPECT_THAT(store_->Set("k", "w", Soon()), refused);
  ASSERT_EQ(chmod(path_.c_str(), 0600), 0);
  EXPECT_THAT(store_->Get("k", Soon()), IsOkAndHolds("forged")) << "its owner vouches for it now";
}

// A late reader reads the file in pieces, whose ends lie anywhere in records.
TEST_F(FileStoreTest, ALateReaderFindsRecordsOfAllSizes) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto late, FileStore::Open(path_, Soon()));
  const auto value = [](int i) { return std::string((i % 7 == 0 ? 65'000 : 40'000) + i, static_cast<char>('0' + i)); };
  for (int i = 0; i < 40; ++i) ASSERT_THAT(store_->Set(absl::StrCat(i), value(i), Soon()), IsOk());
  for (int i = 0; i < 40; ++i) EXPECT_THAT(late->Get(absl::StrCat(i), Soon()), IsOkAndHolds(value(i)));
}

// The end of a piece is not the end of the file: there a record with a wrong checksum is torn, and elsewhere it is damage.
TEST(FileStore, DamageAtTheEndOfAPieceIsDataLoss) {
  const std::string path = NewPath();
  constexpr size_t kPiece = 256 << 10;
  const size_t overhead = EncodeStoreRecord(StoreRecordKind::kSet, "k", "").size();
  std::string damaged;
  while (damaged.size() < kPiece) {
    damaged += EncodeStoreRecord(StoreRecordKind::kSet, "k", std::string(kPiece / 4 - overhead, 'x'));
  }
  ASSERT_EQ(damaged.size(), kPiece);
  damaged.back() ^= 1;
  AppendTo(path, StoreFileHeader() + damaged + EncodeStoreRecord(StoreRecordKind::kSet, "after", "v"));
  EXPECT_THAT(FileStore::Open(path, Soon()),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("a record with a wrong checksum")));
}

TEST(FileStore, MissingFolderIsNotFound) {
  EXPECT_THAT(FileStore::Open("/no/such/folder/store", Soon()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/no/such/folder/store")));
}

TEST(FileStore, ACreatorKilledInTheHeaderLeavesAUsableFile) {
  const std::string path = NewPath();
  AppendTo(path, StoreFileHeader().substr(0, 5));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto store, FileStore::Open(path, Soon()));
  EXPECT_THAT(store->Set("k", "v", Soon()), IsOk());
  EXPECT_EQ(Contents(path), StoreFileHeader() + EncodeStoreRecord(StoreRecordKind::kSet, "k", "v"));
}

TEST(FileStore, ATornRecordIsIgnoredByReadersAndCutOffByTheNextWriter) {
  const std::string path = NewPath();
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto writer, FileStore::Open(path, Soon()));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reader, FileStore::Open(path, Soon()));
  ASSERT_THAT(writer->Set("before", "1", Soon()), IsOk());
  const std::string good = Contents(path);
  AppendTo(path, EncodeStoreRecord(StoreRecordKind::kSet, "torn", std::string(1000, 't')).substr(0, 500));

  EXPECT_THAT(reader->Get("torn", Soon()), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(reader->Get("before", Soon()), IsOkAndHolds("1"));
  ASSERT_THAT(writer->Set("after", "2", Soon()), IsOk());
  EXPECT_EQ(Contents(path), good + EncodeStoreRecord(StoreRecordKind::kSet, "after", "2"));
  EXPECT_THAT(reader->Get("after", Soon()), IsOkAndHolds("2"));
  EXPECT_THAT(reader->Get("torn", Soon()), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(FileStoreTest, DamageIsDataLossAndNamesTheFile) {
  ASSERT_THAT(store_->Set("k", "v", Soon()), IsOk());
  AppendTo(path_, std::string(100, 'x'));
  EXPECT_THAT(store_->Get("k", Soon()), StatusIs(absl::StatusCode::kDataLoss, HasSubstr(path_)));
  ASSERT_EQ(truncate(path_.c_str(), 3), 0);
  EXPECT_THAT(store_->Get("k", Soon()), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("cut to 3 bytes")));
}

TEST_F(FileStoreTest, WhatChangesNothingWritesNothing) {
  ASSERT_THAT(store_->Set("k", "v", Soon()), IsOk());
  const std::string before = Contents(path_);
  EXPECT_THAT(store_->Delete("other", Soon()), IsOk());
  EXPECT_THAT(store_->CompareAndSet("k", "x", "y", Soon()), IsOkAndHolds("v"));
  EXPECT_THAT(store_->Get("other", Soon()), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(Contents(path_), before);
}

TEST_F(FileStoreTest, ALockHeldElsewhereMeetsTheDeadlineAndNamesTheKey) {
  const int other = open(path_.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(flock(other, LOCK_EX), 0);
  const auto late = StatusIs(absl::StatusCode::kDeadlineExceeded,
                             AllOf(HasSubstr("key 'k'"), HasSubstr("another process held the lock")));
  EXPECT_THAT(store_->Set("k", "v", Deadline::AfterMs(10)), late);
  EXPECT_THAT(store_->Get("k", Deadline::Now()), late);
  ASSERT_EQ(flock(other, LOCK_SH), 0);
  EXPECT_THAT(store_->Set("k", "v", Deadline::AfterMs(10)), late);
  EXPECT_THAT(store_->Get("k", Soon()), StatusIs(absl::StatusCode::kNotFound));  // readers share
  close(other);
  EXPECT_THAT(store_->Set("k", "v", Soon()), IsOk());
}

TEST(FileStore, ForgetsWhatWasDeletedAndKeepsTheRest) {
  constexpr size_t kBytesMax = 32 << 10;
  const std::string path = NewPath();
  AppendTo(path + ".next", "left by one who was killed");
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto writer, FileStore::Open(path, Soon()));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto other, FileStore::Open(path, Soon()));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto sleeper, FileStore::Open(path, Soon()));
  ASSERT_EQ(chmod(path.c_str(), 0700), 0);
  ASSERT_THAT(sleeper->Set("kept", "1", Soon()), IsOk());
  for (int i = 0; i < 2000; ++i) {
    FileStore* const store = i % 3 == 0 ? other.get() : writer.get();
    const std::string key = absl::StrCat("key", i);
    ASSERT_THAT(store->Set(key, "value", Soon()), IsOk());
    ASSERT_THAT((i % 2 == 0 ? other : writer)->Get(key, Soon()), IsOkAndHolds("value"));
    ASSERT_THAT(store->Delete(key, Soon()), IsOk());
    ASSERT_LT(Contents(path).size(), kBytesMax) << i;
  }
  // Who has not looked for long finds what there is, and so does who comes now.
  EXPECT_THAT(sleeper->Get("kept", Soon()), IsOkAndHolds("1"));
  EXPECT_THAT(sleeper->CompareAndSet("kept", "1", "2", Soon()), IsOkAndHolds("2"));
  EXPECT_THAT(writer->Get("kept", Soon()), IsOkAndHolds("2"));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto late, FileStore::Open(path, Soon()));
  EXPECT_THAT(late->Get("kept", Soon()), IsOkAndHolds("2"));
  struct stat status = {};
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
  EXPECT_NE(stat((path + ".next").c_str(), &status), 0);
}

TEST_F(FileStoreTest, WhatIsAllInUseIsNotWrittenAgainAndAgain) {
  struct stat before = {}, after = {};
  ASSERT_EQ(stat(path_.c_str(), &before), 0);
  for (int i = 0; i < 100; ++i) ASSERT_THAT(store_->Set(absl::StrCat(i), std::string(1000, 'x'), Soon()), IsOk());
  ASSERT_EQ(stat(path_.c_str(), &after), 0);
  EXPECT_EQ(after.st_ino, before.st_ino);
}

// It grows there, which is better than no store.
TEST(FileStore, BehindASymbolicLinkTheFileStaysWhereItIs) {
  const std::string path = NewPath();
  const std::string link = NewPath();
  ASSERT_EQ(symlink(path.c_str(), link.c_str()), 0);
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto store, FileStore::Open(link, Soon()));
  for (int i = 0; i < 1000; ++i) ASSERT_THAT(store->Set("key", absl::StrCat(i), Soon()), IsOk());
  struct stat status = {};
  ASSERT_EQ(lstat(link.c_str(), &status), 0);
  EXPECT_TRUE(S_ISLNK(status.st_mode));
  EXPECT_THAT(store->Get("key", Soon()), IsOkAndHolds("999"));
}

// In a folder where another user may write, as /tmp: it would lead ranks to a file of the other's choice.
TEST(FileStore, AnotherUsersSymbolicLinkIsRefused) {
  const std::string path = NewPath();
  const std::string link = NewPath();
  const std::string own_link = NewPath();
  ASSERT_EQ(symlink(path.c_str(), link.c_str()), 0);
  ASSERT_EQ(symlink(link.substr(link.rfind('/') + 1).c_str(), own_link.c_str()), 0);
  EXPECT_THAT(FileStore::Open(own_link, Soon()), IsOk());
  if (lchown(link.c_str(), 12345, 12345) != 0) GTEST_SKIP() << "this process cannot give files away";
  for (const std::string& opened : {link, own_link}) {
    EXPECT_THAT(FileStore::Open(opened, Soon()),
                StatusIs(absl::StatusCode::kPermissionDenied,
                         AllOf(StartsWith("store file://" + opened),
                               HasSubstr(absl::StrCat("the symbolic link ", link, " is of user 12345")))));
  }
}

TEST_F(FileStoreTest, AnotherUsersSymbolicLinkThatTakesThePlaceIsRefused) {
  const std::string moved = NewPath();
  ASSERT_EQ(rename(path_.c_str(), moved.c_str()), 0);
  ASSERT_EQ(symlink(moved.c_str(), path_.c_str()), 0);
  EXPECT_THAT(store_->Set("k", "v", Soon()), IsOk());
  if (lchown(path_.c_str(), 12345, 12345) != 0) GTEST_SKIP() << "this process cannot give files away";
  EXPECT_THAT(store_->Get("k", Soon()), StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("symbolic link")));
}

// The kernel ends a process that writes beyond it with SIGXFSZ.
TEST_F(FileStoreTest, AFileAtItsLimitIsAnErrorAndStaysWhole) {
  const auto beyond_the_limit = [&] {
    const auto store = FileStore::Open(path_, Soon());
    if (!store.ok() || !Limit(RLIMIT_FSIZE, 1000).ok()) return 2;
    const absl::Status status = (*store)->Set("k", std::string(1000, 'x'), Soon());
    if (!absl::IsResourceExhausted(status) || !absl::StrContains(status.message(), "RLIMIT_FSIZE allows 1000")) {
      return 3;
    }
    return (*store)->Set("k", "v", Soon()).ok() ? 0 : 4;
  };
  EXPECT_EQ(RunInForkedChild(beyond_the_limit, Soon()), 0);
  EXPECT_THAT(store_->Get("k", Soon()), IsOkAndHolds("v"));
}

TEST_F(FileStoreTest, AKilledProcessGivesUpItsLock) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const int file = open(path_.c_str(), O_RDWR);
    if (flock(file, LOCK_EX) != 0 || write(ready[1], "x", 1) != 1) _exit(1);
    for (;;) pause();
  }
  close(ready[1]);
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_THAT(store_->Set("k", "v", Deadline::Now()), StatusIs(absl::StatusCode::kDeadlineExceeded));
  absl::Status status = absl::UnknownError("not run");
  std::thread setting([&] { status = store_->Set("k", "v", Soon()); });
  ASSERT_EQ(kill(child, SIGKILL), 0);
  setting.join();
  EXPECT_THAT(status, IsOk());
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  close(ready[0]);
}

TEST(FileStore, SeveralProcessesCountTogether) {
  constexpr int kProcesses = 3;
  constexpr int kAdds = 400;  // so many that the file is written anew on the way
  const std::string path = NewPath();
  std::vector<pid_t> children;
  for (int p = 0; p < kProcesses; ++p) {
    const pid_t child = fork();
    if (child == 0) {
      // A store opened in the child: its parent's would refuse.
      const auto store = FileStore::Open(path, Soon());
      bool good = store.ok();
      // Each number has one winner: an attempt says who, or which number stands.
      std::string sum;
      for (int i = 0; good && i < kAdds;) {
        const std::string mine = absl::StrCat(std::atoi(sum.c_str()) + 1, " by ", p);
        const absl::StatusOr<std::string> stored = (*store)->CompareAndSet("sum", sum, mine, Soon());
        good = stored.ok();
        if (good && *stored == mine) ++i;
        if (good) sum = *stored;
      }
      _exit(good ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto store, FileStore::Open(path, Soon()));
  EXPECT_THAT(store->Get("sum", Soon()), IsOkAndHolds(StartsWith(absl::StrCat(kProcesses * kAdds, " by "))));
}

TEST(FileStore, AForkedChildIsToldToOpenItsOwn) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto store, FileStore::Open(NewPath(), Soon()));
  const auto child = [&] { return absl::IsFailedPrecondition(store->Set("k", "v", Deadline::Now())) ? 0 : 1; };
  EXPECT_EQ(RunInForkedChild(child, Soon()), 0);
  EXPECT_THAT(store->Set("k", "v", Soon()), IsOk());
}

// ---- The log.

constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();

std::string SetRecord(absl::string_view key, absl::string_view value) {
  return EncodeStoreRecord(StoreRecordKind::kSet, key, value);
}

TEST(StoreFileLog, ReplaysInOrder) {
  const std::string log = absl::StrCat(SetRecord("a", "1"), SetRecord("b", ""), SetRecord("a", "2"),
                                       SetRecord("c", "3"), EncodeStoreRecord(StoreRecordKind::kDelete, "c", ""));
  StoreMap map(kNoLimit);
  EXPECT_THAT(ReplayStoreRecords(log, &map), IsOkAndHolds(log.size()));
  EXPECT_EQ(*map.Find("a"), "2");
  EXPECT_EQ(*map.Find("b"), "");
  EXPECT_EQ(map.Find("c"), nullptr);
  EXPECT_THAT(ReplayStoreRecords("", &map), IsOkAndHolds(0));
}

TEST(StoreFileLog, ARecordTornAnywhereIsNotApplied) {
  const std::string good = SetRecord("good", "value");
  const std::string log = absl::StrCat(good, SetRecord("torn", "some value"));
  for (size_t length = good.size(); length < log.size(); ++length) {
    StoreMap map(kNoLimit);
    EXPECT_THAT(ReplayStoreRecords(absl::string_view(log).substr(0, length), &map), IsOkAndHolds(good.size()));
    EXPECT_EQ(*map.Find("good"), "value");
    EXPECT_EQ(map.Find("torn"), nullptr);
  }
}

TEST(StoreFileLog, ALastRecordWhoseBytesNeverArrivedIsTorn) {
  std::string record = SetRecord("key", "value");
  record.replace(record.size() - 5, 5, 5, '\0');
  StoreMap map(kNoLimit);
  EXPECT_THAT(ReplayStoreRecords(record, &map), IsOkAndHolds(0));
  EXPECT_EQ(map.Find("key"), nullptr);
}

TEST(StoreFileLog, DamageInTheMiddleIsDataLoss) {
  const std::string good = SetRecord("good", "value");
  for (const size_t offset : {size_t{0}, size_t{4}, size_t{9}, size_t{16}, size_t{24}, good.size() - 1}) {
    std::string log = absl::StrCat(good, good, good);
    log[good.size() + offset] ^= 0x40;
    StoreMap map(kNoLimit);
    EXPECT_THAT(
        ReplayStoreRecords(log, &map),
        StatusIs(absl::StatusCode::kDataLoss, HasSubstr(absl::StrCat("damaged ", good.size(), " bytes behind"))))
        << offset;
  }
}

TEST(StoreFileLog, HeaderTellsOursFromOtherFiles) {
  const std::string header = StoreFileHeader();
  EXPECT_EQ(header, std::string("LKSTFILE\x01\0\0\0\0\0\0\0", kStoreFileHeaderBytes));
  EXPECT_THAT(CheckStoreFileHeader(header), IsOkAndHolds(true));
  for (size_t length = 0; length < header.size(); ++length) {
    EXPECT_THAT(CheckStoreFileHeader(header.substr(0, length)), IsOkAndHolds(false));
  }
  EXPECT_THAT(CheckStoreFileHeader("#!/bin/sh\n"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("is no store")));
  std::string newer = header;
  newer[8] = 2;
  EXPECT_THAT(CheckStoreFileHeader(newer), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("version 2")));
}

}  // namespace
}  // namespace lockstep
