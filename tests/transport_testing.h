// What tests of transports share: operations that keep how they ended, and loops that poll transports.

#ifndef TESTS_TRANSPORT_TESTING_H_
#define TESTS_TRANSPORT_TESTING_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/fork_testing.h"
#include "base/rank.h"
#include "base/thread.h"
#include "base/types/reduction.h"
#include "gtest/gtest.h"
#include "transport/posting.h"
#include "transport/transport.h"

namespace lockstep {

// No test waits longer for anything. Generous: sanitizers on a busy machine are slow.
inline Deadline TestDeadline() { return Deadline::AfterMs(120'000); }

inline WorldIdentity TestIdentity(int rank, int size) { return {Rank(rank), size, "test", /*world_id=*/17}; }

// Counts its completions and keeps the last one's status. Must complete before it is destroyed.
struct TestOperation : Operation {
  TestOperation() {
    complete = [](Operation* operation, const absl::Status& outcome) {
      auto* const self = static_cast<TestOperation*>(operation);
      ++self->completions;
      self->status = outcome;
      if (self->then) self->then();
    };
  }
  bool done() const { return completions > 0; }

  int completions = 0;
  absl::Status status;
  std::function<void()> then;  // runs inside the completion
};

inline Envelope TestEnvelope(unsigned char first) {
  Envelope envelope = {};
  envelope.front() = first;
  envelope.back() = static_cast<unsigned char>(~first);
  return envelope;
}

// Bytes that differ from message to message and from place to place. A word at a time: sanitizers charge by the access.
inline std::vector<unsigned char> TestPayload(size_t bytes, uint32_t seed) {
  std::vector<unsigned char> payload(bytes);
  uint64_t state = seed;
  for (size_t at = 0; at < bytes; at += sizeof(state)) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const uint64_t mixed = state ^ state >> 29;
    std::memcpy(payload.data() + at, &mixed, std::min(sizeof(mixed), bytes - at));
  }
  return payload;
}

// More than any medium buffers.
inline const std::vector<unsigned char>& LargePayload() {
  static const auto* const payload = new std::vector<unsigned char>(TestPayload(16 << 20, 1));
  return *payload;
}

// Element by element, through memcpy: at any alignment.
template <typename Element>
void TestAdd(void* target, const void* left, const void* right, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    Element a, b;
    std::memcpy(&a, static_cast<const char*>(left) + i * sizeof(Element), sizeof(Element));
    std::memcpy(&b, static_cast<const char*>(right) + i * sizeof(Element), sizeof(Element));
    a += b;
    std::memcpy(static_cast<char*>(target) + i * sizeof(Element), &a, sizeof(Element));
  }
}

// Two doubles: the widest element there is.
struct Wide {
  double first;
  double second;
  Wide& operator+=(const Wide& other) {
    first += other.first;
    second += other.second;
    return *this;
  }
  friend bool operator==(const Wide& a, const Wide& b) { return a.first == b.first && a.second == b.second; }
};

inline const Reduction kAddFloats = {DType::kF32, ReduceOp::kSum, &TestAdd<float>};
inline const Reduction kAddWide = {DType::kComplex128, ReduceOp::kSum, &TestAdd<Wide>};

inline Sink CopySink(std::vector<unsigned char>* target) {
  Sink sink;
  sink.target = target->data();
  sink.bytes = target->size();
  return sink;
}

using Transports = std::vector<std::unique_ptr<Transport>>;

template <typename T>
Transports AsTransports(std::vector<std::unique_ptr<T>> ranks) {
  return Transports(std::make_move_iterator(ranks.begin()), std::make_move_iterator(ranks.end()));
}

// Drives all ranks in turns on this thread until `done`, or fails the test.
template <typename Done>
bool Drive(const std::vector<Transport*>& transports, Done done, Deadline deadline = TestDeadline()) {
  while (!done()) {
    if (deadline.passed()) {
      ADD_FAILURE() << "what was waited for did not happen by the deadline";
      return false;
    }
    bool moved = false;
    for (Transport* const transport : transports) moved |= transport->Progress();
    if (!moved) std::this_thread::yield();
  }
  return true;
}

// The same for all of a world that there are.
template <typename T, typename Done>
bool DriveAll(const std::vector<std::unique_ptr<T>>& transports, Done done, Deadline deadline = TestDeadline()) {
  std::vector<Transport*> borrowed;
  for (const auto& transport : transports) {
    if (transport != nullptr) borrowed.push_back(transport.get());
  }
  return Drive(borrowed, done, deadline);
}

// Whether all operations of a container have completed.
template <typename Operations>
bool AllDone(const Operations& operations) {
  return std::all_of(std::begin(operations), std::end(operations), [](const auto& one) { return one.done(); });
}

// Drives one rank until `done`, sleeping in WaitForEvent: a wake-up that is lost fails the test.
template <typename Done>
bool Await(Transport* transport, Done done, Deadline deadline = TestDeadline()) {
  while (!done()) {
    if (deadline.passed()) {
      ADD_FAILURE() << "rank " << transport->rank() << ": what was waited for did not happen by the deadline";
      return false;
    }
    if (!transport->Progress()) transport->WaitForEvent(deadline);
  }
  return true;
}

// Calls body(rank) for every rank, on a thread for each; returns when all have ended.
template <typename T, typename Body>
void RunRanks(const std::vector<std::unique_ptr<T>>& ranks, const Body& body) {
  std::vector<Thread> threads;
  for (const auto& rank : ranks) threads.emplace_back("rank", [&body, borrowed = rank.get()] { body(borrowed); });
}

// A world of transports of one kind, which the test's thread drives.
template <typename T>
class TransportWorldTest : public ::testing::Test {
 protected:
  // Takes a world that was created. False if the test is to end: it is skipped (UNAVAILABLE), or fails.
  bool Take(absl::StatusOr<std::vector<std::unique_ptr<T>>> created) {
    if (created.ok()) {
      ranks_ = *std::move(created);
      return true;
    }
    if (absl::IsUnavailable(created.status())) {
      Skip(created.status());
    } else {
      ADD_FAILURE() << created.status();
    }
    return false;
  }
  T* rank(int index) { return ranks_[index].get(); }

