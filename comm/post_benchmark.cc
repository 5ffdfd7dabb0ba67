// What does it cost to ask for a collective that was asked for before, beside moving its bytes?
//
// A world of two over a transport that does nothing and is done at once: one all-reduce of 8 bytes is looked up, posted (one
// send and one receive), completed and recorded. The goal is 150 ns for posting; what is measured here includes completion.
//
//   bazel run -c opt //comm:post_benchmark

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/dtype.h"
#include "base/rank.h"
#include "benchmark/benchmark.h"
#include "comm/communicator.h"
#include "comm/progress_engine.h"
#include "comm/schedule.h"
#include "comm/transport_communicator.h"
#include "comm/work.h"
#include "transport/transport.h"

namespace lockstep {
namespace {

class InstantTransport : public Transport {
 public:
  const char* name() const override { return "instant"; }
  Rank rank() const override { return Rank(0); }
  int size() const override { return 2; }
  std::string DescribePeer(Rank) const override { return "nobody"; }
  void Send(Rank, ChannelId, const Envelope&, const void*, size_t, Operation* operation) override {
    operation->complete(operation, absl::OkStatus());
  }
  void Receive(Rank, ChannelId, const Envelope&, const Sink&, Operation* operation) override {
    operation->complete(operation, absl::OkStatus());
  }
  bool Progress() override { return false; }
  void WaitForEvent(Deadline) override {}
  void Wake() override {}
  void AbortChannel(ChannelId, const absl::Status&) override {}
  void Abort(const absl::Status&) override {}
  absl::Status Close(Deadline) override { return absl::OkStatus(); }
  PeerCounters counters(Rank) const override { return {}; }
};

struct World {
  InstantTransport transport;
  ProgressEngine engine{&transport, std::chrono::nanoseconds::zero()};
  TransportCommunicator communicator{&engine, nullptr, {}};
  float values[2] = {1, 2};

  CollectiveRequest Request() {
    CollectiveRequest request;
    request.collective = Collective::kAllReduce;
    request.dtype = DType::kF32;
    request.count = 2;
    request.input = values;
    request.output = values;
    return request;
  }
};

void BM_Run(benchmark::State& state) {
  World world;
  const CollectiveRequest request = world.Request();
  for (auto _ : state) {
    if (!world.communicator.Run(request).ok()) state.SkipWithError("failed");
  }
}
BENCHMARK(BM_Run);

void BM_RunPrepared(benchmark::State& state) {
  World world;
  const std::unique_ptr<PreparedCollective> prepared = *world.communicator.Prepare(world.Request());
  for (auto _ : state) {
    if (!prepared->Run().ok()) state.SkipWithError("failed");
  }
}
BENCHMARK(BM_RunPrepared);

void BM_StartPrepared(benchmark::State& state) {
  World world;
  const std::unique_ptr<PreparedCollective> prepared = *world.communicator.Prepare(world.Request());
  for (auto _ : state) {
    if (!prepared->Start().ok()) state.SkipWithError("failed");
  }
}
BENCHMARK(BM_StartPrepared);

void BM_Start(benchmark::State& state) {
  World world;
  const CollectiveRequest request = world.Request();
  for (auto _ : state) {
    const absl::StatusOr<Work> work = world.communicator.Start(request);
    if (!work.ok()) state.SkipWithError("failed");
  }
}
BENCHMARK(BM_Start);

}  // namespace
}  // namespace lockstep
