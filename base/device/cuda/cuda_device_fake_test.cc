#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/deadline.h"
#include "base/device/cuda/cuda_api.h"
#include "base/device/cuda/cuda_api_testing.h"
#include "base/device/cuda/cuda_device.h"
#include "base/device/cuda/cuda_graph_testing.h"
#include "base/device/device.h"
#include "base/device/devices.h"
#include "base/device/host_device.h"
#include "base/fork_testing.h"
#include "base/status_matchers.h"
#include "base/thread.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/device_conformance.h"
#include "tests/gate.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr size_t kBytes = 4096;

Deadline Soon() { return Deadline::AfterMs(20000); }

absl::Status Nothing() { return absl::OkStatus(); }

auto Refused(const std::string& why) { return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)); }

int CurrentDevice() {
  int device = -1;
  EXPECT_EQ(TheCudaApi().get_device(&device), kCudaSuccess);
  return device;
}

// Works on cuda:1, while the test's thread is on cuda:0.
class FakeCudaDeviceTest : public testing::Test {
 protected:
  std::unique_ptr<Stream> NewStream(const std::string& name = "test") { return device_.CreateStream(name).value(); }
  std::unique_ptr<Event> NewEvent() { return device_.CreateEvent().value(); }

  // Puts the test's thread on cuda:1, for calls that are not ours.
  struct OnDevice {
    OnDevice() { TheCudaApi().set_device(1); }
    ~OnDevice() { TheCudaApi().set_device(0); }
  };

  FakeCuda cuda_;
  Device& device_ = *CudaDevice(1).value();
};

// Of ordinary memory.
std::atomic<uint32_t> some_flag{0};

struct Objects {
  Device& device;
  Stream& stream;
  Event& event;
};

struct FailingCall {
  std::string function;
  // Calls the function on the way.
  std::function<absl::Status(const Objects& on)> use;
};

std::vector<FailingCall> FailingCalls() {
  return {
      {"cudaGetDevice", [](const Objects& on) { return on.device.CreateEvent().status(); }},
      {"cudaSetDevice", [](const Objects& on) { return on.device.CreateEvent().status(); }},
      {"cudaDeviceGetStreamPriorityRange", [](const Objects& on) { return on.device.CreateStream("fails").status(); }},
      {"cudaStreamCreateWithPriority", [](const Objects& on) { return on.device.CreateStream("fails").status(); }},
      {"cudaEventCreateWithFlags", [](const Objects& on) { return on.device.CreateEvent().status(); }},
      {"cudaStreamGetDevice", [](const Objects& on) { return on.device.BorrowStream(on.stream.native()).status(); }},
      {"cudaMalloc", [](const Objects& on) { return on.device.Allocate(kBytes).status(); }},
      {"cudaHostAlloc", [](const Objects& on) { return on.device.AllocateOnHost(kBytes).status(); }},
      {"cudaStreamIsCapturing", [](const Objects& on) { return IsCapturing(on.stream).status(); }},
      {"cudaStreamIsCapturing", [](const Objects& on) { return on.stream.Enqueue(Nothing); }},
      {"cudaLaunchHostFunc", [](const Objects& on) { return on.stream.Enqueue(Nothing); }},
      {"cudaMemcpyAsync",
       [](const Objects& on) {
         char bytes[2] = {};
         return on.stream.Copy(&bytes[0], &bytes[1], 1);
       }},
      {"cudaEventRecord", [](const Objects& on) { return on.stream.Record(&on.event); }},
      {"cudaStreamWaitEvent", [](const Objects& on) { return on.stream.Wait(&on.event); }},
      {"cuStreamWaitValue32", [](const Objects& on) { return on.stream.AwaitValue(&some_flag, 0); }},
      {"cuStreamWriteValue32", [](const Objects& on) { return on.stream.WriteValue(&some_flag, 0); }},
      {"cudaStreamQuery", [](const Objects& on) { return on.stream.Synchronize(Soon()); }},
      {"cudaEventQuery", [](const Objects& on) { return on.event.Synchronize(Soon()); }},
      {"cudaPointerGetAttributes", [](const Objects& on) { return CheckPointer(&on.stream, on.device.id()); }},
  };
}

