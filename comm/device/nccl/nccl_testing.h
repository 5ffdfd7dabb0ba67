// Worlds of NcclCommunicators without a GPU: ranks are threads, CUDA is base/device/cuda/cuda_api_testing.h, NCCL is
// tests/fake_nccl.h, and the host communicators are over TCP. All ranks are on cuda:0, so that one request fits all; the
// fake NCCL allows ranks to share a GPU.

#ifndef COMM_DEVICE_NCCL_NCCL_TESTING_H_
#define COMM_DEVICE_NCCL_NCCL_TESTING_H_

#include <stdlib.h>

#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/check.h"
#include "base/deadline.h"
#include "base/device/cuda/cuda_api.h"
#include "base/device/cuda/cuda_api_testing.h"
#include "base/device/cuda/cuda_device.h"
#include "base/device/device.h"
#include "base/status.h"
#include "base/status_matchers.h"
#include "comm/communicator.h"
#include "comm/device/nccl/nccl_communicator.h"
#include "comm/world/world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/communicator_testing.h"
#include "tests/fake_nccl.h"
#include "tests/ranks.h"
#include "tests/worlds.h"
#include "transport/nccl/nccl_abi.h"
#include "transport/store/store_memory.h"

namespace lockstep {

// The process's fakes of CUDA and NCCL. Made by the first Get(), never destroyed.
struct NcclFakes {
  FakeCuda* cuda;
  FakeNccl* nccl;
  Device* device;

  static NcclFakes& Get() {
    static auto* const fakes = [] {
      auto* const made = new NcclFakes{new FakeCuda(), FakeNccl::Load(), CudaDevice(0).value()};
      LOCKSTEP_CHECK(made->nccl != nullptr) << "no fake NCCL at " << FakeNccl::kPath;
      setenv("LOCKSTEP_NCCL_LIBRARY", FakeNccl::kPath, /*overwrite=*/1);
      setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", /*overwrite=*/1);
      made->Reset();
      return made;
    }();
    return *fakes;
  }

  void Reset() {
    nccl->Reset();
    nccl->set_version(nccl::VersionCode(2, 31, 0));
    nccl->set_launch(TheCudaApi().launch_host_func, TheCudaApi().stream_is_capturing);
  }
};

struct NcclWorlds {
  using ChangeNccl = std::function<void(int rank, NcclCommunicatorOptions* options)>;

  std::vector<std::unique_ptr<World>> worlds;
  std::vector<std::unique_ptr<NcclCommunicator>> ranks;  // destroyed first

  // Creates each rank's communicator over the host communicators of `worlds`, on cuda:0 or on a device of the rank's own.
  static std::vector<absl::StatusOr<std::unique_ptr<NcclCommunicator>>> Connect(
      const std::vector<std::unique_ptr<World>>& worlds, const ChangeNccl& change = nullptr, bool own_devices = false) {
    std::vector<absl::StatusOr<std::unique_ptr<NcclCommunicator>>> made;
    for (size_t r = 0; r < worlds.size(); ++r) made.emplace_back(absl::UnknownError("not created"));
    testing::RunRanks(static_cast<int>(worlds.size()), [&](int rank) {
      NcclCommunicatorOptions options;
      options.timeout = std::chrono::milliseconds(60'000);
      options.setup_timeout = std::chrono::milliseconds(30'000);
      if (change) change(rank, &options);
      Device* const device = own_devices ? CudaDevice(rank).value() : NcclFakes::Get().device;
      made[rank] = NcclCommunicator::Create(worlds[rank]->communicator(), device, options);
    });
    return made;
  }

  // The ranks are not joined by NCCL yet.
  static absl::StatusOr<std::shared_ptr<NcclWorlds>> CreateHosts(int size) {
    auto made = std::make_shared<NcclWorlds>();
    MemoryStore store;
    for (WorldOrError& world : CreateWorlds(&store, size)) {
      if (!world.ok()) return world.status();
      made->worlds.push_back(*std::move(world));
    }
    return made;
  }

  static absl::StatusOr<std::shared_ptr<NcclWorlds>> Create(int size, const ChangeNccl& change = nullptr,
                                                            bool own_devices = false) {
    LOCKSTEP_ASSIGN_OR_RETURN(std::shared_ptr<NcclWorlds> made, CreateHosts(size));
    for (auto& communicator : Connect(made->worlds, change, own_devices)) {
      if (!communicator.ok()) return communicator.status();
      made->ranks.push_back(*std::move(communicator));
    }
    return made;
  }
};

// A world of fakes for each test. Checks at the end that nothing was misused and nothing is left.
class NcclTest : public ::testing::Test {
 protected:
  void SetUp() override { fakes_.Reset(); }
  void TearDown() override {
    world_.reset();
    EXPECT_EQ(fakes_.nccl->misuses(), 0);
    EXPECT_EQ(fakes_.nccl->communicators(), 0);
    EXPECT_EQ(fakes_.nccl->registrations(), 0);
  }

  void Create(int size, const NcclWorlds::ChangeNccl& change = nullptr) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(world_, NcclWorlds::Create(size, change));
  }
  // Ranks that are not joined by NCCL yet.
  void CreateHosts(int size) { LOCKSTEP_ASSERT_OK_AND_ASSIGN(world_, NcclWorlds::CreateHosts(size)); }

  int size() const { return static_cast<int>(world_->worlds.size()); }
  Communicator& rank(int r) { return *world_->ranks[r]; }
  void OnRanks(const std::function<void(Communicator&)>& body) {
    testing::RunRanks(size(), [&](int r) { body(rank(r)); });
  }
  CaseMemory memory() { return CaseMemory{fakes_.device}; }

  // A case that must come out right on all ranks.
  void ExpectRight(const CollectiveCase& c) {
    const CaseReference reference(c, size());
    OnRanks([&](Communicator& self) {
      CaseRun run(reference, self.rank(), memory());
      EXPECT_THAT(self.Run(run.request()), IsOk());
      EXPECT_EQ(run.Check(), "");
    });
  }
  // Each rank's host communicator still works.
  void ExpectHostsGood() {
    testing::RunRanks(size(), [&](int r) { EXPECT_THAT(world_->worlds[r]->communicator()->Run({}), IsOk()); });
  }
  // Until somebody else has noticed a failure.
  static void AwaitFailure(const Communicator& self) {
    const Deadline deadline = CommTestDeadline();
    while (self.status().ok() && !deadline.passed()) std::this_thread::yield();
  }
  // NCCL is asked to abort each communicator once, whoever finds out.
  void ExpectAbortedOnce() {
    const Deadline deadline = CommTestDeadline();
    while (fakes_.nccl->communicators() > 0 && !deadline.passed()) std::this_thread::yield();
    EXPECT_EQ(fakes_.nccl->calls("ncclCommAbort"), size());
    EXPECT_EQ(fakes_.nccl->calls("ncclCommDestroy"), 0);
    EXPECT_EQ(fakes_.nccl->communicators(), 0);
  }
  static CollectiveCase Small() {
    CollectiveCase c;
    c.count = 100;
    return c;
  }

  NcclFakes& fakes_ = NcclFakes::Get();
  std::shared_ptr<NcclWorlds> world_;
};

}  // namespace lockstep

#endif  // COMM_DEVICE_NCCL_NCCL_TESTING_H_
