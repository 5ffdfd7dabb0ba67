// Every mode fails in every way, with and without preserve_gradients. The state that StateOf returns for each gradient is compared with the
// gradient's contents.

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "reducer/reducer_testing.h"
#include "tests/gate.h"
#include "tests/noting_communicator.h"

namespace lockstep::testing {
namespace {

using Values =
    std::vector<std::vector<float>>;  // by parameter; each has a separate bucket, and the last one is launched first

const std::string kFailures[] = {
    "RefusedMark", "SecondMark", "SecondMarkOfAnotherDType", "Stream", "Hook", "Optimizer", "Communicator", "Peer"};
const std::string kModes[] = {"InPlace", "Copied", "Compressed",  "OneInMemory",     "Targets",
                              "Unused",  "Views",  "UnusedViews", "CompressedViews", "TargetsOfViews"};

// Ends at the given all-reduce of a reducer, once that has written what it could.
class Cut : public NotingCommunicator {
 public:
  using NotingCommunicator::NotingCommunicator;
  absl::Status Run(const CollectiveRequest& request) override {
    const absl::Status status = NotingCommunicator::Run(request);
    return Counts(request) ? End() : status;
  }
  absl::Status Enqueue(const CollectiveRequest& request, Stream* stream, absl::AnyInvocable<void()> before,
                       absl::AnyInvocable<void(const absl::Status&)> done) override {
    const bool ends = Counts(request);
    return NotingCommunicator::Enqueue(
        request, stream, std::move(before),
        [this, ends, done = std::move(done)](const absl::Status& status) mutable { done(ends ? End() : status); });
  }
  // Memory that a peer maps as well. WriteLate writes what the peer would write if it woke after the others had given up.
  absl::StatusOr<std::unique_ptr<SymmetricBuffer>> Allocate(size_t bytes) override {
    char* const data = static_cast<char*>(
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, /*fd=*/-1, /*offset=*/0));
    // Of an old size of zero, mremap makes a second mapping of the same pages.
    of_peer_ = data == MAP_FAILED ? MAP_FAILED : mremap(data, 0, bytes, MREMAP_MAYMOVE);
    if (of_peer_ == MAP_FAILED) return absl::ResourceExhaustedError("no memory for two mappings");
    bytes_ = bytes;
    return std::make_unique<SymmetricBuffer>(data, bytes, /*shared=*/true, [data, bytes] { munmap(data, bytes); });
  }
  void WriteLate() {
    if (bytes_ != 0) std::memset(of_peer_, 0x77, bytes_);
  }
  ~Cut() override {
    if (bytes_ != 0) munmap(of_peer_, bytes_);
  }
  int left = 0;

 private:
  void* of_peer_ = nullptr;
  size_t bytes_ = 0;
  bool Counts(const CollectiveRequest& request) { return request.by_holder && --left == 0; }
  absl::Status End() {
    Abort("cut");
    return absl::AbortedError("cut");
  }
};

// Averages, but fails in the second bucket of the second step.
class Failing : public CommHook {
 public:
  std::string name() const override { return "failing"; }
  absl::Status Issue(HookBucket& bucket, Stream& stream) override {
    if (bucket.step == 2 && bucket.index == 1) return absl::DataLossError("it failed");
    return EnqueueFor(bucket, stream, AverageOf(bucket));
  }
};

// A rank of the test.
struct Member {
  Member(Communicator& communicator, MemoryMessageBoard* board, const ReducerOptions& options)
      : targets(4, ReachableVector<float>(20)), cut(&communicator, board), worker(cut, Vectors(4, 20), options) {}
  std::vector<ReachableVector<float>> targets;
  Cut cut;
  Worker worker;
  Values marked, before;  // each gradient, and what is where its average goes
};

class PreserveTest : public ::testing::TestWithParam<std::tuple<std::string, std::string, bool>> {
 protected:
  bool In(std::initializer_list<const char*> modes) const {
    return std::find(modes.begin(), modes.end(), std::get<0>(GetParam())) != modes.end();
  }
  bool Fails(const char* failure) const { return std::get<1>(GetParam()) == failure; }
  bool views() const { return In({"Views", "UnusedViews", "CompressedViews", "TargetsOfViews"}); }
  bool targets() const { return In({"Targets", "TargetsOfViews"}); }
  bool unused() const { return In({"Unused", "UnusedViews"}); }
  // Every rank has the same error.
  bool told() const { return Fails("RefusedMark") || marks_again() || Fails("Stream"); }
  bool marks_again() const { return Fails("SecondMark") || Fails("SecondMarkOfAnotherDType"); }
  bool preserves() const { return std::get<2>(GetParam()); }
  bool Uses(int rank, size_t index) const { return !unused() || rank == 0 || index != 2; }

