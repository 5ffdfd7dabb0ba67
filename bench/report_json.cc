#include "bench/report_json.h"

#include <nlohmann/json.hpp>

#include "bench/bandwidth.h"

namespace lockstep {
namespace bench {
namespace {

using Json = nlohmann::ordered_json;

Json ToJson(const Row& row, const Measurement& measurement, int ranks) {
  const double algbw = AlgorithmBandwidth(row.size.bytes, measurement.seconds);
  return {{"time_us", measurement.seconds * 1e6},
          {"algbw_gbps", algbw},
          {"busbw_gbps", algbw * BusFactor(row.exercise, ranks)},
          {"wrong", measurement.wrong},
          {"iterations", measurement.iterations}};
}

Json ToJson(const Row& row, int ranks) {
  return {{"collective", Name(row.exercise)},
          {"size_bytes", row.size.bytes},
          {"count", row.size.own_count},
          {"dtype", row.exercise.has_data() ? Name(row.dtype) : "none"},
          {"op", row.exercise.reduces() ? Name(row.op) : "none"},
          {"root", row.exercise.has_root() ? row.root.value() : -1},
          {"out_of_place", ToJson(row, row.out_of_place, ranks)},
          {"in_place", row.in_place.has_value() ? ToJson(row, *row.in_place, ranks) : Json()}};
}

Json ToJson(const Quartiles& quartiles) {
  return {{"low", quartiles.low}, {"median", quartiles.median}, {"high", quartiles.high}};
}

Json ToJson(const LimitRow& row) {
  const bool one_way = row.one_way_seconds.has_value();
  const bool pingpong = row.pingpong_seconds.has_value();
  return {{"size_bytes", row.bytes},
          {"lockstep_us", row.lockstep_seconds * 1e6},
          {"both_ways_us", row.exchange_seconds * 1e6},
          {"both_ways_ratio", ToJson(row.exchange_ratio)},
          {"one_way_us", one_way ? Json(*row.one_way_seconds * 1e6) : Json()},
          {"one_way_ratio", one_way ? ToJson(row.one_way_ratio) : Json()},
          {"fi_pingpong_us", pingpong ? Json(*row.pingpong_seconds * 1e6) : Json()},
          {"fi_pingpong_ratio", pingpong ? ToJson(row.pingpong_ratio) : Json()}};
}

}  // namespace

std::string ReportJson(const Report& report) {
  Json json = {{"facts", Json::object()}, {"ranks", report.ranks}, {"rows", Json::array()}, {"limits", Json::array()}};
  for (const auto& fact : report.facts) json["facts"][fact.first] = fact.second;
  for (const Row& row : report.rows) json["rows"].push_back(ToJson(row, report.ranks));
  for (const LimitRow& row : report.limits) json["limits"].push_back(ToJson(row));
  // What is not UTF-8 (in a fact) is replaced rather than thrown about.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace bench
}  // namespace lockstep
