// Part of tests/device_conformance.h: copies, flags that streams await and write, and memory.

#ifndef TESTS_DEVICE_MEMORY_CONFORMANCE_H_
#define TESTS_DEVICE_MEMORY_CONFORMANCE_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "base/deadline.h"
#include "base/device/device.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/device_conformance_fixture.h"
#include "tests/gate.h"

namespace lockstep {

// From the host to the device and back, between two pieces of other work.
TEST_P(DeviceConformance, CopiesRunInOrder) {
  constexpr size_t kBytes = 100'003;
  const auto stream = NewStream();
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(void* const allocated, device_->AllocateOnHost(kBytes));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(void* const on_device, device_->Allocate(kBytes));
  auto* const on_host = static_cast<unsigned char*>(allocated);
  EnqueueOk(stream.get(), [on_host] { std::fill_n(on_host, kBytes, static_cast<unsigned char>(7)); });
  EXPECT_THAT(stream->Copy(on_device, on_host, kBytes), IsOk());
  EnqueueOk(stream.get(), [on_host] { std::fill_n(on_host, kBytes, static_cast<unsigned char>(0)); });
  EXPECT_THAT(stream->Copy(on_host, on_device, kBytes), IsOk());
  EXPECT_THAT(stream->Copy(nullptr, nullptr, 0), IsOk());
  ASSERT_THAT(stream->Synchronize(Soon()), IsOk());
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
  const auto stream = NewStream();
  const auto event = NewEvent();
  SharedFlag flag(device_);
  int written = 0;
  int seen = -1;
  ASSERT_THAT(stream->AwaitValue(flag.get(), 3), IsOk());
  EnqueueOk(stream.get(), [&] { seen = written; });
  ASSERT_THAT(stream->Record(event.get()), IsOk());
  flag.Store(2);
  EXPECT_THAT(event->Synchronize(Deadline::AfterMs(2)), StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(seen, -1);
  written = 42;
  flag.Store(3);
  ASSERT_THAT(event->Synchronize(Soon()), IsOk());
  EXPECT_EQ(seen, 42);
}

TEST_P(DeviceConformance, ValuesAreComparedInACircle) {
  LOCKSTEP_SKIP_WITHOUT_FLAGS();
  const auto stream = NewStream();
  SharedFlag flag(device_, 3);
  for (const uint32_t reached : {3u, 2u, 0u, 0xffffffffu, 0x80000004u}) {
    ASSERT_THAT(stream->AwaitValue(flag.get(), reached), IsOk());
    EXPECT_THAT(stream->Synchronize(Soon()), IsOk()) << reached;
  }
  for (const uint32_t missing : {4u, 0x80000003u}) {
    SharedFlag awaited(device_, 3);
    ASSERT_THAT(stream->AwaitValue(awaited.get(), missing), IsOk());
    EXPECT_THAT(stream->Synchronize(Deadline::AfterMs(2)), StatusIs(absl::StatusCode::kDeadlineExceeded)) << missing;
    awaited.Store(missing);
    EXPECT_THAT(stream->Synchronize(Soon()), IsOk()) << missing;
  }
}

TEST_P(DeviceConformance, WhoeverAcquiresAWrittenValueSeesWhatTheStreamWroteBefore) {
  LOCKSTEP_SKIP_WITHOUT_FLAGS();
  const auto stream = NewStream();
  Gate gate;
  SharedFlag flag(device_);
  std::vector<int> written;
  EnqueueGate(stream.get(), &gate);
  EnqueueOk(stream.get(), [&written] { written.assign(1000, 7); });
  ASSERT_THAT(stream->WriteValue(flag.get(), 5), IsOk());
  EXPECT_EQ(flag.get()->load(), 0);
  gate.Open();
  ASSERT_TRUE(flag.Await(5));
  EXPECT_THAT(written, testing::AllOf(testing::SizeIs(1000), testing::Each(7)));
  EXPECT_THAT(stream->Synchronize(Soon()), IsOk());
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
  const auto stream = NewStream();
  const auto event = NewEvent();
  SharedFlag awaited(device_);
  SharedFlag written(device_);
  EnqueueError(stream.get(), absl::AbortedError("failed"));
  ASSERT_THAT(stream->Synchronize(Soon()), StatusIs(absl::StatusCode::kAborted));
  ASSERT_THAT(stream->AwaitValue(awaited.get(), 1), IsOk());
  ASSERT_THAT(stream->WriteValue(written.get(), 1), IsOk());
  ASSERT_THAT(stream->Record(event.get()), IsOk());
  EXPECT_THAT(event->Synchronize(Deadline::AfterMs(2)), StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(written.get()->load(), 0);
  awaited.Store(1);
  EXPECT_THAT(event->Synchronize(Soon()), IsOk());
  EXPECT_TRUE(written.Await(1));
}

TEST_P(DeviceConformance, NullFlagIsRefused) {
  const auto stream = NewStream();
  EXPECT_THAT(stream->AwaitValue(nullptr, 1), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(stream->WriteValue(nullptr, 1), StatusIs(absl::StatusCode::kInvalidArgument));
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
  for (size_t bytes : {1, 4096, 1 << 20}) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(void* const block, device_->AllocateOnHost(bytes));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % 256, 0) << bytes;
    std::fill_n(static_cast<char*>(block), bytes, 'x');
    device_->FreeOnHost(block);
  }
  device_->FreeOnHost(nullptr);
}

TEST_P(DeviceConformance, ImpossibleAllocationSaysHowMuchWasAskedFor) {
  const size_t most = std::numeric_limits<size_t>::max();
  EXPECT_THAT(device_->Allocate(most),
              StatusIs(absl::StatusCode::kResourceExhausted, testing::HasSubstr(std::to_string(most))));
}

}  // namespace lockstep

#endif  // TESTS_DEVICE_MEMORY_CONFORMANCE_H_
