// lockstep-run: its command line, and what its ranks write to it.
//
//   input = kind:u8 text        kind: bit 1 a rank's report; else bit 0 the lines of a rank, which come in pieces that end at a NUL; else
//                               words that end at a NUL

#include <algorithm>

#include "absl/strings/str_split.h"
#include "launch/launcher.h"
#include "launch/output_relay.h"
#include "launch/rank_report.h"
#include "tests/fuzz/fuzz.h"

namespace lockstep {
namespace {

constexpr size_t kLineBytesMax = 16;
constexpr absl::string_view kPrefix = "[1] ";

void ReadWords(absl::string_view text) {
  const std::vector<std::string> words = absl::StrSplit(text, '\0');
  const absl::StatusOr<LauncherFlags> flags = ParseLauncherFlags(words);
  fuzz::CheckCode(flags.status(), {absl::StatusCode::kInvalidArgument});
  if (!flags.ok() || flags->help) return;
  LOCKSTEP_CHECK(flags->options.world_size >= 1 && flags->options.grace_ms >= 0);
  // The program and all words behind it, as they are.
  const std::vector<std::string>& command = flags->options.command;
  LOCKSTEP_CHECK(!command.empty() && std::equal(command.rbegin(), command.rend(), words.rbegin()));
}

void ReadLines(absl::string_view text) {
  LinePrefixer prefixer{std::string(kPrefix), kLineBytesMax};
  std::string written;
  std::string output;
  for (const absl::string_view piece : absl::StrSplit(text, '\0')) {
    written.append(piece.data(), piece.size());
    prefixer.Append(piece, &output);
    LOCKSTEP_CHECK(output.empty() || output.back() == '\n') << "an incomplete line";
  }
  prefixer.Finish(&output);
  std::string read;
  absl::string_view rest = output;
  size_t added = 0;
  while (!rest.empty()) {
    LOCKSTEP_CHECK(rest.substr(0, kPrefix.size()) == kPrefix) << output;
    rest.remove_prefix(kPrefix.size());
    const size_t end = rest.find('\n');
    LOCKSTEP_CHECK(end != absl::string_view::npos && end <= kLineBytesMax) << output;
    read.append(rest.data(), end);
    rest.remove_prefix(end + 1);
    ++added;
  }
  written.erase(std::remove(written.begin(), written.end(), '\n'), written.end());
  LOCKSTEP_CHECK(read == written) << "bytes were lost or moved";
  LOCKSTEP_CHECK(added <= text.size());
}

}  // namespace

std::vector<std::string> fuzz::Seeds() {
  const auto words = [](std::initializer_list<const char*> list) {
    std::string text(1, '\0');
    for (const char* const word : list) text += (text.size() > 1 ? std::string(1, '\0') : "") + word;
    return text;
  };
  const std::string report =
      "\2{\"message\": {\"message\": \"m\", \"extraInfo\": {\"py_callstack\": \"a\\nb\", \"timestamp\": \"1\"}}, "
      "\"lockstep\": {\"rank\": 1, \"world_size\": 4, \"failed_rank\": 2, \"time_ns\": 5, \"where\": \"f:1\"}}";
  return {words({"-n", "4", "program", "-n"}),
          words({"--nproc=2", "--grace=1.5", "--foreground", "0", "--", "-p"}),
          words({"-n", "2", "--store=tcp://h:1", "--job-id", "j", "p"}),
          words({"--help"}),
          report,
          std::string("\1one\ntwo\0 three\n\nno end, and longer than a line may be", 54)};
}

}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  lockstep::fuzz::Input input(data, size);
  const uint8_t kind = input.Take<uint8_t>();
  if (kind & 2) {
    const auto report = lockstep::ParseRankReport(input.Rest(), 1, 4);
    LOCKSTEP_CHECK(!report.has_value() || report->blames.value_or(0) < 4);
    return 0;
  }
  kind & 1 ? lockstep::ReadLines(input.Rest()) : lockstep::ReadWords(input.Rest());
  return 0;
}
