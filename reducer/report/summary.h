// One step as a text of one screen, for people: when each bucket was ready, launched, on the wire and done.
//
//   step 12, rank 0 of 4: backward 8.00 ms, communication 6.00 ms (4.00 hidden, 2.00 exposed)
//   1 of 2 buckets launched in backward, 2097152 bytes reduced; times in ms since backward began
//
//   bucket params        bytes    ready   launch       on the wire     done  |- backward, # on wire   |
//        0      3      1048576     1.00     1.25     2.00 -    4.00     4.50  |----####--------........|
//
// A drawing goes from the beginning of backward to when the last bucket was done: "#" while this bucket was on the
// wire, otherwise "-" in backward and "." after it.

#ifndef REDUCER_REPORT_SUMMARY_H_
#define REDUCER_REPORT_SUMMARY_H_

#include <string>

#include "base/rank.h"
#include "reducer/plan/bucket_plan.h"
#include "reducer/report/step_record.h"

namespace lockstep {

// The record's buckets are the plan's. Of more than 20 buckets, the first and the last ten.
std::string Summary(const StepRecord& record, const BucketPlan& plan, Rank rank, int world_size);

}  // namespace lockstep

#endif  // REDUCER_REPORT_SUMMARY_H_
