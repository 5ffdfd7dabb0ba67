// What does it cost to ask for a collective that was asked for before, beside moving its bytes?
//
// A world of two over a transport that moves nothing: one all-reduce of 8 bytes, which by its schedule is one send, one receive
// and some arithmetic.
//
//   posting   from the call until it returns, or, where it blocks, until it first looks whether something has come. The plan is
//             looked up, the operations are handed to the transport, the call is recorded. They stay with the transport and
//             are completed outside the time that is counted. The goal is 150 ns.
//   whole     the same with a transport that is done at once: posting, completing, the arithmetic, and the record's end.
//   alone     the whole of it in a world of one, where it is a copy.
//   chunks    posting and completing the chunks of a large collective, for each message.
//
// Waking a thread that sleeps is not counted: the engine's own thread has work throughout. Locks and reference counts are those
// of a process with several threads. Reading the clock is taken off. Several posts that are timed together are on a communicator
// each.
//
//   bazel run -c opt //comm/host:post_benchmark

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/mutex.h"
#include "base/rank.h"
#include "base/types/dtype.h"
#include "benchmark/benchmark.h"
#include "comm/communicator.h"
#include "comm/engine/progress_engine.h"
#include "comm/host/self_communicator.h"
#include "comm/host/transport_communicator.h"
#include "comm/schedule/schedule.h"
#include "comm/work.h"
#include "transport/transport.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

// Is done with everything at once, or, when it holds, at the next poll.
class IdleTransport : public Transport {
 public:
  IdleTransport(int size, bool hold) : size_(size), hold_(hold) {}

  const char* name() const override { return "idle"; }
  Rank rank() const override { return Rank(0); }
  int size() const override { return size_; }
  std::string DescribePeer(Rank) const override { return "nobody"; }
  void Send(Rank, ChannelId, const Envelope&, const void*, size_t, Operation* operation) override { Take(operation); }
  void Receive(Rank, ChannelId, const Envelope&, const Sink&, Operation* operation) override { Take(operation); }
  bool Progress() override {
    polled_ = Clock::now();
    if (held_.empty()) return false;
    // Completions post more.
    std::swap(held_, completing_);
    for (Operation* const operation : completing_) operation->complete(operation, absl::OkStatus());
    completing_.clear();
    return true;
  }
  void WaitForEvent(Deadline deadline) override { std::this_thread::sleep_until(deadline.time()); }
  void Wake() override {}
  void AbortChannel(ChannelId, const absl::Status& status) override {
    std::swap(held_, completing_);
    for (Operation* const operation : completing_) operation->complete(operation, status);
    completing_.clear();
  }
  void Abort(const absl::Status&) override {}
  absl::Status Close(Deadline) override { return absl::OkStatus(); }
  PeerCounters counters(Rank) const override { return {}; }

  Clock::time_point polled() const { return polled_; }
  int64_t operations() const { return operations_; }

 private:
  void Take(Operation* operation) {
    ++operations_;
    if (!hold_) return operation->complete(operation, absl::OkStatus());
    held_.push_back(operation);
  }

  const int size_;
  const bool hold_;
  std::vector<Operation*> held_;
  std::vector<Operation*> completing_;
  Clock::time_point polled_;
  int64_t operations_ = 0;
};

struct World {
  World(int communicators_count, bool hold, TransportCommunicatorOptions options = {}, int size = 2)
      : transport(size, hold) {
    for (int i = 0; i < communicators_count; ++i) {
      options.channel = 2 * i;
      communicators.push_back(std::make_unique<TransportCommunicator>(&engine, nullptr, options));
    }
  }

  CollectiveRequest Request() { return MakeRequest(Collective::kAllReduce, DType::kF32, 2, values, values); }

  IdleTransport transport;
  ProgressEngine engine{&transport, std::chrono::nanoseconds::zero()};
  std::vector<std::unique_ptr<TransportCommunicator>> communicators;
  float values[2] = {1, 2};
};

// The engine's thread has work for as long as this lives, so that a post does not wake it; it sleeps in the transport.
class BackgroundWork {
 public:
  explicit BackgroundWork(ProgressEngine* engine) : engine_(engine) {
    MutexLock lock(engine_->mutex());
    engine_->AddBackgroundWork();
  }
  ~BackgroundWork() {
    MutexLock lock(engine_->mutex());
    engine_->RemoveBackgroundWork();
  }

 private:
  ProgressEngine* const engine_;
};

