// Step records as trace events, for ui.perfetto.dev and chrome://tracing.
//
//   event  = { "name", "ph", "pid", "tid", "ts", "dur", "cat", "args" }   one JSON object a line, separated by commas
//   ph     = "X" (a slice of dur microseconds from ts on) | "i" (an instant, at ts) | "M" (a process's or track's name)
//   pid    = the rank
//   tid    = 0 backward | 1 copy in | 2 collective | 3 copy out | 4 optimizer
//   args   = "step"; of a bucket's events "bucket", and of its collective "bytes"
//
// The format is the JSON Array Format of "Trace Event Format"
// (https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU).
//
// Timestamps are the steady clock's as they are: CLOCK_MONOTONIC, which all processes of a host share, so that traces
// of its ranks may be put side by side (jq -s add rank*.json). Between hosts it means nothing. Slices of a track do
// not overlap, as the format asks, since a stream carries out one thing after the other.

#ifndef REDUCER_REPORT_TRACE_H_
#define REDUCER_REPORT_TRACE_H_

#include <string>

#include "base/rank.h"
#include "reducer/report/step_record.h"

namespace lockstep {

// The events that name the process ("rank 0") and its tracks.
std::string TraceNames(Rank rank);

// The events of a step; empty for a record in which nothing is. Nothing is drawn of a stage that did not end.
std::string TraceEvents(const StepRecord& record, Rank rank);

}  // namespace lockstep

#endif  // REDUCER_REPORT_TRACE_H_
