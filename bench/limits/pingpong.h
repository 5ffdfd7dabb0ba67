// Pingpong: libfabric's own program fi_pingpong, by which a provider is commonly measured, between two processes of ours.
//
// Both sides run the program, which sends a tagged message there and back so many times and tells how long one way took. It counts from
// before the first message, for which a provider may take 20 ms to connect; so a run lasts a second, of which that is 2 %.
// Not thread-safe.

#ifndef BENCH_LIMITS_PINGPONG_H_
#define BENCH_LIMITS_PINGPONG_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"

namespace lockstep {
namespace bench {

class Pingpong {
 public:
  // Whether the program is there: NOT_FOUND, with what to type to get it on Debian and Ubuntu.
  static absl::Status Installed();

  // `provider` as libfabric calls it; `host` is an IPv4 address of the side that serves.
  Pingpong(std::string provider, std::string host) : provider_(std::move(provider)), host_(std::move(host)) {}

  // What a run may take.
  static constexpr int64_t kRunMsMax = 20'000;

  // What both sides are to do alike.
  struct Run {
    uint16_t port = 0;  // where the side that serves is met
    int64_t messages = 0;
  };
  // On the side that serves: a port that is free at this moment, and as many messages as take 1 s, going by earlier runs of as many
  // bytes, or a few where there was none.
  absl::StatusOr<Run> Plan(int64_t bytes) const;
  // On both sides at once: the seconds of a message one way. Errors of RunCommand (bench/compare_command.h); the side that serves
  // waits for the other one until the deadline.
  absl::StatusOr<double> Play(const Run& run, bool serves, int64_t bytes, Deadline deadline);

 private:
  const std::string provider_;
  const std::string host_;
  std::map<int64_t, double> fastest_;  // by bytes
};

// The microseconds of one way in what the program printed. INVALID_ARGUMENT with its first lines where there are none.
absl::StatusOr<double> ParsePingpong(absl::string_view text);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_LIMITS_PINGPONG_H_