// A second thread, for as long as this lives.
class Bystander {
 public:
  ~Bystander() {
    {
      std::lock_guard<std::mutex> lock(mu_);
      over_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_{[this] {
    std::unique_lock<std::mutex> lock(mu_);
    changed_.wait(lock, [this] { return over_; });
  }};
};

double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

// What reading the clock adds to a time between two readings.
double ClockSeconds() {
  Clock::duration least = Clock::duration::max();
  for (int i = 0; i < 1000; ++i) {
    const Clock::time_point begin = Clock::now();
    least = std::min(least, Clock::now() - begin);
  }
  return Seconds(least);
}

// The times of single calls, or of a few together. The median is what other programs on the machine change least.
class Times {
 public:
  explicit Times(benchmark::State& state) : state_(state) {}
  ~Times() {
    if (seconds_.empty()) return;
    const auto middle = seconds_.begin() + static_cast<int64_t>(seconds_.size() / 2);
    std::nth_element(seconds_.begin(), middle, seconds_.end());
    state_.counters["median_ns"] = *middle * 1e9;
  }

  // From `begin` until `end`, of `calls` calls.
  void Add(Clock::time_point begin, Clock::time_point end, int calls) {
    const double seconds = Seconds(end - begin) - clock_seconds_;
    state_.SetIterationTime(seconds);
    if (seconds_.size() < kTimesMax) seconds_.push_back(seconds / calls);
  }

 private:
  static constexpr size_t kTimesMax = 1 << 20;

  benchmark::State& state_;
  const double clock_seconds_ = ClockSeconds();
  std::vector<double> seconds_;
};

void BM_PostRun(benchmark::State& state) {
  const Bystander bystander;
  World world(/*communicators_count=*/1, /*hold=*/true);
  const CollectiveRequest request = world.Request();
  Times times(state);
  for (auto _ : state) {
    const Clock::time_point begin = Clock::now();
    if (!world.communicators[0]->Run(request).ok()) state.SkipWithError("failed");
    times.Add(begin, world.transport.polled(), 1);
  }
}
BENCHMARK(BM_PostRun)->UseManualTime();

constexpr int kCallsTogether = 16;

// Starts collectives by `start(i)`, on a communicator each, so that none waits for another.
template <typename Start>
void TimeStarts(benchmark::State& state, World& world, const Start& start) {
  const BackgroundWork background(&world.engine);
  Times times(state);
  while (state.KeepRunningBatch(kCallsTogether)) {
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < kCallsTogether; ++i) {
      if (!start(i)) state.SkipWithError("failed");
    }
    times.Add(begin, Clock::now(), kCallsTogether);
    MutexLock lock(world.engine.mutex());
    while (world.transport.Progress()) {
    }
  }
}

void TimeOrdinaryStarts(benchmark::State& state, bool hold) {
  World world(kCallsTogether, hold);
  const CollectiveRequest request = world.Request();
  // Each handle is kept until its successor is there, as in a loop that assigns.
  std::vector<Work> works;
  for (const auto& communicator : world.communicators) works.push_back(*communicator->Start(request));
  TimeStarts(state, world, [&](int i) {
    absl::StatusOr<Work> work = world.communicators[i]->Start(request);
    if (!work.ok()) return false;
    works[i] = *std::move(work);
    return true;
  });
}

void TimePreparedStarts(benchmark::State& state, bool hold) {
  World world(kCallsTogether, hold);
  std::vector<std::unique_ptr<PreparedCollective>> prepared;
  for (const auto& communicator : world.communicators) prepared.push_back(*communicator->Prepare(world.Request()));
  TimeStarts(state, world, [&](int i) { return prepared[i]->Start().ok(); });
}

void BM_PostStart(benchmark::State& state) { TimeOrdinaryStarts(state, /*hold=*/true); }
BENCHMARK(BM_PostStart)->UseManualTime();
void BM_PostStartPrepared(benchmark::State& state) { TimePreparedStarts(state, /*hold=*/true); }
BENCHMARK(BM_PostStartPrepared)->UseManualTime();
void BM_WholeStart(benchmark::State& state) { TimeOrdinaryStarts(state, /*hold=*/false); }
BENCHMARK(BM_WholeStart)->UseManualTime();
void BM_WholeStartPrepared(benchmark::State& state) { TimePreparedStarts(state, /*hold=*/false); }
BENCHMARK(BM_WholeStartPrepared)->UseManualTime();

// `run()` is one blocking collective.
template <typename Run>
void TimeRuns(benchmark::State& state, const Run& run) {
  const Bystander bystander;
  Times times(state);
  while (state.KeepRunningBatch(kCallsTogether)) {
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < kCallsTogether; ++i) {
      if (!run()) state.SkipWithError("failed");
    }
    times.Add(begin, Clock::now(), kCallsTogether);
  }
}

void BM_WholeRun(benchmark::State& state) {
  World world(/*communicators_count=*/1, /*hold=*/false);
  const CollectiveRequest request = world.Request();
  TimeRuns(state, [&] { return world.communicators[0]->Run(request).ok(); });
}
BENCHMARK(BM_WholeRun)->UseManualTime();

void BM_WholeRunPrepared(benchmark::State& state) {
  World world(/*communicators_count=*/1, /*hold=*/false);
  const auto prepared = *world.communicators[0]->Prepare(world.Request());
  TimeRuns(state, [&] { return prepared->Run().ok(); });
}
BENCHMARK(BM_WholeRunPrepared)->UseManualTime();

void BM_RunAlone(benchmark::State& state) {
  SelfCommunicator communicator(/*flight_records=*/256);
  float values[2] = {1, 2};
  CollectiveRequest request = MakeRequest(Collective::kAllReduce, DType::kF32, 2, values, values);
  TimeRuns(state, [&] { return communicator.Run(request).ok(); });
}
BENCHMARK(BM_RunAlone)->UseManualTime();

// A ring of 8 ranks whose blocks are 32 chunks: 14 sends and 14 receives of a block each.
void BM_Chunks(benchmark::State& state) {
  const Bystander bystander;
  TransportCommunicatorOptions options;
  options.chunk_bytes = 1024;
  World world(/*communicators_count=*/1, /*hold=*/state.range(0) != 0, options, /*size=*/8);
  std::vector<float> values(8 * 32 * options.chunk_bytes / sizeof(float));
  CollectiveRequest request = world.Request();
  request.algorithm = Algorithm::kRing;
  request.count = values.size();
  request.input = request.output = values.data();
  constexpr int kMessages = 2 * 14 * 32;
  Times times(state);
  while (state.KeepRunningBatch(kMessages)) {
    const Clock::time_point begin = Clock::now();
    if (!world.communicators[0]->Run(request).ok()) state.SkipWithError("failed");
    times.Add(begin, Clock::now(), kMessages);
  }
  if (world.transport.operations() % kMessages != 0) state.SkipWithError("other messages than are counted");
}
BENCHMARK(BM_Chunks)->ArgName("held")->Arg(0)->Arg(1)->UseManualTime();

}  // namespace
}  // namespace lockstep
