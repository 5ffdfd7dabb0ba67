#include "comm/world/device_backend.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/device/device.h"
#include "base/device/host_device.h"
#include "base/log.h"
#include "base/log_testing.h"
#include "base/status.h"
#include "base/status_matchers.h"
#include "comm/communicator.h"
#include "comm/device/device_communicator.h"
#include "comm/host/self_communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fake_device.h"
#include "tests/ranks.h"

namespace lockstep {
namespace {

const DeviceBackend& TheRealStaged() {
  const std::vector<DeviceBackend>& backends = DeviceBackends();
  return *std::find_if(backends.begin(), backends.end(), [](const DeviceBackend& b) { return b.name == "staged"; });
}

using ::lockstep::testing::LoopbackWorld;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Code = absl::StatusCode;
using Made = absl::StatusOr<std::unique_ptr<DeviceCommunicator>>;

// One of which each rank has its own answer; where one refuses, the others hear of it. Staged where all are OK.
DeviceBackend Named(const std::string& name, std::function<absl::Status(int rank)> answer) {
  return {name,
          [answer = std::move(answer)](Communicator* host, Device* device, const DeviceBackendOptions& options,
                                       const std::string& reason) -> Made {
            LOCKSTEP_RETURN_IF_ERROR(answer(host->rank().value()));
            for (int r = 0; r < host->size(); ++r) {
              const absl::Status other = answer(r);
              if (!other.ok()) return absl::UnavailableError(absl::StrCat("rank ", r, ": ", other.message()));
            }
            return TheRealStaged().create(host, device, options, reason);
          }};
}
DeviceBackend Staged() {
  return Named("staged", [](int) { return absl::OkStatus(); });
}

// What each rank gets.
std::vector<Made> MakeOn(LoopbackWorld* world, const std::vector<DeviceBackend>& backends,
                         const std::function<DeviceBackendOptions(int rank)>& options) {
  static auto* const device = new FakeDevice();
  std::vector<Made> made;
  for (int r = 0; r < world->size(); ++r) made.emplace_back(absl::UnknownError("not made"));
  world->Run([&](Communicator& host) {
    const int rank = host.rank().value();
    made[rank] = internal::MakeDeviceCommunicator(&host, device, options(rank), backends);
  });
  return made;
}

DeviceBackendOptions Request(const std::string& backend) {
  DeviceBackendOptions options;
  options.backend = backend;
  return options;
}

void ExpectUsable(std::vector<Made>* made) {
  ::lockstep::testing::RunRanks(static_cast<int>(made->size()), [&](int r) {
    DeviceCommunicator& self = **(*made)[r];
    int value = 1;
    CollectiveRequest request = MakeRequest(Collective::kAllReduce, DType::kI32, 1, &value, &value);
    request.device = self.device();
    EXPECT_THAT(self.Run(request), IsOk());
    EXPECT_EQ(value, static_cast<int>(made->size()));
  });
}

TEST(DeviceBackend, AutoIsTheFirstThatAllRanksCanUse) {
  LoopbackWorld world(3);
  const std::vector<DeviceBackend> backends = {
      Named("best", [](int r) { return r == 2 ? absl::UnavailableError("no such library") : absl::OkStatus(); }),
      Named("good", [](int r) { return absl::FailedPreconditionError("two ranks share a GPU"); }), Staged()};
  std::vector<Made> made = MakeOn(&world, backends, [](int) { return Request("auto"); });
  for (const Made& each : made) {
    ASSERT_THAT(each.status(), IsOk());
    EXPECT_THAT((*each)->Describe(), AllOf(HasSubstr("best: rank 0: rank 2: no such library"),
                                           HasSubstr("good: rank 0: two ranks share a GPU")));
  }
  ExpectUsable(&made);
}

TEST(DeviceBackend, ThatNcclIsNotProtectedIsSaidOnceAndWhereItIsChosen) {
  const LogLevel level = GetLogLevel();
  SetLogLevel(LogLevel::kInfo);
  const auto request = [](const std::string& backend) {
    DeviceBackendOptions options = Request(backend);
    options.nccl_notice = "not protected";
    return options;
  };
  const std::vector<DeviceBackend> backends = {Named("nccl", [](int) { return absl::OkStatus(); }), Staged()};
  for (const char* const backend : {"staged", "nccl", "auto"}) {
    LoopbackWorld world(2);
    LogLines log;
    for (const Made& each : MakeOn(&world, backends, [&](int) { return request(backend); })) {
      ASSERT_THAT(each.status(), IsOk());
    }
    const std::vector<std::string> lines = log.lines();
    const auto said = std::count_if(lines.begin(), lines.end(), [](const std::string& line) {
      return line.find("not protected") != std::string::npos;
    });
    EXPECT_EQ(said, std::string(backend) == "staged" ? 0 : 1) << backend;
  }
  SetLogLevel(level);
}

TEST(DeviceBackend, OneThatIsAskedForIsNotReplaced) {
  LoopbackWorld world(2);
  const std::vector<DeviceBackend> backends = {
      Named("best", [](int r) { return r == 1 ? absl::UnavailableError("no such library") : absl::OkStatus(); }),
      Staged()};
  const std::vector<Made> made = MakeOn(&world, backends, [](int) { return Request("best"); });
  EXPECT_THAT(made[1].status(), StatusIs(Code::kUnavailable, HasSubstr("best: no such library")));
  EXPECT_THAT(made[0].status(), StatusIs(Code::kUnavailable, HasSubstr("best: rank 1: no such library")));
  std::vector<Made> staged = MakeOn(&world, backends, [](int) { return Request("staged"); });
  for (const Made& each : staged) ASSERT_THAT(each.status(), IsOk());
  ExpectUsable(&staged);
}

// Whatever is wrong with one, another one might hide.
TEST(DeviceBackend, AnErrorThatIsNoRefusalEndsTheSearch) {
  LoopbackWorld world(2);
  const std::vector<DeviceBackend> backends = {
      Named("best", [](int r) { return r == 0 ? absl::InternalError("a bug") : absl::OkStatus(); }), Staged()};
  const std::vector<Made> made = MakeOn(&world, backends, [](int) { return Request("auto"); });
  EXPECT_THAT(made[0].status(), StatusIs(Code::kInternal, HasSubstr("a bug")));
  EXPECT_THAT(made[1].status(), StatusIs(Code::kUnavailable, HasSubstr("rank 0: a bug")));
}

TEST(DeviceBackend, NobodyCanIsUnavailableWithAllReasons) {
  LoopbackWorld world(2);
  const std::vector<DeviceBackend> backends = {
      Named("a", [](int) { return absl::UnavailableError("no a"); }),
      Named("b", [](int) { return absl::UnimplementedError("no b"); }),
  };
  for (const Made& each : MakeOn(&world, backends, [](int) { return Request("auto"); })) {
    EXPECT_THAT(each.status(), StatusIs(Code::kUnavailable, HasSubstr("a: rank 0: no a; b: rank 0: no b")));
  }
}

TEST(DeviceBackend, DifferentRequestsAreAnErrorOnEveryRank) {
  LoopbackWorld world(3);
  for (const Made& each : MakeOn(&world, {Staged()}, [](int r) { return Request(r == 1 ? "staged" : "auto"); })) {
    EXPECT_THAT(each.status(), StatusIs(Code::kFailedPrecondition, AllOf(HasSubstr("rank 0 for \"auto\" on cuda"),
                                                                         HasSubstr("rank 1 for \"staged\" on cuda"))));
  }
}

TEST(DeviceBackend, NamesThatThereAreNotAreRefused) {
  LoopbackWorld world(2);
  for (const Made& each : MakeOn(&world, DeviceBackends(), [](int) { return Request("telepathy"); })) {
    EXPECT_THAT(each.status(),
                StatusIs(Code::kInvalidArgument, AllOf(HasSubstr("\"telepathy\""), HasSubstr("auto, nccl, staged"))));
  }
}

// Where there is no CUDA, NCCL is refused, and staging does without.
TEST(DeviceBackend, NcclIsRefusedWithoutCuda) {
  LoopbackWorld world(2);
  for (const Made& each : MakeOn(&world, DeviceBackends(), [](int) { return Request("nccl"); })) {
    EXPECT_THAT(each.status(), StatusIs(Code::kUnavailable, HasSubstr("nccl: ")));
  }
  std::vector<Made> made = MakeOn(&world, DeviceBackends(), [](int) { return Request("auto"); });
  for (const Made& each : made) {
    ASSERT_THAT(each.status(), IsOk());
    EXPECT_THAT((*each)->Describe(), AllOf(HasSubstr("staged through"), HasSubstr("nccl: ")));
  }
  ExpectUsable(&made);
}

TEST(DeviceBackend, TheHostHasNoneAndTheHostCommunicatorGoesOn) {
  SelfCommunicator host(8);
  EXPECT_THAT(MakeDeviceCommunicator(&host, HostDevice(), {}).status(), StatusIs(Code::kInvalidArgument));
  FakeDevice device;
  std::vector<Made> made;
  made.push_back(MakeDeviceCommunicator(&host, &device, {}));
  ASSERT_THAT(made[0].status(), IsOk());
  ExpectUsable(&made);
  EXPECT_THAT((*made[0])->Run(CollectiveRequest()), IsOk()) << "on the host";
}

TEST(DeviceBackend, AGroupThatIsOpenWhenItGoesLeavesTheHostsCommunicatorUsable) {
  SelfCommunicator host(8);
  FakeDevice device;
  Made made = MakeDeviceCommunicator(&host, &device, {});
  ASSERT_THAT(made.status(), IsOk());
  for (int depth = 0; depth < 2; ++depth) ASSERT_THAT((*made)->StartGroup(), IsOk());
  made->reset();
  EXPECT_FALSE(host.InGroup());
}

}  // namespace
}  // namespace lockstep
