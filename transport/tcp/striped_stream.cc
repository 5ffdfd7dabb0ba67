#include "transport/tcp/striped_stream.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace lockstep {
namespace {

// As links ask for: a header and a payload.
constexpr int kPiecesMax = 2;

size_t Total(const iovec* pieces, int count) {
  size_t total = 0;
  for (int i = 0; i < count; ++i) total += pieces[i].iov_len;
  return total;
}

// The pieces without their first `skipped` bytes, and no more than `limit` of the rest. Returns how many pieces.
int Cut(const iovec* pieces, int count, size_t skipped, size_t limit, iovec* cut) {
  int cut_count = 0;
  for (int i = 0; i < count && limit > 0; ++i) {
    const size_t skip = std::min(skipped, pieces[i].iov_len);
    const size_t bytes = std::min(pieces[i].iov_len - skip, limit);
    skipped -= skip;
    limit -= bytes;
    if (bytes > 0) cut[cut_count++] = {static_cast<char*>(pieces[i].iov_base) + skip, bytes};
  }
  return cut_count;
}

}  // namespace

StripedStream::StripedStream(std::vector<std::unique_ptr<ByteStream>> streams, size_t stripe_bytes)
    : streams_(std::move(streams)), stripe_bytes_(stripe_bytes) {
  LOCKSTEP_CHECK(!streams_.empty() && stripe_bytes_ > 0);
}

template <typename Move>
ssize_t StripedStream::Run(const iovec* pieces, int count, Move move) {
  LOCKSTEP_CHECK(count <= kPiecesMax) << count << " pieces";
  const size_t total = Total(pieces, count);
  size_t moved = 0;
  while (moved < total) {
    iovec cut[kPiecesMax];
    const size_t stripe_left = stripe_bytes_ - position_ % stripe_bytes_;
    const int cut_count = Cut(pieces, count, moved, stripe_left, cut);
    const ssize_t result = move(streams_[position_ / stripe_bytes_ % streams_.size()].get(), cut, cut_count);
    // The next call returns the end or the error.
    if (result <= 0) return moved > 0 ? static_cast<ssize_t>(moved) : result;
    moved += result;
    position_ += result;
    if (result < Total(cut, cut_count)) break;
  }
  return static_cast<ssize_t>(moved);
}

ssize_t StripedStream::Write(const iovec* pieces, int count) {
  return Run(pieces, count,
             [](ByteStream* stream, const iovec* cut, int cut_count) { return stream->Write(cut, cut_count); });
}

ssize_t StripedStream::Read(const iovec* pieces, int count) {
  return Run(pieces, count,
             [](ByteStream* stream, const iovec* cut, int cut_count) { return stream->Read(cut, cut_count); });
}

}  // namespace lockstep
