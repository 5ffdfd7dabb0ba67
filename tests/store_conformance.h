// What every Store promises, as tests. A store's own test supplies a world and instantiates them:
//
//   INSTANTIATE_TEST_SUITE_P(Memory, StoreConformance, testing::Values(StoreWorldFactory(MakeMemoryWorld)));
//
// A factory that answers UNAVAILABLE skips; any other error fails.

#ifndef TESTS_STORE_CONFORMANCE_H_
#define TESTS_STORE_CONFORMANCE_H_

#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/store/store.h"

namespace lockstep {

// One empty store, however many clients. It owns the clients.
class StoreWorld {
 public:
  virtual ~StoreWorld() = default;
  virtual absl::StatusOr<Store*> NewClient() = 0;
  // Whether its clients have CompareAndSet.
  virtual bool compares() const { return true; }
  // Whether keys may have zero bytes.
  virtual bool keys_are_bytes() const { return true; }
};

using StoreWorldFactory = std::function<absl::StatusOr<std::unique_ptr<StoreWorld>>()>;

class StoreConformance : public testing::TestWithParam<StoreWorldFactory> {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<StoreWorld>> world = GetParam()();
    if (absl::IsUnavailable(world.status())) GTEST_SKIP() << world.status();
    ASSERT_THAT(world, IsOk());
    world_ = *std::move(world);
    a_ = NewClient();
    b_ = NewClient();
    ASSERT_TRUE(a_ != nullptr && b_ != nullptr);
  }

  Store* NewClient() {
    absl::StatusOr<Store*> client = world_->NewClient();
    EXPECT_THAT(client, IsOk());
    return client.ok() ? *client : nullptr;
  }

  // Longer than anything takes that works.
  static Deadline Soon() { return Deadline::AfterMs(20'000); }

  std::unique_ptr<StoreWorld> world_;
  Store* a_ = nullptr;
  Store* b_ = nullptr;
};

}  // namespace lockstep

#endif  // TESTS_STORE_CONFORMANCE_H_
