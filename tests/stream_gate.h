// A gate at which a stream of the test's device waits until the host opens it. It needs no closure: on a GPU the closures of all
// streams run on one thread.

#ifndef TESTS_STREAM_GATE_H_
#define TESTS_STREAM_GATE_H_

#include <atomic>
#include <cstdint>
#include <new>

#include "absl/status/status.h"
#include "base/device/device.h"
#include "tests/test_device.h"

namespace lockstep {

// Thread-safe. Must outlive the streams that wait at it, and be open when they are destroyed.
class StreamGate {
 public:
  StreamGate() : word_(new (testing::AllocateReachable(sizeof(Word))) Word(0)) {}
  ~StreamGate() { testing::FreeReachable(word_, sizeof(Word)); }
  StreamGate(const StreamGate&) = delete;
  StreamGate& operator=(const StreamGate&) = delete;

  // Work that is enqueued later waits for Open().
  absl::Status HoldUp(Stream& stream) { return stream.AwaitValue(word_, kOpen); }
  void Open() { word_->store(kOpen, std::memory_order_release); }

 private:
  using Word = std::atomic<uint32_t>;
  static constexpr uint32_t kOpen = 1;

  Word* const word_;
};

}  // namespace lockstep

#endif  // TESTS_STREAM_GATE_H_
