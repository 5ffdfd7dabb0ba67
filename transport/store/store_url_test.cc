#include "transport/store/store_url.h"

#include <string>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ParseStoreUrl, Tcp) {
  for (const char* text : {"tcp://10.0.0.1:29400", "tcp://node-0.cluster:1", "tcp://[fe80::1%eth0]:65535"}) {
    const auto url = ParseStoreUrl(text);
    ASSERT_THAT(url, IsOk()) << text;
    EXPECT_EQ(url->scheme, StoreUrl::kTcp);
    EXPECT_EQ(TcpStoreUrl(url->server), text);
  }
  EXPECT_EQ(ParseStoreUrl("tcp://[fe80::1%eth0]:65535")->server.host, "fe80::1%eth0");
  EXPECT_EQ(ParseStoreUrl("tcp://[fe80::1%eth0]:65535")->server.port, 65535);
}

TEST(ParseStoreUrl, File) {
  const auto url = ParseStoreUrl("file:///tmp/a job/store");
  ASSERT_THAT(url, IsOk());
  EXPECT_EQ(url->scheme, StoreUrl::kFile);
  EXPECT_EQ(url->path, "/tmp/a job/store");
}

TEST(ParseStoreUrl, SaysWhatIsWrong) {
  const struct {
    std::string url;
    const char* message;
  } cases[] = {
      {"", "expected tcp://host:port or file:///path"},
      {"10.0.0.1:29400", "expected tcp://host:port or file:///path"},
      {"TCP://10.0.0.1:29400", "expected tcp://host:port or file:///path"},
      {"etcd://10.0.0.1:29400", "expected tcp://host:port or file:///path"},
      {"tcp://10.0.0.1", "no port"},
      {"tcp://:29400", "no host"},
      {"tcp://host:29400/", "'29400/' is no port"},
      {"tcp://host:0", "port 0"},
      {"file://relative/path", "absolute path"},
      {"file://", "absolute path"},
      {"file:///folder/", "a folder"},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(ParseStoreUrl(c.url), StatusIs(absl::StatusCode::kInvalidArgument,
                                               AllOf(HasSubstr(c.message), HasSubstr("store URL '" + c.url + "'"))))
        << c.url;
  }
  EXPECT_THAT(ParseStoreUrl(std::string("file:///a\0b", 11)),
              StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("NUL"), HasSubstr("'file:///a\\x00b'"))));
}

}  // namespace
}  // namespace lockstep
