#include "transport/store/store_wire.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/net/little_endian.h"
#include "transport/store/store.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

const StoreRequest kRequest = {
    {StoreOp::kCompareAndSet, "the key", absl::string_view("ex\0pected", 9), "desired"}, 0x0102030405060708, 1500};

TEST(StoreWire, RequestIsExactlyTheDocumentedBytes) {
  const StoreRequest request = {{StoreOp::kSet, "k", "vv"}, 0x0102030405060708, 0x11121314};
  EXPECT_EQ(EncodeStoreRequest(request), std::string("\x08\x07\x06\x05\x04\x03\x02\x01"
                                                     "\x01\0\0\0"
                                                     "\x14\x13\x12\x11"
                                                     "\x01\0\0\0"
                                                     "\x02\0\0\0"
                                                     "\0\0\0\0"
                                                     "kvv",
                                                     31));
}

TEST(StoreWire, RequestsComeBackFromEveryPrefixWholeOrNotAtAll) {
  const std::string bytes = EncodeStoreRequest(kRequest);
  const std::string with_next = absl::StrCat(bytes, "next");
  for (size_t length = 0; length < bytes.size(); ++length) {
    StoreRequest request;
    EXPECT_THAT(ParseStoreRequest(absl::string_view(bytes).substr(0, length), &request), IsOkAndHolds(0)) << length;
  }
  StoreRequest request;
  ASSERT_THAT(ParseStoreRequest(with_next, &request), IsOkAndHolds(bytes.size()));
  EXPECT_EQ(request.id, kRequest.id);
  EXPECT_EQ(request.op, kRequest.op);
  EXPECT_EQ(request.timeout_ms, kRequest.timeout_ms);
  EXPECT_EQ(request.key, kRequest.key);
  EXPECT_EQ(request.first, kRequest.first);
  EXPECT_EQ(request.second, kRequest.second);
}

TEST(StoreWire, RepliesComeBackFromEveryPrefixWholeOrNotAtAll) {
  const std::string bytes = EncodeStoreReply({77, absl::StatusCode::kNotFound, "no such key"});
  StoreReply reply;
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_THAT(ParseStoreReply(absl::string_view(bytes).substr(0, length), &reply), IsOkAndHolds(0)) << length;
  }
  ASSERT_THAT(ParseStoreReply(bytes, &reply), IsOkAndHolds(bytes.size()));
  EXPECT_EQ(reply.id, 77);
  EXPECT_EQ(reply.code, absl::StatusCode::kNotFound);
  EXPECT_EQ(reply.body, "no such key");
}

TEST(StoreWire, SizesAreRefusedByTheHeaderAlone) {
  const std::string header = EncodeStoreRequest(StoreRequest()).substr(0, 28);
  const struct {
    size_t offset;
    uint32_t value;
  } cases[] = {{16, kStoreKeyBytesMax + 1},
               {20, kStoreValueBytesMax + 1},
               {24, kStoreValueBytesMax + 1},
               {16, 0xffffffff},
               {20, 0xffffffff},
               {24, 0xffffffff}};
  StoreRequest request;
  for (const auto& c : cases) {
    std::string bad = header;
    StoreLittleEndian(c.value, &bad[c.offset]);
    EXPECT_THAT(ParseStoreRequest(bad, &request),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(absl::StrCat(c.value))));
  }
  // At the limit the header is fine, and the body is awaited.
  std::string largest = header;
  StoreLittleEndian(static_cast<uint32_t>(kStoreKeyBytesMax), &largest[16]);
  StoreLittleEndian(static_cast<uint32_t>(kStoreValueBytesMax), &largest[20]);
  EXPECT_THAT(ParseStoreRequest(largest, &request), IsOkAndHolds(0));

  std::string reply = EncodeStoreReply(StoreReply());
  StoreLittleEndian(static_cast<uint32_t>(kStoreValueBytesMax + 1), &reply[12]);
  StoreReply parsed;
  EXPECT_THAT(ParseStoreReply(reply, &parsed), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("65537")));
}

TEST(StoreWire, UnknownOperationsAndCodesAreRefused) {
  StoreRequest request;
  for (const int op : {0, 3, 7, 255}) {
    std::string bytes = EncodeStoreRequest(StoreRequest());
    bytes[8] = static_cast<char>(op);
    EXPECT_THAT(ParseStoreRequest(bytes, &request),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(absl::StrCat("operation ", op))));
  }
  std::string reserved = EncodeStoreRequest(StoreRequest());
  reserved[11] = 1;
  EXPECT_THAT(ParseStoreRequest(reserved, &request), StatusIs(absl::StatusCode::kInvalidArgument));
  std::string reply = EncodeStoreReply(StoreReply());
  reply[8] = 17;
  StoreReply parsed;
  EXPECT_THAT(ParseStoreReply(reply, &parsed), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("code 17")));
}

}  // namespace
}  // namespace lockstep
