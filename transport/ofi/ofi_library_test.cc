#include "transport/ofi/ofi_library.h"

#include <rdma/fi_errno.h>

#include <cstdlib>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(OfiLibrary, IsLoadedWhereItIs) {
  const auto library = LoadOfiLibrary("libfabric.so.1");
  if (absl::IsUnavailable(library.status())) GTEST_SKIP() << library.status();
  ASSERT_THAT(library, IsOk());
  EXPECT_GE(library->api.version(), kOfiVersion);
  EXPECT_THAT(library->Describe(), AllOf(HasSubstr("libfabric "), HasSubstr("/libfabric.so")));
}

TEST(OfiLibrary, SaysWhatWasTriedWhereItIsNot) {
  EXPECT_THAT(LoadOfiLibrary("/nowhere/libfabric.so.1").status(),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("no usable libfabric"), HasSubstr("LOCKSTEP_OFI_LIBRARY"),
                             HasSubstr("/nowhere/libfabric.so.1: cannot open"))));
}

TEST(OfiLibrary, AnotherLibraryIsNone) {
  EXPECT_THAT(LoadOfiLibrary("libm.so.6").status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("libm.so.6: has no fi_getinfo")));
}

// First wherever the variable leads; the library that was loaded stays.
TEST(OfiLibrary, TheVariableNamesIt) {
  setenv("LOCKSTEP_OFI_LIBRARY", "/nowhere/at_all.so", /*overwrite=*/1);
  EXPECT_THAT(Ofi().status(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("/nowhere/at_all.so")));
  unsetenv("LOCKSTEP_OFI_LIBRARY");
  const auto library = Ofi();
  if (!library.ok()) GTEST_SKIP() << library.status();
  EXPECT_EQ(*Ofi(), *library);
}

TEST(OfiLibrary, ErrorsTellWhatToDo) {
  OfiApi api;
  api.strerror = [](int error) { return error == FI_ECONNRESET ? "it broke" : "it failed"; };
  using Code = absl::StatusCode;
  EXPECT_THAT(OfiStatus(api, -FI_ECONNRESET, "a call"), StatusIs(Code::kUnavailable, "a call: it broke (104)"));
  EXPECT_THAT(OfiStatus(api, FI_ENOMEM, "a call"), StatusIs(Code::kResourceExhausted, HasSubstr("it failed")));
  EXPECT_THAT(OfiStatus(api, -FI_ENOSYS, "a call"), StatusIs(Code::kUnimplemented, HasSubstr("a call")));
  EXPECT_THAT(OfiStatus(api, -FI_ECANCELED, "a call"), StatusIs(Code::kCancelled, HasSubstr("a call")));
  EXPECT_THAT(OfiStatus(api, -FI_EINVAL, "a call"), StatusIs(Code::kInternal, HasSubstr("a call")));
}

}  // namespace
}  // namespace lockstep
