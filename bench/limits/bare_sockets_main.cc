// bare_sockets: the limits of TCP between two processes of this machine, with no Lockstep code in the way.
//
// Two processes, each on a core of its own, one connection over loopback, non-blocking and busy-polled:
//   - a stream both ways at once and one way, by congestion control and bytes per system call, in GB/s a direction;
//   - a ping-pong, in microseconds one way.
// Usage: bare_sockets [rounds [MiB a stream [congestion control...]]]. Each number is the median of the rounds (default 3;
// 256 MiB; the system's congestion control, then reno).

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "base/status.h"
#include "bench/limits/bare_sockets.h"
#include "bench/ranks.h"
#include "bench/statistics.h"

namespace lockstep {
namespace bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kCallSizes[] = {64 << 10, 256 << 10, 1 << 20};
constexpr size_t kPingSizes[] = {8, 64, 256, 1024, 64 << 10};
constexpr int kPings = 2000;

struct Options {
  int rounds = 3;
  int64_t stream_mib = 256;
  std::vector<std::string> congestion_controls = {"", "reno"};  // the default first; everybody may use reno
};

// The same on both sides: who is `first` sends first in a ping-pong, and prints.
class Side {
 public:
  Side(const Options& options, bool first) : options_(options), first_(first), out_(1 << 20, 'x'), in_(1 << 20) {}

  absl::Status Run(BareSocket* socket) {
    const std::string name = socket->CongestionControl();
    for (const size_t call_bytes : kCallSizes) {
      std::vector<double> both_ways;
      std::vector<double> one_way;
      for (int round = 0; round < options_.rounds; ++round) {
        LOCKSTEP_ASSIGN_OR_RETURN(const double both, Stream(socket, call_bytes, /*back=*/true));
        LOCKSTEP_ASSIGN_OR_RETURN(const double one, Stream(socket, call_bytes, /*back=*/false));
        both_ways.push_back(both);
        one_way.push_back(one);
      }
      if (first_) {
        std::printf("%-8s stream %8zu B a call   both ways %6.2f GB/s each   one way %6.2f GB/s\n", name.c_str(),
                    call_bytes, Median(both_ways), Median(one_way));
        std::fflush(stdout);
      }
    }
    for (const size_t bytes : kPingSizes) {
      std::vector<double> times;
      for (int round = 0; round < options_.rounds; ++round) {
        LOCKSTEP_ASSIGN_OR_RETURN(const double seconds, PingPong(socket, bytes));
        times.push_back(seconds);
      }
      if (first_) {
        std::printf("%-8s ping-pong %5zu B            one way   %6.2f us\n", name.c_str(), bytes, Median(times) * 1e6);
        std::fflush(stdout);
      }
    }
    return absl::OkStatus();
  }

 private:
  // GB/s. Ends with a byte each way, so that the time is that until the other side has everything.
  absl::StatusOr<double> Stream(BareSocket* socket, size_t call_bytes, bool back) {
    socket->set_call_bytes(call_bytes);
    char byte = 0;
    LOCKSTEP_RETURN_IF_ERROR(socket->Exchange(&byte, 1, &byte, 1));
    const Clock::time_point begin = Clock::now();
    // Pieces as large as the buffers: it is the sockets that are measured, not memory.
    for (int64_t i = 0; i < options_.stream_mib; ++i) {
      const size_t out_bytes = first_ || back ? out_.size() : 0;
      const size_t in_bytes = !first_ || back ? in_.size() : 0;
      LOCKSTEP_RETURN_IF_ERROR(socket->Exchange(out_.data(), out_bytes, in_.data(), in_bytes));
    }
    LOCKSTEP_RETURN_IF_ERROR(socket->Exchange(&byte, 1, &byte, 1));
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    return static_cast<double>(options_.stream_mib) * static_cast<double>(out_.size()) / seconds / 1e9;
  }

  // Seconds one way.
  absl::StatusOr<double> PingPong(BareSocket* socket, size_t bytes) {
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < kPings; ++i) {
      if (first_) LOCKSTEP_RETURN_IF_ERROR(socket->Send(out_.data(), bytes));
      LOCKSTEP_RETURN_IF_ERROR(socket->Receive(in_.data(), bytes));
      if (!first_) LOCKSTEP_RETURN_IF_ERROR(socket->Send(out_.data(), bytes));
    }
    return std::chrono::duration<double>(Clock::now() - begin).count() / kPings / 2;
  }

  const Options options_;
  const bool first_;
  std::vector<char> out_;
  std::vector<char> in_;
};

absl::Status RunChild(const Options& options, const std::vector<uint16_t>& ports) {
  LOCKSTEP_RETURN_IF_ERROR(PinToCore(1, 2));
  Side side(options, /*first=*/false);
  for (size_t i = 0; i < ports.size(); ++i) {
    LOCKSTEP_ASSIGN_OR_RETURN(BareSocket socket, BareSocket::Connect(ports[i], options.congestion_controls[i]));
    LOCKSTEP_RETURN_IF_ERROR(side.Run(&socket));
  }
  return absl::OkStatus();
}

absl::Status RunParent(const Options& options, std::vector<BareListener>* listeners) {
  LOCKSTEP_RETURN_IF_ERROR(PinToCore(0, 2));
  Side side(options, /*first=*/true);
  for (BareListener& listener : *listeners) {
    LOCKSTEP_ASSIGN_OR_RETURN(BareSocket socket, listener.Accept());
    LOCKSTEP_RETURN_IF_ERROR(side.Run(&socket));
  }
  return absl::OkStatus();
}

int Report(const absl::Status& status) {
  if (status.ok()) return 0;
  std::fprintf(stderr, "bare_sockets: %s\n", std::string(status.message()).c_str());
  return 1;
}

int Main(int argc, char** argv) {
  Options options;
  if ((argc > 1 && (!absl::SimpleAtoi(argv[1], &options.rounds) || options.rounds < 1)) ||
      (argc > 2 && (!absl::SimpleAtoi(argv[2], &options.stream_mib) || options.stream_mib < 1))) {
    std::fprintf(stderr, "usage: bare_sockets [rounds [MiB a stream [congestion control...]]]\n");
    return 2;
  }
  if (argc > 3) options.congestion_controls.assign(argv + 3, argv + argc);
  std::vector<BareListener> listeners;
  std::vector<uint16_t> ports;
  for (const std::string& congestion_control : options.congestion_controls) {
    absl::StatusOr<BareListener> listener = BareListener::Create(congestion_control);
    if (!listener.ok()) return Report(listener.status());
    ports.push_back(listener->port());
    listeners.push_back(*std::move(listener));
  }
  const pid_t child = fork();
  if (child < 0) return Report(ErrnoStatus(errno, "fork"));
  if (child == 0) _exit(Report(RunChild(options, ports)));
  const int result = Report(RunParent(options, &listeners));
  // Whoever of the two fails closes its socket, which ends the other.
  int child_status = 0;
  waitpid(child, &child_status, 0);
  return result != 0 || child_status != 0 ? 1 : 0;
}

}  // namespace
}  // namespace bench
}  // namespace lockstep

int main(int argc, char** argv) { return lockstep::bench::Main(argc, argv); }
