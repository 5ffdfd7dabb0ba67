#include "reducer/report/summary.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "reducer/report/statistics.h"

namespace lockstep {
namespace {

constexpr size_t kRowsMax = 20;
constexpr int kColumns = 24;

// Milliseconds since backward began that a drawing covers, and where backward ends in it.
struct Scale {
  double length_ms = 0;
  double backward_ms = 0;
};

Scale ScaleOf(const StepRecord& record) {
  Scale scale;
  scale.backward_ms = std::max(0.0, SinceBackwardBegan(record, record.end_called));
  scale.length_ms = scale.backward_ms;
  for (const BucketRecord& bucket : record.buckets) {
    scale.length_ms = std::max(scale.length_ms, SinceBackwardBegan(record, bucket.done()));
  }
  return scale;
}

std::string Draw(const BucketStatistics& bucket, const Scale& scale) {
  std::string columns(kColumns, '.');
  if (scale.length_ms <= 0) return columns;
  const double column_ms = scale.length_ms / kColumns;
  for (int c = 0; c < kColumns && c * column_ms < scale.backward_ms; ++c) columns[c] = '-';
  if (bucket.wire_end_ms == BucketStatistics::kNotRecorded) return columns;
  // However short it was, it has a column.
  const int begin = std::min(static_cast<int>(bucket.wire_begin_ms / column_ms), kColumns - 1);
  const int end = std::max(begin + 1, static_cast<int>(std::ceil(bucket.wire_end_ms / column_ms)));
  for (int c = begin; c < std::min(end, kColumns); ++c) columns[c] = '#';
  return columns;
}

std::string Cell(double ms) {
  return ms == BucketStatistics::kNotRecorded ? absl::StrFormat("%8s", "-") : absl::StrFormat("%8.2f", ms);
}

std::string Row(size_t index, size_t parameters, const BucketStatistics& bucket, const Scale& scale) {
  return absl::StrCat(absl::StrFormat("%6d %6d %12d ", index, parameters, bucket.bytes), Cell(bucket.ready_ms), " ",
                      Cell(bucket.launched_ms), " ", Cell(bucket.wire_begin_ms), " -", Cell(bucket.wire_end_ms), " ",
                      Cell(bucket.done_ms), "  |", Draw(bucket, scale), "|\n");
}

}  // namespace

std::string Summary(const StepRecord& record, const BucketPlan& plan, Rank rank, int world_size) {
  const ReducerStatistics total = Statistics(record);
  std::string text = absl::StrFormat(
      "step %d, rank %d of %d: backward %.2f ms, communication %.2f ms (%.2f hidden, %.2f exposed)\n"
      "%d of %d buckets launched in backward, %d bytes reduced; times in ms since backward began\n\n"
      "bucket params        bytes    ready   launch       on the wire     done  |%-*s|\n",
      record.step, rank.value(), world_size, total.backward_ms, total.communication_ms, total.hidden_ms(),
      total.exposed_ms, total.buckets_launched_in_backward, record.buckets.size(), total.bytes_reduced, kColumns,
      "- backward, # on wire");
  const Scale scale = ScaleOf(record);
  const size_t count = record.buckets.size();
  for (size_t b = 0; b < count; ++b) {
    if (count > kRowsMax && b == kRowsMax / 2) {
      b = count - kRowsMax / 2;
      absl::StrAppend(&text, "   ... ", count - kRowsMax, " more\n");
    }
    absl::StrAppend(&text, Row(b, plan.buckets[b].slots.size(), Statistics(record, b), scale));
  }
  return text;
}

}  // namespace lockstep
