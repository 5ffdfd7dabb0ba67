#include "bench/table.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/bandwidth.h"

namespace lockstep {
namespace bench {
namespace {

// Microseconds in seven places.
std::string TimeText(double seconds) {
  const double us = seconds * 1e6;
  if (us >= 10'000) return absl::StrFormat("%.0f", us);
  return us >= 100 ? absl::StrFormat("%.1f", us) : absl::StrFormat("%.2f", us);
}

std::string MeasurementText(const Row& row, const Measurement& measurement, int ranks) {
  const double algbw = AlgorithmBandwidth(row.size.bytes, measurement.seconds);
  return absl::StrFormat("  %8s  %6.2f  %6.2f  %6d", TimeText(measurement.seconds), algbw,
                         algbw * BusFactor(row.exercise, ranks), measurement.wrong);
}

}  // namespace

std::string FactsText(const Report& report) {
  std::string text;
  for (const auto& fact : report.facts) absl::StrAppend(&text, "# ", fact.first, ": ", fact.second, "\n");
  return text;
}

std::string TableHeading(const Exercise& exercise) {
  std::string text = absl::StrFormat("#\n# %s\n", Name(exercise));
  absl::StrAppendFormat(&text, "# %64s  %32s\n", "out-of-place", "in-place");
  absl::StrAppendFormat(&text, "#%11s %12s %9s %10s %5s", "size", "count", "type", "redop", "root");
  for (int i = 0; i < 2; ++i) absl::StrAppendFormat(&text, "  %8s  %6s  %6s  %6s", "time", "algbw", "busbw", "#wrong");
  absl::StrAppendFormat(&text, "\n#%11s %12s %9s %10s %5s", "(B)", "(elements)", "", "", "");
  for (int i = 0; i < 2; ++i) absl::StrAppendFormat(&text, "  %8s  %6s  %6s  %6s", "(us)", "(GB/s)", "(GB/s)", "");
  return text + "\n";
}

std::string TableLine(const Row& row, int ranks) {
  std::string text = absl::StrFormat(
      "%12d %12d %9s %10s %5d", row.size.bytes, row.size.own_count, row.exercise.has_data() ? Name(row.dtype) : "none",
      row.exercise.reduces() ? Name(row.op) : "none", row.exercise.has_root() ? row.root.value() : -1);
  absl::StrAppend(&text, MeasurementText(row, row.out_of_place, ranks));
  if (row.in_place.has_value()) {
    absl::StrAppend(&text, MeasurementText(row, *row.in_place, ranks));
  } else {
    absl::StrAppendFormat(&text, "  %8s  %6s  %6s  %6s", "-", "-", "-", "-");
  }
  return text + "\n";
}

std::string LimitsHeading(const std::string& limit, bool with_pingpong) {
  const auto group = [](const char* name, const char* unit, bool units) {
    return units ? absl::StrFormat("  %12s  %7s  %13s", unit, "", "")
                 : absl::StrFormat("  %12s  %7s  %13s", name, "ratio", "quartiles");
  };
  std::string text = absl::StrFormat(
      "#\n# all_reduce in place beside %s that move the same bytes: both ways at once, and one way (half a "
      "ping-pong)\n",
      limit);
  for (const bool units : {false, true}) {
    absl::StrAppendFormat(&text, "#%11s  %12s", units ? "(B)" : "size", units ? "(us)" : "lockstep");
    for (const char* const name : {"both ways", "one way"}) absl::StrAppend(&text, group(name, "(us)", units));
    if (with_pingpong) absl::StrAppend(&text, group("fi_pingpong", "(us)", units));
    absl::StrAppend(&text, "\n");
  }
  return text;
}

std::string LimitsLine(const LimitRow& row) {
  const auto group = [](double seconds, const Quartiles& ratio) {
    return absl::StrFormat("  %12s  %7.2f  %13s", TimeText(seconds), ratio.median,
                           absl::StrFormat("%.2f - %.2f", ratio.low, ratio.high));
  };
  std::string text = absl::StrFormat("%12d  %12s", row.bytes, TimeText(row.lockstep_seconds));
  absl::StrAppend(&text, group(row.exchange_seconds, row.exchange_ratio));
  absl::StrAppend(&text, row.one_way_seconds.has_value() ? group(*row.one_way_seconds, row.one_way_ratio)
                                                         : absl::StrFormat("  %12s  %7s  %13s", "-", "-", "-"));
  if (row.pingpong_seconds.has_value()) absl::StrAppend(&text, group(*row.pingpong_seconds, row.pingpong_ratio));
  return text + "\n";
}

std::string Summary(const Report& report) {
  const uint64_t wrong = WrongElements(report);
  return absl::StrFormat("#\n# wrong elements: %d %s\n# average bus bandwidth: %.3f GB/s\n", wrong,
                         wrong == 0 ? "OK" : "FAILED", AverageBusBandwidth(report));
}

}  // namespace bench
}  // namespace lockstep
