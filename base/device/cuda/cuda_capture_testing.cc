#include "base/device/cuda/cuda_capture_testing.h"

#include <algorithm>
#include <set>

#include "base/device/cuda/cuda_api.h"

namespace lockstep {

size_t FakeGraph::Add(std::function<void()> run, std::vector<size_t> after) {
  nodes_.push_back({std::move(run), std::move(after)});
  return nodes_.size() - 1;
}

void FakeGraph::Run(Order order) const {
  std::vector<size_t> left(nodes_.size());  // nodes that each still waits for
  std::vector<std::vector<size_t>> before(nodes_.size());
  std::set<size_t> next;
  for (size_t n = 0; n < nodes_.size(); ++n) {
    left[n] = nodes_[n].after.size();
    for (const size_t earlier : nodes_[n].after) before[earlier].push_back(n);
    if (left[n] == 0) next.insert(n);
  }
  while (!next.empty()) {
    const size_t node = order == Order::kOldestFirst ? *next.begin() : *next.rbegin();
    next.erase(node);
    nodes_[node].run();
    for (const size_t later : before[node]) {
      if (--left[later] == 0) next.insert(later);
    }
  }
}

bool FakeGraph::Precede(const std::vector<size_t>& nodes, const std::vector<size_t>& ends) const {
  std::vector<bool> precedes(nodes_.size(), false);
  for (const size_t end : ends) precedes[end] = true;
  for (size_t n = nodes_.size(); n-- > 0;) {
    if (!precedes[n]) continue;
    for (const size_t earlier : nodes_[n].after) precedes[earlier] = true;
  }
  return std::all_of(nodes.begin(), nodes.end(), [&](size_t node) { return precedes[node]; });
}

int FakeCaptures::Begin(const void* stream) {
  if (capturing(stream)) {
    Invalidate();
    return kCudaCaptureUnsupported;
  }
  Capture& capture = captures_[++begun_];
  capture.origin = stream;
  capture.thread = std::this_thread::get_id();
  capture.streams[stream] = {};
  streams_[stream] = begun_;
  return kCudaSuccess;
}

int FakeCaptures::End(const void* stream, std::shared_ptr<const FakeGraph>* graph) {
  if (!capturing(stream)) return kCudaInvalidValue;
  Capture& capture = Of(stream);
  if (capture.origin != stream) return kCudaCaptureUnmatched;
  if (capture.thread != std::this_thread::get_id()) return kCudaCaptureWrongThread;
  int code = capture.valid ? int{kCudaSuccess} : kCudaCaptureInvalidated;
  for (const auto& [joined, ends] : capture.streams) {
    if (code == kCudaSuccess && !capture.graph.Precede(ends, capture.streams[stream])) code = kCudaCaptureUnjoined;
  }
  if (code == kCudaSuccess) *graph = std::make_shared<const FakeGraph>(std::move(capture.graph));
  const uint64_t number = streams_.at(stream);
  for (auto joined = streams_.begin(); joined != streams_.end();) {
    joined = joined->second == number ? streams_.erase(joined) : std::next(joined);
  }
  captures_.erase(number);
  return code;
}

FakeCaptures::Answer FakeCaptures::Launch(const void* stream, std::function<void()> run) {
  if (!capturing(stream)) return {false, kCudaSuccess};
  Capture& capture = Of(stream);
  if (!capture.valid) return {true, kCudaCaptureInvalidated};
  std::vector<size_t>& ends = capture.streams[stream];
  ends = {capture.graph.Add(std::move(run), std::move(ends))};
  return {true, kCudaSuccess};
}

FakeCaptures::Answer FakeCaptures::Record(const void* stream, const void* event) {
  if (!capturing(stream)) {
    events_.erase(event);
    return {false, kCudaSuccess};
  }
  Capture& capture = Of(stream);
  if (!capture.valid) return {true, kCudaCaptureInvalidated};
  events_[event] = {streams_.at(stream), capture.streams[stream]};
  return {true, kCudaSuccess};
}

FakeCaptures::Answer FakeCaptures::Wait(const void* stream, const void* event) {
  const auto point = events_.find(event);
  if (!capturing(stream)) {
    if (point == events_.end()) return {false, kCudaSuccess};
    const auto capture = captures_.find(point->second.capture);
    if (capture == captures_.end()) return {true, kCudaCapturedEvent};
    if (!capture->second.valid) return {true, kCudaCaptureInvalidated};
    streams_[stream] = capture->first;
    capture->second.streams[stream] = point->second.after;
    return {true, kCudaSuccess};
  }
  Capture& capture = Of(stream);
  if (!capture.valid) return {true, kCudaCaptureInvalidated};
  if (point == events_.end() || point->second.capture != streams_.at(stream)) {
    capture.valid = false;
    const bool of_another = point != events_.end() && captures_.count(point->second.capture) == 1;
    return {true, of_another ? kCudaCaptureMerge : kCudaCaptureIsolation};
  }
  std::set<size_t> ends(capture.streams[stream].begin(), capture.streams[stream].end());
  ends.insert(point->second.after.begin(), point->second.after.end());
  capture.streams[stream].assign(ends.begin(), ends.end());
  return {true, kCudaSuccess};
}

FakeCaptures::Answer FakeCaptures::Query(const void* event) {
  const auto point = events_.find(event);
  if (point == events_.end()) return {false, kCudaSuccess};
  const auto capture = captures_.find(point->second.capture);
  if (capture != captures_.end()) capture->second.valid = false;
  return {true, kCudaCapturedEvent};
}

}  // namespace lockstep
