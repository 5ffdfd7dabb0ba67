#include "transport/posting.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace lockstep {
namespace internal {

absl::Status NoPeer(const char* transport, Rank rank, int size, Rank peer) {
  return absl::InvalidArgumentError(
      absl::StrCat(transport, " transport: rank ", rank.value(), " of ", size, " has no peer ", peer.value()));
}

absl::Status BrokenSink(const Sink& sink) {
  return absl::InvalidArgumentError(
      absl::StrCat("a sink of ", sink.bytes, " bytes is no whole number of ", Name(sink.reduction->dtype)));
}

}  // namespace internal

absl::Status CheckWorld(const char* transport, const WorldIdentity& self, size_t job_id_bytes_max) {
  const auto invalid = [transport](auto... what) {
    return absl::InvalidArgumentError(absl::StrCat(transport, " transport: ", what...));
  };
  if (self.size < 1) return invalid("a world of ", self.size, " ranks");
  if (self.rank.value() < 0 || self.rank.value() >= self.size) {
    return invalid("rank ", self.rank.value(), " in a world of ", self.size);
  }
  if (self.job_id.size() > job_id_bytes_max) {
    return invalid("a job id of ", self.job_id.size(), " bytes, more than ", job_id_bytes_max);
  }
  return absl::OkStatus();
}

int CutPieces(absl::Span<const iovec> pieces, size_t offset, size_t bytes, iovec* cut, int max) {
  int count = 0;
  for (const iovec& piece : pieces) {
    if (count == max || bytes == 0) break;
    const size_t skip = std::min(offset, piece.iov_len);
    const size_t part = std::min(piece.iov_len - skip, bytes);
    offset -= skip;
    bytes -= part;
    if (part > 0) cut[count++] = {static_cast<char*>(piece.iov_base) + skip, part};
  }
  return count;
}

void CombinePieces(const MessagePieces& pieces, const Reduction* reduction, size_t offset, const unsigned char* source,
                   size_t bytes) {
  while (bytes > 0) {
    const iovec target = PieceAt(pieces.memory, offset);
    size_t part = std::min(bytes, target.iov_len);
    if (reduction == nullptr) {
      std::memcpy(target.iov_base, source, part);
    } else {
      const iovec operand = PieceAt(pieces.operand, offset);
      part = std::min(part, operand.iov_len);
      reduction->combine(target.iov_base, operand.iov_base, source, part / SizeOf(reduction->dtype));
    }
    offset += part;
    source += part;
    bytes -= part;
  }
}

absl::Status Mismatch(const Operation& operation) {
  const Operation::Internal& expected = operation.internal;
  const std::string what = operation.arrived_bytes == expected.bytes
                               ? "a message with another envelope arrived than the one expected"
                               : absl::StrCat("a message of ", operation.arrived_bytes, " bytes arrived where ",
                                              expected.bytes, " were expected");
  return absl::FailedPreconditionError(absl::StrCat("channel ", expected.channel, " is broken: ", what));
}

std::string DescribeWay(bool sends, const Transport& transport, Rank peer) {
  return absl::StrCat(sends ? "send to rank " : "recv from rank ", peer.value(), " over ",
                      transport.DescribePeer(peer));
}

absl::Status FlushAndClose(Transport* transport, Deadline deadline, bool* closed,
                           const std::function<bool()>& pending) {
  if (*closed) return absl::OkStatus();
  while (pending() && !deadline.passed()) {
    if (!transport->Progress()) transport->WaitForEvent(deadline);
  }
  const bool cut_off = pending();
  *closed = true;
  transport->Abort(absl::CancelledError(absl::StrCat(transport->name(), " transport: closed")));
  if (!cut_off) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat(transport->name(), " transport: closed before every send was under way"));
}

}  // namespace lockstep
