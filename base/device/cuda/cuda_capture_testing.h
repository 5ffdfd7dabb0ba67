// What a fake CUDA (base/device/cuda/cuda_api_testing.h) captures: graphs, and which streams and events are part of a capture, by
// CUDA's rules. Nothing is run here but graphs.
//
//   stream      not captured -> captured: a capture begins on it, or it waits for an event of one
//               captured -> not captured: the capture ends on the stream that it began on
//   event       of a capture once it was recorded in one, also when that is over; until it is recorded elsewhere
//
// A capture becomes invalid by whatever may not be done in one, and says so when it ends.

#ifndef BASE_DEVICE_CUDA_CUDA_CAPTURE_TESTING_H_
#define BASE_DEVICE_CUDA_CUDA_CAPTURE_TESTING_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace lockstep {

// The cudaError_t values that only captures have, beside those of base/device/cuda/cuda_api.h.
constexpr int kCudaCaptureInvalidated = 901;
constexpr int kCudaCaptureMerge = 902;
constexpr int kCudaCaptureUnmatched = 903;
constexpr int kCudaCaptureUnjoined = 904;
constexpr int kCudaCaptureIsolation = 905;

// Immutable once it is captured.
class FakeGraph {
 public:
  // Of the nodes that may be run next, which one is. Whoever forgets a dependency gets wrong results in one of them.
  enum class Order { kOldestFirst, kNewestFirst };

  // A node that comes after those; its index is returned. Indexes grow, so a node comes after smaller ones only.
  size_t Add(std::function<void()> run, std::vector<size_t> after);
  // Runs every node on the calling thread.
  void Run(Order order) const;
  // Whether each of the nodes is one of `ends` or comes before one.
  bool Precede(const std::vector<size_t>& nodes, const std::vector<size_t>& ends) const;

 private:
  struct Node {
    std::function<void()> run;
    std::vector<size_t> after;
  };
  std::vector<Node> nodes_;
};

// The captures that are under way. Streams and events are told apart by their addresses. Codes are CUDA's; those of
// functions that return a pair count only where `first` says that a capture is concerned. Externally synchronised.
class FakeCaptures {
 public:
  using Answer = std::pair<bool, int>;

  // In the mode cudaStreamCaptureModeGlobal.
  int Begin(const void* stream);
  // The graph is null unless this is a success. A thread that did not begin it may not end it.
  int End(const void* stream, std::shared_ptr<const FakeGraph>* graph);

  bool capturing(const void* stream) const { return streams_.count(stream) == 1; }
  bool any() const { return !captures_.empty(); }
  // Of all captures: something that none allows was done.
  void Invalidate() {
    for (auto& [number, capture] : captures_) capture.valid = false;
  }

  Answer Launch(const void* stream, std::function<void()> run);
  Answer Record(const void* stream, const void* event);
  Answer Wait(const void* stream, const void* event);
  Answer Query(const void* event);

 private:
  struct Capture {
    FakeGraph graph;
    const void* origin = nullptr;
    std::thread::id thread;
    bool valid = true;
    std::map<const void*, std::vector<size_t>> streams;  // what their next node comes after
  };
  struct Point {
    uint64_t capture = 0;
    std::vector<size_t> after;
  };

  Capture& Of(const void* stream) { return captures_.at(streams_.at(stream)); }

  uint64_t begun_ = 0;
  std::map<uint64_t, Capture> captures_;     // under way, by number
  std::map<const void*, uint64_t> streams_;  // in which capture
  std::map<const void*, Point> events_;      // of captures, over or not
};

}  // namespace lockstep

#endif  // BASE_DEVICE_CUDA_CUDA_CAPTURE_TESTING_H_
