#include "base/device/cuda/cuda_device.h"

#include <algorithm>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/device/cuda/cuda_api.h"
#include "base/device/cuda/cuda_graph_testing.h"
#include "base/device/cuda/cuda_guard.h"
#include "base/device/device.h"
#include "base/device/devices.h"
#include "base/status_matchers.h"
#include "base/thread.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/device_conformance.h"
#include "tests/gate.h"

namespace lockstep {

INSTANTIATE_TEST_SUITE_P(Cuda, DeviceConformance, testing::Values(DeviceFactory([] { return CudaDevice(0); })));

namespace {

using testing::AnyOf;
using testing::Ge;
using testing::HasSubstr;

constexpr size_t kBytes = 1 << 20;

Deadline Soon() { return Deadline::AfterMs(20000); }

void* const kLegacyStream = reinterpret_cast<void*>(kCudaLegacyStream);
void* const kPerThreadStream = reinterpret_cast<void*>(kCudaPerThreadStream);

// That this runs at all proves that a binary with CUDA and a kernel in it starts on a machine without a driver.
TEST(CudaDeviceCountTest, CountsDevicesOrSaysWhyThereAreNone) {
  const absl::StatusOr<int> count = CudaDeviceCount();
  EXPECT_THAT(count, AnyOf(IsOkAndHolds(Ge(1)), StatusIs(absl::StatusCode::kUnavailable,
                                                         AnyOf(HasSubstr("CUDA: cudaGetDeviceCount(&count): "),
                                                               HasSubstr("CUDA: no device")))));
  EXPECT_EQ(CudaDeviceCount().status(), count.status());
  EXPECT_EQ(CudaDevice(0).status(), count.status());
}

class CudaDeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<Device*> device = CudaDevice(0);
    if (absl::IsUnavailable(device.status())) GTEST_SKIP() << device.status();
    LOCKSTEP_ASSERT_OK(device);
    device_ = *device;
  }

  std::unique_ptr<Stream> NewStream() { return device_->CreateStream("test").value(); }
  std::unique_ptr<Event> NewEvent() { return device_->CreateEvent().value(); }

  // Copies a pattern to the device and back in the stream, and reports whether it came back.
  void ExpectCopiesThrough(Stream& stream) {
    auto* const on_host = static_cast<unsigned char*>(device_->AllocateOnHost(kBytes).value());
    void* const on_device = device_->Allocate(kBytes).value();
    std::fill_n(on_host, kBytes, static_cast<unsigned char>(0x5A));
    EXPECT_THAT(stream.Copy(on_device, on_host, kBytes), IsOk());
    EXPECT_THAT(stream.Enqueue([on_host] {
      std::fill_n(on_host, kBytes, static_cast<unsigned char>(0));
      return absl::OkStatus();
    }),
                IsOk());
    EXPECT_THAT(stream.Copy(on_host, on_device, kBytes), IsOk());
    EXPECT_THAT(stream.Synchronize(Soon()), IsOk());
    EXPECT_EQ(std::count(on_host, on_host + kBytes, 0x5A), kBytes);
    device_->Free(on_device);
    device_->FreeOnHost(on_host);
  }

  Device* device_ = nullptr;
};

TEST_F(CudaDeviceTest, IsOnePerIndex) {
  EXPECT_EQ(device_->id(), (DeviceId{DeviceKind::kCuda, 0}));
  EXPECT_THAT(CudaDevice(0), IsOkAndHolds(device_));
  EXPECT_THAT(FindDevice({DeviceKind::kCuda, 0}), IsOkAndHolds(device_));
}

TEST_F(CudaDeviceTest, IndexBeyondTheLastIsRefused) {
  EXPECT_THAT(CudaDevice(CudaDeviceCount().value()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("CUDA device")));
  EXPECT_THAT(CudaDevice(-1), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("cuda:-1")));
}

