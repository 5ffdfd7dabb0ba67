#include "reducer/report/trace.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <ratio>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/env.h"
#include "base/limits.h"
#include "base/status.h"

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

constexpr absl::string_view kEnd = "\n]\n";
constexpr absl::string_view kExtension = ".json";
// Reducers of one process that trace at a time; more is a mistake in the path.
constexpr int kNamesMax = 100;

bool IsFolder(const std::string& path) {
  struct stat facts = {};
  return absl::EndsWith(path, "/") || (stat(path.c_str(), &facts) == 0 && S_ISDIR(facts.st_mode));
}

// 0, or what went wrong.
int WriteAll(int file, absl::string_view text, int64_t offset) {
  if (!WhyNoFile(offset + text.size()).empty()) return EFBIG;
  while (!text.empty()) {
    const ssize_t written = pwrite(file, text.data(), text.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return written < 0 ? errno : ENOSPC;
    text.remove_prefix(static_cast<size_t>(written));
    offset += written;
  }
  return 0;
}

// Nothing when another has it.
absl::StatusOr<absl::optional<UniqueFd>> OpenLocked(const std::string& name) {
  UniqueFd file(open(name.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
  if (!file.valid()) return ErrnoStatus(errno, absl::StrCat("cannot open the trace ", name));
  // A file system without locks is no reason to have no trace.
  if (flock(file.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return absl::optional<UniqueFd>();
  if (ftruncate(file.get(), 0) != 0) return ErrnoStatus(errno, absl::StrCat("cannot empty the trace ", name));
  return absl::optional<UniqueFd>(std::move(file));
}

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

std::string TraceFile::FileName(absl::string_view path, Rank rank) {
  const std::string prefix(path);
  const bool needs_slash = IsFolder(prefix) && !absl::EndsWith(prefix, "/");
  return absl::StrCat(prefix, needs_slash ? "/" : "", "rank", rank.value(), kExtension);
}

absl::StatusOr<std::unique_ptr<TraceFile>> TraceFile::Open(absl::string_view trace_path, Rank rank, int64_t steps_max) {
  const std::string path = trace_path.empty() ? GetEnv("LOCKSTEP_TRACE").value_or("") : std::string(trace_path);
  if (path.empty()) return std::unique_ptr<TraceFile>();
  const std::string first = FileName(path, rank);
  for (int n = 1; n <= kNamesMax; ++n) {
    const std::string stem = first.substr(0, first.size() - kExtension.size());
    std::string name = n == 1 ? first : absl::StrCat(stem, ".", n, kExtension);
    LOCKSTEP_ASSIGN_OR_RETURN(absl::optional<UniqueFd> file, OpenLocked(name));
    if (!file.has_value()) continue;
    std::unique_ptr<TraceFile> trace(new TraceFile(std::move(name), *std::move(file), rank, steps_max));
    LOCKSTEP_RETURN_IF_ERROR(trace->Write(absl::StrCat("[\n", TraceNames(rank))));
    return trace;
  }
  return absl::AlreadyExistsError(absl::StrCat("the trace ", first, " and ", kNamesMax - 1, " after it are in use"));
}

TraceFile::TraceFile(std::string name, UniqueFd file, Rank rank, int64_t steps_max)
    : name_(std::move(name)), rank_(rank), file_(std::move(file)), steps_left_(steps_max) {}

absl::Status TraceFile::Append(const StepRecord& record) {
  if (!file_.valid() || steps_left_ == 0) return absl::OkStatus();
  const std::string events = TraceEvents(record, rank_);
  if (events.empty()) return absl::OkStatus();
  --steps_left_;
  return Write(absl::StrCat(",\n", events));
}

absl::Status TraceFile::Write(absl::string_view text) {
  const int error = WriteAll(file_.get(), absl::StrCat(text, kEnd), end_);
  if (error == 0) {
    end_ += static_cast<int64_t>(text.size());
    return absl::OkStatus();
  }
  // What was there fits in there. Should even that fail, the array has no end, which it need not have.
  const absl::string_view rest = end_ == 0 ? "" : kEnd;
  (void)WriteAll(file_.get(), rest, end_);
  (void)!ftruncate(file_.get(), end_ + static_cast<int64_t>(rest.size()));
  file_.reset();
  return ErrnoStatus(error, absl::StrCat("cannot write the trace ", name_, ", which ends here"));
}

}  // namespace lockstep
