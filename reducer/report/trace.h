// A rank's trace on disk: step records as trace events, for ui.perfetto.dev and chrome://tracing.
//
//   file   = "[\n" names { ",\n" events-of-a-step } "\n]\n"
//   events = event { ",\n" event }
//   event  = { "name", "ph", "pid", "tid", "ts", "dur", "cat", "args" }   one JSON object a line, separated by commas
//   ph     = "X" (a slice of dur microseconds from ts on) | "i" (an instant, at ts) | "M" (a process's or track's name)
//   pid    = the rank
//   tid    = 0 backward | 1 copy in | 2 collective | 3 copy out | 4 optimizer
//   args   = "step"; of a bucket's events "bucket", and of its collective "bytes"
//
// The format is the JSON Array Format of "Trace Event Format"
// (https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU). The array is complete after every
// step: one pwrite puts a step over the closing bracket of the last one, so a process that dies leaves valid JSON. A
// file that is cut within a step can still be read: the format makes the closing bracket optional, "to support tracing
// systems that can not cleanly finish writing the trace".
//
// Timestamps are those of the steady clock, CLOCK_MONOTONIC. All processes of a host share it, so traces of its ranks
// can be joined (jq -s add rank*.json). Times of different hosts cannot be compared. Slices of a track do not overlap,
// as the format asks, since a stream executes one thing at a time.

#ifndef REDUCER_REPORT_TRACE_H_
#define REDUCER_REPORT_TRACE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/fork.h"
#include "base/rank.h"
#include "reducer/report/record.h"

namespace lockstep {

// The events that name the process ("rank 0") and its tracks.
std::string TraceNames(Rank rank);

// The events of a step; empty for an empty record. A stage that did not end has no event.
std::string TraceEvents(const StepRecord& record, Rank rank);

// Externally synchronised. The file is locked (flock) while it is open: a second reducer with the same path and rank,
// in this process or in another, takes the next name that is free: rank0.json, rank0.2.json, ...
class TraceFile {
 public:
  // Later steps are not written, so that a long run does not fill the disk: a step of 30 buckets is about 20 KB.
  static constexpr int64_t kStepsMax = 1000;

  // In a folder "rank<k>.json"; any other path is a prefix: "<path>rank<k>.json". A path that ends with a slash is a
  // folder.
  static std::string FileName(absl::string_view path, Rank rank);

  // Makes or empties the file of `trace_path` or, if that is empty, of LOCKSTEP_TRACE. Null if both are empty. Returns
  // errors of the file system, with the file's name.
  static absl::StatusOr<std::unique_ptr<TraceFile>> Open(absl::string_view trace_path, Rank rank,
                                                         int64_t steps_max = kStepsMax);

  // Writes a step by one system call, which may wait for the disk. An error is returned once and ends the trace before
  // that step. Later calls do nothing, and so do calls after `steps_max` steps.
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

#endif  // REDUCER_REPORT_TRACE_H_