TEST_F(FakeCudaDeviceTest, EveryFailureNamesTheCallTheDeviceAndTheCauseAndLeavesTheThreadAsItWas) {
  constexpr int kUnknown = 999;
  const auto event = NewEvent();
  for (const FailingCall& call : FailingCalls()) {
    SCOPED_TRACE(call.function);
    const auto stream = NewStream();
    const int live = cuda_.live();
    cuda_.Fail(call.function, kUnknown);
    const std::string where = call.function == "cudaGetDevice" ? "CUDA: " : " on cuda:1";
    EXPECT_THAT(call.use({device_, *stream, *event}),
                StatusIs(absl::StatusCode::kInternal, AllOf(HasSubstr(call.function + "("), HasSubstr(where),
                                                            HasSubstr(": the test asked for this (cudaErrorFake)"))));
    EXPECT_TRUE(cuda_.LastErrorIsClear());
    EXPECT_EQ(CurrentDevice(), 0);
    EXPECT_EQ(cuda_.live(), live) << "nothing is left behind";
    EXPECT_THAT(stream->status(), IsOk()) << "the device is not lost";
    EXPECT_THAT(stream->Synchronize(Soon()), IsOk());
  }
}

TEST_F(FakeCudaDeviceTest, CodesTellTheCallerWhatToDo) {
  const std::vector<std::pair<int, absl::StatusCode>> codes = {
      {kCudaInvalidValue, absl::StatusCode::kInvalidArgument},
      {kCudaInvalidHandle, absl::StatusCode::kInvalidArgument},
      {kCudaInvalidDevice, absl::StatusCode::kInvalidArgument},
      {kCudaOutOfMemory, absl::StatusCode::kResourceExhausted},
      {kCudaInitializationFailed, absl::StatusCode::kUnavailable},
      {kCudaDevicesUnavailable, absl::StatusCode::kUnavailable},
      {kCudaSystemNotReady, absl::StatusCode::kUnavailable},
      {kCudaNoKernelImage, absl::StatusCode::kUnimplemented},
      {kCudaNotSupported, absl::StatusCode::kUnimplemented},
      {kCudaNotPermitted, absl::StatusCode::kFailedPrecondition},
      {kCudaCaptureUnsupported, absl::StatusCode::kFailedPrecondition},
      {kCudaCapturedEvent, absl::StatusCode::kFailedPrecondition},
      {kCudaIllegalAddress, absl::StatusCode::kInternal},
  };
  for (const auto& [code, expected] : codes) {
    cuda_.Fail("cudaEventCreateWithFlags", code);
    EXPECT_THAT(device_.CreateEvent(), StatusIs(expected)) << code;
  }
}

TEST_F(FakeCudaDeviceTest, MissingDriverIsUnavailableAndNamesTheVersions) {
  cuda_.Fail("cudaGetDeviceCount", kCudaInsufficientDriver);
  EXPECT_THAT(CudaDevice(0), StatusIs(absl::StatusCode::kUnavailable,
                                      AllOf(HasSubstr("CUDA: cudaGetDeviceCount(&count): the test asked for this"),
                                            HasSubstr("driver for CUDA 12.8, runtime 13.0"))));
  EXPECT_TRUE(cuda_.LastErrorIsClear());
}

