// What tests of communicators for a device have ranks do that are processes, and share one GPU.
//
// Buffers of cases are in pinned memory, which kernels reach by address, so that inputs and outputs are made and
// judged as everywhere else (tests/communicator_testing.h).

#ifndef COMM_DEVICE_DEVICE_PROCESSES_H_
#define COMM_DEVICE_DEVICE_PROCESSES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/device/cuda/cuda_api.h"
#include "base/device/device.h"
#include "base/rank.h"
#include "base/status.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "comm/communicator.h"
#include "comm/schedule/schedule.h"
#include "comm/symmetric_buffer.h"
#include "tests/communicator_testing.h"

namespace lockstep {

inline Deadline SoonOnDevice() { return Deadline::AfterMs(60'000); }

// Every collective, dtype and op that the communicator has, in and out of place, with equal and unequal blocks, by
// turns.
inline std::vector<CollectiveCase> DeviceCases(const Communicator& self) {
  static constexpr size_t kCounts[] = {5, 300, 1, 0, 20'000, 67};
  std::vector<CollectiveCase> cases;
  for (const Collective collective : kAllCollectives) {
    for (const DType dtype : kAllDTypes) {
      for (const ReduceOp op : kAllReduceOps) {
        if (!HasReduction(collective) && (op != ReduceOp::kSum || dtype != DType::kBF16)) continue;
        if (HasReduction(collective) && !self.Supports(collective, dtype, op).ok()) continue;
        for (int turn = 0; turn < (HasReduction(collective) ? 1 : 8); ++turn) {
          const uint32_t k = static_cast<uint32_t>(cases.size());
          CollectiveCase c;
          c.collective = collective;
          c.dtype = dtype;
          c.op = op;
          c.root = static_cast<int>(k % self.size());
          c.count = kCounts[k % std::size(kCounts)];
          c.in_place = k / 2 % 2 == 1 && collective != Collective::kBarrier;
          c.unequal = k % 2 == 1 && IsByRank(collective) && !(c.in_place && collective == Collective::kAllToAll);
          c.seed = k;
          cases.push_back(c);
        }
      }
    }
  }
  return cases;
}

inline absl::Status RunDeviceCase(Communicator& self, Device* device, const CollectiveCase& c) {
  const CaseReference reference(c, self.size());
  CaseRun run(reference, self.rank(), CaseMemory{device});
  LOCKSTEP_RETURN_IF_ERROR(Annotate(self.Run(run.request()), ToString(c)));
  const std::string wrong = run.Check();
  return wrong.empty() ? absl::OkStatus() : absl::DataLossError(absl::StrCat(ToString(c), ": ", wrong));
}

// An all-reduce of ones in memory of the device, in the order of the stream, `rounds` times over.
inline absl::Status SumInStream(Communicator& self, Device* device, Stream& stream, char* memory, int rounds) {
  constexpr size_t kCount = 10'000;
  auto* const ones = static_cast<float*>(device->AllocateOnHost(kCount * sizeof(float)).value());
  std::fill_n(ones, kCount, 1.0f);
  CollectiveRequest request;
  request.collective = Collective::kAllReduce;
  request.dtype = DType::kF32;
  request.count = kCount;
  request.input = request.output = memory;
  request.device = device->id();
  float expected = 1;
  LOCKSTEP_RETURN_IF_ERROR(stream.Copy(memory, ones, kCount * sizeof(float)));
  for (int round = 0; round < rounds; ++round) {
    bool done = false;
    LOCKSTEP_RETURN_IF_ERROR(
        self.Enqueue(request, &stream, [&done](const absl::Status& status) { done = status.ok(); }));
    if (!done) return absl::InternalError("not done when Enqueue returned");
    expected *= static_cast<float>(self.size());
  }
  LOCKSTEP_RETURN_IF_ERROR(stream.Copy(ones, memory, kCount * sizeof(float)));
  LOCKSTEP_RETURN_IF_ERROR(stream.Synchronize(SoonOnDevice()));
  LOCKSTEP_RETURN_IF_ERROR(self.status());
  const bool right = std::all_of(ones, ones + kCount, [expected](float sum) { return sum == expected; });
  device->FreeOnHost(ones);
  return right ? absl::OkStatus() : absl::DataLossError(absl::StrCat("sums of ", rounds, " rounds are wrong"));
}

inline absl::Status RunOnStreams(Communicator& self, Device* device) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<SymmetricBuffer> memory, self.AllocateOnDevice(1 << 16));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> own, device->CreateStream("own"));
  LOCKSTEP_RETURN_IF_ERROR(Annotate(SumInStream(self, device, *own, memory->data(), 3), "own stream"));
  for (const unsigned long handle : {0ul, kCudaLegacyStream, kCudaPerThreadStream}) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> borrowed,
                              device->BorrowStream(reinterpret_cast<void*>(handle)));
    LOCKSTEP_RETURN_IF_ERROR(
        Annotate(SumInStream(self, device, *borrowed, memory->data(), 3), absl::StrCat("borrowed stream ", handle)));
  }
  return absl::OkStatus();
}

inline absl::Status RunParts(Communicator& self, Device* device) {
  const int rank = self.rank().value();
  // Rank 0 is in none where there are others.
  const int color = rank == 0 && self.size() > 1 ? -1 : rank % 2;
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> part, self.Split(color, -rank));
  if ((part == nullptr) != (color < 0)) return absl::InternalError("a part where there should be none, or none");
  CollectiveCase c;
  c.count = 1000;
  if (part != nullptr) LOCKSTEP_RETURN_IF_ERROR(RunDeviceCase(*part, device, c));
  return RunDeviceCase(self, device, c);
}

}  // namespace lockstep

#endif  // COMM_DEVICE_DEVICE_PROCESSES_H_
