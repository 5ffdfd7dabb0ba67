// How much of a staged all-reduce's three stages overlaps?
//
// Two ranks, threads that share a GPU, over shared memory. bytes_per_second is the vector's bytes over the time of a
// call.
//
//   Staged/vector MiB/chunk KiB/slots   one slot of the whole vector does the stages one after the other, three slots
//                                       overlap them
//   HostCollective/vector MiB           the stage in the middle alone, on pinned memory, in one call
//   Copies/vector MiB                   the two others alone, at the same time
//
// With everything overlapped a call takes as long as the longest stage and what the first and the last piece take. Both
// ranks use the same link to the GPU.
//
//   bazel run -c opt //comm/device/staged:staged_benchmark

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/device/cuda/cuda_device.h"
#include "base/device/device.h"
#include "base/status.h"
#include "base/types/dtype.h"
#include "benchmark/benchmark.h"
#include "comm/communicator.h"
#include "comm/device/staged/staged_communicator.h"
#include "comm/schedule/schedule.h"
#include "comm/symmetric_buffer.h"
#include "comm/world/world.h"
#include "tests/ranks.h"
#include "tests/worlds.h"
#include "transport/store/store_memory.h"

namespace lockstep {
namespace {

using ::lockstep::testing::RunRanks;

constexpr int kRanks = 2;
constexpr size_t kMiB = size_t{1} << 20;

// What one rank does: `prepare` once, and `call` as often as wanted.
class Runner {
 public:
  virtual ~Runner() = default;
  virtual absl::Status Prepare(Communicator* host, Device* device, size_t bytes) = 0;
  virtual absl::Status Call() = 0;
};

CollectiveRequest SumOf(void* vector, size_t bytes, DeviceId device) {
  CollectiveRequest request = MakeRequest(Collective::kAllReduce, DType::kF32, bytes / sizeof(float), vector, vector);
  request.device = device;
  return request;
}

class StagedRunner : public Runner {
 public:
  StagedRunner(size_t chunk_bytes, int slots) {
    options_.chunk_bytes = chunk_bytes;
    options_.slots = slots;
  }
  absl::Status Prepare(Communicator* host, Device* device, size_t bytes) override {
    LOCKSTEP_ASSIGN_OR_RETURN(communicator_, StagedCommunicator::Create(host, device, options_));
    LOCKSTEP_ASSIGN_OR_RETURN(vector_, communicator_->AllocateOnDevice(bytes));
    return absl::OkStatus();
  }
  absl::Status Call() override {
    return communicator_->Run(SumOf(vector_->data(), vector_->bytes(), communicator_->device()));
  }

 private:
  StagedOptions options_;
  std::unique_ptr<StagedCommunicator> communicator_;
  std::unique_ptr<SymmetricBuffer> vector_;
};

class CollectiveRunner : public Runner {
 public:
  ~CollectiveRunner() override {
    if (vector_ != nullptr) device_->FreeOnHost(vector_);
  }
  absl::Status Prepare(Communicator* host, Device* device, size_t bytes) override {
    host_ = host;
    device_ = device;
    bytes_ = bytes;
    LOCKSTEP_ASSIGN_OR_RETURN(vector_, device->AllocateOnHost(bytes));
    return absl::OkStatus();
  }
  absl::Status Call() override { return host_->Run(SumOf(vector_, bytes_, DeviceId())); }

