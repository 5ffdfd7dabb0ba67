#include "base/device/host_device.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/deadline.h"
#include "base/device/device.h"
#include "base/status_matchers.h"
#include "base/thread.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/device_conformance.h"
#include "tests/gate.h"

namespace lockstep {

INSTANTIATE_TEST_SUITE_P(Host, DeviceConformance, testing::Values(DeviceFactory([] { return HostDevice(); })));

namespace {

using testing::HasSubstr;

Deadline Soon() { return Deadline::AfterMs(20000); }

std::unique_ptr<Stream> NewStream(const std::string& name = "test") { return HostDevice()->CreateStream(name).value(); }
std::unique_ptr<Event> NewEvent() { return HostDevice()->CreateEvent().value(); }

absl::Status Nothing() { return absl::OkStatus(); }

int ThreadsNamed(const std::string& name) {
  int count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string threads_name;
    std::getline(std::ifstream(task.path() / "comm"), threads_name);
    count += threads_name == name;
  }
  return count;
}

TEST(HostDeviceTest, IsTheHost) {
  EXPECT_EQ(HostDevice()->id(), DeviceId());
  EXPECT_EQ(HostDevice(), HostDevice());
}

TEST(HostStreamTest, ThreadStartsWithTheFirstWorkAndHasTheStreamsName) {
  const auto stream = NewStream("copy-in");
  const auto event = NewEvent();
  ASSERT_THAT(stream->Record(event.get()), IsOk());
  ASSERT_THAT(stream->Wait(event.get()), IsOk());
  ASSERT_THAT(stream->Synchronize(Soon()), IsOk());
  EXPECT_EQ(ThreadsNamed("copy-in"), 0);
  ASSERT_THAT(stream->Enqueue(Nothing), IsOk());
  ASSERT_THAT(stream->Synchronize(Soon()), IsOk());
  EXPECT_EQ(ThreadsNamed("copy-in"), 1);
}

TEST(HostStreamTest, QueueIsBounded) {
  constexpr int kBound = 65536;
  const auto stream = NewStream("bounded");
  Gate gate;
  ASSERT_THAT(stream->Enqueue([&gate] { return gate.Await(Soon()); }), IsOk());
  for (int i = 1; i < kBound; ++i) ASSERT_TRUE(stream->Enqueue(Nothing).ok()) << i;
  const auto captured = std::make_shared<int>(0);
  EXPECT_THAT(stream->Enqueue([captured] { return absl::OkStatus(); }),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("\"bounded\": its queue is full with 65536")));
  EXPECT_EQ(captured.use_count(), 1) << "the refused closure is destroyed";
  gate.Open();
  ASSERT_THAT(stream->Synchronize(Soon()), IsOk()) << "a full queue is no error of the stream";
  EXPECT_THAT(stream->Enqueue(Nothing), IsOk());
}

TEST(HostStreamTest, StreamsRunIndependently) {
  const auto first = NewStream();
  const auto second = NewStream();
  Gate gate;
  ASSERT_THAT(first->Enqueue([&gate] { return gate.Await(Soon()); }), IsOk());
  ASSERT_THAT(second->Enqueue([&gate] {
    gate.Open();
    return absl::OkStatus();
  }),
              IsOk());
  EXPECT_THAT(first->Synchronize(Soon()), IsOk());
}

TEST(HostStreamTest, WorkMayEnqueueInItsOwnStream) {
  const auto stream = NewStream();
  const auto event = NewEvent();
  Gate done;
  ASSERT_THAT(stream->Enqueue([&] {
    return stream->Enqueue([&done] {
      done.Open();
      return absl::OkStatus();
    });
  }),
              IsOk());
  EXPECT_THAT(done.Await(Soon()), IsOk());
}

TEST(HostStreamTest, WorkThatWaitsForItsOwnStreamIsTold) {
  const auto stream = NewStream("own");
  ASSERT_THAT(stream->Enqueue([&stream] { return stream->Synchronize(Deadline::Infinite()); }), IsOk());
  EXPECT_THAT(stream->Synchronize(Soon()),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("\"own\": synchronized from its own work")));
}

