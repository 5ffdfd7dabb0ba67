// OutputRelay: copies what several processes write into pipes to one stdout and one stderr, whole lines at a time.
//
// For one thread that polls: PollFds() says for what, HandleEvents() does what can be done without blocking. The sinks stay blocking,
// since others use them too (a shell, for example). So the relay writes only when poll() has promised room.

#ifndef LAUNCH_OUTPUT_RELAY_H_
#define LAUNCH_OUTPUT_RELAY_H_

#include <poll.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace lockstep {

// Cuts a stream of bytes into lines and puts a prefix before each.
//
// Not thread-safe. Holds back an incomplete line, so that lines of several streams mix whole. Cuts a line longer than
// `line_bytes_max` into several, so that what it holds back is bounded.
class LinePrefixer {
 public:
  explicit LinePrefixer(std::string prefix, size_t line_bytes_max = 65536)
      : prefix_(std::move(prefix)), line_bytes_max_(line_bytes_max) {}

  // Appends the lines that `bytes` completes to *output.
  void Append(absl::string_view bytes, std::string* output);

  // The stream has ended: completes a last line without a newline.
  void Finish(std::string* output);

 private:
  void Emit(absl::string_view rest_of_line, std::string* output);

  const std::string prefix_;
  const size_t line_bytes_max_;
  std::string partial_;  // at most line_bytes_max_ bytes, no newline in it
};

// Not thread-safe. Bounded: a stream is not read while much waits for its sink, so a slow reader slows the writers.
class OutputRelay {
 public:
  enum class Sink { kStdout, kStderr };

  // Borrows the descriptors.
  OutputRelay(int stdout_fd, int stderr_fd);
  ~OutputRelay();
  OutputRelay(const OutputRelay&) = delete;
  OutputRelay& operator=(const OutputRelay&) = delete;

  // Returns the end to write to, which the caller closes.
  absl::StatusOr<int> AddStream(std::string prefix, Sink sink);

  void PollFds(std::vector<pollfd>* fds) const;
  // `fds` is what the last PollFds() appended, with the answers of poll().
  void HandleEvents(absl::Span<const pollfd> fds);

  // Call it when the writers are gone: reads what is left in the pipes, including last lines without a newline. HandleEvents() then
  // writes what is pending().
  void Finish();
  bool pending() const;
  void Discard();  // what is pending

  // The first error of a sink. The relay has closed its streams then, so that their writers get EPIPE, as they would without it.
  const absl::Status& status() const { return status_; }

 private:
  struct Output {
    int fd;
    bool broken;
    std::string buffer;  // not written yet, from `begin` on
    size_t begin;
    size_t waiting() const { return buffer.size() - begin; }
  };
  struct Stream {
    int fd;  // -1 once it ended
    Sink sink;
    LinePrefixer prefixer;
  };

  Output& OutputOf(const Stream& stream) { return outputs_[static_cast<int>(stream.sink)]; }
  const Output& OutputOf(const Stream& stream) const { return outputs_[static_cast<int>(stream.sink)]; }
  // Reads once; false when there is nothing more at the moment, or ever.
  bool ReadSome(Stream* stream);
  void EndStream(Stream* stream);
  void WriteSome(int index);
  void Break(int index, const absl::Status& reason);

  Output outputs_[2];
  std::vector<Stream> streams_;
  absl::Status status_;
};

}  // namespace lockstep

#endif  // LAUNCH_OUTPUT_RELAY_H_
