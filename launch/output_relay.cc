#include "launch/output_relay.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace lockstep {
namespace {

constexpr size_t kReadBytes = 65536;
constexpr size_t kWaitingBytesMax = 4 * kReadBytes;  // of one sink, before its streams are left unread
constexpr size_t kPipeBytesMax = 1 << 20;            // what a pipe may hold (/proc/sys/fs/pipe-max-size)

const char* const kSinkNames[2] = {"stdout", "stderr"};

bool HasRoom(int fd) {
  pollfd entry = {fd, POLLOUT, 0};
  return poll(&entry, 1, 0) == 1 && (entry.revents & POLLOUT) != 0;
}

}  // namespace

void LinePrefixer::Append(absl::string_view bytes, std::string* output) {
  while (!bytes.empty()) {
    const size_t room = line_bytes_max_ - partial_.size();
    const size_t newline = bytes.substr(0, room + 1).find('\n');
    if (newline != absl::string_view::npos) {
      Emit(bytes.substr(0, newline), output);
      bytes.remove_prefix(newline + 1);
    } else if (bytes.size() > room) {
      Emit(bytes.substr(0, room), output);
      bytes.remove_prefix(room);
    } else {
      absl::StrAppend(&partial_, bytes);
      return;
    }
  }
}

void LinePrefixer::Finish(std::string* output) {
  if (!partial_.empty()) Emit("", output);
}

void LinePrefixer::Emit(absl::string_view rest_of_line, std::string* output) {
  absl::StrAppend(output, prefix_, partial_, rest_of_line, "\n");
  partial_.clear();
}

OutputRelay::OutputRelay(int stdout_fd, int stderr_fd)
    : outputs_{{stdout_fd, false, std::string(), 0}, {stderr_fd, false, std::string(), 0}} {}

OutputRelay::~OutputRelay() {
  for (Stream& stream : streams_) EndStream(&stream);
}

absl::StatusOr<int> OutputRelay::AddStream(std::string prefix, Sink sink) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "create a pipe");
  // Our end only: the writer's keeps its ordinary, blocking nature.
  if (fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0) {
    const int error = errno;
    close(ends[0]);
    close(ends[1]);
    return ErrnoStatus(error, "make a pipe non-blocking");
  }
  streams_.push_back(Stream{ends[0], sink, LinePrefixer(std::move(prefix))});
  return ends[1];
}

// The two sinks, even when nothing waits (poll() then tells when the reader has gone), then every stream. Descriptors
// below zero are skipped by poll().
void OutputRelay::PollFds(std::vector<pollfd>* fds) const {
  for (const Output& output : outputs_) {
    const short events = output.waiting() > 0 ? POLLOUT : 0;
    fds->push_back({output.broken ? -1 : output.fd, events, 0});
  }
  for (const Stream& stream : streams_) {
    const bool full = OutputOf(stream).waiting() >= kWaitingBytesMax;
    fds->push_back({full ? -1 : stream.fd, POLLIN, 0});
  }
}

void OutputRelay::HandleEvents(absl::Span<const pollfd> fds) {
  for (size_t i = 0; i < streams_.size(); ++i) {
    if (fds[2 + i].revents != 0) ReadSome(&streams_[i]);
  }
  for (int i = 0; i < 2; ++i) {
    const short events = fds[i].revents;
    if (events & POLLNVAL) {
      Break(i, ErrnoStatus(EBADF, kSinkNames[i]));
    } else if (events & (POLLERR | POLLHUP)) {  // a socket whose reader has gone says only the latter
      Break(i, ErrnoStatus(EPIPE, absl::string_view(kSinkNames[i])));
    } else if (outputs_[i].waiting() > 0) {
      WriteSome(i);
    }
  }
}

void OutputRelay::Finish() {
  for (Stream& stream : streams_) {
    // A process that has left the groups may never stop writing.
    for (size_t read = 0; stream.fd >= 0 && read < kPipeBytesMax && ReadSome(&stream); read += kReadBytes) {
    }
    EndStream(&stream);
  }
}

bool OutputRelay::pending() const { return outputs_[0].waiting() > 0 || outputs_[1].waiting() > 0; }

void OutputRelay::Discard() {
  for (Output& output : outputs_) {
    output.buffer.clear();
    output.begin = 0;
  }
}

bool OutputRelay::ReadSome(Stream* stream) {
  char bytes[kReadBytes];
  const ssize_t received = read(stream->fd, bytes, sizeof(bytes));
  if (received > 0) {
    stream->prefixer.Append(absl::string_view(bytes, received), &OutputOf(*stream).buffer);
    return true;
  }
  if (received < 0 && (errno == EAGAIN || errno == EINTR)) return errno == EINTR;
  EndStream(stream);
  return false;
}

void OutputRelay::EndStream(Stream* stream) {
  if (stream->fd < 0) return;
  close(stream->fd);
  stream->fd = -1;
  if (!OutputOf(*stream).broken) stream->prefixer.Finish(&OutputOf(*stream).buffer);
}

void OutputRelay::WriteSome(int index) {
  Output& output = outputs_[index];
  // A pipe that has room takes PIPE_BUF bytes without blocking. The bound keeps one chatty stream from starving
  // signals.
  for (int pieces = 0; pieces < 64 && output.waiting() > 0 && HasRoom(output.fd); ++pieces) {
    const size_t bytes = std::min<size_t>(output.waiting(), PIPE_BUF);
    const ssize_t written = write(output.fd, output.buffer.data() + output.begin, bytes);
    if (written < 0) {
      if (errno == EINTR || errno == EAGAIN) return;
      Break(index, ErrnoStatus(errno, absl::string_view(kSinkNames[index])));
      return;
    }
    output.begin += written;
  }
  if (output.begin == output.buffer.size() || output.begin >= kWaitingBytesMax) {
    output.buffer.erase(0, output.begin);
    output.begin = 0;
  }
}

void OutputRelay::Break(int index, const absl::Status& reason) {
  Output& output = outputs_[index];
  output.broken = true;
  output.buffer.clear();
  output.begin = 0;
  if (status_.ok()) status_ = Annotate(reason, "the launcher could not write its output");
  for (Stream& stream : streams_) {
    if (static_cast<int>(stream.sink) == index) EndStream(&stream);
  }
}

}  // namespace lockstep
