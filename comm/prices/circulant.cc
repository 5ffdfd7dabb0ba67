#include "comm/prices/circulant.h"

#include <algorithm>
#include <cstddef>

namespace lockstep {
namespace prices {

std::vector<Circulant::Piece> Circulant::Pieces(int member, int begin, int end) const {
  if (begin == end) return {};
  const int cut = size_ - member;
  // One that stands for others is like most of them, which do not cut.
  const bool cuts = static_cast<int>(members_.size()) == size_ && begin < cut && cut < end;
  if (!cuts) return {{begin, end}};
  return {{begin, cut}, {cut, end}};
}

void Circulant::Round(int distance, int begin, int end, int arriving, Reduces reduces) {
  const int followed = static_cast<int>(members_.size());
  std::vector<std::vector<Sent>> sent(followed);
  for (int i = 0; i < followed; ++i) {
    Member& member = members_[i];
    for (const Piece& piece : Pieces(i, begin, end)) {
      const Stream ready = member.blocks.Readable(piece.begin, piece.end);
      const Message message =
          messenger_(i, (i + distance + size_) % size_, round_, (piece.end - piece.begin) * block_bytes_, reduces);
      sent[i].push_back({message, Send(message, ready, member.ends)});
    }
  }
  for (int i = 0; i < followed; ++i) {
    Member& member = members_[i];
    const std::vector<Piece> pieces = Pieces(i, arriving, arriving + end - begin);
    for (size_t k = 0; k < pieces.size(); ++k) {
      const auto& [message, left] = sent[(i - distance + size_) % size_ % followed][k];
      const Stream posted = reduces == Reduces::kYes ? member.blocks.Readable(pieces[k].begin, pieces[k].end) : kAlways;
      member.blocks.Write(pieces[k].begin, pieces[k].end, Receive(message, left, posted, member.ends));
    }
  }
  ++round_;
}

void Circulant::Halve() {
  for (int from = size_, to; from > 1; from = to) {
    to = (from + 1) / 2;
    Round(/*distance=*/to, to, from, /*arriving=*/0, Reduces::kYes);
    if (from == size_) CopyUntouched(from - to, to);
  }
}

void Circulant::CopyUntouched(int begin, int end) {
  for (size_t i = 0; i < members_.size(); ++i) {
    Member& member = members_[i];
    if (!member.copies) continue;
    for (const Piece& piece : Pieces(static_cast<int>(i), begin, end)) {
      const Message copied = call_.MessageOf((piece.end - piece.begin) * block_bytes_, false, Reduces::kNo);
      member.blocks.Write(piece.begin, piece.end, Work(copied.chunks, copied.copying_ns, kAlways, member.ends));
    }
  }
}

void Circulant::Double() {
  for (int bit = CeilLog2(size_) - 1; bit >= 0; --bit) {
    // The halvings backwards: the number of members, halved `bit` times and rounded up.
    const int from = (size_ + (1 << bit) - 1) >> bit, to = (from + 1) / 2;
    Round(/*distance=*/-to, 0, from - to, /*arriving=*/to, Reduces::kNo);
  }
}

}  // namespace prices
}  // namespace lockstep