TEST_F(CudaDeviceTest, StreamHasAHandleAndCanBeBorrowedByIt) {
  const auto stream = NewStream();
  ASSERT_NE(stream->native(), nullptr);
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto borrowed, device_->BorrowStream(stream->native()));
  EXPECT_EQ(borrowed->native(), stream->native());
  EXPECT_EQ(borrowed->device(), device_->id());
  ExpectCopiesThrough(*borrowed);
}

TEST_F(CudaDeviceTest, BorrowedStreamIsInOrderWithItsOwner) {
  const auto stream = NewStream();
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto borrowed, device_->BorrowStream(stream->native()));
  const auto event = NewEvent();
  Gate gate;
  ASSERT_THAT(stream->Enqueue([&gate] { return gate.Await(Soon()); }), IsOk());
  ASSERT_THAT(borrowed->Record(event.get()), IsOk());
  EXPECT_FALSE(event->Query());
  gate.Open();
  EXPECT_THAT(event->Synchronize(Soon()), IsOk());
}

TEST_F(CudaDeviceTest, DefaultStreamsCanBeBorrowed) {
  for (void* native : {static_cast<void*>(nullptr), kLegacyStream, kPerThreadStream}) {
    SCOPED_TRACE(native);
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto borrowed, device_->BorrowStream(native));
    EXPECT_EQ(borrowed->native(), native);
    ExpectCopiesThrough(*borrowed);
  }
}

// If the handle meant one stream for both, the second thread's event would lie behind the first one's gate.
TEST_F(CudaDeviceTest, PerThreadStreamIsTheCallersOnEachThread) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto borrowed, device_->BorrowStream(kPerThreadStream));
  const auto mine = NewEvent();
  const auto others = NewEvent();
  Gate gate;
  ASSERT_THAT(borrowed->Enqueue([&gate] { return gate.Await(Soon()); }), IsOk());
  ASSERT_THAT(borrowed->Record(mine.get()), IsOk());
  absl::Status waited;
  {
    Thread other("other", [&] {
      waited = borrowed->Record(others.get());
      if (waited.ok()) waited = others->Synchronize(Soon());
    });
  }
  EXPECT_THAT(waited, IsOk());
  EXPECT_FALSE(mine->Query());
  gate.Open();
  EXPECT_THAT(mine->Synchronize(Soon()), IsOk());
}

TEST_F(CudaDeviceTest, OwnStreamsDoNotSynchroniseWithTheDefaultStream) {
  const auto stream = NewStream();
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto legacy, device_->BorrowStream(nullptr));
  const auto event = NewEvent();
  Gate gate;
  ASSERT_THAT(stream->Enqueue([&gate] { return gate.Await(Soon()); }), IsOk());
  ASSERT_THAT(legacy->Record(event.get()), IsOk());
  EXPECT_THAT(event->Synchronize(Soon()), IsOk());
  gate.Open();
  EXPECT_THAT(stream->Synchronize(Soon()), IsOk());
}

TEST_F(CudaDeviceTest, KernelRuns) {
  const auto stream = NewStream();
  auto* const target = static_cast<int*>(device_->Allocate(sizeof(int)).value());
  int read = 0;
  {
    const CudaGuard guard(TheCudaApi(), 0);
    ASSERT_EQ(internal::LaunchWriteInt(target, 0x10C57E9, stream->native()), kCudaSuccess);
  }
  EXPECT_THAT(stream->Copy(&read, target, sizeof(read)), IsOk());
  EXPECT_THAT(stream->Synchronize(Soon()), IsOk());
  EXPECT_EQ(read, 0x10C57E9);
  device_->Free(target);
}

