#include "transport/store/store_file_log.h"

#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/store/store_map.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();

std::string SetRecord(absl::string_view key, absl::string_view value) {
  return EncodeStoreRecord(StoreRecordKind::kSet, key, value);
}

TEST(StoreFileLog, ReplaysInOrder) {
  const std::string log = absl::StrCat(SetRecord("a", "1"), SetRecord("b", ""), SetRecord("a", "2"),
                                       SetRecord("c", "3"), EncodeStoreRecord(StoreRecordKind::kDelete, "c", ""));
  StoreMap map(kNoLimit);
  EXPECT_THAT(ReplayStoreRecords(log, &map), IsOkAndHolds(log.size()));
  EXPECT_THAT(map.Get("a"), IsOkAndHolds("2"));
  EXPECT_THAT(map.Get("b"), IsOkAndHolds(""));
  EXPECT_THAT(map.Get("c"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(ReplayStoreRecords("", &map), IsOkAndHolds(0));
}

TEST(StoreFileLog, ARecordTornAnywhereIsNotApplied) {
  const std::string good = SetRecord("good", "value");
  const std::string log = absl::StrCat(good, SetRecord("torn", "some value"));
  for (size_t length = good.size(); length < log.size(); ++length) {
    StoreMap map(kNoLimit);
    EXPECT_THAT(ReplayStoreRecords(absl::string_view(log).substr(0, length), &map), IsOkAndHolds(good.size()));
    EXPECT_THAT(map.Get("good"), IsOkAndHolds("value"));
    EXPECT_THAT(map.Get("torn"), StatusIs(absl::StatusCode::kNotFound));
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
