#include "transport/nccl/nccl_library.h"

#include <stdlib.h>

#if __has_include(<nccl.h>) && __has_include(<cuda_runtime.h>)
#include <nccl.h>
#define LOCKSTEP_HAS_NCCL_HEADER 1
#endif

#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fake_nccl.h"
#include "transport/nccl/nccl_abi.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::EndsWith;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class NcclLibraryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fake_ = FakeNccl::Load();
    ASSERT_NE(fake_, nullptr);
    fake_->Reset();
  }

  absl::StatusOr<std::unique_ptr<const NcclLibrary>> LoadFake() {
    return NcclLibrary::Load({NcclPlace{FakeNccl::kPath, "here"}});
  }

  FakeNccl* fake_ = nullptr;
};

TEST_F(NcclLibraryTest, TellsVersionPathAndWhy) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto library, LoadFake());
  EXPECT_EQ(library->version(), 22809);
  EXPECT_EQ(library->VersionName(), "NCCL 2.28.9");
  EXPECT_THAT(library->path(), EndsWith("libfake_nccl.so"));
  EXPECT_EQ(library->Describe(), absl::StrCat("NCCL 2.28.9 (", library->path(), ": here)"));
}

TEST_F(NcclLibraryTest, AnOldOneIsRefusedWithItsVersionAndTheOldestSupported) {
  fake_->set_version(nccl::VersionCode(2, 13, 4));
  EXPECT_THAT(LoadFake().status(),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("tests/libfake_nccl.so (here): NCCL 2.13.4 is too old"),
                             HasSubstr("NCCL 2.14.0 is the oldest supported"), HasSubstr("LOCKSTEP_NCCL_LIBRARY"))));
  fake_->set_version(NcclLibrary::kOldest);
  EXPECT_THAT(LoadFake().status(), IsOk());
}

TEST_F(NcclLibraryTest, TheFirstThatWillDoIsTakenAndOtherwiseEachSaysWhyNot) {
  const std::vector<NcclPlace> places = {{"/nowhere/libnccl.so.2", "one"},
                                         {"libnccl_that_nobody_has.so", "two", /*present=*/true},
                                         {"libm.so.6", "three"}};
  EXPECT_THAT(NcclLibrary::Load(places).status(),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("/nowhere/libnccl.so.2 (one): /nowhere/libnccl.so.2: cannot open"),
                             HasSubstr("libnccl_that_nobody_has.so (two): not loaded"),
                             HasSubstr("libm.so.6 (three): has no ncclGetVersion"))));
  std::vector<NcclPlace> more = places;
  more.push_back({FakeNccl::kPath, "four"});
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto library, NcclLibrary::Load(more));
  EXPECT_THAT(library->Describe(), HasSubstr("four"));
}

TEST_F(NcclLibraryTest, AVersionThatCannotBeToldIsRefused) {
  fake_->Fail("ncclGetVersion", nccl::kInternalError, 1);
  EXPECT_THAT(LoadFake().status(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("ncclGetVersion fails (3)")));
}

TEST_F(NcclLibraryTest, FeaturesAndTheConfigurationFollowTheVersion) {
  struct Expectation {
    int minor;
    size_t config_size;
    unsigned int config_version;
    bool has_ctas, can_split, can_register, has_float8;
  };
  for (const Expectation& e :
       {Expectation{14, 24, 21400, false, false, false, false}, Expectation{16, 24, 21400, false, false, false, false},
        Expectation{17, 40, 21700, true, false, false, false}, Expectation{18, 48, 21800, true, true, false, false},
        Expectation{19, 48, 21800, true, true, true, false}, Expectation{24, 48, 21800, true, true, true, true},
        Expectation{99, 48, 21800, true, true, true, true}}) {
    SCOPED_TRACE(e.minor);
    fake_->set_version(nccl::VersionCode(2, e.minor, 1));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto library, LoadFake());
    EXPECT_EQ(library->has_ctas(), e.has_ctas);
    EXPECT_EQ(library->can_split(), e.can_split);
    EXPECT_EQ(library->can_register(), e.can_register);
    EXPECT_EQ(library->has_float8(), e.has_float8);
    const nccl::Config config = library->MakeConfig();
    EXPECT_EQ(config.size, e.config_size);
    EXPECT_EQ(config.version, e.config_version);
    EXPECT_EQ(config.blocking, 0);
  }
}

