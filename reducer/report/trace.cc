#include "reducer/report/trace.h"

#include <array>
#include <chrono>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <ratio>

#include "absl/strings/str_cat.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kBackwardTrack = 0;
// Behind it one for each stage, in their order.
constexpr std::array<const char*, 1 + kStageCount> kTracks = {"backward", "copy in", "collective", "copy out",
                                                              "optimizer"};

int Track(Stage stage) { return 1 + static_cast<int>(stage); }

double Microseconds(StepClock::duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

void Append(const Json& event, std::string* events) {
  if (!events->empty()) events->append(",\n");
  events->append(event.dump());
}

Json Metadata(const char* what, Rank rank, int track, Json args) {
  return {{"name", what}, {"ph", "M"}, {"pid", rank.value()}, {"tid", track}, {"args", std::move(args)}};
}

// Writes the events of one step.
class StepWriter {
 public:
  StepWriter(const StepRecord& record, Rank rank) : record_(record), rank_(rank) {}

  std::string Write() {
    Slice("forward", kBackwardTrack, {record_.forward_begin, record_.backward_begin}, Args());
    Slice("backward", kBackwardTrack, {record_.backward_begin, record_.end_called}, Args());
    Slice("end of backward", kBackwardTrack, {record_.end_called, record_.end}, Args());
    for (size_t b = 0; b < record_.buckets.size(); ++b) Bucket(b, record_.buckets[b]);
    return std::move(events_);
  }

 private:
  Json Args() const { return {{"step", record_.step}}; }

  void Bucket(size_t index, const BucketRecord& bucket) {
    const std::string name = absl::StrCat("bucket ", index);
    Json args = Args();
    args["bucket"] = index;
    Instant(name + " ready", bucket.ready, args);
    Instant(name + " launched", bucket.launched, args);
    for (const Stage stage : {Stage::kCopyIn, Stage::kCollective, Stage::kCopyOut, Stage::kOptimizer}) {
      Json of_stage = args;
      if (stage == Stage::kCollective) of_stage["bytes"] = bucket.bytes;
      Slice(name, Track(stage), bucket.at(stage), std::move(of_stage));
    }
  }

  void Slice(const std::string& name, int track, const StepInterval& interval, Json args) {
    if (!interval.recorded()) return;
    Append({{"name", name},
            {"cat", kTracks[track]},
            {"ph", "X"},
            {"pid", rank_.value()},
            {"tid", track},
            {"ts", Microseconds(interval.begin.time_since_epoch())},
            {"dur", Microseconds(interval.end - interval.begin)},
            {"args", std::move(args)}},
           &events_);
  }

  void Instant(const std::string& name, StepTime time, const Json& args) {
    if (!IsRecorded(time)) return;
    Append({{"name", name},
            {"cat", kTracks[kBackwardTrack]},
            {"ph", "i"},
            {"s", "t"},  // drawn on its track alone
            {"pid", rank_.value()},
            {"tid", kBackwardTrack},
            {"ts", Microseconds(time.time_since_epoch())},
            {"args", args}},
           &events_);
  }

  const StepRecord& record_;
  const Rank rank_;
  std::string events_;
};

}  // namespace

std::string TraceNames(Rank rank) {
  std::string events;
  Append(Metadata("process_name", rank, 0, {{"name", absl::StrCat("rank ", rank.value())}}), &events);
  Append(Metadata("process_sort_index", rank, 0, {{"sort_index", rank.value()}}), &events);
  for (size_t track = 0; track < kTracks.size(); ++track) {
    const int tid = static_cast<int>(track);
    Append(Metadata("thread_name", rank, tid, {{"name", kTracks[track]}}), &events);
    Append(Metadata("thread_sort_index", rank, tid, {{"sort_index", tid}}), &events);
  }
  return events;
}

std::string TraceEvents(const StepRecord& record, Rank rank) { return StepWriter(record, rank).Write(); }

}  // namespace lockstep
