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

absl::string_view View(const void* data, size_t bytes) {
  return absl::string_view(static_cast<const char*>(data), bytes);
}

Deadline Until(int64_t timeout_ms) { return timeout_ms < 0 ? Deadline::Infinite() : Deadline::AfterMs(timeout_ms); }

int Finish(const absl::Status& status, StoreCallbackReply* reply) {
  reply->SetMessage(std::string(status.message()).c_str());
  return static_cast<int>(status.code());
}

int Finish(const absl::StatusOr<std::string>& value, StoreCallbackReply* reply) {
  if (value.ok()) reply->SetValue(value->data(), value->size());
  return Finish(value.status(), reply);
}

int SetCallback(void* context, const void* key, size_t key_bytes, const void* value, size_t value_bytes,
                int64_t timeout_ms, StoreCallbackReply* reply) {
  return Finish(Inner(context).Set(View(key, key_bytes), View(value, value_bytes), Until(timeout_ms)), reply);
}

int GetCallback(void* context, const void* key, size_t key_bytes, int64_t timeout_ms, StoreCallbackReply* reply) {
  return Finish(Inner(context).Get(View(key, key_bytes), Until(timeout_ms)), reply);
}

int AddCallback(void* context, const void* key, size_t key_bytes, int64_t amount, int64_t timeout_ms, int64_t* out_sum,
                StoreCallbackReply* reply) {
  const absl::StatusOr<int64_t> sum = Inner(context).Add(View(key, key_bytes), amount, Until(timeout_ms));
  if (sum.ok()) *out_sum = *sum;
  return Finish(sum.status(), reply);
}

int CompareAndSetCallback(void* context, const void* key, size_t key_bytes, const void* expected, size_t expected_bytes,
                          const void* desired, size_t desired_bytes, int64_t timeout_ms, StoreCallbackReply* reply) {
  return Finish(Inner(context).CompareAndSet(View(key, key_bytes), View(expected, expected_bytes),
                                             View(desired, desired_bytes), Until(timeout_ms)),
                reply);
}

int WaitCallback(void* context, const void* key, size_t key_bytes, int64_t timeout_ms, StoreCallbackReply* reply) {
  return Finish(Inner(context).Wait(View(key, key_bytes), Until(timeout_ms)), reply);
}

int RemoveCallback(void* context, const void* key, size_t key_bytes, int64_t timeout_ms, StoreCallbackReply* reply) {
  return Finish(Inner(context).Delete(View(key, key_bytes), Until(timeout_ms)), reply);
}

StoreCallbacks AllCallbacks(MemoryStore* inner) {
  StoreCallbacks callbacks;
  callbacks.context = inner;
  callbacks.set = SetCallback;
  callbacks.get = GetCallback;
  callbacks.add = AddCallback;
  callbacks.compare_and_set = CompareAndSetCallback;
  callbacks.wait = WaitCallback;
  callbacks.remove = RemoveCallback;
  return callbacks;
}

class CallbackWorld : public StoreWorld {
 public:
  explicit CallbackWorld(bool with_wait) : callbacks_(AllCallbacks(&inner_)) {
    if (!with_wait) callbacks_.wait = nullptr;
  }

  absl::StatusOr<Store*> NewClient() override {
    absl::StatusOr<std::unique_ptr<CallbackStore>> client = CallbackStore::Create(callbacks_, "of the test");
    if (!client.ok()) return client.status();
    clients_.push_back(*std::move(client));
    return clients_.back().get();
  }

 private:
  MemoryStore inner_;
  StoreCallbacks callbacks_;
  std::vector<std::unique_ptr<CallbackStore>> clients_;
};

INSTANTIATE_TEST_SUITE_P(AllCallbacks, StoreConformance,
                         testing::Values(StoreWorldFactory([] { return std::make_unique<CallbackWorld>(true); })));
