// The embedder's store, behind the Store that the library makes of it.

#include "transport/store/store.h"

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/status_matchers.h"
#include "capi/error.h"
#include "capi/handles.h"
#include "capi/lockstep.h"
#include "capi/store_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/store_conformance.h"
#include "transport/secure/secret.h"
#include "transport/store/store_memory.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

using Handle = std::unique_ptr<lockstep_store, void (*)(lockstep_store*)>;

absl::StatusOr<Handle> Create(const lockstep_store_callbacks& callbacks) {
  lockstep_store* store = nullptr;
  const absl::Status created = capi::TakeError(lockstep_store_create(&callbacks, &store));
  if (!created.ok()) return created;
  return Handle(store, &lockstep_store_destroy);
}

StoreWorld EmbeddersWorld() {
  StoreWorld world;
  world.new_client = [inner = std::make_shared<MemoryStore>()]() -> absl::StatusOr<std::shared_ptr<Store>> {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::shared_ptr<lockstep_store> handle, Create(CallbacksOf(inner.get())));
    return std::shared_ptr<Store>(handle, handle->store.get());
  };
  world.compares = false;
  world.keys_are_bytes = false;
  return world;
}

INSTANTIATE_TEST_SUITE_P(Embedder, StoreConformance, testing::Values(StoreWorldFactory(EmbeddersWorld)));

const Deadline kNow = Deadline::Now();

class EmbeddersStoreTest : public ::testing::Test {
 protected:
  // Of the callbacks as they are now.
  Store& store() {
    absl::StatusOr<Handle> created = Create(callbacks_);
    EXPECT_THAT(created.status(), IsOk());
    handle_ = *std::move(created);
    return *handle_->store;
  }

  MemoryStore inner_;
  lockstep_store_callbacks callbacks_ = CallbacksOf(&inner_);
  Handle handle_{nullptr, &lockstep_store_destroy};
};

TEST_F(EmbeddersStoreTest, SetAndGetAreRequired) {
  callbacks_.set = nullptr;
  EXPECT_THAT(Create(callbacks_).status(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("set is missing")));
  callbacks_ = CallbacksOf(&inner_);
  callbacks_.get = nullptr;
  EXPECT_THAT(Create(callbacks_).status(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("get is missing")));
}

TEST_F(EmbeddersStoreTest, ValuesAreBytes) {
  Store& mine = store();
  ASSERT_THAT(mine.Set("k", std::string("\0v\xff", 3), kNow), IsOk());
  EXPECT_THAT(mine.Get("k", kNow), IsOkAndHolds(std::string("\0v\xff", 3)));
}

TEST_F(EmbeddersStoreTest, ThereIsNoCompareAndSetAndNoDeleteWithoutRemove) {
  callbacks_.remove = nullptr;
  Store& mine = store();
  EXPECT_THAT(mine.CompareAndSet("k", "", "x", kNow),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("no compare-and-set")));
  EXPECT_THAT(mine.Set("k", "v", kNow), IsOk());
  EXPECT_THAT(mine.Delete("k", kNow), StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("key 'k': no remove")));
  EXPECT_THAT(mine.Wait("k", kNow), IsOkAndHolds("v"));
}

// Notes keys, and the secrets that values have had.
class NotingStore : public MemoryStore {
 public:
  std::set<std::string> keys, secrets;

 protected:
  absl::StatusOr<std::string> Perform(const StoreCall& call, Deadline deadline) override {
    if (call.op == StoreOp::kSet) {
      const MutexLock lock(&mu_);
      keys.emplace(call.key);
      for (const absl::string_view word : absl::StrSplit(call.first, ' ')) {
        if (Secret::FromHex(word).ok()) secrets.emplace(word);
      }
    }
    return MemoryStore::Perform(call, deadline);
  }

 private:
  Mutex mu_;
};

// The second world begins with what the first has left.
class EmbeddersStoreOfAWorld : public testing::TestWithParam<decltype(lockstep_store_callbacks::remove)> {};

TEST_P(EmbeddersStoreOfAWorld, WithoutRemoveItDoesNotKeepTheSecret) {
  NotingStore inner;
  lockstep_store_callbacks callbacks = CallbacksOf(&inner);
  callbacks.remove = GetParam();
  const auto join = [&callbacks](int rank) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Handle store, Create(callbacks));
    lockstep_communicator_options options;
    LOCKSTEP_INIT(options);
    options.world_size = 2;
    options.rank = rank;
    options.store = store.get();
    options.setup_timeout_ms = 60'000;
    lockstep_communicator* communicator = nullptr;
    EXPECT_THAT(capi::TakeError(lockstep_communicator_create(&options, &communicator)), IsOk());
    lockstep_communicator_destroy(communicator);
  };
  for (size_t world = 1; world <= 2; ++world) {
    std::thread other([&join] { join(1); });
    join(0);
    other.join();
    EXPECT_EQ(inner.secrets.size(), world);
    for (const std::string& key : inner.keys) EXPECT_THAT(inner.Get(key, kNow), IsOkAndHolds("")) << key;
  }
}