TEST(FakeCudaTest, NoDeviceIsUnavailable) {
  FakeCuda cuda(0);
  EXPECT_THAT(CudaDeviceCount(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(FindDevice({DeviceKind::kCuda, 0}), StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(FakeCudaDeviceTest, DevicesAreFoundByTheirNames) {
  EXPECT_THAT(FindDevice(DeviceId()), IsOkAndHolds(HostDevice()));
  EXPECT_THAT(FindDevice({DeviceKind::kCuda, 1}), IsOkAndHolds(&device_));
  EXPECT_EQ(device_.id(), (DeviceId{DeviceKind::kCuda, 1}));
  EXPECT_THAT(FindDevice({DeviceKind::kHost, 1}), Refused("host:1"));
  EXPECT_THAT(FindDevice({DeviceKind::kCuda, 2}), Refused("cuda:2: this machine has 2 CUDA devices"));
}

TEST_F(FakeCudaDeviceTest, GpusHaveAddressesOnTheirHost) {
  EXPECT_THAT(CudaPciAddress(0), IsOkAndHolds("0000:01:00.0"));
  EXPECT_THAT(CudaPciAddress(1), IsOkAndHolds("0000:02:00.0"));
  cuda_.Fail("cudaDeviceGetPCIBusId", kCudaInvalidDevice);
  EXPECT_THAT(CudaPciAddress(2), Refused("cudaDeviceGetPCIBusId"));
}

TEST_F(FakeCudaDeviceTest, ForeignThreadGoesBackToItsDeviceAndOursStays) {
  EXPECT_THAT(device_.CreateEvent(), IsOk());
  EXPECT_EQ(CurrentDevice(), 0);
  const auto stream = NewStream();
  int ours = -1;
  {
    Thread thread("ours", [&] {
      EXPECT_THAT(stream->Enqueue(Nothing), IsOk());
      ours = CurrentDevice();
    });
  }
  EXPECT_EQ(ours, 1) << "a way back to cuda:0 would set CUDA up there";
}

TEST_F(FakeCudaDeviceTest, NothingIsLeftBehind) {
  {
    const auto stream = NewStream();
    const auto event = NewEvent();
    ASSERT_THAT(stream->Enqueue(Nothing), IsOk());
    ASSERT_THAT(stream->Record(event.get()), IsOk());
    ASSERT_THAT(stream->Synchronize(Soon()), IsOk());
    device_.Free(device_.Allocate(0).value());
    device_.FreeOnHost(device_.AllocateOnHost(0).value());
  }
  EXPECT_EQ(cuda_.live(), 0);
  EXPECT_TRUE(cuda_.LastErrorIsClear());
}

TEST_F(FakeCudaDeviceTest, OutOfMemorySaysHowMuchWasAskedFor) {
  for (int code : {kCudaOutOfMemory, kCudaInvalidValue}) {
    cuda_.Fail("cudaMalloc", code);
    EXPECT_THAT(device_.Allocate(12345),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("cudaMalloc(12345 bytes) on cuda:1: ")));
    cuda_.Fail("cudaHostAlloc", code);
    EXPECT_THAT(device_.AllocateOnHost(12345),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("cudaHostAlloc(12345 bytes) on cuda:1: ")));
  }
}

TEST_F(FakeCudaDeviceTest, StreamsHaveTheGreatestPriority) {
  EXPECT_EQ(cuda_.priority(NewStream()->native()), FakeCuda::kGreatestPriority);
}

TEST_F(FakeCudaDeviceTest, StreamsOfTheHostAreNotCaptured) {
  EXPECT_THAT(IsCapturing(*HostDevice()->CreateStream("host").value()), IsOkAndHolds(false));
}

// A wait for a point that is never reached, since the device is lost, must end with CUDA's error.
TEST_F(FakeCudaDeviceTest, WaitsEndWhenTheDeviceIsLost) {
  const auto stream = NewStream();
  const auto event = NewEvent();
  Gate gate;
  ASSERT_THAT(stream->Enqueue([&gate] { return gate.Await(Soon()); }), IsOk());
  ASSERT_THAT(stream->Record(event.get()), IsOk());
  Gate waiting;
  absl::Status waited;
  {
    Thread waiter("waiter", [&] {
      waiting.Open();
      waited = event->Synchronize(Soon());
    });
    ASSERT_THAT(waiting.Await(Soon()), IsOk());
    EXPECT_FALSE(event->Query());
    cuda_.LoseDevice(kCudaIllegalAddress);
  }
  gate.Open();
  EXPECT_THAT(waited, StatusIs(absl::StatusCode::kInternal, HasSubstr(" on cuda:1: the test asked for this")));
  EXPECT_TRUE(event->Query()) << "or whoever polls would do so for ever";
  const auto is_lost = StatusIs(absl::StatusCode::kInternal, HasSubstr("the test asked for this"));
  EXPECT_THAT(stream->Synchronize(Soon()), is_lost);
}

TEST_F(FakeCudaDeviceTest, LossOfTheDeviceIsTheStreamsErrorAndItsWorkIsDestroyed) {
  auto stream = NewStream("lost");
  const auto event = NewEvent();
  const auto captured = std::make_shared<int>(0);
  Gate gate;
  Gate running;
  ASSERT_THAT(stream->Enqueue([&] {
    running.Open();
    return gate.Await(Soon());
  }),
              IsOk());
  ASSERT_THAT(running.Await(Soon()), IsOk());
  ASSERT_THAT(stream->Enqueue([captured] { return absl::OkStatus(); }), IsOk());
  EXPECT_THAT(stream->status(), IsOk());
  cuda_.Fail("cudaEventRecord", kCudaIllegalAddress);
  const auto is_lost =
      StatusIs(absl::StatusCode::kInternal, HasSubstr("cudaEventRecord(event, stream) in stream \"lost\" on cuda:1: "));
  EXPECT_THAT(stream->Record(event.get()), is_lost);
  EXPECT_THAT(stream->status(), is_lost);
  EXPECT_EQ(captured.use_count(), 2);
  cuda_.LoseDevice(kCudaIllegalAddress);
  gate.Open();
  EXPECT_THAT(stream->Synchronize(Soon()), is_lost) << "the first error";
  stream.reset();
  EXPECT_EQ(captured.use_count(), 1);
}

TEST_F(FakeCudaDeviceTest, RefusedClosureIsDestroyed) {
  const auto stream = NewStream();
  const auto captured = std::make_shared<int>(0);
  const auto work = [captured] { return absl::OkStatus(); };
  cuda_.Fail("cudaLaunchHostFunc", kCudaOutOfMemory);
  EXPECT_THAT(stream->Enqueue(work), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(captured.use_count(), 2) << "the test's own and the lambda's";
  ASSERT_THAT(stream->Enqueue(work), IsOk());
  EXPECT_THAT(stream->Synchronize(Soon()), IsOk());
}

TEST_F(FakeCudaDeviceTest, QueueIsBounded) {
  constexpr int kBound = 65536;
  const auto stream = NewStream("bounded");
  Gate gate;
  ASSERT_THAT(stream->Enqueue([&gate] { return gate.Await(Soon()); }), IsOk());
  for (int i = 1; i < kBound; ++i) ASSERT_TRUE(stream->Enqueue(Nothing).ok()) << i;
  EXPECT_THAT(stream->Enqueue(Nothing),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("\"bounded\": its queue is full with 65536")));
  gate.Open();
  ASSERT_THAT(stream->Synchronize(Soon()), IsOk());
  EXPECT_THAT(stream->Enqueue(Nothing), IsOk());
}

TEST_F(FakeCudaDeviceTest, WorkThatUsesCudaIsToldAndWhatItDestroysIsLeaked) {
  const auto stream = NewStream();
  auto event = NewEvent();
  auto doomed = NewStream();
  void* const memory = device_.Allocate(kBytes).value();
  int live = cuda_.live();
  std::vector<absl::Status> answers;
  ASSERT_THAT(stream->Enqueue([&] {
    answers = {stream->Enqueue(Nothing),       stream->Record(event.get()),   stream->Wait(event.get()),
               stream->Synchronize(Soon()),    event->Synchronize(Soon()),    device_.Allocate(1).status(),
               device_.CreateEvent().status(), stream->Copy(&live, &live, 1), IsCapturing(*stream).status()};
    event.reset();
    doomed.reset();
    device_.Free(memory);
    return absl::OkStatus();
  }),
              IsOk());
  ASSERT_THAT(stream->Synchronize(Soon()), IsOk());
  EXPECT_THAT(answers, testing::AllOf(testing::SizeIs(9), testing::Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                                                                                 HasSubstr("may not call CUDA")))));
  EXPECT_EQ(cuda_.live(), live);
  device_.Free(memory);
}

