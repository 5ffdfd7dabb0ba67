// Handles of lockstep.h in every order of destruction, with operations in flight and without, over each transport, as a garbage
// collector would: nothing crashes or hangs, and what is left answers with an error that says what was destroyed.
//
// Ranks are threads. Rank 0 destroys its handles in the order of the case and calls what is left after each; only then does rank 1,
// backwards, so whatever rank 0 has in flight ends because rank 0 ends it. A world of one takes all orders of the handles of a
// communicator. With two ranks a world for each of the 40,320 orders of eight takes too long: orders are drawn until every three
// handles have been destroyed in each of their six orders, since what goes wrong does so between a handle and what it was made of
// (a reducer, its communicator, the world), and no chain of those is longer. All orders of six handles are a test for now and then.

#include "capi/lockstep.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "capi/store_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ranks.h"
#include "transport/store/store_memory.h"

namespace lockstep {
namespace {

using ::testing::AnyOf;
using ::testing::Eq;
using ::testing::HasSubstr;

constexpr int64_t kOne = 1;
constexpr int64_t kElements = 1000;
constexpr int64_t kTimeoutMs = 60'000;

struct Result {
  lockstep_code code = LOCKSTEP_OK;
  std::string text;
};

// Takes the error over.
Result Take(lockstep_error* error) {
  Result result;
  if (error == nullptr) return result;
  result.code = lockstep_error_code(error);
  result.text = lockstep_error_message(error);
  lockstep_error_free(error);
  return result;
}

#define EXPECT_GOOD(call) EXPECT_EQ(Take(call).text, "")

// Of what outlived its communicator.
void ExpectDestroyed(lockstep_error* error) {
  const Result result = Take(error);
  EXPECT_THAT(result.code, AnyOf(Eq(LOCKSTEP_CANCELLED), Eq(LOCKSTEP_FAILED_PRECONDITION))) << result.text;
  EXPECT_THAT(result.text, HasSubstr("communicator was destroyed"));
}

lockstep_tensor Floats(float* data, const int64_t* count) {
  lockstep_tensor tensor;
  std::memset(&tensor, 0, sizeof(tensor));
  tensor.data = data;
  tensor.shape = count;
  tensor.dimensions = 1;
  tensor.dtype = LOCKSTEP_F32;
  return tensor;
}

// A store of the embedder's, in memory that the ranks share.
lockstep_store* NewStore(MemoryStore* memory) {
  const lockstep_store_callbacks callbacks = CallbacksOf(memory);
  lockstep_store* store = nullptr;
  EXPECT_GOOD(lockstep_store_create(&callbacks, &store));
  return store;
}

enum Thing { kCommunicator, kPart, kReducer, kMemory, kWork, kPrepared, kBufferSet, kStore, kThings };
using Order = std::vector<Thing>;

std::string ToString(const Order& order) {
  static const char* const kNames[kThings] = {"communicator", "part",     "reducer",    "memory",
                                              "work",         "prepared", "buffer set", "store"};
  std::string text;
  for (const Thing thing : order) absl::StrAppend(&text, text.empty() ? "" : ", ", kNames[thing]);
  return text;
}

// One rank's handles, one of each, and the memory that its operations borrow.
class Handles {
 public:
  // UNAVAILABLE where this machine has no such transport; nothing is made then.
  Result Create(MemoryStore* memory, int rank, int size, const std::string& transport) {
    store_ = NewStore(memory);
    lockstep_communicator_options options;
    LOCKSTEP_INIT(options);
    options.world_size = size;
    options.rank = rank;
    options.local_world_size = size;
    options.local_rank = rank;
    options.store = store_;
    options.transport = transport.empty() ? nullptr : transport.c_str();
    options.timeout_ms = kTimeoutMs;
    options.setup_timeout_ms = kTimeoutMs;
    options.peer_timeout_ms = kTimeoutMs;
    const Result created = Take(lockstep_communicator_create(&options, &communicator_));
    if (created.code != LOCKSTEP_OK) {
      lockstep_store_destroy(store_);
      return created;
    }
    EXPECT_GOOD(lockstep_communicator_duplicate(communicator_, &part_));
    EXPECT_GOOD(lockstep_memory_create(communicator_, kElements * sizeof(float), LOCKSTEP_HOST, &memory_));
    lockstep_parameter parameter;
    LOCKSTEP_INIT(parameter);
    parameter.name = "weight";
    parameter.shape = &kOne;
    parameter.dimensions = 1;
    parameter.dtype = LOCKSTEP_F32;
    EXPECT_GOOD(lockstep_reducer_create(communicator_, &parameter, 1, nullptr, &reducer_));
    const lockstep_tensor tensor = Floats(set_values_.data(), &kElements);
    EXPECT_GOOD(lockstep_buffer_set_create(communicator_, &tensor, 1, &buffer_set_));
    EXPECT_GOOD(Backward(/*end=*/true));
    prepared_ = Prepare();
    EXPECT_GOOD(lockstep_prepared_start(prepared_));
    EXPECT_GOOD(lockstep_prepared_wait(prepared_, kTimeoutMs));
    work_ = Start(communicator_, &work_values_);
    EXPECT_GOOD(lockstep_work_wait(work_, kTimeoutMs));
    return created;
  }

