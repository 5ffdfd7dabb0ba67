// What does an all-reduce in shared memory cost beside the cache lines that go from core to core and the fold itself?
//
// Two ranks on two threads, each on a core of its own that it keeps busy with polling; no engine, no communicator. Compare
// with bench/limits/shared_memory.h, which does nothing but meet and add.
//
//   bazel run -c opt //comm/engine:memory_executor_benchmark

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "base/deadline.h"
#include "base/thread.h"
#include "base/types/dtype.h"
#include "benchmark/benchmark.h"
#include "comm/communicator.h"
#include "comm/engine/memory_testing.h"
#include "comm/schedule/schedule.h"
#include "transport/shm/shm_testing.h"
#include "transport/shm/shm_transport.h"

namespace lockstep {
namespace {

// All-reduces until there were as many as told.
class Repeater {
 public:
  Repeater(ShmTransport* transport, Algorithm algorithm, size_t bytes)
      : rank_(*MemoryRank::Create(transport, 2 * bytes, Deadline::AfterMs(10'000))) {
    CollectiveRequest request =
        MakeRequest(Collective::kAllReduce, DType::kF32, bytes / sizeof(float), rank_->data(), rank_->data() + bytes);
    if (!rank_->Prepare(&job_, request, algorithm).ok()) std::abort();
  }

  void RunOnce() {
    rank_->Start(&job_);
    while (job_.ends == 0) rank_->executor().Poll();
    ++runs_;
  }
  void Run(const std::atomic<uint64_t>& until) {
    while (runs_ < until.load(std::memory_order_relaxed)) RunOnce();
  }
  uint64_t runs() const { return runs_; }

 private:
  const std::unique_ptr<MemoryRank> rank_;
  MemoryJob job_;
  uint64_t runs_ = 0;
};

void AllReduce(benchmark::State& state, Algorithm algorithm) {
  const ShmTransports transports = *CreateShmWorld(2);
  std::atomic<uint64_t> until{UINT64_MAX};
  Thread peer("peer", [&] { Repeater(transports[1].get(), algorithm, state.range(0)).Run(until); });
  Repeater self(transports[0].get(), algorithm, state.range(0));
  for (auto _ : state) self.RunOnce();
  // The peer has come no further than this rank.
  until = self.runs() + 1;
  self.RunOnce();
}

void BM_Inline(benchmark::State& state) { AllReduce(state, Algorithm::kInline); }
BENCHMARK(BM_Inline)->Arg(8)->Arg(24)->UseRealTime();

void BM_Direct(benchmark::State& state) { AllReduce(state, Algorithm::kDirect); }
BENCHMARK(BM_Direct)->Arg(8)->Arg(4 << 10)->Arg(64 << 10)->Arg(1 << 20)->Arg(16 << 20)->UseRealTime();

}  // namespace
}  // namespace lockstep