TEST_F(FakeCudaDeviceTest, BorrowedStreamDropsItsWorkAndLeavesTheStream) {
  const auto stream = NewStream();
  Gate gate;
  ASSERT_THAT(stream->Enqueue([&gate] { return gate.Await(Soon()); }), IsOk());
  const auto captured = std::make_shared<int>(0);
  {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto borrowed, device_.BorrowStream(stream->native()));
    ASSERT_THAT(borrowed->Enqueue([captured] { return absl::InternalError("must not run"); }), IsOk());
  }
  EXPECT_EQ(captured.use_count(), 1);
  gate.Open();
  EXPECT_THAT(stream->Synchronize(Soon()), IsOk());
  EXPECT_THAT(stream->Enqueue(Nothing), IsOk());
}

TEST_F(FakeCudaDeviceTest, StreamOfAnotherDeviceIsNotBorrowed) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Device* const first, CudaDevice(0));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto stream, first->CreateStream("first"));
  EXPECT_THAT(device_.BorrowStream(stream->native()), Refused(" is one of cuda:0"));
  EXPECT_THAT(first->BorrowStream(stream->native()), IsOk());
}

TEST_F(FakeCudaDeviceTest, DefaultStreamsAreThoseOfTheDeviceThatBorrowedThem) {
  for (uintptr_t handle : {uintptr_t{0}, uintptr_t{kCudaLegacyStream}, uintptr_t{kCudaPerThreadStream}}) {
    SCOPED_TRACE(handle);
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto borrowed, device_.BorrowStream(reinterpret_cast<void*>(handle)));
    const auto event = NewEvent();
    EXPECT_THAT(borrowed->Enqueue(Nothing), IsOk());
    EXPECT_THAT(borrowed->Record(event.get()), IsOk());
    EXPECT_THAT(borrowed->Wait(event.get()), IsOk());
    EXPECT_THAT(borrowed->Synchronize(Soon()), IsOk());
  }
}