  // What the other rank will not take part in. A reducer that is destroyed in a step waits for the step, whose communicator must have
  // been destroyed by then.
  void StartAll(const Order& order) {
    lockstep_work_destroy(work_);
    work_ = Start(communicator_, &work_values_);
    EXPECT_GOOD(lockstep_prepared_start(prepared_));
    part_work_ = Start(part_, &part_values_);
    in_flight_ = true;
    in_step_ = Before(order, kCommunicator, kReducer);
    if (in_step_) {
      EXPECT_GOOD(Backward(/*end=*/false));
    }
  }

  void Destroy(Thing thing) {
    const auto end = [](auto** handle, auto destroy) {
      destroy(*handle);
      *handle = nullptr;
    };
    switch (thing) {
      case kCommunicator:
        return end(&communicator_, lockstep_communicator_destroy);
      case kPart:
        return end(&part_, lockstep_communicator_destroy);
      case kReducer:
        return end(&reducer_, lockstep_reducer_destroy);
      case kMemory:
        return end(&memory_, lockstep_memory_destroy);
      case kWork:
        return end(&work_, lockstep_work_destroy);
      case kPrepared:
        return end(&prepared_, lockstep_prepared_destroy);
      case kBufferSet:
        return end(&buffer_set_, lockstep_buffer_set_destroy);
      default:
        return end(&store_, lockstep_store_destroy);
    }
  }

  // Calls whatever is left of what outlived the communicator.
  void CallWhatIsLeft() {
    if (memory_ != nullptr) {
      std::memset(lockstep_memory_data(memory_), 1, lockstep_memory_bytes(memory_));
    }
    if (part_work_ != nullptr) {
      const Result result = Take(lockstep_work_wait(part_work_, 0));
      EXPECT_EQ(result.code, part_ == nullptr ? LOCKSTEP_CANCELLED : LOCKSTEP_DEADLINE_EXCEEDED) << result.text;
    }
    if (part_ != nullptr) {
      EXPECT_GOOD(lockstep_communicator_status(part_));
    }
    if (communicator_ != nullptr) {
      EXPECT_GOOD(lockstep_communicator_status(communicator_));
      return;
    }
    if (work_ != nullptr) {
      EXPECT_EQ(lockstep_work_done(work_), 1);
      if (in_flight_) {
        ExpectDestroyed(lockstep_work_wait(work_, kTimeoutMs));
      } else {
        EXPECT_GOOD(lockstep_work_wait(work_, kTimeoutMs));
      }
    }
    if (prepared_ != nullptr) {
      EXPECT_EQ(lockstep_prepared_done(prepared_), 1);
      ExpectDestroyed(lockstep_prepared_start(prepared_));
    }
    if (reducer_ != nullptr) {
      const lockstep_tensor gradient = Floats(&gradient_, &kOne);
      ExpectDestroyed(lockstep_reducer_begin_backward(reducer_, nullptr));
      ExpectDestroyed(lockstep_reducer_mark_ready(reducer_, 0, &gradient, nullptr));
      ExpectDestroyed(lockstep_reducer_end_backward(reducer_, nullptr));
      ExpectDestroyed(lockstep_reducer_begin_forward(reducer_, nullptr, nullptr));
      ExpectDestroyed(lockstep_reducer_join(reducer_, &gradient, 1, nullptr, 0));
      EXPECT_EQ(lockstep_reducer_bucket_count(reducer_), 1u);
    }
    if (buffer_set_ != nullptr) {
      const lockstep_tensor tensor = Floats(set_values_.data(), &kElements);
      ExpectDestroyed(lockstep_buffer_set_broadcast(buffer_set_, &tensor, 1, nullptr, nullptr));
    }
  }