 private:
  Communicator* host_ = nullptr;
  Device* device_ = nullptr;
  size_t bytes_ = 0;
  void* vector_ = nullptr;
};

class CopiesRunner : public Runner {
 public:
  ~CopiesRunner() override {
    for (void* memory : on_host_) device_->FreeOnHost(memory);
    for (void* memory : on_device_) device_->Free(memory);
  }
  absl::Status Prepare(Communicator*, Device* device, size_t bytes) override {
    device_ = device;
    bytes_ = bytes;
    for (int i = 0; i < 2; ++i) {
      LOCKSTEP_ASSIGN_OR_RETURN(on_host_.emplace_back(), device->AllocateOnHost(bytes));
      LOCKSTEP_ASSIGN_OR_RETURN(on_device_.emplace_back(), device->Allocate(bytes));
      LOCKSTEP_ASSIGN_OR_RETURN(streams_.emplace_back(), device->CreateStream("copies"));
    }
    return absl::OkStatus();
  }
  absl::Status Call() override {
    LOCKSTEP_RETURN_IF_ERROR(streams_[0]->Copy(on_host_[0], on_device_[0], bytes_));
    LOCKSTEP_RETURN_IF_ERROR(streams_[1]->Copy(on_device_[1], on_host_[1], bytes_));
    for (auto& stream : streams_) LOCKSTEP_RETURN_IF_ERROR(stream->Synchronize(Deadline::AfterMs(60'000)));
    return absl::OkStatus();
  }

 private:
  Device* device_ = nullptr;
  size_t bytes_ = 0;
  std::vector<void*> on_host_;
  std::vector<void*> on_device_;
  std::vector<std::unique_ptr<Stream>> streams_;
};

template <typename MakeRunner>
void Run(benchmark::State& state, const MakeRunner& make_runner) {
  const size_t bytes = state.range(0) * kMiB;
  const absl::StatusOr<Device*> device = CudaDevice(0);
  if (!device.ok()) return state.SkipWithError(std::string(device.status().message()).c_str());
  MemoryStore store;
  std::vector<WorldOrError> worlds = CreateWorlds(&store, kRanks);
  std::vector<absl::Status> results(kRanks);
  RunRanks(kRanks, [&](int rank) {
    const auto play = [&]() -> absl::Status {
      LOCKSTEP_RETURN_IF_ERROR(worlds[rank].status());
      Communicator* const host = (*worlds[rank])->communicator();
      const std::unique_ptr<Runner> player = make_runner();
      absl::Status status = player->Prepare(host, *device, bytes);
      if (status.ok()) status = player->Call();  // once for nothing
      if (!status.ok()) host->Abort("the benchmark failed");
      LOCKSTEP_RETURN_IF_ERROR(status);
      LOCKSTEP_RETURN_IF_ERROR(host->Run(CollectiveRequest()));
      if (rank == 0) {
        for (auto _ : state) {
          if (status.ok()) status = player->Call();
        }
      } else {
        for (benchmark::IterationCount i = 0; i < state.max_iterations && status.ok(); ++i) status = player->Call();
      }
      return status;
    };
    results[rank] = play();
  });
  for (const absl::Status& result : results) {
    if (!result.ok()) state.SkipWithError(std::string(result.message()).c_str());
  }
  state.SetBytesProcessed(static_cast<int64_t>(bytes) * state.iterations());
}

void Staged(benchmark::State& state) {
  const size_t chunk_bytes = state.range(1) * 1024;
  const int slots = static_cast<int>(state.range(2));
  Run(state, [&] { return std::make_unique<StagedRunner>(chunk_bytes, slots); });
}
BENCHMARK(Staged)
    ->Args({100, 100 << 10, 1})
    ->Args({100, 1024, 1})
    ->Args({100, 1024, 3})
    ->Args({100, 1024, 6})
    ->Args({100, 256, 6})
    ->Args({100, 4096, 3})
    ->Args({25, 25 << 10, 1})
    ->Args({25, 1024, 3})
    ->Args({1, 1024, 3})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

void HostCollective(benchmark::State& state) {
  Run(state, [] { return std::make_unique<CollectiveRunner>(); });
}
BENCHMARK(HostCollective)->Arg(100)->Arg(25)->Arg(1)->UseRealTime()->Unit(benchmark::kMicrosecond);

void Copies(benchmark::State& state) {
  Run(state, [] { return std::make_unique<CopiesRunner>(); });
}
BENCHMARK(Copies)->Arg(100)->Arg(25)->Arg(1)->UseRealTime()->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace lockstep
