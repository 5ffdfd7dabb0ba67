#include "transport/store/store_callback.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/store_conformance.h"
#include "transport/store/store.h"
#include "transport/store/store_memory.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// An embedder's store: a MemoryStore behind C functions.

MemoryStore& Inner(void* context) { return *static_cast<MemoryStore*>(context); }

Deadline Until(int64_t timeout_ms) { return timeout_ms < 0 ? Deadline::Infinite() : Deadline::AfterMs(timeout_ms); }

StoreCallbacks CallbacksOf(MemoryStore* inner) {
  StoreCallbacks callbacks;
  callbacks.context = inner;
  callbacks.set = [](void* context, const std::string& key, absl::string_view value, int64_t timeout_ms) {
    return static_cast<int>(Inner(context).Set(key, value, Until(timeout_ms)).code());
  };
  callbacks.get = [](void* context, const std::string& key, int64_t timeout_ms, std::string* value) {
    const absl::StatusOr<std::string> found = Inner(context).Get(key, Until(timeout_ms));
    if (found.ok()) *value = *found;
    return static_cast<int>(found.status().code());
  };
  callbacks.remove = [](void* context, const std::string& key, int64_t timeout_ms) {
    return static_cast<int>(Inner(context).Delete(key, Until(timeout_ms)).code());
  };
  return callbacks;
}

class CallbackWorld : public StoreWorld {
 public:
  absl::StatusOr<Store*> NewClient() override {
    absl::StatusOr<std::unique_ptr<CallbackStore>> client = CallbackStore::Create(CallbacksOf(&inner_), "of the test");
    if (!client.ok()) return client.status();
    clients_.push_back(*std::move(client));
    return clients_.back().get();
  }
  bool compares() const override { return false; }

 private:
  MemoryStore inner_;
  std::vector<std::unique_ptr<CallbackStore>> clients_;
};

INSTANTIATE_TEST_SUITE_P(Callback, StoreConformance,
                         testing::Values(StoreWorldFactory([] { return std::make_unique<CallbackWorld>(); })));

const Deadline kNow = Deadline::Now();

TEST(CallbackStore, SetAndGetAreRequired) {
  MemoryStore inner;
  StoreCallbacks callbacks = CallbacksOf(&inner);
  callbacks.set = nullptr;
  EXPECT_THAT(CallbackStore::Create(callbacks, "mine"),
              StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("mine"), HasSubstr("set is missing"))));
  callbacks = CallbacksOf(&inner);
  callbacks.get = nullptr;
  EXPECT_THAT(CallbackStore::Create(callbacks, "mine"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("get is missing")));
}

TEST(CallbackStore, WithoutRemoveKeysStayAndThereIsNoCompareAndSet) {
  MemoryStore inner;
  StoreCallbacks callbacks = CallbacksOf(&inner);
  callbacks.remove = nullptr;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto store, CallbackStore::Create(callbacks, "mine"));
  EXPECT_THAT(store->CompareAndSet("k", "", "x", kNow),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("no compare-and-set")));
  EXPECT_THAT(store->Set("k", "v", kNow), IsOk());
  EXPECT_THAT(store->Delete("k", kNow), IsOk());
  EXPECT_THAT(store->Wait("k", kNow), IsOkAndHolds("v"));
}

TEST(CallbackStore, CodesBecomeErrorsThatNameCallbackAndKey) {
  MemoryStore inner;
  StoreCallbacks callbacks = CallbacksOf(&inner);
  callbacks.get = [](void*, const std::string&, int64_t, std::string*) {
    return static_cast<int>(absl::StatusCode::kUnavailable);
  };
  callbacks.set = [](void*, const std::string&, absl::string_view, int64_t) { return 99; };
  callbacks.remove = [](void*, const std::string&, int64_t) { return 7; };
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto store, CallbackStore::Create(callbacks, "mine"));
  const auto unavailable = StatusIs(absl::StatusCode::kUnavailable, "store mine: callback get: key 'k': UNAVAILABLE");
  EXPECT_THAT(store->Get("k", kNow), unavailable);
  EXPECT_THAT(store->Wait("k", Deadline::AfterMs(10'000)),
              unavailable);  // at once: only NOT_FOUND is worth waiting for
  EXPECT_THAT(
      store->Set("k", "v", kNow),
      StatusIs(absl::StatusCode::kUnknown, HasSubstr("callback set: key 'k': returned 99, which is no status")));
  EXPECT_THAT(store->Delete("k", kNow), StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("PERMISSION_DENIED")));
}

TEST(CallbackStore, DeadlinesReachTheCallbacks) {
  MemoryStore inner;
  StoreCallbacks callbacks = CallbacksOf(&inner);
  int64_t seen_ms = 0;
  callbacks.context = &seen_ms;
  callbacks.set = [](void* context, const std::string&, absl::string_view, int64_t timeout_ms) {
    *static_cast<int64_t*>(context) = timeout_ms;
    return 0;
  };
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto store, CallbackStore::Create(callbacks, "mine"));
  ASSERT_THAT(store->Set("k", "", Deadline::Infinite()), IsOk());
  EXPECT_EQ(seen_ms, -1);
  ASSERT_THAT(store->Set("k", "", Deadline::Now()), IsOk());
  EXPECT_EQ(seen_ms, 0);
  ASSERT_THAT(store->Set("k", "", Deadline::AfterMs(60'000)), IsOk());
  EXPECT_GT(seen_ms, 30'000);
  EXPECT_LE(seen_ms, 60'000);
}

TEST(CallbackStore, AValueBeyondTheLimitIsNotTaken) {
  MemoryStore inner;
  StoreCallbacks callbacks = CallbacksOf(&inner);
  callbacks.get = [](void*, const std::string&, int64_t, std::string* value) {
    value->assign(kStoreValueBytesMax + 1, 'x');
    return 0;
  };
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto store, CallbackStore::Create(callbacks, "mine"));
  EXPECT_THAT(store->Get("k", kNow), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("16777216")));
}

}  // namespace
}  // namespace lockstep
