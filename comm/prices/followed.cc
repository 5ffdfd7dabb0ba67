#include "comm/prices/followed.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

namespace lockstep {
namespace prices {

Message SharedLinks::MessageOf(int source, int target, double begin, double bytes, Reduces reduces) {
  const int host = call_.network.HostOf(source);
  if (host == call_.network.HostOf(target)) return call_.MessageOf(bytes, false, reduces);
  if (call_.flat()) return call_.MessageOf(bytes, true, reduces);
  if (asked_ == flows_.size()) flows_.push_back({host, source, 0, 0, 1});
  Flow& flow = flows_[asked_++];
  flow.begin = begin;
  flow.alone_ns = bytes * call_.network.remote.byte_ns;
  return call_.MessageOf(bytes, true, reduces, flow.sharers);
}

bool SharedLinks::Changed() {
  // As good as exact where that takes milliseconds; of very many messages, an estimate.
  constexpr size_t kManyFlows = 10'000;
  const int times_max = flows_.size() > kManyFlows ? 4 : 32;
  constexpr double kNegligible = 1e-9;
  asked_ = 0;
  if (++times_ == times_max) return false;
  std::vector<double> before;
  before.reserve(flows_.size());
  std::vector<Flow*> sorted;
  for (Flow& flow : flows_) {
    before.push_back(flow.sharers);
    if (flow.alone_ns > 0) sorted.push_back(&flow);
  }
  std::sort(sorted.begin(), sorted.end(),
            [](const Flow* a, const Flow* b) { return std::tie(a->host, a->begin) < std::tie(b->host, b->begin); });
  for (auto begin = sorted.begin(), end = begin; begin != sorted.end(); begin = end) {
    end = std::find_if(begin, sorted.end(), [&](const Flow* flow) { return flow->host != (*begin)->host; });
    std::vector<Flow*> of_host(begin, end);
    Share(&of_host);
  }
  for (size_t i = 0; i < flows_.size(); ++i) {
    if (std::abs(flows_[i].sharers - before[i]) > kNegligible * before[i]) return true;
  }
  return false;
}

void SharedLinks::Share(std::vector<Flow*>* flows) {
  struct Active {
    Flow* flow;
    double begin, left_ns;
  };
  std::vector<Active> active;
  const auto sends = [&](int rank) {
    return std::any_of(active.begin(), active.end(), [&](const Active& one) { return one.flow->rank == rank; });
  };
  // Those of ranks that are still sending something else.
  std::vector<Flow*> waiting;
  double now = 0;
  auto next = flows->begin();
  while (next != flows->end() || !waiting.empty() || !active.empty()) {
    if (active.empty() && waiting.empty()) now = std::max(now, (*next)->begin);
    for (; next != flows->end() && (*next)->begin <= now; ++next) waiting.push_back(*next);
    for (Flow*& flow : waiting) {
      if (sends(flow->rank)) continue;
      active.push_back({flow, now, flow->alone_ns});
      flow = nullptr;
    }
    waiting.erase(std::remove(waiting.begin(), waiting.end(), nullptr), waiting.end());
    const double sharers = static_cast<double>(active.size());
    double least = std::numeric_limits<double>::infinity();
    for (const Active& one : active) least = std::min(least, one.left_ns);
    const double end = now + least * sharers;
    const bool joined = next != flows->end() && (*next)->begin < end;
    const double done_ns = joined ? ((*next)->begin - now) / sharers : least;
    for (Active& one : active) one.left_ns -= done_ns;
    now = joined ? (*next)->begin : end;
    if (joined) continue;
    const auto is_done = [&](const Active& one) { return one.left_ns <= 1e-9 * one.flow->alone_ns; };
    for (const Active& one : active) {
      if (is_done(one)) one.flow->sharers = (now - one.begin) / one.flow->alone_ns;
    }
    active.erase(std::remove_if(active.begin(), active.end(), is_done), active.end());
  }
}

Stream Blocks::Readable(int begin, int end) const {
  for (auto written = written_.rbegin(); written != written_.rend(); ++written) {
    if (written->begin >= end || begin >= written->end) continue;
    if (written->begin == begin && written->end == end) return written->there;
    return {written->there.last, written->there.last};
  }
  return {0, 0};
}

}  // namespace prices
}  // namespace lockstep