lockstep_code Refuse(void*, const char*, int64_t) { return LOCKSTEP_UNIMPLEMENTED; }

INSTANTIATE_TEST_SUITE_P(Remove, EmbeddersStoreOfAWorld, testing::Values(nullptr, &Refuse));

TEST_F(EmbeddersStoreTest, CodesBecomeErrorsThatNameCallbackAndKey) {
  callbacks_.get = [](void*, const char*, void*, size_t, size_t*, int64_t) -> lockstep_code {
    return LOCKSTEP_UNAVAILABLE;
  };
  callbacks_.set = [](void*, const char*, const void*, size_t, int64_t) -> lockstep_code { return 99; };
  callbacks_.remove = [](void*, const char*, int64_t) -> lockstep_code { return LOCKSTEP_PERMISSION_DENIED; };
  Store& mine = store();
  const auto unavailable =
      StatusIs(absl::StatusCode::kUnavailable, "store of this program: callback get: key 'k': UNAVAILABLE");
  EXPECT_THAT(mine.Get("k", kNow), unavailable);
  EXPECT_THAT(mine.Wait("k", Deadline::AfterMs(10'000)), unavailable);  // at once: only NOT_FOUND is worth waiting for
  EXPECT_THAT(mine.Set("k", "v", kNow), StatusIs(absl::StatusCode::kUnknown,
                                                 HasSubstr("callback set: key 'k': returned 99, which is no status")));
  EXPECT_THAT(mine.Delete("k", kNow), StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("PERMISSION_DENIED")));
}

TEST_F(EmbeddersStoreTest, DeadlinesReachTheCallbacks) {
  int64_t seen_ms = 0;
  callbacks_.context = &seen_ms;
  callbacks_.set = [](void* context, const char*, const void*, size_t, int64_t timeout_ms) -> lockstep_code {
    *static_cast<int64_t*>(context) = timeout_ms;
    return LOCKSTEP_OK;
  };
  Store& mine = store();
  ASSERT_THAT(mine.Set("k", "", Deadline::Infinite()), IsOk());
  EXPECT_EQ(seen_ms, -1);
  ASSERT_THAT(mine.Set("k", "", Deadline::Now()), IsOk());
  EXPECT_EQ(seen_ms, 0);
  const Deadline later = Deadline::AfterMs(60'000);
  ASSERT_THAT(mine.Set("k", "", later), IsOk());
  EXPECT_GE(seen_ms, later.remaining_ms());
  EXPECT_LE(seen_ms, 60'000);
}

// As where the server of a store is stopped. The callback has what it uses until it returns, also if the store is destroyed meanwhile.
TEST_F(EmbeddersStoreTest, ACallbackThatDoesNotReturnIsLeftAlone) {
  struct Server {
    Mutex mu;
    CondVar changed;
    bool stopped ABSL_GUARDED_BY(mu) = true;
    int calls ABSL_GUARDED_BY(mu) = 0;
    bool released ABSL_GUARDED_BY(mu) = false;
  } server;
  callbacks_.context = &server;
  callbacks_.get = [](void* context, const char*, void*, size_t, size_t*, int64_t) -> lockstep_code {
    auto& told = *static_cast<Server*>(context);
    const MutexLock lock(&told.mu);
    ++told.calls;
    while (told.stopped) told.changed.WaitUntil(&told.mu, Deadline::Infinite());
    return LOCKSTEP_NOT_FOUND;
  };
  callbacks_.release = [](void* context) {
    auto& told = *static_cast<Server*>(context);
    const MutexLock lock(&told.mu);
    told.released = true;
    told.changed.SignalAll();
  };
  const auto late = [](absl::string_view callback) {
    return StatusIs(absl::StatusCode::kDeadlineExceeded,
                    absl::StrCat("store of this program: callback ", callback, ": key 'k': has not returned in time"));
  };
  Store& mine = store();
  EXPECT_THAT(mine.Get("k", Deadline::AfterMs(50)), late("get"));
  EXPECT_THAT(mine.Wait("k", Deadline::AfterMs(50)), late("get"));
  EXPECT_THAT(mine.Set("k", "v", Deadline::AfterMs(50)), late("set"));
  handle_.reset();
  const MutexLock lock(&server.mu);
  EXPECT_EQ(server.calls, 1);
  EXPECT_FALSE(server.released);
  server.stopped = false;
  server.changed.SignalAll();
  while (!server.released) server.changed.WaitUntil(&server.mu, Deadline::Infinite());
}

TEST_F(EmbeddersStoreTest, AValueBeyondTheLimitIsNotTaken) {
  callbacks_.get = [](void*, const char*, void*, size_t, size_t* out_bytes, int64_t) -> lockstep_code {
    *out_bytes = kStoreValueBytesMax + 1;
    return LOCKSTEP_OK;
  };
  EXPECT_THAT(store().Get("k", kNow), StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("callback get: key 'k'")));
}

}  // namespace
}  // namespace lockstep
