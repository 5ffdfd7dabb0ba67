// With fakes of the library, on any processor.

#include "transport/secure/ipsec_mb_library.h"

#include <dlfcn.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/secure/cipher.h"
#include "transport/secure/cipher_backends.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kFake[] = "transport/secure/libfake_ipsec_mb.so";
constexpr char kFakeThatLacksGmac[] = "transport/secure/libfake_ipsec_mb_lacks_gmac.so";

class IpsecMbLibraryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    void* const fake = dlopen(kFake, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(fake, nullptr) << dlerror();
    behave_ = reinterpret_cast<void (*)(unsigned, const char*)>(dlsym(fake, "LockstepFakeIpsecMb"));
    ASSERT_NE(behave_, nullptr);
    behave_(ipsec_mb::VersionCode(1, 3, 0), "");
  }

  void (*behave_)(unsigned version, const char* how) = nullptr;
};

TEST_F(IpsecMbLibraryTest, OneThatAgreesWithOpenSslIsUsed) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto library, LoadAgreeingIpsecMb(kFake));
  EXPECT_EQ(library->VersionName(), "ipsec-mb 1.3.0");
  const auto cipher = NewIpsecMbCipher(*library, CipherMode::kAuthenticate, DirectionKey());
  unsigned char payload[100] = {1, 2, 3}, tag[RecordCipher::kTagBytes];
  const iovec piece = {payload, sizeof(payload)};
  cipher->Seal(0, {}, {&piece, 1}, nullptr, tag);
  EXPECT_TRUE(cipher->Open(0, {}, {&piece, 1}, tag, nullptr));
  payload[99] ^= 1;
  EXPECT_FALSE(cipher->Open(0, {}, {&piece, 1}, tag, nullptr));
}

TEST_F(IpsecMbLibraryTest, OneThatIsNotThereIsRefused) {
  EXPECT_THAT(IpsecMbLibrary::Load("libIPSec_MB_that_nobody_has.so"),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("libIPSec_MB_that_nobody_has.so: cannot open")));
}

TEST_F(IpsecMbLibraryTest, OnlyVersions1AreTaken) {
  for (const unsigned version : {ipsec_mb::VersionCode(0, 55, 0), ipsec_mb::VersionCode(2, 0, 0)}) {
    behave_(version, "");
    EXPECT_THAT(LoadAgreeingIpsecMb(kFake),
                StatusIs(absl::StatusCode::kUnavailable, AllOf(HasSubstr(version >> 16 == 0 ? "0.55.0" : "2.0.0"),
                                                               HasSubstr("only versions 1.x are supported"))));
  }
  for (const unsigned version : {ipsec_mb::VersionCode(1, 0, 0), ipsec_mb::VersionCode(1, 255, 255)}) {
    behave_(version, "");
    EXPECT_THAT(LoadAgreeingIpsecMb(kFake), IsOk());
  }
}

TEST_F(IpsecMbLibraryTest, AMissingFunctionIsNamed) {
  EXPECT_THAT(IpsecMbLibrary::Load("libm.so.6"),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("libm.so.6: has no imb_get_version")));
  EXPECT_THAT(
      IpsecMbLibrary::Load(kFakeThatLacksGmac),
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr("ipsec-mb 1.3.0 has no imb_aes_gmac_update_256_vaes_avx512")));
}

TEST_F(IpsecMbLibraryTest, OneThatDisagreesWithOpenSslIsNotUsed) {
  struct Expectation {
    const char *how, *text;
  };
  for (const Expectation& e : {Expectation{"tag", "a record of 0 bytes, authenticated"},
                               Expectation{"cipher", "a record of 1 bytes, encrypted"},
                               Expectation{"long", "a record of 65584 bytes, authenticated"}}) {
    behave_(ipsec_mb::VersionCode(1, 3, 0), e.how);
    EXPECT_THAT(LoadAgreeingIpsecMb(kFake),
                StatusIs(absl::StatusCode::kUnavailable, AllOf(HasSubstr("disagrees with OpenSSL"), HasSubstr(e.text))))
        << e.how;
  }
}

}  // namespace
}  // namespace lockstep