// What NCCL itself says, where there is one to load.
TEST(NcclLibraryHere, LoadsOrSaysOfEachPlaceWhyNot) {
  const std::vector<NcclPlace> places = NcclPlaces();
  const absl::StatusOr<const NcclLibrary*> library = Nccl();
  if (library.ok()) {
    EXPECT_GE((*library)->version(), NcclLibrary::kOldest);
    EXPECT_THAT((*library)->path(), HasSubstr("nccl"));
    EXPECT_EQ(Nccl(), library);
    return;
  }
  EXPECT_THAT(library.status(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("no usable NCCL")));
  for (const NcclPlace& place : places) {
    EXPECT_THAT(std::string(library.status().message()), HasSubstr(absl::StrCat(place.file, " (", place.reason, ")")));
  }
}

class Environment {
 public:
  void Set(const char* name, const std::string& value) { setenv(name, value.c_str(), /*overwrite=*/1); }
  ~Environment() {
    for (const char* name : {"LOCKSTEP_NCCL_LIBRARY", "CUDA_HOME", "VIRTUAL_ENV"}) unsetenv(name);
  }
};

TEST(NcclPlacesTest, WhatTheVariableNamesIsTheOnlyPlace) {
  Environment environment;
  environment.Set("LOCKSTEP_NCCL_LIBRARY", "/some/libnccl.so");
  const std::vector<NcclPlace> places = NcclPlaces();
  ASSERT_THAT(places, SizeIs(1));
  EXPECT_EQ(places[0].file, "/some/libnccl.so");
  EXPECT_EQ(places[0].reason, "LOCKSTEP_NCCL_LIBRARY");
  EXPECT_FALSE(places[0].present);
}

TEST(NcclPlacesTest, WhatIsLoadedGoesBeforeTheLoadersPathAndThatBeforeFolders) {
  Environment environment;
  environment.Set("CUDA_HOME", "/opt/cuda");
  const std::vector<NcclPlace> places = NcclPlaces();
  ASSERT_GE(places.size(), 4u);
  EXPECT_TRUE(places[0].present);
  EXPECT_EQ(places[0].file, "libnccl.so.2");
  EXPECT_FALSE(places[1].present);
  EXPECT_EQ(places[1].file, "libnccl.so.2");
  EXPECT_EQ(places[2].file, "/opt/cuda/lib64/libnccl.so.2");
  EXPECT_EQ(places[3].file, "/usr/local/cuda/lib64/libnccl.so.2");
}

TEST(NcclPlacesTest, PythonsPackageIsFoundWhereverItsFolderIs) {
  Environment environment;
  const std::string prefix = absl::StrCat(::testing::TempDir(), "/environment");
  const std::string folder = absl::StrCat(prefix, "/lib/python3.12/site-packages/nvidia/nccl/lib");
  ASSERT_EQ(system(absl::StrCat("mkdir -p '", folder, "' && touch '", folder, "/libnccl.so.2'").c_str()), 0);
  environment.Set("VIRTUAL_ENV", prefix);
  EXPECT_THAT(NcclPlaces(), Contains(AllOf(Field(&NcclPlace::file, absl::StrCat(folder, "/libnccl.so.2")),
                                           Field(&NcclPlace::reason, "VIRTUAL_ENV"))));
}

