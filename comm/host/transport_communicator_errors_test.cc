// What goes wrong, over loopback and without a control channel: each rank finds out for itself. comm/world/world_test.cc has what
// the control channel adds, which is one text for all.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/deadline.h"
#include "base/error_info.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "comm/communicator.h"
#include "comm/engine/progress_engine.h"
#include "comm/host/transport_communicator.h"
#include "comm/schedule/schedule.h"
#include "comm/work.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/communicator_testing.h"
#include "tests/ranks.h"
#include "transport/loopback/loopback.h"
#include "transport/tcp/tcp_testing.h"
#include "transport/tcp/tcp_transport.h"
#include "transport/transport.h"

namespace lockstep {
namespace {

using ::lockstep::testing::LoopbackWorld;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using Code = absl::StatusCode;

Deadline Soon() { return Deadline::AfterMs(30'000); }

// Should anything hang, it ends after this with DEADLINE_EXCEEDED, which no test here but those of deadlines expects.
TransportCommunicatorOptions Options() {
  TransportCommunicatorOptions options;
  options.timeout = milliseconds(30'000);
  return options;
}

TransportCommunicatorOptions CheckedOptions() {
  TransportCommunicatorOptions options = Options();
  options.checked = true;
  return options;
}

// Memory for requests; large enough for any here.
struct Buffers {
  std::vector<char> input = std::vector<char>(1 << 20, 1);
  std::vector<char> output = std::vector<char>(1 << 20, 2);

  CollectiveRequest Request(Collective collective, size_t count = 24, DType dtype = DType::kF32) {
    return MakeRequest(collective, dtype, count, input.data(), output.data());
  }
};

// One rank whose parts the test takes down by hand.
struct Member {
  Member(LoopbackNetwork* network, int rank)
      : transport(network->CreateTransport(Rank(rank))),
        engine(std::make_unique<ProgressEngine>(transport.get(), std::chrono::nanoseconds::zero())),
        communicator(std::make_unique<TransportCommunicator>(engine.get(), nullptr, Options())) {}
  ~Member() {
    communicator.reset();
    engine.reset();
  }

  std::unique_ptr<Transport> transport;
  std::unique_ptr<ProgressEngine> engine;
  std::unique_ptr<TransportCommunicator> communicator;
};

// What one rank calls where the others call something else.
struct Mismatch {
  std::string name;
  std::function<void(CollectiveRequest*)> common;
  std::function<void(CollectiveRequest*)> different;
  std::string common_text;
  std::string different_text;
};

const std::vector<Mismatch>& Mismatches() {
  static const auto* const mismatches = new std::vector<Mismatch>{
      {"Count", [](auto*) {}, [](auto* r) { r->count = 23; }, "(24 f32 sum, ring)", "(23 f32 sum, ring)"},
      {"DType", [](auto*) {}, [](auto* r) { r->dtype = DType::kI32; }, "(24 f32 sum, ring)", "(24 i32 sum, ring)"},
      {"Op", [](auto*) {}, [](auto* r) { r->op = ReduceOp::kMax; }, "(24 f32 sum, ring)", "(24 f32 max, ring)"},
      {"Algorithm", [](auto*) {}, [](auto* r) { r->algorithm = Algorithm::kRecursiveDoubling; }, "(24 f32 sum, ring)",
       "(24 f32 sum, recursive_doubling)"},
      {"Collective", [](auto*) {}, [](auto* r) { r->collective = Collective::kReduceScatter; }, "all_reduce #",
       "reduce_scatter #"},
      {"Barrier", [](auto*) {},
       [](auto* r) {
         r->collective = Collective::kBarrier;
         r->algorithm = Algorithm::kAuto;
       },
       "all_reduce #", "barrier #"},
      {"Root",
       [](auto* r) {
         r->collective = Collective::kBroadcast;
         r->algorithm = Algorithm::kAuto;
       },
       [](auto* r) {
         r->collective = Collective::kBroadcast;
         r->algorithm = Algorithm::kAuto;
         r->root = Rank(1);
       },
       "broadcast #", "root 1"},
  };
  return *mismatches;
}

class MismatchTest : public ::testing::TestWithParam<int> {
 protected:
  const Mismatch& mismatch() const { return Mismatches()[GetParam()]; }

  // Rank 1 differs.
  CollectiveRequest RequestOf(const Communicator& self, Buffers* buffers) const {
    CollectiveRequest request = buffers->Request(Collective::kAllReduce);
    request.algorithm = Algorithm::kRing;
    self.rank() == Rank(1) ? mismatch().different(&request) : mismatch().common(&request);
    return request;
  }
};

// With messages in one direction only, a rank may be done before anybody can know; the next call tells it.
TEST_P(MismatchTest, IsFoundByTheNextCallAtTheLatest) {
  LoopbackWorld world(2, {}, Options());
  std::vector<absl::Status> errors(2);
  world.Run([&](Communicator& self) {
    Buffers buffers;
    absl::Status status = self.Run(RequestOf(self, &buffers));
    if (status.ok()) status = self.Run(buffers.Request(Collective::kAllReduce));
    errors[self.rank().value()] = status;
    EXPECT_EQ(self.status().code(), status.code());
    ExpectErrorOf(Collective::kBarrier, self.Run(buffers.Request(Collective::kBarrier)), self.status());
    ExpectErrorOf(Collective::kBarrier, self.Start(buffers.Request(Collective::kBarrier)).status(), self.status());
    EXPECT_THAT(self.FlightRecords(), HasSubstr("failed after"));
  });
  // Where nobody received in the first call, the second one meets its messages.
  const auto found = StatusIs(Code::kFailedPrecondition,
                              AllOf(HasSubstr("rank 0 called "), HasSubstr("; rank 1 called "),
                                    AnyOf(HasSubstr(mismatch().different_text), HasSubstr("called broadcast #1"))));
  // Whoever is told by a closed connection knows no more than that.
  EXPECT_THAT(errors, Each(AnyOf(found, StatusIs(Code::kAborted))));
  EXPECT_THAT(errors, ::testing::Contains(found));
}

TEST_P(MismatchTest, InCheckedModeIsTheSameErrorEverywhereBeforeAnythingMoves) {
  constexpr int kRanks = 4;
  LoopbackWorld world(kRanks, {}, CheckedOptions());
  std::vector<absl::Status> errors(kRanks), started(kRanks);
  world.Run([&](Communicator& self) {
    const int rank = self.rank().value();
    Buffers buffers;
    const Buffers before = buffers;
    errors[rank] = self.Run(RequestOf(self, &buffers));
    started[rank] = self.Start(RequestOf(self, &buffers)).status();
    EXPECT_EQ(buffers.input, before.input);
    EXPECT_EQ(buffers.output, before.output);
    EXPECT_THAT(self.status(), IsOk());
    EXPECT_THAT(self.Run(buffers.Request(Collective::kAllReduce)), IsOk()) << "the communicator stays usable";
  });
  for (const auto& statuses : {errors, started}) {
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_THAT(statuses[rank], StatusIs(statuses[0].code(), std::string(statuses[0].message())));
      CollectiveRequest called;
      called.collective = Collective::kAllReduce;
      rank == 1 ? mismatch().different(&called) : mismatch().common(&called);
      EXPECT_EQ(GetErrorInfo(statuses[rank]).collective, Name(called.collective));
      EXPECT_EQ(GetErrorInfo(statuses[rank]).failed_rank, 1);
    }
    EXPECT_THAT(statuses[0], StatusIs(Code::kFailedPrecondition,
                                      AllOf(HasSubstr("rank 0 called "), HasSubstr(mismatch().common_text),
                                            HasSubstr("; rank 1 called "), HasSubstr(mismatch().different_text),
                                            HasSubstr("; rank 2 called "), HasSubstr("; rank 3 called "))));
  }
}

INSTANTIATE_TEST_SUITE_P(All, MismatchTest, ::testing::Range(0, static_cast<int>(Mismatches().size())),
                         [](const ::testing::TestParamInfo<int>& info) { return Mismatches()[info.param].name; });

// Ranks whose data connections go over TCP, made of options that `change` may spoil.
class TcpMembers {
 public:
  explicit TcpMembers(const std::function<void(TcpTransportOptions*)>& change)
      : transports_(*CreateTcpWorld(2, change)) {
    TransportCommunicatorOptions options = Options();
    options.timeout = milliseconds(3'000);
    for (const auto& transport : transports_) {
      engines_.push_back(std::make_unique<ProgressEngine>(transport.get(), std::chrono::nanoseconds::zero()));
      communicators_.push_back(std::make_unique<TransportCommunicator>(engines_.back().get(), nullptr, options));
    }
  }
  ~TcpMembers() {
    communicators_.clear();
    engines_.clear();
  }

  // Rank 1 sends to rank 0.
  std::vector<absl::Status> Reduce() {
    std::vector<absl::Status> errors(2);
    testing::RunRanks(2, [&](int rank) {
      Buffers buffers;
      errors[rank] = communicators_[rank]->Run(buffers.Request(Collective::kReduce));
    });
    return errors;
  }

 private:
  TcpTransports transports_;
  std::vector<std::unique_ptr<ProgressEngine>> engines_;
  std::vector<std::unique_ptr<TransportCommunicator>> communicators_;
};

TEST(TransportCommunicatorErrors, ARefusedConnectionIsNoMismatchOfCollectives) {
  struct Case {
    const char* text;
    std::function<void(TcpTransportOptions*)> change;
  };
  const Case cases[] = {
      {"peer belongs to another job than '1'", [](auto* o) { o->job_id = o->rank == Rank(0) ? "0" : "1"; }},
      {"peer belongs to another world of job 'test'", [](auto* o) { o->world_id = o->rank.value(); }},
      {"peer's chunk size is 1000 bytes, ours 1001", [](auto* o) { o->chunk_bytes = 1000 + o->rank.value(); }},
      {"peer uses 2 sockets a connection, we 3", [](auto* o) { o->sockets = 2 + o->rank.value(); }},
  };
  for (const Case& c : cases) {
    const std::vector<absl::Status> errors = TcpMembers(c.change).Reduce();
    EXPECT_THAT(errors[1], StatusIs(Code::kFailedPrecondition, AllOf(HasSubstr("rank 1: reduce #1"), HasSubstr(c.text),
                                                                     Not(HasSubstr("collectives differ")))));
  }
}

// The sum is the same: the blocks are not.
TEST(TransportCommunicatorErrors, CountsThatDifferBetweenRanksAreFound) {
  for (const bool checked : {false, true}) {
    LoopbackWorld world(2, {}, checked ? CheckedOptions() : Options());
    std::vector<absl::Status> errors(2);
    world.Run([&](Communicator& self) {
      Buffers buffers;
      const std::vector<int64_t> counts =
          self.rank() == Rank(0) ? std::vector<int64_t>{10, 14} : std::vector<int64_t>{14, 10};
      CollectiveRequest request = buffers.Request(Collective::kAllGather);
      request.counts = counts;
      errors[self.rank().value()] = self.Run(request);
      EXPECT_EQ(self.status().ok(), checked);
    });
    const auto found = StatusIs(Code::kFailedPrecondition,
                                AllOf(HasSubstr("rank 0 called all_gather #"), HasSubstr("in blocks of counts")));
    EXPECT_THAT(errors, Each(AnyOf(found, StatusIs(Code::kAborted))));
    EXPECT_THAT(errors, ::testing::Contains(found));
  }
}

// Rank 1 sends more than rank 0 expects; the pair is named.
TEST(TransportCommunicatorErrors, CountsOfAPairThatDisagreeAreFoundByTheReceiver) {
  LoopbackWorld world(3, {}, Options());
  std::vector<absl::Status> errors(3);
  world.Run([&](Communicator& self) {
    Buffers buffers;
    const int rank = self.rank().value();
    std::vector<int64_t> to(3, 4), from(3, 4);
    if (rank == 1) to[0] = 9;
    CollectiveRequest request = buffers.Request(Collective::kAllToAll, to[0] + to[1] + to[2]);
    request.counts = to;
    request.output_counts = from;
    absl::Status status = self.Run(request);
    if (status.ok()) status = self.Run(buffers.Request(Collective::kAllReduce));
    errors[rank] = status;
  });
  EXPECT_THAT(errors[0], StatusIs(Code::kFailedPrecondition,
                                  AllOf(HasSubstr("all_to_all #1 (f32 with counts of each pair, pairwise), 48 B, "),
                                        HasSubstr(": rank 1 sends 9 elements to rank 0, which expects 4"))));
  EXPECT_EQ(GetErrorInfo(errors[0]).failed_rank, 1);
  EXPECT_THAT(errors, Each(::testing::Not(IsOk())));
}

TEST(TransportCommunicatorErrors, CountsThatDoNotAddUpAreRefusedAndBreakNothing) {
  LoopbackWorld world(2, {}, Options());
  world.Run([&](Communicator& self) {
    Buffers buffers;
    const auto run = [&](Collective collective, size_t count, const std::vector<int64_t>& counts,
                         const std::vector<int64_t>& output_counts = {}) {
      CollectiveRequest request = buffers.Request(collective, count);
      request.counts = counts;
      request.output_counts = output_counts;
      EXPECT_EQ(self.Start(request).status(), self.Run(request));
      return self.Run(request);
    };
    const auto refused = [](const char* why) { return StatusIs(Code::kInvalidArgument, HasSubstr(why)); };
    EXPECT_THAT(run(Collective::kAllGather, 24, {10, 13}), refused("the counts add up to 23"));
    EXPECT_THAT(run(Collective::kAllGather, 24, {24}), refused("counts has 1 entries for 2 ranks"));
    EXPECT_THAT(run(Collective::kGather, 24, {25, -1}), refused("counts[1] is negative: -1"));
    EXPECT_THAT(run(Collective::kAllGather, 25, {}), refused("25, is no multiple of the 2 ranks"));
    EXPECT_THAT(run(Collective::kAllReduce, 24, {12, 12}), refused("all_reduce has no blocks"));
    EXPECT_THAT(run(Collective::kAllToAll, 24, {12, 12}), refused("output_counts has 0 entries"));
    EXPECT_THAT(run(Collective::kScatter, 24, {12, 12}, {12, 12}), refused("output_counts belong to an all_to_all"));
    const bool first = self.rank() == Rank(0);
    EXPECT_THAT(
        run(Collective::kAllToAll, 24, {12, 12}, first ? std::vector<int64_t>{11, 12} : std::vector<int64_t>{12, 11}),
        refused("elements to itself and expects 11"));
    EXPECT_THAT(self.Run(buffers.Request(Collective::kAllReduce)), IsOk());
  });
}

TEST(TransportCommunicatorErrors, DestructionWithAGroupOpenSaysSo) {
  LoopbackNetwork network(2);
  Member self(&network, 0);
  Buffers buffers;
  ASSERT_THAT(self.communicator->StartGroup(), IsOk());
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work work, self.communicator->Start(buffers.Request(Collective::kAllReduce)));
  self.communicator.reset();
  EXPECT_THAT(work.Wait(Deadline::Now()),
              StatusIs(Code::kFailedPrecondition, HasSubstr("destroyed with a group open: its 1 calls")));
}

// Messages: a peer that dies, and one that never sends.
TEST(TransportCommunicatorErrors, AMessageEndsWithItsPeerOrItsDeadline) {
  LoopbackWorld world(3, {}, Options());
  char byte = 0;
  ReceiveRequest receive;
  receive.data = &byte;
  receive.bytes = 1;
  receive.source = Rank(1);
  receive.tag = 3;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work orphan, world.communicator(0)->StartReceive(receive));
  receive.source = kAnySource;
  receive.timeout = milliseconds(40);
  EXPECT_THAT(world.communicator(2)->Receive(receive),
              StatusIs(Code::kDeadlineExceeded, HasSubstr("receive from any rank with tag 3 (1 B) did not finish")));
  world.network().Disconnect(Rank(1));
  EXPECT_THAT(orphan.Wait(Soon()), StatusIs(Code::kAborted, HasSubstr("receive from rank 1 with tag 3")));
  EXPECT_EQ(ToText(GetErrorInfo(orphan.Wait(Soon()))), "failed_rank=1 collective=receive");
  EXPECT_THAT(world.communicator(0)->status(), StatusIs(Code::kAborted));
}

// What a collective ignores does not make its calls differ.
TEST(TransportCommunicatorErrors, WhatACollectiveHasNoUseForMayDiffer) {
  for (const TransportCommunicatorOptions& options : {Options(), CheckedOptions()}) {
    LoopbackWorld world(3, {}, options);
    world.Run([&](Communicator& self) {
      Buffers buffers;
      CollectiveRequest all_gather = buffers.Request(Collective::kAllGather);
      all_gather.op = static_cast<ReduceOp>(self.rank().value());
      all_gather.root = self.rank();
      EXPECT_THAT(self.Run(all_gather), IsOk());
      CollectiveRequest all_reduce = buffers.Request(Collective::kAllReduce);
      all_reduce.root = Rank(self.rank().value() + 100);
      all_reduce.factor = self.rank().value();
      EXPECT_THAT(self.Run(all_reduce), IsOk());
    });
  }
}

class DisconnectTest : public ::testing::TestWithParam<Collective> {};

// Rank 2 dies at its first message, or further on. The others may have what they need from it, or not; in the collective after
// that all miss it.
TEST_P(DisconnectTest, EndsTheCollectiveOrTheNextOnEveryRank) {
  constexpr int kRanks = 4;
  const Rank victim(2);
  for (const int messages_before : {0, 5}) {
    LoopbackNetwork* network = nullptr;
    std::atomic<int> messages{0};
    LoopbackOptions options;
    options.observer = [&](const LoopbackMessage& message) {
      if (message.source == victim && messages++ == messages_before) network->Disconnect(victim);
    };
    TransportCommunicatorOptions communicator_options = Options();
    communicator_options.chunk_bytes = 16 << 10;
    LoopbackWorld world(kRanks, options, communicator_options);
    network = &world.network();
    std::vector<absl::Status> errors(kRanks);
    world.Run([&](Communicator& self) {
      Buffers buffers;
      CollectiveRequest request = buffers.Request(GetParam(), GetParam() == Collective::kBarrier ? 0 : 200'000);
      request.root = Rank(0);  // from which rank 2 is on the way to rank 3
      absl::Status status;
      for (int call = 0; call < 20 && status.ok(); ++call) status = self.Run(request);
      // In a scatter rank 2 sends nothing.
      for (int call = 0; call < 20 && status.ok(); ++call) status = self.Run(buffers.Request(Collective::kAllReduce));
      errors[self.rank().value()] = status;
      const bool all_reduce = GetErrorInfo(status).collective == Name(Collective::kAllReduce);
      ExpectErrorOf(all_reduce ? Collective::kAllReduce : GetParam(), status, self.status());
      ExpectErrorOf(GetParam(), self.Run(request), self.status());
    });
    EXPECT_THAT(errors, Each(StatusIs(Code::kAborted)));
    // Whether under way or behind another; a call that finds the communicator over has not come anywhere.
    EXPECT_THAT(
        errors,
        Each(StatusIs(Code::kAborted,
                      ::testing::ContainsRegex(", [0-9]+ B, (not begun|sent [0-9]+ B, received [0-9]+ B)|has ended"))));
    EXPECT_THAT(errors, ::testing::Contains(StatusIs(Code::kAborted, ::testing::ContainsRegex(", sent [0-9]+ B"))));
    EXPECT_THAT(errors, ::testing::Contains(StatusIs(Code::kAborted, HasSubstr("rank 2"))));
  }
}

INSTANTIATE_TEST_SUITE_P(All, DisconnectTest,
                         ::testing::Values(Collective::kAllReduce, Collective::kBroadcast, Collective::kReduce,
                                           Collective::kAllGather, Collective::kReduceScatter, Collective::kBarrier,
                                           Collective::kGather, Collective::kScatter, Collective::kAllToAll),
                         [](const auto& info) { return Name(info.param); });

TEST(TransportCommunicatorErrors, AnOperationsDeadlineEndsIt) {
  for (const int wait : {0, 1, 2}) {
    LoopbackWorld world(2, {}, Options());
    Communicator& self = *world.communicator(0);
    Buffers buffers;
    CollectiveRequest request = buffers.Request(Collective::kAllReduce);
    request.timeout = milliseconds(40);
    request.algorithm = Algorithm::kRing;
    const auto begin = Deadline::Clock::now();
    absl::Status status;
    if (wait == 0) {
      status = self.Run(request);
    } else {
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work work, self.Start(request));
      const Deadline deadline = Soon();
      // Somebody waits, or nobody does.
      while (wait == 1 && !work.done() && !deadline.passed()) std::this_thread::yield();
      status = work.Wait(Soon());
    }
    EXPECT_GE(Deadline::Clock::now() - begin, milliseconds(40));
    EXPECT_THAT(status, StatusIs(Code::kDeadlineExceeded,
                                 AllOf(::testing::StartsWith("all_reduce #1 (24 f32 sum, ring), 96 B, sent "),
                                       ::testing::EndsWith(": did not finish in time"))));
    EXPECT_THAT(self.status(),
                StatusIs(Code::kDeadlineExceeded, "all_reduce #1 (24 f32 sum, ring) did not finish in time"));
    EXPECT_THAT(self.Run(request), StatusIs(Code::kDeadlineExceeded,
                                            "all_reduce (24 f32 sum): the communicator has ended, in all_reduce "
                                            "#1 (24 f32 sum, ring): did not finish in time"));
    request.timeout = milliseconds(0);
    EXPECT_THAT(world.communicator(1)->Run(request), StatusIs(Code::kAborted, HasSubstr("rank 0")))
        << "who comes later finds the connection closed";
  }
}

TEST(TransportCommunicatorErrors, AChangedTimeoutIsThatOfLaterOperationsWithoutOne) {
  LoopbackWorld world(2, {}, Options());
  Communicator& self = *world.communicator(0);
  self.SetTimeout(milliseconds(40));
  Buffers buffers;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work work, self.Start(buffers.Request(Collective::kAllReduce)));
  EXPECT_THAT(work.Wait(Deadline::AfterMs(20'000)),
              StatusIs(Code::kDeadlineExceeded, ::testing::EndsWith(": did not finish in time")));
  EXPECT_TRUE(work.done()) << "its own deadline ended it, and not that of the wait";
}

// The first call has time; the one behind it in the queue has not.
TEST(TransportCommunicatorErrors, TheEarliestDeadlineCounts) {
  LoopbackWorld world(2, {}, Options());
  Communicator& self = *world.communicator(0);
  Buffers buffers;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work first, self.Start(buffers.Request(Collective::kAllReduce)));
  CollectiveRequest request = buffers.Request(Collective::kAllReduce);
  request.timeout = milliseconds(40);
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work second, self.Start(request));
  EXPECT_THAT(first.Wait(Deadline::AfterMs(20'000)), StatusIs(Code::kDeadlineExceeded, HasSubstr("#2")));
  EXPECT_TRUE(first.done());
  ExpectErrorOf(Collective::kAllReduce, first.Wait(Soon()), self.status());
  ExpectErrorOf(Collective::kAllReduce, second.Wait(Soon()), self.status());
  EXPECT_EQ(GetErrorInfo(first.Wait(Soon())).sequence, 1u);
  EXPECT_EQ(GetErrorInfo(second.Wait(Soon())).sequence, 2u);
}

TEST(TransportCommunicatorErrors, AbortEndsABlockingCallOfAnotherThread) {
  LoopbackWorld world(2, {}, Options());
  Communicator& self = *world.communicator(0);
  Buffers buffers;
  std::thread aborter([&] {
    const Deadline deadline = Soon();
    while (self.FlightRecords().empty() && !deadline.passed()) std::this_thread::yield();
    self.Abort("the user pressed a key");
  });
  const absl::Status error = self.Run(buffers.Request(Collective::kAllReduce));
  EXPECT_THAT(error, StatusIs(Code::kAborted,
                              AllOf(::testing::StartsWith("all_reduce #1 (24 f32 sum, "),
                                    ::testing::EndsWith(": rank 0 aborted the communicator: the user pressed a key"))));
  EXPECT_EQ(ToText(GetErrorInfo(error)), "failed_rank=0 collective=all_reduce sequence=1");
  aborter.join();
}

TEST(TransportCommunicatorErrors, WithoutAControlChannelThereAreNoMessages) {
  LoopbackNetwork network(2);
  Member self(&network, 0);
  self.communicator->PostMessage(1, "lost");
  EXPECT_THAT(self.communicator->AwaitMessages(1, 1, Soon()), StatusIs(Code::kUnimplemented));
}

TEST(TransportCommunicatorErrors, DestructionCancelsWhatIsInFlightAndWorkOutlivesAll) {
  LoopbackNetwork network(2);
  auto self = std::make_unique<Member>(&network, 0);
  Buffers buffers;
  std::vector<Work> works;
  for (int i = 0; i < 3; ++i) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work work,
                                  self->communicator->Start(buffers.Request(Collective::kAllReduce, 100'000)));
    works.push_back(std::move(work));
  }
  std::thread waiter([work = works[0]]() mutable {
    EXPECT_THAT(work.Wait(Soon()), StatusIs(Code::kCancelled, HasSubstr("destroyed")));
  });
  self->communicator.reset();
  waiter.join();
  self.reset();
  for (Work& work : works) EXPECT_THAT(work.Wait(Deadline::Now()), StatusIs(Code::kCancelled, HasSubstr("destroyed")));
}

TEST(TransportCommunicatorErrors, DestructionAfterAFailureIsQuiet) {
  LoopbackNetwork network(2);
  Member self(&network, 0);
  Buffers buffers;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work work, self.communicator->Start(buffers.Request(Collective::kAllReduce)));
  self.communicator->OnFailure(absl::AbortedError("rank 1 died"));
  self.communicator->OnFailure(absl::InternalError("and more"));
  EXPECT_THAT(work.Wait(Deadline::Now()), StatusIs(Code::kAborted, ::testing::EndsWith(": rank 1 died")));
  self.communicator.reset();
  EXPECT_THAT(work.Wait(Deadline::Now()), StatusIs(Code::kAborted, ::testing::EndsWith(": rank 1 died")));
}

TEST(TransportCommunicatorErrors, ProgressCountsWhatWasStartedAndWhatCompleted) {
  LoopbackNetwork network(2);
  Member self(&network, 0);
  Member other(&network, 1);
  EXPECT_EQ(self.communicator->progress().started, 0);
  Buffers buffers, other_buffers;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work work, self.communicator->Start(buffers.Request(Collective::kAllReduce)));
  EXPECT_EQ(self.communicator->progress().started, 1);
  EXPECT_EQ(self.communicator->progress().completed, 0);
  EXPECT_THAT(other.communicator->Run(other_buffers.Request(Collective::kAllReduce)), IsOk());
  EXPECT_THAT(work.Wait(Soon()), IsOk());
  EXPECT_EQ(self.communicator->progress().completed, 1);
}

}  // namespace
}  // namespace lockstep