  // Once all of the order is destroyed.
  void Finish() {
    if (part_work_ == nullptr) return;
    EXPECT_EQ(Take(lockstep_work_wait(part_work_, kTimeoutMs)).code, LOCKSTEP_CANCELLED);
    lockstep_work_destroy(part_work_);
  }

  static bool Before(const Order& order, Thing a, Thing b) {
    return std::find(order.begin(), order.end(), a) < std::find(order.begin(), order.end(), b);
  }

  lockstep_communicator* communicator() const { return communicator_; }
  lockstep_communicator* part() const { return part_; }
  lockstep_reducer* reducer() const { return reducer_; }
  lockstep_work* work() const { return work_; }
  lockstep_buffer_set* buffer_set() const { return buffer_set_; }

  // A step of the reducer, or one that has yet to end.
  lockstep_error* Backward(bool end) {
    const lockstep_tensor gradient = Floats(&gradient_, &kOne);
    lockstep_error* error = lockstep_reducer_begin_backward(reducer_, nullptr);
    if (error == nullptr) error = lockstep_reducer_mark_ready(reducer_, 0, &gradient, nullptr);
    if (error == nullptr && end) error = lockstep_reducer_end_backward(reducer_, nullptr);
    return error;
  }

  // From the other rank: the root of a broadcast may be done by itself.
  lockstep_error* Broadcast() {
    const lockstep_tensor tensor = Floats(set_values_.data(), &kElements);
    lockstep_buffer_set_options options;
    LOCKSTEP_INIT(options);
    options.root = 1;
    return lockstep_buffer_set_broadcast(buffer_set_, &tensor, 1, &options, nullptr);
  }

 private:
  using Values = std::vector<float>;

  lockstep_work* Start(lockstep_communicator* communicator, Values* values) {
    const lockstep_tensor tensor = Floats(values->data(), &kElements);
    lockstep_work* work = nullptr;
    EXPECT_GOOD(lockstep_all_reduce(communicator, &tensor, &tensor, LOCKSTEP_SUM, nullptr, nullptr, &work));
    return work;
  }

  lockstep_prepared* Prepare() {
    const lockstep_tensor tensor = Floats(prepared_values_.data(), &kElements);
    lockstep_collective collective;
    LOCKSTEP_INIT(collective);
    collective.kind = LOCKSTEP_COLLECTIVE_ALL_REDUCE;
    collective.op = LOCKSTEP_SUM;
    collective.input = collective.output = &tensor;
    lockstep_prepared* prepared = nullptr;
    EXPECT_GOOD(lockstep_prepared_create(communicator_, &collective, nullptr, &prepared));
    return prepared;
  }

  Values work_values_ = Values(kElements);
  Values part_values_ = Values(kElements);
  Values prepared_values_ = Values(kElements);
  Values set_values_ = Values(kElements);
  float gradient_ = 1;