// The part of NCCL's interface that we declare ourselves, beside NCCL's header, where the compiler finds it.
TEST(NcclAbi, IsNcclsHeaders) {
#ifndef LOCKSTEP_HAS_NCCL_HEADER
  GTEST_SKIP() << "no nccl.h here";
#else
  static_assert(sizeof(nccl::UniqueId) == sizeof(ncclUniqueId) && alignof(nccl::UniqueId) == alignof(ncclUniqueId));
  static_assert(std::is_trivially_copyable_v<nccl::UniqueId>);

  static_assert(nccl::kSuccess == static_cast<int>(ncclSuccess));
  static_assert(nccl::kUnhandledCudaError == static_cast<int>(ncclUnhandledCudaError));
  static_assert(nccl::kSystemError == static_cast<int>(ncclSystemError));
  static_assert(nccl::kInternalError == static_cast<int>(ncclInternalError));
  static_assert(nccl::kInvalidArgument == static_cast<int>(ncclInvalidArgument));
  static_assert(nccl::kInvalidUsage == static_cast<int>(ncclInvalidUsage));
  static_assert(nccl::kRemoteError == static_cast<int>(ncclRemoteError));
  static_assert(nccl::kInProgress == static_cast<int>(ncclInProgress));

  static_assert(nccl::kInt8 == static_cast<int>(ncclInt8));
  static_assert(nccl::kUint8 == static_cast<int>(ncclUint8));
  static_assert(nccl::kInt32 == static_cast<int>(ncclInt32));
  static_assert(nccl::kUint32 == static_cast<int>(ncclUint32));
  static_assert(nccl::kInt64 == static_cast<int>(ncclInt64));
  static_assert(nccl::kUint64 == static_cast<int>(ncclUint64));
  static_assert(nccl::kFloat16 == static_cast<int>(ncclFloat16));
  static_assert(nccl::kFloat32 == static_cast<int>(ncclFloat32));
  static_assert(nccl::kFloat64 == static_cast<int>(ncclFloat64));
  static_assert(nccl::kBfloat16 == static_cast<int>(ncclBfloat16));

  static_assert(nccl::kSum == static_cast<int>(ncclSum));
  static_assert(nccl::kProd == static_cast<int>(ncclProd));
  static_assert(nccl::kMax == static_cast<int>(ncclMax));
  static_assert(nccl::kMin == static_cast<int>(ncclMin));
  static_assert(nccl::kAvg == static_cast<int>(ncclAvg));
  static_assert(nccl::kScalarOnHost == static_cast<int>(ncclScalarHostImmediate));

  static_assert(nccl::VersionCode(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH) == NCCL_VERSION_CODE);

#if NCCL_VERSION_CODE >= 21800
  static_assert(sizeof(nccl::Config) <= sizeof(ncclConfig_t));
  static_assert(offsetof(nccl::Config, blocking) == offsetof(ncclConfig_t, blocking));
  static_assert(offsetof(nccl::Config, cga_cluster_size) == offsetof(ncclConfig_t, cgaClusterSize));
  static_assert(offsetof(nccl::Config, min_ctas) == offsetof(ncclConfig_t, minCTAs));
  static_assert(offsetof(nccl::Config, max_ctas) == offsetof(ncclConfig_t, maxCTAs));
  static_assert(offsetof(nccl::Config, net_name) == offsetof(ncclConfig_t, netName));
  static_assert(offsetof(nccl::Config, split_share) == offsetof(ncclConfig_t, splitShare));
  static_assert(nccl::kUndefined == NCCL_CONFIG_UNDEF_INT && nccl::kNoColor == NCCL_SPLIT_NOCOLOR);
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  EXPECT_EQ(nccl::Config().magic, theirs.magic);
#endif
#if NCCL_VERSION_CODE >= 22400
  static_assert(nccl::kFloat8e4m3 == static_cast<int>(ncclFloat8e4m3));
  static_assert(nccl::kFloat8e5m2 == static_cast<int>(ncclFloat8e5m2));
#endif
#endif
}

}  // namespace
}  // namespace lockstep