TEST_F(FakeCudaDeviceTest, StreamsWaitForEventsOfOtherDevicesButDoNotRecordThem) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Device* const first, CudaDevice(0));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto event, first->CreateEvent());
  const auto stream = NewStream();
  EXPECT_THAT(stream->Wait(event.get()), IsOk());
  EXPECT_THAT(stream->Record(event.get()), Refused("cannot record an event of cuda:0"));
}

TEST_F(FakeCudaDeviceTest, CapturedStreamTakesNoClosureAndIsNotWaitedFor) {
  const OnDevice on_device;
  auto stream = NewStream("captured");
  const auto event = NewEvent();
  EXPECT_THAT(IsCapturing(*stream), IsOkAndHolds(false));
  ASSERT_EQ(BeginCapture(stream->native()), kCudaSuccess);
  EXPECT_THAT(IsCapturing(*stream), IsOkAndHolds(true));
  const auto refused = StatusIs(absl::StatusCode::kFailedPrecondition,
                                AllOf(HasSubstr("\"captured\": "), HasSubstr("captured into a graph")));
  EXPECT_THAT(stream->Enqueue(Nothing), refused);
  EXPECT_THAT(stream->Synchronize(Soon()), refused);
  EXPECT_THAT(stream->Record(event.get()), IsOk());
  EXPECT_THAT(stream->Wait(event.get()), IsOk());
  EXPECT_THAT(stream->status(), IsOk());
  stream.reset();
  EXPECT_EQ(cuda_.calls("cudaStreamQuery"), 0) << "a query would end the capture";
}

TEST_F(FakeCudaDeviceTest, CapturedStreamNeitherAwaitsNorWritesValues) {
  const OnDevice on_device;
  const auto stream = NewStream("captured");
  ASSERT_EQ(BeginCapture(stream->native()), kCudaSuccess);
  const auto refused = StatusIs(absl::StatusCode::kFailedPrecondition,
                                AllOf(HasSubstr("\"captured\": a value "), HasSubstr("captured into a graph")));
  EXPECT_THAT(stream->AwaitValue(&some_flag, 0), refused);
  EXPECT_THAT(stream->WriteValue(&some_flag, 0), refused);
  EXPECT_THAT(stream->status(), IsOk());
}

TEST_F(FakeCudaDeviceTest, FlagsAreInMemoryThatTheDeviceReaches) {
  const auto stream = NewStream();
  const auto refused = Refused("Value32(stream, address, value)");
  EXPECT_THAT(stream->AwaitValue(&some_flag, 0), refused);
  EXPECT_THAT(stream->WriteValue(&some_flag, 0), refused);
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(void* const memory, device_.AllocateOnHost(sizeof(some_flag)));
  auto* const flag = new (memory) std::atomic<uint32_t>{0};
  EXPECT_THAT(stream->AwaitValue(flag, 0), IsOk());
  EXPECT_THAT(stream->WriteValue(flag, 0), IsOk());
  EXPECT_THAT(stream->Synchronize(Soon()), IsOk());
  device_.FreeOnHost(memory);
  EXPECT_THAT(stream->AwaitValue(flag, 0), refused);
}

TEST_F(FakeCudaDeviceTest, DriverWithoutStreamMemoryOperationsIsTold) {
  const auto stream = NewStream();
  cuda_.Fail("cuStreamWaitValue32", kCudaNotSupported);
  EXPECT_THAT(stream->AwaitValue(&some_flag, 0),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("cuStreamWaitValue32")));
}