TEST(HostStreamTest, SynchronizeSaysWhatIsNotDone) {
  const auto stream = NewStream("slow");
  const auto event = NewEvent();
  Gate gate;
  ASSERT_THAT(stream->Enqueue([&gate] { return gate.Await(Soon()); }), IsOk());
  ASSERT_THAT(stream->Record(event.get()), IsOk());
  ASSERT_THAT(stream->Enqueue(Nothing), IsOk());
  EXPECT_THAT(stream->Synchronize(Deadline::Now()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("\"slow\": 2 entries are not done")));
  EXPECT_THAT(event->Synchronize(Deadline::Now()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("1 entries of its stream")));
  gate.Open();
}

// The producer's gate stays closed until the consumer, whose worker is blocked in the wait, is gone.
TEST(HostStreamTest, StreamThatWaitsForAnotherCanBeDestroyed) {
  const auto producer = NewStream();
  auto consumer = NewStream();
  const auto event = NewEvent();
  const auto consumed = NewEvent();
  Gate gate;
  Gate waiting;
  ASSERT_THAT(producer->Enqueue([&gate] { return gate.Await(Soon()); }), IsOk());
  ASSERT_THAT(producer->Record(event.get()), IsOk());
  ASSERT_THAT(consumer->Enqueue([&waiting] {
    waiting.Open();
    return absl::OkStatus();
  }),
              IsOk());
  ASSERT_THAT(consumer->Wait(event.get()), IsOk());
  ASSERT_THAT(consumer->Record(consumed.get()), IsOk());
  ASSERT_THAT(waiting.Await(Soon()), IsOk());
  EXPECT_FALSE(consumed->Query());
  consumer.reset();
  EXPECT_TRUE(consumed->Query());
  EXPECT_FALSE(event->Query());
  gate.Open();
  EXPECT_THAT(producer->Synchronize(Soon()), IsOk());
}

TEST(HostStreamTest, DestructionRacesWithTheWaitThatItCutsShort) {
  const auto producer = NewStream();
  const auto event = NewEvent();
  Gate gate;
  ASSERT_THAT(producer->Enqueue([&gate] { return gate.Await(Soon()); }), IsOk());
  ASSERT_THAT(producer->Record(event.get()), IsOk());
  for (int i = 0; i < 500; ++i) {
    const auto consumer = NewStream();
    ASSERT_THAT(consumer->Enqueue(Nothing), IsOk());
    ASSERT_THAT(consumer->Wait(event.get()), IsOk());
  }
  gate.Open();
}

TEST(HostStreamTest, StreamThatAwaitsAValueCanBeDestroyed) {
  auto stream = NewStream();
  const auto event = NewEvent();
  std::atomic<uint32_t> flag{0};
  ASSERT_THAT(stream->AwaitValue(&flag, 1), IsOk());
  ASSERT_THAT(stream->WriteValue(&flag, 2), IsOk());
  ASSERT_THAT(stream->Record(event.get()), IsOk());
  stream.reset();
  EXPECT_TRUE(event->Query());
  EXPECT_EQ(flag, 0);
}

TEST(HostStreamTest, WaitersForDifferentPointsAllWake) {
  const auto stream = NewStream();
  constexpr int kPoints = 8;
  std::vector<std::unique_ptr<Gate>> gates;
  std::vector<std::unique_ptr<Event>> events;
  for (int i = 0; i < kPoints; ++i) {
    gates.push_back(std::make_unique<Gate>());
    events.push_back(NewEvent());
    ASSERT_THAT(stream->Enqueue([gate = gates.back().get()] { return gate->Await(Soon()); }), IsOk());
    ASSERT_THAT(stream->Record(events.back().get()), IsOk());
  }
  std::vector<absl::Status> results(kPoints);
  {
    std::vector<Thread> waiters;
    for (int i = kPoints; i-- > 0;) {
      waiters.emplace_back("waiter", [&results, &events, i] { results[i] = events[i]->Synchronize(Soon()); });
    }
    for (const auto& gate : gates) gate->Open();
  }
  for (const absl::Status& result : results) EXPECT_THAT(result, IsOk());
}

}  // namespace
}  // namespace lockstep
