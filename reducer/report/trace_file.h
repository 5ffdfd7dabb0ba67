// A rank's trace on disk: the events of trace.h as a JSON array, which is complete after every step.
//
//   file = "[\n" names { ",\n" events-of-a-step } "\n]\n"
//
// A step is written by one pwrite over the closing bracket of the last one, so a process that dies leaves valid JSON.
// Were it cut in the middle of that, what is whole can still be read: the format makes the closing bracket optional,
// "to support tracing systems that can not cleanly finish writing the trace" (Trace Event Format, "JSON Array
// Format").
//
// Externally synchronised. The file is locked (flock) while it is open: a second reducer with the same path and rank,
// in this process or in another, takes the next name that is free: rank0.json, rank0.2.json, ...

#ifndef REDUCER_REPORT_TRACE_FILE_H_
#define REDUCER_REPORT_TRACE_FILE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/fork.h"
#include "base/rank.h"
#include "reducer/report/step_record.h"

namespace lockstep {

class TraceFile {
 public:
  // Later steps are not written, so that a long run does not fill the disk: a step of 30 buckets is about 20 KB.
  static constexpr int64_t kStepsMax = 1000;

  // In a folder "rank<k>.json"; any other path is a prefix: "<path>rank<k>.json". A path that ends with a slash is a
  // folder.
  static std::string FileName(absl::string_view path, Rank rank);

  // Makes the file, or empties one that is there. Null where neither `trace_path` nor, that being empty, LOCKSTEP_TRACE
  // says where. The error of the file system, with the file's name.
  static absl::StatusOr<std::unique_ptr<TraceFile>> Open(absl::string_view trace_path, Rank rank,
                                                         int64_t steps_max = kStepsMax);

  // One system call for a step; it may wait for the disk. An error is told once: the trace ends before that step, and
  // calls after it do nothing, as after `steps_max` steps.
  absl::Status Append(const StepRecord& record);

  const std::string& name() const { return name_; }

 private:
  TraceFile(std::string name, UniqueFd file, Rank rank, int64_t steps_max);

  // Writes it, and the end of the array, over the last end.
  absl::Status Write(absl::string_view text);

  const std::string name_;
  const Rank rank_;
  UniqueFd file_;  // invalid after an error
  int64_t steps_left_;
  int64_t end_ = 0;  // bytes before the end of the array
};

}  // namespace lockstep

#endif  // REDUCER_REPORT_TRACE_FILE_H_