// While another stream is captured in the strictest mode, all that may happen in a step happens beside it.
TEST_F(CudaDeviceTest, CaptureTakesCopiesAndIsNotBrokenByWhatIsDoneBesideIt) {
  const auto captured = NewStream();
  const auto beside = NewStream();
  const auto event = NewEvent();
  const auto inner = NewEvent();
  void* const on_device = device_->Allocate(kBytes).value();
  auto* const source = static_cast<char*>(device_->AllocateOnHost(kBytes).value());
  auto* const target = static_cast<char*>(device_->AllocateOnHost(kBytes).value());
  ASSERT_EQ(BeginCapture(captured->native()), kCudaSuccess);
  EXPECT_THAT(IsCapturing(*captured), IsOkAndHolds(true));
  EXPECT_THAT(IsCapturing(*beside), IsOkAndHolds(false));
  EXPECT_THAT(captured->Copy(on_device, source, kBytes), IsOk());
  EXPECT_THAT(captured->Record(inner.get()), IsOk());
  EXPECT_THAT(captured->Wait(inner.get()), IsOk());
  EXPECT_THAT(captured->Enqueue([] { return absl::OkStatus(); }), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(captured->Synchronize(Soon()), StatusIs(absl::StatusCode::kFailedPrecondition));
  const auto step = [&] {
    EXPECT_THAT(beside->Enqueue([] { return absl::OkStatus(); }), IsOk());
    EXPECT_THAT(beside->Record(event.get()), IsOk());
    EXPECT_THAT(event->Synchronize(Soon()), IsOk());
    EXPECT_TRUE(event->Query());
    EXPECT_THAT(beside->Synchronize(Soon()), IsOk());
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(void* const memory, device_->Allocate(kBytes));
    device_->Free(memory);
    EXPECT_THAT(NewEvent()->Synchronize(Soon()), IsOk());
  };
  step();
  { Thread other("other", step); }
  EXPECT_THAT(captured->Copy(target, on_device, kBytes), IsOk());
  void* graph = nullptr;
  ASSERT_EQ(EndCapture(captured->native(), &graph), kCudaSuccess);
  for (char value : {'a', 'b'}) {
    std::fill_n(source, kBytes, value);
    ASSERT_EQ(LaunchGraph(graph, captured->native()), kCudaSuccess);
    ASSERT_THAT(captured->Synchronize(Soon()), IsOk());
    EXPECT_EQ(std::count(target, target + kBytes, value), kBytes);
  }
  EXPECT_EQ(DestroyGraph(graph), kCudaSuccess);
  device_->Free(on_device);
  device_->FreeOnHost(source);
  device_->FreeOnHost(target);
}

// More than CUDA's own queue holds, so that Enqueue waits for room while work runs.
TEST_F(CudaDeviceTest, StreamTakesMoreWorkThanCudasQueueHolds) {
  const auto stream = NewStream();
  constexpr int kWork = 20000;
  int ran = 0;
  for (int i = 0; i < kWork; ++i) {
    ASSERT_TRUE(stream
                    ->Enqueue([&ran] {
                      ++ran;
                      return absl::OkStatus();
                    })
                    .ok());
  }
  ASSERT_THAT(stream->Synchronize(Soon()), IsOk());
  EXPECT_EQ(ran, kWork);
}

TEST_F(CudaDeviceTest, TwoDevicesAreApart) {
  const absl::StatusOr<Device*> second = CudaDevice(1);
  if (!second.ok()) GTEST_SKIP() << second.status();
  const auto first_stream = NewStream();
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto stream, (*second)->CreateStream("second"));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto event, (*second)->CreateEvent());
  EXPECT_THAT(device_->BorrowStream(stream->native()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is one of cuda:1")));
  EXPECT_THAT(first_stream->Record(event.get()), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("cuda:1")));
  ASSERT_THAT(stream->Record(event.get()), IsOk());
  EXPECT_THAT(first_stream->Wait(event.get()), IsOk());
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(void* const memory, (*second)->Allocate(kBytes));
  EXPECT_THAT(CheckPointer(memory, device_->id()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("memory of cuda:1, but cuda:0 was declared")));
  (*second)->Free(memory);
  int current = -1;
  ASSERT_EQ(TheCudaApi().get_device(&current), kCudaSuccess);
  EXPECT_EQ(current, 0) << "the calling thread stays where it was";
}

}  // namespace
}  // namespace lockstep
