#include "comm/prices/followed.h"

namespace lockstep {
namespace prices {

Message SharedLinks::MessageOf(int source, int target, int round, double bytes, Reduces reduces) {
  const int host = call_.network.HostOf(source);
  const bool is_remote = host != call_.network.HostOf(target);
  if (!is_remote || call_.flat()) return call_.MessageOf(bytes, is_remote, reduces);
  if (!settled_) {
    sharing_.Add(host, round, source, bytes);
    return call_.MessageOf(bytes, is_remote, reduces);
  }
  return call_.MessageOf(bytes, is_remote, reduces, sharing_.Sharers(host, round, source));
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
