#include "tests/device_conformance.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <new>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/device/device.h"
#include "base/device/devices.h"
#include "base/fork_testing.h"
#include "base/status_matchers.h"
#include "base/thread.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gate.h"

namespace lockstep {
namespace {

// ---- Streams and events: their order and their errors

// An event of no device at all.
class ForeignEvent final : public Event {
 public:
  bool Query() const override { return true; }
  absl::Status Synchronize(Deadline deadline) override { return absl::OkStatus(); }
};

TEST_P(DeviceConformance, StreamIsOnItsDevice) { EXPECT_EQ(stream_->device(), device_->id()); }

TEST_P(DeviceConformance, UnusedStreamIsIdleAndWithoutError) {
  EXPECT_THAT(stream_->Synchronize(Deadline::Now()), IsOk());
  EXPECT_THAT(stream_->status(), IsOk());
}

TEST_P(DeviceConformance, WorkRunsInOrder) {
  std::vector<int> order;  // touched by the stream's work alone until Synchronize
  for (int i = 0; i < 1000; ++i) EnqueueOk(stream_.get(), [&order, i] { order.push_back(i); });
  ASSERT_THAT(stream_->Synchronize(Soon()), IsOk());
  ASSERT_EQ(order.size(), 1000);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(order[i], i);
}

TEST_P(DeviceConformance, WorkOfEachThreadRunsInItsOrder) {
  constexpr int kThreads = 4;
  constexpr int kEach = 500;
  std::vector<std::vector<int>> orders(kThreads);
  {
    std::vector<Thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back("enqueuer", [this, order = &orders[t]] {
        for (int i = 0; i < kEach; ++i) EnqueueOk(stream_.get(), [order, i] { order->push_back(i); });
      });
    }
  }
  ASSERT_THAT(stream_->Synchronize(Soon()), IsOk());
  for (const std::vector<int>& order : orders) {
    ASSERT_EQ(order.size(), kEach);
    for (int i = 0; i < kEach; ++i) ASSERT_EQ(order[i], i);
  }
}

TEST_P(DeviceConformance, SynchronizeGivesUpAtItsDeadlineAndTheWorkGoesOn) {
  Gate gate;
  EnqueueGate(stream_.get(), &gate);
  EXPECT_THAT(stream_->Synchronize(Deadline::Now()), StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(stream_->Synchronize(Deadline::AfterMs(2)), StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(stream_->status(), IsOk()) << "giving up waiting is no error of the stream";
  gate.Open();
  EXPECT_THAT(stream_->Synchronize(Soon()), IsOk());
}

TEST_P(DeviceConformance, EventNeverRecordedIsReached) {
  EXPECT_TRUE(event_->Query());
  EXPECT_THAT(event_->Synchronize(Deadline::Now()), IsOk());
}

TEST_P(DeviceConformance, WaitingForAnEventNeverRecordedDoesNothing) {
  ASSERT_THAT(stream_->Wait(event_.get()), IsOk());
  bool ran = false;
  EnqueueOk(stream_.get(), [&ran] { ran = true; });
  ASSERT_THAT(stream_->Synchronize(Soon()), IsOk());
  EXPECT_TRUE(ran);
}

TEST_P(DeviceConformance, EventIsReachedWhenTheWorkBeforeItIsDoneAndNotLater) {
  Gate before;
  Gate after;
  EnqueueGate(stream_.get(), &before);
  ASSERT_THAT(stream_->Record(event_.get()), IsOk());
  EnqueueGate(stream_.get(), &after);
  EXPECT_FALSE(event_->Query());
  EXPECT_THAT(event_->Synchronize(Deadline::Now()), StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(event_->Synchronize(Deadline::AfterMs(2)), StatusIs(absl::StatusCode::kDeadlineExceeded));
  before.Open();
  EXPECT_THAT(event_->Synchronize(Soon()), IsOk());
  EXPECT_TRUE(event_->Query());
  after.Open();
  EXPECT_THAT(stream_->Synchronize(Soon()), IsOk());
}

TEST_P(DeviceConformance, RecordMovesTheEvent) {
  const auto first_point = NewEvent();
  Gate first;
  Gate second;
  EnqueueGate(stream_.get(), &first);
  ASSERT_THAT(stream_->Record(event_.get()), IsOk());
  ASSERT_THAT(stream_->Record(first_point.get()), IsOk());
  EnqueueGate(stream_.get(), &second);
  ASSERT_THAT(stream_->Record(event_.get()), IsOk());
  first.Open();
  ASSERT_THAT(first_point->Synchronize(Soon()), IsOk());
  EXPECT_FALSE(event_->Query()) << "it stands for the second point now";
  second.Open();
  EXPECT_THAT(event_->Synchronize(Soon()), IsOk());
}

TEST_P(DeviceConformance, EventMovesFromOneStreamToAnother) {
  const auto blocked = NewStream();
  const auto idle = NewStream();
  Gate gate;
  EnqueueGate(blocked.get(), &gate);
  ASSERT_THAT(blocked->Record(event_.get()), IsOk());
  EXPECT_FALSE(event_->Query());
  ASSERT_THAT(idle->Record(event_.get()), IsOk());
  EXPECT_THAT(event_->Synchronize(Soon()), IsOk());
  EXPECT_TRUE(event_->Query());
  gate.Open();
  EXPECT_THAT(blocked->Synchronize(Soon()), IsOk());
}

TEST_P(DeviceConformance, WorkBehindAWaitSeesWhatTheOtherStreamWrote) {
  const auto producer = NewStream();
  const auto consumer = NewStream();
  Gate gate;
  int value = 0;
  int seen = -1;
  EnqueueGate(producer.get(), &gate);
  EnqueueOk(producer.get(), [&value] { value = 42; });
  ASSERT_THAT(producer->Record(event_.get()), IsOk());
  ASSERT_THAT(consumer->Wait(event_.get()), IsOk());
  EnqueueOk(consumer.get(), [&value, &seen] { seen = value; });
  EXPECT_THAT(consumer->Synchronize(Deadline::AfterMs(2)), StatusIs(absl::StatusCode::kDeadlineExceeded));
  gate.Open();
  ASSERT_THAT(consumer->Synchronize(Soon()), IsOk());
  EXPECT_EQ(seen, 42);
}

// The event is recorded again after the wait; the later record's point lies behind a closed gate.
TEST_P(DeviceConformance, WaitMeansThePointOfItsOwnMoment) {
  const auto producer = NewStream();
  const auto consumer = NewStream();
  const auto consumed = NewEvent();
  Gate first;
  Gate second;
  EnqueueGate(producer.get(), &first);
  ASSERT_THAT(producer->Record(event_.get()), IsOk());
  ASSERT_THAT(consumer->Wait(event_.get()), IsOk());
  ASSERT_THAT(consumer->Record(consumed.get()), IsOk());
  EnqueueGate(producer.get(), &second);
  ASSERT_THAT(producer->Record(event_.get()), IsOk());
  EXPECT_FALSE(consumed->Query());
  first.Open();
  EXPECT_THAT(consumed->Synchronize(Soon()), IsOk());
  EXPECT_FALSE(event_->Query());
  second.Open();
  EXPECT_THAT(producer->Synchronize(Soon()), IsOk());
}

TEST_P(DeviceConformance, WaitOutlivesTheEvent) {
  const auto producer = NewStream();
  const auto consumer = NewStream();
  Gate gate;
  bool produced = false;
  bool seen = false;
  EnqueueGate(producer.get(), &gate);
  EnqueueOk(producer.get(), [&produced] { produced = true; });
  ASSERT_THAT(producer->Record(event_.get()), IsOk());
  ASSERT_THAT(consumer->Wait(event_.get()), IsOk());
  event_.reset();
  EnqueueOk(consumer.get(), [&produced, &seen] { seen = produced; });
  gate.Open();
  ASSERT_THAT(consumer->Synchronize(Soon()), IsOk());
  EXPECT_TRUE(seen);
}

TEST_P(DeviceConformance, StreamMayWaitForItself) {
  EnqueueOk(stream_.get(), [] {});
  ASSERT_THAT(stream_->Record(event_.get()), IsOk());
  ASSERT_THAT(stream_->Wait(event_.get()), IsOk());
  EXPECT_THAT(stream_->Synchronize(Soon()), IsOk());
}

// A baton goes round many streams, each of which waits for the one before.
TEST_P(DeviceConformance, ManyStreamsKeepTheOrderOfTheirEvents) {
  constexpr int kStreams = 16;
  constexpr int kRounds = 20;
  std::vector<std::unique_ptr<Stream>> streams;
  for (int i = 0; i < kStreams; ++i) streams.push_back(NewStream());
  const auto baton = NewEvent();
  std::vector<int> order;  // handed on by the events alone
  for (int i = 0; i < kStreams * kRounds; ++i) {
    Stream* const stream = streams[i % kStreams].get();
    ASSERT_THAT(stream->Wait(baton.get()), IsOk());
    EnqueueOk(stream, [&order, i] { order.push_back(i); });
    ASSERT_THAT(stream->Record(baton.get()), IsOk());
  }
  ASSERT_THAT(baton->Synchronize(Soon()), IsOk());
  ASSERT_EQ(order.size(), kStreams * kRounds);
  for (int i = 0; i < kStreams * kRounds; ++i) ASSERT_EQ(order[i], i);
}

TEST_P(DeviceConformance, QueryThatHoldsMakesTheWorkVisible) {
  std::vector<int> written;
  EnqueueOk(stream_.get(), [&written] { written.assign(1000, 7); });
  ASSERT_THAT(stream_->Record(event_.get()), IsOk());
  const Deadline deadline = Soon();
  while (!event_->Query()) {
    ASSERT_FALSE(deadline.passed());
    std::this_thread::yield();
  }
  EXPECT_THAT(written, testing::AllOf(testing::SizeIs(1000), testing::Each(7)));
}

TEST_P(DeviceConformance, ManyThreadsWaitForOneEvent) {
  Gate gate;
  int value = 0;
  EnqueueGate(stream_.get(), &gate);
  EnqueueOk(stream_.get(), [&value] { value = 9; });
  ASSERT_THAT(stream_->Record(event_.get()), IsOk());
  std::atomic<int> good{0};
  {
    std::vector<Thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back("waiter", [&] {
        if (event_->Synchronize(Soon()).ok() && value == 9) ++good;
      });
    }
    gate.Open();
  }
  EXPECT_EQ(good, 4);
}

TEST_P(DeviceConformance, FirstErrorSticksAndLaterWorkIsSkipped) {
  int before = 0;
  int after = 0;
  const auto captured = std::make_shared<int>(0);
  EnqueueOk(stream_.get(), [&before] { ++before; });
  EnqueueError(stream_.get(), absl::AbortedError("the first"));
  EnqueueError(stream_.get(), absl::InternalError("the second"));
  EnqueueOk(stream_.get(), [&after, captured] { ++after; });
  const auto is_the_first = StatusIs(absl::StatusCode::kAborted, testing::HasSubstr("the first"));
  EXPECT_THAT(stream_->Synchronize(Soon()), is_the_first);
  EXPECT_THAT(stream_->status(), is_the_first);
  EXPECT_EQ(before, 1);
  EXPECT_EQ(after, 0);
  EXPECT_EQ(captured.use_count(), 1) << "skipped work is destroyed";
  EnqueueOk(stream_.get(), [&after] { ++after; });
  EXPECT_THAT(stream_->Synchronize(Soon()), is_the_first);
  EXPECT_EQ(after, 0);
}

TEST_P(DeviceConformance, EventsCompleteAfterAnErrorAndErrorsStayInTheirStream) {
  const auto failing = NewStream();
  const auto other = NewStream();
  EnqueueError(failing.get(), absl::AbortedError("failed"));
  EnqueueOk(failing.get(), [] {});
  ASSERT_THAT(failing->Record(event_.get()), IsOk());
  EXPECT_THAT(event_->Synchronize(Soon()), IsOk());
  bool ran = false;
  ASSERT_THAT(other->Wait(event_.get()), IsOk());
  EnqueueOk(other.get(), [&ran] { ran = true; });
  EXPECT_THAT(other->Synchronize(Soon()), IsOk());
  EXPECT_TRUE(ran);
}

// Or a buffer would be freed under the other stream by someone who waited for the failed one.
TEST_P(DeviceConformance, FailedStreamStillWaitsForOthers) {
  const auto failing = NewStream();
  const auto other = NewStream();
  const auto others_point = NewEvent();
  Gate gate;
  EnqueueError(failing.get(), absl::AbortedError("failed"));
  ASSERT_THAT(failing->Synchronize(Soon()), StatusIs(absl::StatusCode::kAborted));
  EnqueueGate(other.get(), &gate);
  ASSERT_THAT(other->Record(others_point.get()), IsOk());
  ASSERT_THAT(failing->Wait(others_point.get()), IsOk());
  ASSERT_THAT(failing->Record(event_.get()), IsOk());
  EXPECT_THAT(event_->Synchronize(Deadline::AfterMs(2)), StatusIs(absl::StatusCode::kDeadlineExceeded));
  gate.Open();
  EXPECT_THAT(event_->Synchronize(Soon()), IsOk());
}

TEST_P(DeviceConformance, ThrownExceptionBecomesTheStreamsError) {
  ASSERT_THAT(stream_->Enqueue([]() -> absl::Status { throw std::runtime_error("out of luck"); }), IsOk());
  EXPECT_THAT(stream_->Synchronize(Soon()),
              StatusIs(absl::StatusCode::kInternal, testing::HasSubstr("\"conformance\": its work threw out of luck")));
}

TEST_P(DeviceConformance, NullWorkIsRefused) {
  EXPECT_THAT(stream_->Enqueue(nullptr), StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("null work")));
}

TEST_P(DeviceConformance, EventsThatAreNullOrForeignAreRefused) {
  ForeignEvent foreign;
  EXPECT_THAT(stream_->Record(nullptr), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(stream_->Wait(nullptr), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(stream_->Record(&foreign), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(stream_->Wait(&foreign), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(stream_->status(), IsOk());
}

TEST_P(DeviceConformance, DestroyingAStreamDestroysItsWorkAndCompletesItsEvents) {
  const auto captured = std::make_shared<std::atomic<int>>(0);
  for (int i = 0; i < 2000; ++i) EnqueueOk(stream_.get(), [captured] { ++*captured; });
  ASSERT_THAT(stream_->Record(event_.get()), IsOk());
  stream_.reset();
  EXPECT_EQ(captured.use_count(), 1);
  EXPECT_TRUE(event_->Query());
  EXPECT_THAT(event_->Synchronize(Deadline::Now()), IsOk());
}

// No test can see the moment when the destructor has begun, so what is behind the running closure is seconds of work.
TEST_P(DeviceConformance, DestructorLetsTheRunningClosureFinishAndDropsTheRest) {
  constexpr int kBehind = 2000;
  auto stream = NewStream();
  Gate started;
  Gate gate;
  Gate never;
  bool finished = false;
  int ran = 0;
  ASSERT_THAT(stream->Enqueue([&] {
    started.Open();
    absl::Status opened = gate.Await(Soon());
    finished = opened.ok();
    return opened;
  }),
              IsOk());
  for (int i = 0; i < kBehind; ++i) {
    EnqueueOk(stream.get(), [&never, &ran] {
      EXPECT_THAT(never.Await(Deadline::AfterMs(2)), StatusIs(absl::StatusCode::kDeadlineExceeded));
      ++ran;
    });
  }
  ASSERT_THAT(started.Await(Soon()), IsOk());
  Gate destroyed;
  Thread destroyer("destroyer", [&] {
    stream.reset();
    destroyed.Open();
  });
  EXPECT_THAT(destroyed.Await(Deadline::AfterMs(5)), StatusIs(absl::StatusCode::kDeadlineExceeded));
  gate.Open();
  EXPECT_THAT(destroyed.Await(Soon()), IsOk());
  EXPECT_TRUE(finished);
  EXPECT_LT(ran, kBehind);
}

TEST_P(DeviceConformance, DestroyedStreamReleasesThoseThatWaitForIt) {
  auto doomed = NewStream();
  const auto waiting = NewStream();
  Gate gate;
  EnqueueGate(doomed.get(), &gate);
  for (int i = 0; i < 100; ++i) EnqueueOk(doomed.get(), [] {});
  ASSERT_THAT(doomed->Record(event_.get()), IsOk());
  ASSERT_THAT(waiting->Wait(event_.get()), IsOk());
  bool ran = false;
  EnqueueOk(waiting.get(), [&ran] { ran = true; });
  gate.Open();
  doomed.reset();
  EXPECT_THAT(waiting->Synchronize(Soon()), IsOk());
  EXPECT_TRUE(ran);
}

TEST_P(DeviceConformance, ForkedChildIsToldAndMayDestroyWhatItInherited) {
  std::atomic<uint32_t> flag{0};
  void* const memory = device_->Allocate(1).value();
  Gate gate;
  EnqueueGate(stream_.get(), &gate);
  ASSERT_THAT(stream_->Record(event_.get()), IsOk());
  const auto child = [&] {
    const absl::Status answers[] = {stream_->Enqueue([] { return absl::OkStatus(); }),
                                    stream_->Copy(&gate, &gate, 1),
                                    stream_->Record(event_.get()),
                                    stream_->Wait(event_.get()),
                                    stream_->AwaitValue(&flag, 0),
                                    stream_->WriteValue(&flag, 0),
                                    stream_->Synchronize(Soon()),
                                    stream_->status(),
                                    event_->Synchronize(Soon())};
    for (size_t i = 0; i < std::size(answers); ++i) {
      if (!absl::IsFailedPrecondition(answers[i])) return static_cast<int>(i) + 1;
    }
    if (!event_->Query()) return 100;
    device_->Free(memory);
    stream_.reset();
    event_.reset();
    return 0;
  };
  EXPECT_EQ(RunInForkedChild(child, Soon()), 0);
  gate.Open();
  EXPECT_THAT(stream_->Synchronize(Soon()), IsOk());
  device_->Free(memory);
}

// ---- Copies, flags that streams await and write, and memory

// From the host to the device and back, between two pieces of other work.
TEST_P(DeviceConformance, CopiesRunInOrder) {
  constexpr size_t kBytes = 100'003;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(void* const allocated, device_->AllocateOnHost(kBytes));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(void* const on_device, device_->Allocate(kBytes));
  auto* const on_host = static_cast<unsigned char*>(allocated);
  EnqueueOk(stream_.get(), [on_host] { std::fill_n(on_host, kBytes, static_cast<unsigned char>(7)); });
  EXPECT_THAT(stream_->Copy(on_device, on_host, kBytes), IsOk());
  EnqueueOk(stream_.get(), [on_host] { std::fill_n(on_host, kBytes, static_cast<unsigned char>(0)); });
  EXPECT_THAT(stream_->Copy(on_host, on_device, kBytes), IsOk());
  EXPECT_THAT(stream_->Copy(nullptr, nullptr, 0), IsOk());
  ASSERT_THAT(stream_->Synchronize(Soon()), IsOk());
  EXPECT_EQ(std::count(on_host, on_host + kBytes, 7), kBytes);
  device_->Free(on_device);
  device_->FreeOnHost(on_host);
}

// Memory that the device shares with the host, with a flag in it.
class SharedFlag {
 public:
  explicit SharedFlag(Device* device, uint32_t value = 0)
      : device_(device), memory_(device->AllocateOnHost(sizeof(std::atomic<uint32_t>)).value()) {
    flag_ = new (memory_) std::atomic<uint32_t>(value);
  }
  ~SharedFlag() { device_->FreeOnHost(memory_); }
  SharedFlag(const SharedFlag&) = delete;
  SharedFlag& operator=(const SharedFlag&) = delete;

  std::atomic<uint32_t>* get() const { return flag_; }
  void Store(uint32_t value) { flag_->store(value, std::memory_order_release); }
  // Whether the value arrives soon.
  bool Await(uint32_t value) const {
    const Deadline deadline = DeviceConformance::Soon();
    while (flag_->load(std::memory_order_acquire) != value) {
      if (deadline.passed()) return false;
      std::this_thread::yield();
    }
    return true;
  }

 private:
  Device* const device_;
  void* const memory_;
  std::atomic<uint32_t>* flag_;
};

// A driver, or a sandbox around it, may lack what flags need.
#define LOCKSTEP_SKIP_WITHOUT_FLAGS()                                 \
  do {                                                                \
    const SharedFlag any(device_);                                    \
    const absl::Status taken = NewStream()->AwaitValue(any.get(), 0); \
    if (absl::IsUnimplemented(taken)) GTEST_SKIP() << taken;          \
  } while (false)

TEST_P(DeviceConformance, WorkBehindAnAwaitedValueStartsOnceTheHostStoresIt) {
  LOCKSTEP_SKIP_WITHOUT_FLAGS();
  SharedFlag flag(device_);
  int written = 0;
  int seen = -1;
  ASSERT_THAT(stream_->AwaitValue(flag.get(), 3), IsOk());
  EnqueueOk(stream_.get(), [&] { seen = written; });
  ASSERT_THAT(stream_->Record(event_.get()), IsOk());
  flag.Store(2);
  EXPECT_THAT(event_->Synchronize(Deadline::AfterMs(2)), StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(seen, -1);
  written = 42;
  flag.Store(3);
  ASSERT_THAT(event_->Synchronize(Soon()), IsOk());
  EXPECT_EQ(seen, 42);
}

TEST_P(DeviceConformance, ValuesAreComparedInACircle) {
  LOCKSTEP_SKIP_WITHOUT_FLAGS();
  SharedFlag flag(device_, 3);
  for (const uint32_t reached : {3u, 2u, 0u, 0xffffffffu, 0x80000004u}) {
    ASSERT_THAT(stream_->AwaitValue(flag.get(), reached), IsOk());
    EXPECT_THAT(stream_->Synchronize(Soon()), IsOk()) << reached;
  }
  for (const uint32_t missing : {4u, 0x80000003u}) {
    SharedFlag awaited(device_, 3);
    ASSERT_THAT(stream_->AwaitValue(awaited.get(), missing), IsOk());
    EXPECT_THAT(stream_->Synchronize(Deadline::AfterMs(2)), StatusIs(absl::StatusCode::kDeadlineExceeded)) << missing;
    awaited.Store(missing);
    EXPECT_THAT(stream_->Synchronize(Soon()), IsOk()) << missing;
  }
}

TEST_P(DeviceConformance, WhoeverAcquiresAWrittenValueSeesWhatTheStreamWroteBefore) {
  LOCKSTEP_SKIP_WITHOUT_FLAGS();
  Gate gate;
  SharedFlag flag(device_);
  std::vector<int> written;
  EnqueueGate(stream_.get(), &gate);
  EnqueueOk(stream_.get(), [&written] { written.assign(1000, 7); });
  ASSERT_THAT(stream_->WriteValue(flag.get(), 5), IsOk());
  EXPECT_EQ(flag.get()->load(), 0);
  gate.Open();
  ASSERT_TRUE(flag.Await(5));
  EXPECT_THAT(written, testing::AllOf(testing::SizeIs(1000), testing::Each(7)));
  EXPECT_THAT(stream_->Synchronize(Soon()), IsOk());
}

TEST_P(DeviceConformance, StreamAwaitsWhatAnotherWrites) {
  LOCKSTEP_SKIP_WITHOUT_FLAGS();
  constexpr uint32_t kRounds = 100;
  const auto ping = NewStream();
  const auto pong = NewStream();
  SharedFlag there(device_);
  SharedFlag back(device_);
  const auto end = NewEvent();
  std::vector<uint32_t> order;  // handed on by the flags alone
  for (uint32_t round = 1; round <= kRounds; ++round) {
    EnqueueOk(ping.get(), [&order, round] { order.push_back(2 * round); });
    ASSERT_THAT(ping->WriteValue(there.get(), round), IsOk());
    ASSERT_THAT(pong->AwaitValue(there.get(), round), IsOk());
    EnqueueOk(pong.get(), [&order, round] { order.push_back(2 * round + 1); });
    ASSERT_THAT(pong->WriteValue(back.get(), round), IsOk());
    ASSERT_THAT(ping->AwaitValue(back.get(), round), IsOk());
  }
  ASSERT_THAT(ping->Record(end.get()), IsOk());
  ASSERT_THAT(end->Synchronize(Soon()), IsOk());
  ASSERT_EQ(order.size(), 2 * kRounds);
  for (uint32_t i = 0; i < order.size(); ++i) ASSERT_EQ(order[i], i + 2);
}

// Or whoever waits for the value would wait for ever, and memory would go that a wait protects.
TEST_P(DeviceConformance, FailedStreamStillAwaitsAndWritesValues) {
  LOCKSTEP_SKIP_WITHOUT_FLAGS();
  SharedFlag awaited(device_);
  SharedFlag written(device_);
  EnqueueError(stream_.get(), absl::AbortedError("failed"));
  ASSERT_THAT(stream_->Synchronize(Soon()), StatusIs(absl::StatusCode::kAborted));
  ASSERT_THAT(stream_->AwaitValue(awaited.get(), 1), IsOk());
  ASSERT_THAT(stream_->WriteValue(written.get(), 1), IsOk());
  ASSERT_THAT(stream_->Record(event_.get()), IsOk());
  EXPECT_THAT(event_->Synchronize(Deadline::AfterMs(2)), StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(written.get()->load(), 0);
  awaited.Store(1);
  EXPECT_THAT(event_->Synchronize(Soon()), IsOk());
  EXPECT_TRUE(written.Await(1));
}

TEST_P(DeviceConformance, NullFlagIsRefused) {
  EXPECT_THAT(stream_->AwaitValue(nullptr, 1), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(stream_->WriteValue(nullptr, 1), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_P(DeviceConformance, AllocationsAreAlignedAndDistinct) {
  std::vector<void*> blocks;
  for (size_t bytes : {0, 0, 1, 255, 256, 257, 1 << 20}) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(void* const block, device_->Allocate(bytes));
    ASSERT_NE(block, nullptr) << bytes;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % 256, 0) << bytes;
    EXPECT_THAT(blocks, testing::Not(testing::Contains(block)));
    blocks.push_back(block);
  }
  for (void* block : blocks) device_->Free(block);
  device_->Free(nullptr);
}

TEST_P(DeviceConformance, MemoryOnTheHostIsTheHosts) {
  for (size_t bytes : {1, 255, 257, 4096, 100'000, 1 << 20}) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(void* const block, device_->AllocateOnHost(bytes));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % 256, 0) << bytes;
    std::fill_n(static_cast<char*>(block), bytes, 'x');
    device_->FreeOnHost(block);
  }
  device_->FreeOnHost(nullptr);
}

TEST_P(DeviceConformance, MemoryIsWhereItWasDeclaredOrTheErrorNamesBoth) {
  constexpr size_t kBytes = 4096;
  const DeviceId host, own = device_->id();
  void* const on_device = device_->Allocate(kBytes).value();
  void* const pinned = device_->AllocateOnHost(kBytes).value();
  const auto pageable = std::make_unique<char[]>(kBytes);
  EXPECT_THAT(CheckPointer(static_cast<char*>(on_device) + kBytes - 1, own), IsOk());
  EXPECT_THAT(CheckPointer(pageable.get(), host), IsOk());
  for (const DeviceId declared : {own, host}) {
    EXPECT_THAT(CheckPointer(pinned, declared), IsOk());
    EXPECT_THAT(CheckPointer(nullptr, declared), IsOk());
  }
  if (own != host) {
    const auto refused = [](DeviceId actual, DeviceId declared) {
      return StatusIs(absl::StatusCode::kInvalidArgument,
                      testing::HasSubstr("is memory of " + Name(actual) + ", but " + Name(declared) + " was declared"));
    };
    EXPECT_THAT(CheckPointer(on_device, host), refused(own, host));
    EXPECT_THAT(CheckPointer(pageable.get(), own), refused(host, own));
  }
  device_->Free(on_device);
  device_->FreeOnHost(pinned);
}

TEST_P(DeviceConformance, ImpossibleAllocationSaysHowMuchWasAskedFor) {
  const size_t most = std::numeric_limits<size_t>::max();
  EXPECT_THAT(device_->Allocate(most),
              StatusIs(absl::StatusCode::kResourceExhausted, testing::HasSubstr(std::to_string(most))));
}

}  // namespace
}  // namespace lockstep