  ReducerOptions Options() {
    ReducerOptions options = Caps({0});
    options.replan = false;
    options.preserve_gradients = preserves();
    options.copy_gradients = In({"Copied", "OneInMemory"});
    options.buckets_in_memory_max = In({"OneInMemory"}) ? 1 : 0;
    options.gradient_as_bucket_view = views();
    options.find_unused = unused();
    if (In({"Compressed", "CompressedViews"})) options.compress = DType::kF16;
    if (Fails("Hook")) options.hook = std::make_shared<Failing>();
    if (Fails("Optimizer")) {
      options.optimizer = [this, calls = 0](const ReducedBucket&) mutable {
        if (++calls != 5) return absl::OkStatus();
        stepped_.Open();
        return absl::DataLossError("it failed");
      };
    }
    return options;
  }

  TensorView Gradient(Member& member, size_t index) const {
    return views() ? member.worker.View(index) : member.worker.gradient(index);
  }
  // Where its average goes.
  TensorView Place(Member& member, size_t index) const {
    if (targets()) return VectorView(member.targets[index].data(), DType::kF32, 20);
    return Gradient(member, index);
  }
  void Compute(Member& member, int step) const {
    member.worker.Compute(step);
    if (views()) member.worker.ToViews();
    member.marked.clear();
    member.before.clear();
    for (const size_t index : member.worker.order()) {
      member.marked.push_back(Floats(member.worker.gradient(index)));
      member.before.push_back(Floats(Place(member, index)));
    }
  }
  void Mark(Member& member, const Order& order, Stream* stream = nullptr) const {
    Worker& worker = member.worker;
    for (const size_t index : order) {
      if (!Uses(worker.rank(), index)) continue;
      LOCKSTEP_EXPECT_OK(worker.reducer().MarkReady(index, Gradient(member, index), Place(member, index), stream));
    }
  }
  // The second step, up to the mark of parameter 0.
  void BeginFailing(Member& member) {
    Worker& worker = member.worker;
    const bool fails = worker.rank() == 1;
    // In pieces a bucket has two all-reduces.
    const bool in_pieces = OnHost() && worker.reducer().copied_because().empty() && !views();
    if (Fails("Communicator")) member.cut.left = in_pieces ? 4 : 2;
    LOCKSTEP_EXPECT_OK(worker.Begin());
    Mark(member, {3});
    if (Fails("Optimizer")) {
      LOCKSTEP_EXPECT_OK(stepped_.Await(Deadline::AfterMs(20'000)));
    }
    Mark(member, {2});
    if (fails && marks_again()) {
      ReachableVector<double> second(20);
      const DType dtype = Fails("SecondMark") ? DType::kF32 : DType::kF64;
      EXPECT_FALSE(worker.reducer().MarkReady(3, VectorView(second.data(), dtype, 20), nullptr).ok());
    }
    if (fails && Fails("Stream")) {
      (void)worker.stream().Enqueue([] { return absl::InternalError("bad kernel"); });
      if (!OnHost()) (void)worker.stream().Synchronize(Deadline::AfterMs(20'000));
      Mark(member, {1}, &worker.stream());
    } else if (fails && Fails("RefusedMark")) {
      EXPECT_FALSE(worker.reducer().MarkReady(1, TensorView(), nullptr).ok());
    } else if (!fails || !Fails("Peer")) {
      Mark(member, {1});
    }
  }
  void ExpectStates(Member& member, const std::vector<std::unique_ptr<Member>>& members, bool failed) const {
    const int rank = member.worker.rank();
    // A bucket that was launched before the failure is averaged, and of the later ones only views have changed.
    const bool defined = !Fails("Communicator") && !Fails("Peer") && !In({"Views", "UnusedViews"});
    for (const size_t index : member.worker.order()) {
      SCOPED_TRACE(absl::StrCat("rank ", rank, ", parameter ", index));
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(const GradientState state, member.worker.reducer().StateOf(index));
      std::vector<float> average(20, 0.0F);
      for (int r = 0; r < 2; ++r) {
        for (int i = 0; i < 20; ++i) average[i] += Uses(r, index) ? members[r]->marked[index][i] / 2 : 0;
      }
      if ((failed && preserves()) || (!Uses(rank, index) && !views())) {
        EXPECT_EQ(state, GradientState::kUnchanged);
      } else if (!failed || (told() && index > 1)) {
        EXPECT_EQ(state, GradientState::kAveraged);
      } else if (defined) {
        EXPECT_NE(state, GradientState::kUndefined);
      }
      if (targets()) {
        EXPECT_EQ(Floats(Gradient(member, index)), member.marked[index]) << "is only read";
      }
      if (state == GradientState::kUndefined) continue;
      EXPECT_EQ(Floats(Place(member, index)), state == GradientState::kAveraged ? average : member.before[index]);
    }
  }

  Gate stepped_;  // by an optimizer that fails
  Gate ended_;    // on rank 0
};

INSTANTIATE_TEST_SUITE_P(Reducer, PreserveTest,
                         ::testing::Combine(::testing::ValuesIn(kModes), ::testing::ValuesIn(kFailures),
                                            ::testing::Bool()),
                         [](const auto& info) {
                           return std::get<0>(info.param) + std::get<1>(info.param) +
                                  (std::get<2>(info.param) ? "Preserved" : "");
                         });

TEST_P(PreserveTest, GradientsAreAsTheirStatesTell) {
  LoopbackWorld world(2, {}, ShortTimeout());
  MemoryMessageBoard board;
  std::vector<std::unique_ptr<Member>> members(2);
  world.Run([&](Communicator& communicator) {
    members[communicator.rank().value()] = std::make_unique<Member>(communicator, &board, Options());
  });
  const auto on_ranks = [&](int count, const std::function<void(Member&)>& body) {
    RunRanks(count, [&](int rank) { body(*members[rank]); });
  };
  on_ranks(2, [&](Member& member) { Compute(member, 0); });
  on_ranks(2, [&](Member& member) {
    LOCKSTEP_EXPECT_OK(member.worker.Begin());
    Mark(member, {3, 2, 1, 0});
    LOCKSTEP_EXPECT_OK(member.worker.End());
    ExpectStates(member, members, /*failed=*/false);
  });
  on_ranks(2, [&](Member& member) { Compute(member, 1); });
  on_ranks(2, [&](Member& member) { BeginFailing(member); });
  if (Fails("Peer")) world.network().Disconnect(Rank(1));
  on_ranks(Fails("Peer") ? 1 : 2, [&](Member& member) {
    Mark(member, {0});
    // The other rank learns of a second mark by the last bucket. It need not wait for this one's end, unless that finds out what is unused.
    const bool ends_last = member.worker.rank() == 1 && marks_again() && !unused();
    if (ends_last) {
      LOCKSTEP_EXPECT_OK(ended_.Await(Deadline::AfterMs(20'000)));
    }
    const absl::Status ended = member.worker.End();
    if (member.worker.rank() == 0) ended_.Open();
    EXPECT_FALSE(ended.ok());
    if (told()) {
      EXPECT_THAT(ended, FailedPrecondition("backward 2 is incomplete", "rank 1: "));
    }
    ExpectStates(member, members, /*failed=*/true);
    if (member.cut.status().ok()) return;
    member.cut.WriteLate();
    ExpectStates(member, members, /*failed=*/true);
  });
}

}  // namespace
}  // namespace lockstep::testing
