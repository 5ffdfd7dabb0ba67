#include "bench/overlap/process_memory.h"

#include <fstream>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/status.h"

namespace lockstep {
namespace bench {
namespace {

// A line of these files: "VmRSS:      1234 kB".
absl::StatusOr<int64_t> BytesIn(const char* path, absl::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    absl::string_view rest = line;
    int64_t kib = 0;
    if (!absl::ConsumePrefix(&rest, name) || !absl::ConsumePrefix(&rest, ":")) continue;
    if (absl::ConsumeSuffix(&rest, "kB") && absl::SimpleAtoi(absl::StripAsciiWhitespace(rest), &kib)) return kib * 1024;
  }
  return absl::UnavailableError(absl::StrCat("no ", name, " in ", path));
}

}  // namespace

absl::StatusOr<ProcessMemory> MeasureProcessMemory() {
  ProcessMemory memory;
  LOCKSTEP_ASSIGN_OR_RETURN(memory.resident_bytes, BytesIn("/proc/self/status", "VmRSS"));
  LOCKSTEP_ASSIGN_OR_RETURN(memory.peak_resident_bytes, BytesIn("/proc/self/status", "VmHWM"));
  LOCKSTEP_ASSIGN_OR_RETURN(memory.proportional_bytes, BytesIn("/proc/self/smaps_rollup", "Pss"));
  return memory;
}

absl::Status ResetPeakMemory() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5";
  file.close();
  return file ? absl::OkStatus() : absl::UnavailableError("cannot write /proc/self/clear_refs");
}

}  // namespace bench
}  // namespace lockstep
