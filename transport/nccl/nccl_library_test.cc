#include "transport/nccl/nccl_library.h"

#include <stdlib.h>

#include <string>
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

}  // namespace
}  // namespace lockstep