INSTANTIATE_TEST_SUITE_P(WaitByPolling, StoreConformance,
                         testing::Values(StoreWorldFactory([] { return std::make_unique<CallbackWorld>(false); })));

const Deadline kNow = Deadline::Now();

TEST(CallbackStore, SetAndGetAreRequired) {
  MemoryStore inner;
  StoreCallbacks callbacks = AllCallbacks(&inner);
  callbacks.set = nullptr;
  EXPECT_THAT(CallbackStore::Create(callbacks, "mine"),
              StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("mine"), HasSubstr("set is missing"))));
  callbacks = AllCallbacks(&inner);
  callbacks.get = nullptr;
  EXPECT_THAT(CallbackStore::Create(callbacks, "mine"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("get is missing")));
}

TEST(CallbackStore, WhatCannotBeMadeOfTheOthersIsUnimplemented) {
  MemoryStore inner;
  StoreCallbacks callbacks;
  callbacks.context = &inner;
  callbacks.set = SetCallback;
  callbacks.get = GetCallback;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto store, CallbackStore::Create(callbacks, "mine"));
  EXPECT_THAT(store->Add("k", 1, kNow), StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("no callback add")));
  EXPECT_THAT(store->CompareAndSet("k", "", "x", kNow),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("no callback compare_and_set")));
  EXPECT_THAT(store->Delete("k", kNow), StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("no callback remove")));
  EXPECT_THAT(store->Set("k", "v", kNow), IsOk());
  EXPECT_THAT(store->Wait("k", kNow), IsOkAndHolds("v"));
}

TEST(CallbackStore, ErrorsAreCarriedOnWithTheirWords) {
  MemoryStore inner;
  StoreCallbacks callbacks = AllCallbacks(&inner);
  callbacks.get = [](void*, const void*, size_t, int64_t, StoreCallbackReply* reply) {
    reply->SetMessage("etcd has no leader");
    return static_cast<int>(absl::StatusCode::kUnavailable);
  };
  callbacks.set = [](void*, const void*, size_t, const void*, size_t, int64_t, StoreCallbackReply*) { return 99; };
  callbacks.remove = [](void*, const void*, size_t, int64_t, StoreCallbackReply*) { return 7; };
  callbacks.wait = nullptr;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto store, CallbackStore::Create(callbacks, "mine"));
  const auto unavailable =
      StatusIs(absl::StatusCode::kUnavailable, "store mine: callback get: key 'k': etcd has no leader");
  EXPECT_THAT(store->Get("k", kNow), unavailable);
  EXPECT_THAT(store->Wait("k", Deadline::AfterMs(10'000)),
              unavailable);  // at once: only NOT_FOUND is worth waiting for
  EXPECT_THAT(
      store->Set("k", "v", kNow),
      StatusIs(absl::StatusCode::kUnknown, HasSubstr("callback set: key 'k': returned 99, which is no status")));
  EXPECT_THAT(store->Delete("k", kNow), StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("PERMISSION_DENIED")));
}

TEST(CallbackStore, DeadlinesReachTheCallbacks) {
  StoreCallbacks callbacks;
  int64_t seen_ms = 0;
  callbacks.context = &seen_ms;
  callbacks.set = [](void* context, const void*, size_t, const void*, size_t, int64_t timeout_ms, StoreCallbackReply*) {
    *static_cast<int64_t*>(context) = timeout_ms;
    return 0;
  };
  callbacks.get = GetCallback;
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
  StoreCallbacks callbacks;
  callbacks.set = SetCallback;
  callbacks.get = [](void*, const void*, size_t, int64_t, StoreCallbackReply* reply) {
    const std::string big(kStoreValueBytesMax + 1, 'x');
    reply->SetValue(big.data(), big.size());
    return 0;
  };
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto store, CallbackStore::Create(callbacks, "mine"));
  EXPECT_THAT(store->Get("k", kNow), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("16777216")));
}

}  // namespace
}  // namespace lockstep
