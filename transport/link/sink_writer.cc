#include "transport/link/sink_writer.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/types/dtype.h"

namespace lockstep {

void SinkWriter::Begin(const Sink& sink) {
  sink_ = sink;
  element_bytes_ = sink.reduction == nullptr ? 1 : SizeOf(sink.reduction->dtype);
  arrived_bytes_ = 0;
  carried_bytes_ = 0;
}

iovec SinkWriter::Next() {
  const size_t left = sink_.bytes - arrived_bytes_;
  if (sink_.reduction == nullptr) return {static_cast<unsigned char*>(sink_.target) + arrived_bytes_, left};
  // The carried bytes go in front, so that elements lie aligned in the staging piece whatever lengths arrive.
  std::memcpy(staging_.data, carried_, carried_bytes_);
  return {staging_.data + carried_bytes_, std::min(left, staging_.bytes - carried_bytes_)};
}

void SinkWriter::Combine(size_t position, const unsigned char* source, size_t count) {
  sink_.reduction->combine(static_cast<unsigned char*>(sink_.target) + position,
                           static_cast<const unsigned char*>(sink_.operand) + position, source, count);
}

void SinkWriter::Commit(size_t bytes) {
  if (sink_.reduction != nullptr) {
    const size_t staged = carried_bytes_ + bytes;
    const size_t count = staged / element_bytes_;
    Combine(arrived_bytes_ - carried_bytes_, staging_.data, count);
    carried_bytes_ = staged - count * element_bytes_;
    std::memcpy(carried_, staging_.data + count * element_bytes_, carried_bytes_);
  }
  arrived_bytes_ += bytes;
}

void SinkWriter::Put(const unsigned char* source, size_t bytes) {
  const bool whole = sink_.reduction != nullptr && arrived_bytes_ == 0 && bytes == sink_.bytes;
  if (whole && reinterpret_cast<uintptr_t>(source) % kElementBytesMax == 0) {
    Combine(0, source, bytes / element_bytes_);
    arrived_bytes_ = bytes;
    return;
  }
  while (bytes > 0) {
    const iovec place = Next();
    const size_t piece = std::min(bytes, place.iov_len);
    std::memcpy(place.iov_base, source, piece);
    Commit(piece);
    source += piece;
    bytes -= piece;
  }
}

}  // namespace lockstep
