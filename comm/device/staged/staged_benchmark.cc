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
#include <functional>
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
#include "comm/world/world.h"
#include "tests/ranks.h"
#include "tests/worlds.h"
#include "transport/store/store_memory.h"

namespace lockstep {
namespace {

using ::lockstep::testing::RunRanks;

constexpr int kRanks = 2;
constexpr size_t kMiB = size_t{1} << 20;

// What one rank repeats, and what sets it up for vectors of `bytes` bytes.
using Call = std::function<absl::Status()>;
using Prepare = std::function<absl::StatusOr<Call>(Communicator* host, Device* device, size_t bytes)>;

CollectiveRequest SumOf(void* vector, size_t bytes, DeviceId device) {
  CollectiveRequest request = MakeRequest(Collective::kAllReduce, DType::kF32, bytes / sizeof(float), vector, vector);
  request.device = device;
  return request;
}

// Memory of the host that the device reaches, or its own. Shared by copies of a Call.
std::shared_ptr<void> OnHost(Device* device, size_t bytes) {
  return {device->AllocateOnHost(bytes).value(), [device](void* memory) { device->FreeOnHost(memory); }};
}
std::shared_ptr<void> OnDevice(Device* device, size_t bytes) {
  return {device->Allocate(bytes).value(), [device](void* memory) { device->Free(memory); }};
}

absl::StatusOr<Call> PrepareCollective(Communicator* host, Device* device, size_t bytes) {
  return [host, bytes, vector = OnHost(device, bytes)] { return host->Run(SumOf(vector.get(), bytes, DeviceId())); };
}

absl::StatusOr<Call> PrepareCopies(Communicator* /*host*/, Device* device, size_t bytes) {
  LOCKSTEP_ASSIGN_OR_RETURN(std::shared_ptr<Stream> in, device->CreateStream("copies in"));
  LOCKSTEP_ASSIGN_OR_RETURN(std::shared_ptr<Stream> out, device->CreateStream("copies out"));
  return [=, arriving = OnHost(device, bytes), leaving = OnHost(device, bytes), source = OnDevice(device, bytes),
          target = OnDevice(device, bytes)]() -> absl::Status {
    LOCKSTEP_RETURN_IF_ERROR(in->Copy(arriving.get(), source.get(), bytes));
    LOCKSTEP_RETURN_IF_ERROR(out->Copy(target.get(), leaving.get(), bytes));
    for (Stream* const stream : {in.get(), out.get()}) {
      LOCKSTEP_RETURN_IF_ERROR(stream->Synchronize(Deadline::AfterMs(60'000)));
    }
    return absl::OkStatus();
  };
}

void Run(benchmark::State& state, const Prepare& prepare) {
  const size_t bytes = state.range(0) * kMiB;
  const absl::StatusOr<Device*> device = CudaDevice(0);
  if (!device.ok()) return state.SkipWithError(std::string(device.status().message()).c_str());
  MemoryStore store;
  std::vector<WorldOrError> worlds = CreateWorlds(&store, kRanks);
  std::vector<absl::Status> results(kRanks);
  RunRanks(kRanks, [&](int rank) {
    const auto repeat = [&]() -> absl::Status {
      LOCKSTEP_RETURN_IF_ERROR(worlds[rank].status());
      Communicator* const host = (*worlds[rank])->communicator();
      const absl::StatusOr<Call> call = prepare(host, *device, bytes);
      absl::Status status = call.ok() ? (*call)() : call.status();  // once for nothing
      if (!status.ok()) host->Abort("the benchmark failed");
      LOCKSTEP_RETURN_IF_ERROR(status);
      LOCKSTEP_RETURN_IF_ERROR(host->Run(CollectiveRequest()));
      if (rank == 0) {
        for (auto _ : state) status.Update((*call)());
      } else {
        for (benchmark::IterationCount i = 0; i < state.max_iterations; ++i) status.Update((*call)());
      }
      return status;
    };
    results[rank] = repeat();
  });
  for (const absl::Status& result : results) {
    if (!result.ok()) state.SkipWithError(std::string(result.message()).c_str());
  }
  state.SetBytesProcessed(static_cast<int64_t>(bytes) * state.iterations());
}

void Staged(benchmark::State& state) {
  StagedOptions options;
  options.chunk_bytes = state.range(1) * 1024;
  options.slots = static_cast<int>(state.range(2));
  Run(state, [&](Communicator* host, Device* device, size_t bytes) -> absl::StatusOr<Call> {
    LOCKSTEP_ASSIGN_OR_RETURN(std::shared_ptr<StagedCommunicator> self,
                              StagedCommunicator::Create(host, device, options));
    return [self, bytes, vector = OnDevice(device, bytes)] {
      return self->Run(SumOf(vector.get(), bytes, self->device()));
    };
  });
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

void HostCollective(benchmark::State& state) { Run(state, PrepareCollective); }
BENCHMARK(HostCollective)->Arg(100)->Arg(25)->Arg(1)->UseRealTime()->Unit(benchmark::kMicrosecond);

void Copies(benchmark::State& state) { Run(state, PrepareCopies); }
BENCHMARK(Copies)->Arg(100)->Arg(25)->Arg(1)->UseRealTime()->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace lockstep
