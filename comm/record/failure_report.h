// Reports that a communicator of this process failed: by a log line, by its flight records in a file, and for the launcher by the
// reason and the rank to blame in the file that TORCHELASTIC_ERROR_FILE names (docs/wire_formats.md, "Error file").
//
// Thread-safe.

#ifndef COMM_RECORD_FAILURE_REPORT_H_
#define COMM_RECORD_FAILURE_REPORT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/rank.h"

namespace lockstep {

// A process in its world. launched_as has, for each rank of the world, the rank that lockstep-run gave that process, or -1. Without it
// (null) the launcher follows the blame only if it started a world of that size with this process as that rank.
struct PlaceInWorld {
  Rank rank;
  int size = 1;
  const std::vector<int>* launched_as = nullptr;
};

// Logs "`what`: `cause`" and where the flight records are: at level error if this process has not logged the cause yet, else at level
// info. Under lockstep-run, which prints a line for each rank at the end, only the first four ranks of the job log it at level error.
// Appends all `records` to a file of this process in LOCKSTEP_REPORT_FOLDER (else TMPDIR, else /tmp), at most 64 times. At level info the
// newest records are logged too. Then calls TellLauncher.
void ReportFailure(PlaceInWorld place, const std::string& what, const absl::Status& cause, const std::string& records);

// Writes the cause to the error file, if the launcher names one and none is written yet. An exception that ends a Python program is
// written there later.
void TellLauncher(PlaceInWorld place, const absl::Status& cause);

// Removes what TellLauncher wrote: the program makes a new world, so it has survived that failure.
void TakeBackFromLauncher();

}  // namespace lockstep

#endif  // COMM_RECORD_FAILURE_REPORT_H_