  lockstep_store* store_ = nullptr;
  lockstep_communicator* communicator_ = nullptr;
  lockstep_communicator* part_ = nullptr;
  lockstep_reducer* reducer_ = nullptr;
  lockstep_memory* memory_ = nullptr;
  lockstep_work* work_ = nullptr;
  lockstep_prepared* prepared_ = nullptr;
  lockstep_buffer_set* buffer_set_ = nullptr;
  lockstep_work* part_work_ = nullptr;
  bool in_flight_ = false;
  bool in_step_ = false;
};

// Draws orders until every three things were in each order that they can be in.
std::vector<Order> OrdersOfEveryThree() {
  std::set<std::tuple<int, int, int>> seen;
  std::vector<Order> orders;
  Order order(kThings);
  for (int i = 0; i < kThings; ++i) order[i] = static_cast<Thing>(i);
  std::mt19937 random(17);
  while (seen.size() < kThings * (kThings - 1) * (kThings - 2)) {
    std::shuffle(order.begin(), order.end(), random);
    const size_t before = seen.size();
    for (int a = 0; a < kThings; ++a) {
      for (int b = a + 1; b < kThings; ++b) {
        for (int c = b + 1; c < kThings; ++c) seen.emplace(order[a], order[b], order[c]);
      }
    }
    if (seen.size() > before) orders.push_back(order);
  }
  return orders;
}

// All 720 orders of what is made by a call of its own; the two that are made of others come somewhere between.
std::vector<Order> EveryOrder() {
  Order six = {kCommunicator, kPart, kReducer, kMemory, kWork, kStore};
  std::sort(six.begin(), six.end());
  std::vector<Order> orders;
  std::mt19937 random(17);
  do {
    Order order = six;
    for (const Thing thing : {kPrepared, kBufferSet}) {
      order.insert(order.begin() + static_cast<std::ptrdiff_t>(random() % (order.size() + 1)), thing);
    }
    orders.push_back(order);
  } while (std::next_permutation(six.begin(), six.end()));
  return orders;
}

struct Case {
  std::string transport;
  bool in_flight;
};

class CApiLifetimes : public ::testing::TestWithParam<Case> {
 protected:
  // Makes both ranks' handles. False where there is no such transport.
  bool Create(std::array<Handles, 2>* ranks) {
    MemoryStore memory;
    std::array<Result, 2> created;
    testing::RunRanks(2,
                      [&](int rank) { created[rank] = (*ranks)[rank].Create(&memory, rank, 2, GetParam().transport); });
    if (created[0].code == LOCKSTEP_UNAVAILABLE) {
      Skip(created[0].text);
      return false;
    }
    for (const Result& result : created) EXPECT_EQ(result.code, LOCKSTEP_OK) << result.text;
    return !HasFailure();
  }

  void DestroyIn(const std::vector<Order>& orders);

