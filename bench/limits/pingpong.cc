#include "bench/limits/pingpong.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "bench/compare_command.h"
#include "bench/limits/bare_sockets.h"
#include "comm/spawn.h"

namespace lockstep {
namespace bench {
namespace {

constexpr char kProgram[] = "fi_pingpong";
constexpr double kRunSeconds = 1;
constexpr int64_t kFirstMessages = 500;
constexpr int64_t kFirstBytes = int64_t{256} << 20;  // which the first run moves at most
constexpr int64_t kMessagesMax = 1'000'000;
constexpr auto kPause = std::chrono::milliseconds(10);
// Of its table: bytes #sent #ack total time MB/sec usec/xfer Mxfers/sec.
constexpr size_t kColumns = 8;
constexpr size_t kMicroseconds = 6;

}  // namespace

absl::Status Pingpong::Installed() {
  if (FindProgram(kProgram).ok()) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat(kProgram, " is not installed: apt-get install --no-install-recommends libfabric-bin"));
}

absl::StatusOr<Pingpong::Run> Pingpong::Plan(int64_t bytes) const {
  Run run;
  LOCKSTEP_ASSIGN_OR_RETURN(const BareListener listener, BareListener::Create(/*congestion_control=*/"", host_));
  run.port = listener.port();
  const auto known = fastest_.find(bytes);
  run.messages = known == fastest_.end() ? std::min(kFirstMessages, kFirstBytes / std::max<int64_t>(bytes, 1))
                                         : static_cast<int64_t>(kRunSeconds / 2 / known->second);
  run.messages = std::clamp<int64_t>(run.messages, 1, kMessagesMax);
  return run;
}

absl::StatusOr<double> Pingpong::Play(const Run& run, bool serves, int64_t bytes, Deadline deadline) {
  std::vector<std::string> words = {kProgram, "-p", provider_, "-e", "rdm", "-m", "tagged"};
  words.insert(words.end(), {"-I", absl::StrCat(run.messages), "-S", absl::StrCat(bytes)});
  words.insert(words.end(), {serves ? "-B" : "-P", absl::StrCat(run.port)});
  if (!serves) words.push_back(host_);
  absl::StatusOr<std::string> text = RunCommand(words, deadline);
  // Until the side that serves is there.
  while (!text.ok() && absl::StrContains(text.status().message(), "Connection refused") && !deadline.passed()) {
    std::this_thread::sleep_for(kPause);
    text = RunCommand(words, deadline);
  }
  LOCKSTEP_RETURN_IF_ERROR(text.status());
  LOCKSTEP_ASSIGN_OR_RETURN(const double microseconds, ParsePingpong(*text));
  const double seconds = microseconds * 1e-6;
  double& fastest = fastest_.try_emplace(bytes, seconds).first->second;
  fastest = std::min(fastest, seconds);
  return seconds;
}

absl::StatusOr<double> ParsePingpong(absl::string_view text) {
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<absl::string_view> columns = absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    double microseconds = 0;
    if (columns.size() == kColumns && absl::SimpleAtod(columns[kMicroseconds], &microseconds) && microseconds > 0) {
      return microseconds;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(kProgram, " told no time: ", text.substr(0, 300)));
}

}  // namespace bench
}  // namespace lockstep
