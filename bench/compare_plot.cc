#include "bench/compare_plot.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/types/optional.h"
#include "bench/sweep.h"

namespace lockstep {
namespace bench {
namespace {

// Of one panel, in pixels. The legend stands right of the axes.
constexpr double kPanelWidth = 900;
constexpr double kPanelHeight = 430;
constexpr double kLeft = 70;
constexpr double kRight = 690;
constexpr double kTop = 40;
constexpr double kBottom = 380;
constexpr double kLabelWidth = 28;  // labels that are nearer to each other would overlap

// Okabe and Ito's colours, which the colour-blind can tell apart, and four more; Lockstep's are the first.
constexpr const char* kColours[] = {"#000000", "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#56b4e9",
                                    "#e69f00", "#7f7f7f", "#8c564b", "#9467bd", "#b8b000"};

std::string Escaped(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

std::string Text(double x, double y, const std::string& anchor, const std::string& text) {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor, Escaped(text));
}

std::string GridLine(double x1, double y1, double x2, double y2) {
  return absl::StrFormat("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#dddddd\"/>\n", x1, y1, x2,
                         y2);
}

// From values to pixels, in powers.
class Axis {
 public:
  Axis(double low, double high, double from, double to)
      : low_(std::log10(low)), high_(std::log10(high)), from_(from), to_(to) {}
  double At(double value) const {
    const double part = high_ > low_ ? (std::log10(value) - low_) / (high_ - low_) : 0.5;
    return from_ + part * (to_ - from_);
  }

 private:
  const double low_;
  const double high_;
  const double from_;
  const double to_;
};

// The whole powers of ten, as exponents, between which all bandwidths lie.
std::pair<int, int> Decades(const ContestResult& contest) {
  double low = 1;
  double high = 1;
  bool any = false;
  for (const ContenderResult& contender : contest.contenders) {
    for (size_t size = 0; size < contest.sizes.size(); ++size) {
      const absl::optional<double> seconds = MedianSeconds(contender, size);
      if (!seconds.has_value()) continue;
      const double bandwidth = BusBandwidth(contest.sizes[size], contest.ranks, *seconds);
      if (bandwidth <= 0) continue;  // one rank moves nothing
      low = any ? std::min(low, bandwidth) : bandwidth;
      high = any ? std::max(high, bandwidth) : bandwidth;
      any = true;
    }
  }
  const int first = static_cast<int>(std::floor(std::log10(low)));
  return {first, std::max(first + 1, static_cast<int>(std::ceil(std::log10(high))))};
}

std::string Style(ContenderKind kind, size_t index) {
  // When the colours have run out they begin again, dotted.
  const char* const dashes = kind == ContenderKind::kLimit  ? " stroke-dasharray=\"6 4\""
                             : index >= std::size(kColours) ? " stroke-dasharray=\"2 3\""
                                                            : "";
  return absl::StrFormat("stroke=\"%s\" stroke-width=\"%s\"%s", kColours[index % std::size(kColours)],
                         kind == ContenderKind::kLockstep ? "3" : "1.5", dashes);
}

class Panel {
 public:
  explicit Panel(const ContestResult& contest)
      : contest_(contest),
        decades_(Decades(contest)),
        x_(static_cast<double>(contest.sizes.front()), static_cast<double>(contest.sizes.back()), kLeft, kRight),
        y_(std::pow(10, decades_.first), std::pow(10, decades_.second), kBottom, kTop) {}

  std::string Draw() const {
    std::string svg = Text((kLeft + kRight) / 2, kTop - 16, "middle",
                           absl::StrCat("all-reduce over ", TransportText(contest_.transport), ", ", contest_.ranks,
                                        " ranks: bus bandwidth (GB/s) over size (bytes)"));
    absl::StrAppend(&svg, Axes());
    // Lockstep first, so that it has the first colours whatever the order of contenders.
    size_t index = 0;
    for (const bool lockstep : {true, false}) {
      for (const ContenderResult& contender : contest_.contenders) {
        if ((contender.kind == ContenderKind::kLockstep) != lockstep) continue;
        absl::StrAppend(&svg, Line(contender, index), Legend(contender, index));
        ++index;
      }
    }
    return svg;
  }

 private:
  std::string Axes() const {
    std::string svg;
    for (int decade = decades_.first; decade <= decades_.second; ++decade) {
      const double value = std::pow(10, decade);
      absl::StrAppend(&svg, GridLine(kLeft, y_.At(value), kRight, y_.At(value)),
                      Text(kLeft - 8, y_.At(value) + 4, "end", absl::StrFormat("%g", value)));
    }
    double labelled = 0;
    for (const int64_t size : contest_.sizes) {
      const double x = x_.At(static_cast<double>(size));
      absl::StrAppend(&svg, GridLine(x, kTop, x, kBottom));
      if (x - labelled < kLabelWidth) continue;
      absl::StrAppend(&svg, Text(x, kBottom + 18, "middle", ByteCountText(size)));
      labelled = x;
    }
    return svg;
  }

  std::string Line(const ContenderResult& contender, size_t index) const {
    std::string points;
    for (size_t size = 0; size < contest_.sizes.size(); ++size) {
      const absl::optional<double> seconds = MedianSeconds(contender, size);
      if (!seconds.has_value()) continue;
      const double bandwidth = BusBandwidth(contest_.sizes[size], contest_.ranks, *seconds);
      if (bandwidth <= 0) continue;
      absl::StrAppendFormat(&points, "%.1f,%.1f ", x_.At(static_cast<double>(contest_.sizes[size])), y_.At(bandwidth));
    }
    if (points.empty()) return "";
    points.pop_back();
    return absl::StrFormat("<polyline fill=\"none\" %s points=\"%s\"/>\n", Style(contender.kind, index), points);
  }

  static std::string Legend(const ContenderResult& contender, size_t index) {
    const double y = kTop + 10 + 22 * static_cast<double>(index);
    return absl::StrFormat("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" %s/>\n", kRight + 20, y, kRight + 56,
                           y, Style(contender.kind, index)) +
           Text(kRight + 64, y + 4, "start",
                contender.dropped.empty() ? contender.name : contender.name + " (dropped)");
  }

  const ContestResult& contest_;
  const std::pair<int, int> decades_;
  const Axis x_;
  const Axis y_;
};

}  // namespace

std::string ComparisonPlot(const std::vector<ContestResult>& contests) {
  const double height = kPanelHeight * static_cast<double>(contests.size());
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
      kPanelWidth, height, kPanelWidth, height);
  for (size_t i = 0; i < contests.size(); ++i) {
    absl::StrAppendFormat(&svg, "<g transform=\"translate(0 %.0f)\">\n", kPanelHeight * static_cast<double>(i));
    absl::StrAppend(&svg, Panel(contests[i]).Draw(), "</g>\n");
  }
  return svg + "</svg>\n";
}

}  // namespace bench
}  // namespace lockstep
