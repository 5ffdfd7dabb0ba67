// RankReport: the reason that a rank gives before it ends, in a file of a folder that the launcher makes for the job
// (docs/wire_formats.md, "Error file").

#ifndef LAUNCH_RANK_REPORT_H_
#define LAUNCH_RANK_REPORT_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace lockstep {

struct RankReport {
  std::string message;    // "ValueError: bad", one line
  std::string traceback;  // several lines; empty if no exception is reported
  int64_t time_ns = 0;    // Unix time
  int64_t pid = 0;        // of the process that wrote it; 0: unknown
  absl::optional<int> blames;
};

// RETURNS  nullopt if `text` is no error file. If the report is about another world than that of `rank` in `world_size`, and does not say
//          which rank of this one it blames, its `blames` is nullopt
absl::optional<RankReport> ParseRankReport(absl::string_view text, int rank, int world_size);

// A new folder in LOCKSTEP_REPORT_FOLDER, TMPDIR or /tmp.
class ReportFolder {
 public:
  static absl::StatusOr<ReportFolder> Create();
  // The value of LOCKSTEP_REPORT_FOLDER for the ranks.
  const std::string& path() const { return path_; }
  // The value of TORCHELASTIC_ERROR_FILE for a rank.
  std::string ErrorFile(int rank) const;
  absl::optional<RankReport> Read(int rank, int world_size) const;
  // Removes the folder, with what is in it.
  void Remove() const;
  // Returns whether it did.
  bool RemoveIfEmpty() const;

 private:
  explicit ReportFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace lockstep

#endif  // LAUNCH_RANK_REPORT_H_