// What a GPU with few queues does, so that tests of what runs on streams can be had without one.
TEST_F(FakeCudaDeviceTest, StreamsOfADeviceMayShareItsQueues) {
  cuda_.set_hardware_queues(2);
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto elsewhere, CudaDevice(0).value()->CreateStream("elsewhere"));
  const auto first = NewStream(), second = NewStream(), behind_first = NewStream();
  void* const memory = device_.AllocateOnHost(sizeof(std::atomic<uint32_t>)).value();
  auto* const flag = new (memory) std::atomic<uint32_t>(0);
  int done = 0;
  const auto count = [&done] { return ++done, absl::OkStatus(); };
  const auto before = NewEvent();
  ASSERT_THAT(behind_first->Enqueue(count), IsOk());
  ASSERT_THAT(behind_first->Record(before.get()), IsOk());
  ASSERT_THAT(first->AwaitValue(flag, 1), IsOk());
  EXPECT_THAT(before->Synchronize(Soon()), IsOk()) << "what was issued before is not held up";
  EXPECT_EQ(done, 1);
  ASSERT_THAT(behind_first->Enqueue(count), IsOk());
  for (Stream* const other : {second.get(), elsewhere.get()}) {
    ASSERT_THAT(other->Enqueue(Nothing), IsOk());
    EXPECT_THAT(other->Synchronize(Soon()), IsOk()) << "another queue, another device";
  }
  EXPECT_THAT(behind_first->Synchronize(Deadline::AfterMs(2)), StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(done, 1);
  *flag = 1;
  EXPECT_THAT(behind_first->Synchronize(Soon()), IsOk());
  EXPECT_EQ(done, 2);
  EXPECT_THAT(first->Synchronize(Soon()), IsOk());
  device_.FreeOnHost(memory);
}

TEST_F(FakeCudaDeviceTest, ClosuresOfStreamsThatShareQueuesRunOneAtATime) {
  cuda_.set_hardware_queues(2);
  const auto first = NewStream(), second = NewStream();
  Gate started, gate;
  ASSERT_THAT(first->Enqueue([&] {
    started.Open();
    return gate.Await(Soon());
  }),
              IsOk());
  ASSERT_THAT(started.Await(Soon()), IsOk());
  ASSERT_THAT(second->Enqueue(Nothing), IsOk());
  EXPECT_THAT(second->Synchronize(Deadline::AfterMs(2)), StatusIs(absl::StatusCode::kDeadlineExceeded));
  gate.Open();
  EXPECT_THAT(second->Synchronize(Soon()), IsOk());
  EXPECT_THAT(first->Synchronize(Soon()), IsOk());
}

TEST_F(FakeCudaDeviceTest, QueriesAndAllocationsDoNotBreakCapturesOfOthers) {
  const OnDevice on_device;
  const auto captured = NewStream();
  const auto stream = NewStream();
  const auto event = NewEvent();
  ASSERT_EQ(BeginCapture(captured->native()), kCudaSuccess);
  EXPECT_THAT(stream->Record(event.get()), IsOk());
  EXPECT_THAT(event->Synchronize(Soon()), IsOk());
  EXPECT_THAT(stream->Synchronize(Soon()), IsOk());
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(void* const memory, device_.Allocate(kBytes));
  device_.Free(memory);
  int mode = kCudaCaptureRelaxed;
  ASSERT_EQ(TheCudaApi().thread_exchange_stream_capture_mode(&mode), kCudaSuccess);
  EXPECT_NE(mode, kCudaCaptureRelaxed) << "the thread's own mode is as before";
  ASSERT_EQ(TheCudaApi().thread_exchange_stream_capture_mode(&mode), kCudaSuccess);
  void* graph = nullptr;
  EXPECT_EQ(EndCapture(captured->native(), &graph), kCudaSuccess);
}

TEST_F(FakeCudaDeviceTest, MemoryOfAnotherDeviceIsRefusedAndWithoutCudaAllIsTheHosts) {
  void* const on_device = device_.Allocate(kBytes).value();
  EXPECT_THAT(CheckPointer(on_device, {DeviceKind::kCuda, 0}), Refused("is memory of cuda:1, but cuda:0 was declared"));
  device_.Free(on_device);
  cuda_.Fail("cudaGetDevice", kCudaNoDevice);
  EXPECT_THAT(CheckPointer(&some_flag, DeviceId()), IsOk());
}

}  // namespace
TEST_F(FakeCudaDeviceTest, ForkedChildMakesNothing) {
  const auto child = [&] {
    const absl::Status answers[] = {device_.CreateStream("childs").status(), device_.CreateEvent().status(),
                                    device_.Allocate(1).status()};
    return std::all_of(std::begin(answers), std::end(answers), absl::IsFailedPrecondition) ? 0 : 1;
  };
  EXPECT_EQ(RunInForkedChild(child, Soon()), 0);
}

// What is ours of the device keeps its promises where there is no GPU.
INSTANTIATE_TEST_SUITE_P(FakeCuda, DeviceConformance, testing::Values(DeviceFactory([] {
                           [[maybe_unused]] static FakeCuda* const fake = new FakeCuda;
                           return CudaDevice(1);
                         })));

}  // namespace lockstep
