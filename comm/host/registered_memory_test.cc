#include "comm/host/registered_memory.h"

#include <rdma/fi_domain.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "comm/communicator.h"
#include "comm/engine/progress_engine.h"
#include "comm/host/transport_communicator.h"
#include "comm/schedule/schedule.h"
#include "comm/symmetric_buffer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/ofi/fake_provider.h"
#include "transport/ofi/ofi_testing.h"
#include "transport/ofi/ofi_transport.h"

namespace lockstep {
namespace {

constexpr size_t kCount = 300'000;

// Two ranks, threads, over a provider that wants to be told of all memory.
class RegisteredMemoryTest : public testing::Test {
 protected:
  RegisteredMemoryTest() {
    FakeProviderOptions options;
    options.mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    fake_ = std::make_unique<FakeProvider>(options);
    absl::StatusOr<OfiTransports> transports =
        CreateOfiWorld(2, "", [&](OfiTransportOptions* rank) { rank->api = &fake_->api(); });
    EXPECT_THAT(transports, IsOk());
    transports_ = *std::move(transports);
    for (const auto& transport : transports_) {
      engines_.push_back(std::make_unique<ProgressEngine>(transport.get(), std::chrono::nanoseconds(0)));
      TransportCommunicatorOptions options;
      options.timeout = std::chrono::milliseconds(20'000);
      ranks_.push_back(std::make_unique<TransportCommunicator>(engines_.back().get(), nullptr, options));
    }
  }
  ~RegisteredMemoryTest() override {
    Leave();
    transports_.clear();
    EXPECT_EQ(fake_->complaints(), std::vector<std::string>());
  }

  void Leave() {
    ranks_.clear();
    engines_.clear();
  }

  std::unique_ptr<SymmetricBuffer> Allocate(int rank) {
    absl::StatusOr<std::unique_ptr<SymmetricBuffer>> buffer = ranks_[rank]->Allocate(kCount * sizeof(float));
    EXPECT_THAT(buffer, IsOk());
    return *std::move(buffer);
  }

  // Ones of both ranks, in place.
  void AllReduce(float* const (&data)[2]) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        std::fill(data[rank], data[rank] + kCount, 1.0f);
        CollectiveRequest request = MakeRequest(Collective::kAllReduce, DType::kF32, kCount, data[rank], data[rank]);
        EXPECT_THAT(ranks_[rank]->Run(request), IsOk());
        EXPECT_EQ(data[rank][kCount - 1], 2);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  static float* Floats(const std::unique_ptr<SymmetricBuffer>& buffer) {
    return reinterpret_cast<float*>(buffer->data());
  }

  std::unique_ptr<FakeProvider> fake_;
  OfiTransports transports_;
  std::vector<std::unique_ptr<ProgressEngine>> engines_;
  std::vector<std::unique_ptr<TransportCommunicator>> ranks_;
};

TEST_F(RegisteredMemoryTest, TheDeviceIsToldOfTheAllocatorsMemoryOnceUntilItIsFreed) {
  std::unique_ptr<SymmetricBuffer> buffers[2] = {Allocate(0), Allocate(1)};
  EXPECT_EQ(Floats(buffers[0])[kCount - 1], 0);
  EXPECT_FALSE(buffers[0]->shared());
  AllReduce({Floats(buffers[0]), Floats(buffers[1])});
  const int made = fake_->registrations_made();
  const size_t registered = fake_->registered();
  for (int i = 0; i < 3; ++i) AllReduce({Floats(buffers[0]), Floats(buffers[1])});
  EXPECT_EQ(fake_->registrations_made(), made);
  buffers[0] = nullptr;
  EXPECT_EQ(fake_->registered(), registered - 1);
  buffers[1] = nullptr;
  EXPECT_EQ(fake_->registered(), registered - 2);
}

TEST_F(RegisteredMemoryTest, OtherMemoryIsForgottenWithEveryMessage) {
  std::vector<float> data[2] = {std::vector<float>(kCount), std::vector<float>(kCount)};
  AllReduce({data[0].data(), data[1].data()});
  const size_t registered = fake_->registered();
  const int made = fake_->registrations_made();
  AllReduce({data[0].data(), data[1].data()});
  EXPECT_EQ(fake_->registered(), registered);
  EXPECT_GT(fake_->registrations_made(), made);
}

TEST_F(RegisteredMemoryTest, BuffersOutliveTheCommunicator) {
  const size_t registered = fake_->registered();
  const std::unique_ptr<SymmetricBuffer> buffer = Allocate(0);
  EXPECT_EQ(fake_->registered(), registered + 1);
  Leave();
  EXPECT_EQ(fake_->registered(), registered);
  buffer->data()[0] = 1;
}

TEST_F(RegisteredMemoryTest, WithoutRoomAtTheDeviceItIsMemoryLikeAnyOther) {
  fake_->options().registrations_max = fake_->registered();
  const std::unique_ptr<SymmetricBuffer> buffers[2] = {Allocate(0), Allocate(1)};
  fake_->options().registrations_max = SIZE_MAX;
  AllReduce({Floats(buffers[0]), Floats(buffers[1])});
  EXPECT_THAT(ranks_[0]->Allocate(0).status(), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace lockstep
