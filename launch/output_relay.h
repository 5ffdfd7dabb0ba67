// OutputRelay: carries what several processes write into pipes to one stdout and one stderr, whole lines at a time.
//
// One thread, which polls: PollFds() says for what, HandleEvents() does what can be done without blocking. The sinks
// belong to others too (a shell, say), so they are not made non-blocking; a write is only made where poll() promised
// room for it.

#ifndef LAUNCH_OUTPUT_RELAY_H_
#define LAUNCH_OUTPUT_RELAY_H_

#include <poll.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "launch/line_prefixer.h"

namespace lockstep {

// Not thread-safe. Bounded: a stream is not read while much is waiting for its sink, so a slow reader slows the
// writers.
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

  // The writers are gone: takes what is left in the pipes, last lines without a newline included. What is then
  // pending() is written by HandleEvents() as before.
  void Finish();
  bool pending() const;
  void Discard();  // what is pending

  // The first error of a sink. Its streams were closed then, so that their writers get EPIPE as they would without us.
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
