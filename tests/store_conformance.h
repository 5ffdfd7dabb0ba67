// What every Store promises, as tests. A store's own test supplies a world and instantiates them:
//
//   INSTANTIATE_TEST_SUITE_P(Memory, StoreConformance, testing::Values(StoreWorldFactory(MemoryWorld)));
//
// A factory that answers UNAVAILABLE skips; any other error fails.

#ifndef TESTS_STORE_CONFORMANCE_H_
#define TESTS_STORE_CONFORMANCE_H_

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/store/store.h"

namespace lockstep {

// One empty store, however many clients.
struct StoreWorld {
  std::function<absl::StatusOr<std::shared_ptr<Store>>()> new_client;
  bool compares = true;        // its clients have CompareAndSet
  bool keys_are_bytes = true;  // keys may have zero bytes
};

using StoreWorldFactory = std::function<absl::StatusOr<StoreWorld>()>;

class StoreConformance : public testing::TestWithParam<StoreWorldFactory> {
 protected:
  void SetUp() override {
    absl::StatusOr<StoreWorld> world = GetParam()();
    if (absl::IsUnavailable(world.status())) GTEST_SKIP() << world.status();
    ASSERT_THAT(world, IsOk());
    world_ = *std::move(world);
    a_ = NewClient();
    b_ = NewClient();
    ASSERT_TRUE(a_ != nullptr && b_ != nullptr);
  }

  Store* NewClient() {
    absl::StatusOr<std::shared_ptr<Store>> client = world_.new_client();
    EXPECT_THAT(client, IsOk());
    return client.ok() ? clients_.emplace_back(*std::move(client)).get() : nullptr;
  }

  // Longer than anything takes that works.
  static Deadline Soon() { return Deadline::AfterMs(20'000); }

  StoreWorld world_;
  std::vector<std::shared_ptr<Store>> clients_;
  Store* a_ = nullptr;
  Store* b_ = nullptr;
};

}  // namespace lockstep

#endif  // TESTS_STORE_CONFORMANCE_H_