  template <typename Done>
  bool DriveAll(Done done) {
    return lockstep::DriveAll(ranks_, done);
  }

  // Moves a message. Returns how the send ended or, if well, how the receive ended.
  absl::Status Exchange(int from, int to, ChannelId channel, const void* source, void* target, size_t bytes) {
    TestOperation send, receive;
    rank(to)->Receive(Rank(from), channel, TestEnvelope(1), Sink{target, bytes}, &receive);
    rank(from)->Send(Rank(to), channel, TestEnvelope(1), source, bytes, &send);
    DriveAll([&] { return send.done() && receive.done(); });
    return send.status.ok() ? receive.status : send.status;
  }

  // Moves a message, to show that the world is well.
  void ExpectExchange(int from, int to, ChannelId channel = 0) {
    const std::vector<unsigned char> data = TestPayload(50'000, channel);
    std::vector<unsigned char> target(data.size());
    const absl::Status status = Exchange(from, to, channel, data.data(), target.data(), data.size());
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(target == data);
  }

  // How a send ends that nobody receives.
  absl::Status SendStatus(int from, int to) {
    TestOperation send;
    rank(from)->Send(Rank(to), 0, TestEnvelope(1), "x", 1, &send);
    DriveAll([&] { return send.done(); });
    return send.status;
  }

  // That transports are of no use in a forked child, say so, and disturb nobody. `also` runs in the child, too.
  void ExpectUselessAfterFork(const std::function<void()>& also = [] {}) {
    ExpectExchange(0, 1);
    const int in_child = RunInForkedChild(
        [&] {
          TestOperation send, new_send, receive;
          char target = 0;
          rank(0)->Send(Rank(1), 0, TestEnvelope(1), "y", 1, &send);
          rank(0)->Send(Rank(1), 77, TestEnvelope(1), "y", 1, &new_send);
          rank(1)->Receive(Rank(0), 0, TestEnvelope(1), Sink{&target, 1}, &receive);
          rank(0)->Progress();
          also();
          for (const TestOperation* operation : {&send, &new_send, &receive}) {
            if (!absl::IsFailedPrecondition(operation->status)) return 1;
          }
          ranks_.clear();
          return 0;
        },
        TestDeadline());
    EXPECT_EQ(in_child, 0);
    ExpectExchange(0, 1);
    ExpectExchange(1, 0, 1);
  }

  std::vector<std::unique_ptr<T>> ranks_;

 private:
  static void Skip(const absl::Status& status) { GTEST_SKIP() << status; }
};

}  // namespace lockstep

#endif  // TESTS_TRANSPORT_TESTING_H_