 private:
  static void Skip(const std::string& why) { GTEST_SKIP() << why; }
};

void CApiLifetimes::DestroyIn(const std::vector<Order>& orders) {
  for (const Order& order : orders) {
    SCOPED_TRACE(ToString(order));
    // The memory goes before the stores: they are not used any more.
    std::array<Handles, 2> ranks;
    if (!Create(&ranks)) return;
    if (GetParam().in_flight) ranks[0].StartAll(order);
    for (const Thing thing : order) {
      ranks[0].Destroy(thing);
      ranks[0].CallWhatIsLeft();
    }
    ranks[0].Finish();
    if (GetParam().in_flight) {
      // What it had in flight on each failed here, too.
      for (lockstep_communicator* const left : {ranks[1].communicator(), ranks[1].part()}) {
        const Deadline deadline = Deadline::AfterMs(kTimeoutMs);
        Result status;
        while (status.code == LOCKSTEP_OK && !deadline.passed()) status = Take(lockstep_communicator_status(left));
        EXPECT_EQ(status.code, LOCKSTEP_ABORTED);
        EXPECT_THAT(status.text, HasSubstr("rank 0 "));
      }
    }
    for (auto thing = order.rbegin(); thing != order.rend(); ++thing) ranks[1].Destroy(*thing);
    ranks[1].Finish();
    if (HasFailure()) return;
  }
}

TEST_P(CApiLifetimes, HandlesMayBeDestroyedInAnyOrder) { DestroyIn(OrdersOfEveryThree()); }

// Minutes; docs/contributing.md has the command.
TEST_P(CApiLifetimes, DISABLED_HandlesMayBeDestroyedInEveryOrder) { DestroyIn(EveryOrder()); }

// Each on a thread of its own, in something that was made of the communicator, while it is destroyed.
TEST_P(CApiLifetimes, CallsOnWhatWasMadeOfItEndWithTheCommunicator) {
  if (!GetParam().in_flight) GTEST_SKIP() << "it is about nothing else";
  for (const bool keep_part : {false, true}) {
    SCOPED_TRACE(keep_part ? "a part is left" : "nothing is left");
    std::array<Handles, 2> ranks;
    if (!Create(&ranks)) return;
    const Order order = {kCommunicator, kPart, kReducer, kMemory, kWork, kPrepared, kBufferSet, kStore};
    // In a backward the communicator is the reducer's alone, and a broadcast refused.
    const bool backward = keep_part;
    ranks[0].StartAll(backward ? order : Order{kReducer, kCommunicator});
    if (!keep_part) ranks[0].Destroy(kPart);
    std::atomic<int> calling{0};
    std::vector<std::thread> threads;
    const auto blocked = [&](auto call) {
      threads.emplace_back([&calling, call] {
        ++calling;
        ExpectDestroyed(call());
      });
    };
    blocked([&] { return lockstep_work_wait(ranks[0].work(), kTimeoutMs); });
    blocked([&] { return lockstep_work_wait(ranks[0].work(), kTimeoutMs); });
    if (backward) {
      blocked([&] { return lockstep_reducer_end_backward(ranks[0].reducer(), nullptr); });
    } else {
      blocked([&] { return ranks[0].Broadcast(); });
    }
    while (calling < 3) std::this_thread::yield();
    ranks[0].Destroy(kCommunicator);
    for (std::thread& thread : threads) thread.join();
    for (const Thing thing : order) {
      if (thing != kCommunicator && (keep_part || thing != kPart)) ranks[0].Destroy(thing);
    }
    ranks[0].Finish();
    for (const Thing thing : order) ranks[1].Destroy(thing);
  }
}

// As after a failure: the old communicator has gone already.
TEST_P(CApiLifetimes, AReducerIsGivenAnotherCommunicatorWhenItsOwnIsDestroyed) {
  std::array<Handles, 2> ranks;
  if (!Create(&ranks)) return;
  if (GetParam().in_flight) ranks[0].StartAll({kCommunicator, kReducer});
  for (Handles& handles : ranks) handles.Destroy(kCommunicator);
  if (GetParam().in_flight) ranks[0].Destroy(kPart);
  // Of another world.
  std::array<Handles, 2> others;
  if (!Create(&others)) return;
  testing::RunRanks(2, [&](int rank) {
    EXPECT_GOOD(lockstep_reducer_change_communicator(ranks[rank].reducer(), others[rank].communicator()));
    EXPECT_GOOD(ranks[rank].Backward(/*end=*/true));
  });
  for (int rank = 0; rank < 2; ++rank) {
    others[rank].Destroy(kCommunicator);
    ExpectDestroyed(lockstep_reducer_begin_backward(ranks[rank].reducer(), nullptr));
    for (const Thing thing : {kStore, kBufferSet, kPrepared, kWork, kMemory, kReducer, kPart}) {
      if (thing != kPart || rank == 1 || !GetParam().in_flight) ranks[rank].Destroy(thing);
      others[rank].Destroy(thing);
    }
    ranks[rank].Finish();
  }
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const char* const transport : {"shm", "tcp", "ofi"}) {
    for (const bool in_flight : {false, true}) cases.push_back({transport, in_flight});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Transports, CApiLifetimes, ::testing::ValuesIn(Cases()), [](const auto& info) {
  return absl::StrCat(info.param.transport, info.param.in_flight ? "InFlight" : "Idle");
});

// Every order there is of what a world of one has: nothing is ever in flight there but a message.
TEST(CApiLifetimesAlone, HandlesMayBeDestroyedInAnyOrder) {
  Order order = {kCommunicator, kPart, kReducer, kMemory, kWork, kPrepared, kBufferSet};
  do {
    SCOPED_TRACE(ToString(order));
    MemoryStore memory;
    Handles handles;
    ASSERT_EQ(handles.Create(&memory, 0, 1, "").code, LOCKSTEP_OK);
    float value = 0;
    const lockstep_tensor tensor = Floats(&value, &kOne);
    lockstep_work* receive = nullptr;
    EXPECT_GOOD(lockstep_receive(handles.communicator(), &tensor, 0, 0, 0, nullptr, &receive));
    for (const Thing thing : order) {
      handles.Destroy(thing);
      handles.CallWhatIsLeft();
      if (thing == kCommunicator) ExpectDestroyed(lockstep_work_wait(receive, kTimeoutMs));
    }
    lockstep_work_destroy(receive);
    handles.Destroy(kStore);
  } while (std::next_permutation(order.begin(), order.end()) && !::testing::Test::HasFailure());
}

}  // namespace
}  // namespace lockstep
