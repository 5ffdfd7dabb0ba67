#include "bench/compare_contest.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/status.h"
#include "bench/compare_player_group.h"
#include "bench/compare_process_family.h"
#include "bench/sweep.h"

namespace lockstep {
namespace bench {
namespace {

constexpr int64_t kCallsMax = 100'000;
constexpr int64_t kFirstCalls = 3;
constexpr int64_t kQuitMs = 5000;
constexpr int64_t kCarriedBytes = 1 << 20;  // over one connection: it carries the vectors

class Contest {
 public:
  Contest(const ContestOptions& options, const std::vector<Contender>& contenders) : options_(options) {
    result_.transport = options.transport;
    result_.ranks = options.ranks;
    result_.sizes = options.sizes;
    for (const Contender& contender : contenders) {
      ContenderResult result;
      result.name = contender.name;
      result.kind = contender.kind;
      result.about = contender.about;
      result.trials.resize(options.sizes.size());
      result_.contenders.push_back(std::move(result));
      places_.push_back({&contender, nullptr});
    }
  }

  ContestResult Run() {
    for (size_t i = 0; i < places_.size() && !Interrupted(); ++i) Start(i);
    for (size_t size = 0; size < options_.sizes.size() && !Interrupted(); ++size) RunSize(size);
    for (size_t i = 0; i < places_.size(); ++i) Finish(i);
    return std::move(result_);
  }

 private:
  struct Place {
    const Contender* contender;
    std::unique_ptr<PlayerGroup> group;  // null: not in the contest any more
  };

  void RunSize(size_t size) {
    Tell(absl::StrCat(ByteCountText(options_.sizes[size]), " bytes"));
    for (size_t i = 0; i < places_.size() && !Interrupted(); ++i) Prepare(i, size);
    for (int round = 0; round < options_.rounds && !Interrupted(); ++round) {
      for (size_t turn = 0; turn < places_.size(); ++turn) Measure((turn + round) % places_.size(), size, round);
    }
  }

  bool Interrupted() const { return options_.interrupted && options_.interrupted(); }

  Deadline Patience() const { return Deadline::After(options_.patience); }

  void Tell(const std::string& text) const {
    if (options_.on_progress) options_.on_progress(text);
  }

  void Drop(size_t i, const std::string& when, const absl::Status& why) {
    places_[i].group.reset();
    result_.contenders[i].dropped = absl::StrCat(when, ": ", why.message());
    Tell(absl::StrCat(places_[i].contender->name, " is out, ", result_.contenders[i].dropped));
  }

  void Start(size_t i) {
    Tell(absl::StrCat("starting ", places_[i].contender->name));
    PlayerGroupOptions options;
    options.ranks = options_.ranks;
    options.bytes_max = LargestSize(*places_[i].contender);
    options.pin = options_.pin;
    options.folder = absl::StrCat(options_.folder, "/", i);
    absl::StatusOr<std::unique_ptr<PlayerGroup>> group =
        PlayerGroup::Start(*places_[i].contender, options, Deadline::After(options_.start_patience));
    if (!group.ok()) return Drop(i, "at its start", group.status());
    places_[i].group = *std::move(group);
  }

  int64_t LargestSize(const Contender& contender) const {
    int64_t largest = options_.sizes.front();
    for (const int64_t bytes : options_.sizes) {
      if (bytes <= contender.bytes_max) largest = std::max(largest, bytes);
    }
    return largest;
  }

  bool Plays(size_t i, size_t size) const {
    return places_[i].group != nullptr && options_.sizes[size] <= places_[i].contender->bytes_max;
  }

  void Prepare(size_t i, size_t size) {
    if (!Plays(i, size)) return;
    const absl::StatusOr<int64_t> calls = CheckAndCalibrate(i, options_.sizes[size]);
    if (!calls.ok()) return Drop(i, absl::StrCat("at ", ByteCountText(options_.sizes[size])), calls.status());
    result_.contenders[i].trials[size].calls = *calls;
  }

  // The number of calls that fill a round.
  absl::StatusOr<int64_t> CheckAndCalibrate(size_t i, int64_t bytes) {
    PlayerGroup* const group = places_[i].group.get();
    if (!places_[i].contender->moves_only) {
      LOCKSTEP_ASSIGN_OR_RETURN(const uint64_t wrong, group->Check(bytes, Patience()));
      if (wrong > 0) return absl::DataLossError(absl::StrCat(wrong, " elements are wrong"));
    }
    // A few calls alone are far from what many back to back come to, so the second estimate is made from more.
    const double round_seconds = std::chrono::duration<double>(options_.round_time).count();
    int64_t calls = kFirstCalls;
    for (int estimate = 0; estimate < 2; ++estimate) {
      LOCKSTEP_ASSIGN_OR_RETURN(const PlayerTiming timing, group->Run(bytes, calls, Patience()));
      const double fitting = round_seconds / std::max(timing.wall_seconds, 1e-9) / (estimate == 0 ? 10 : 1);
      calls = static_cast<int64_t>(std::clamp(fitting, 1.0, static_cast<double>(kCallsMax)));
      if (fitting < 1) break;
    }
    return calls;
  }

  void Measure(size_t i, size_t size, int round) {
    if (!Plays(i, size)) return;
    Trial& trial = result_.contenders[i].trials[size];
    const absl::StatusOr<PlayerTiming> timing = places_[i].group->Run(options_.sizes[size], trial.calls, Patience());
    if (!timing.ok()) {
      return Drop(i, absl::StrCat("at ", ByteCountText(options_.sizes[size]), " in round ", round + 1),
                  timing.status());
    }
    // Below the clock's own cost there is nothing to tell; and a ratio needs something to divide by.
    trial.seconds.push_back(std::max(timing->seconds, 1e-9));
  }

  void Finish(size_t i) {
    if (places_[i].group == nullptr) return;
    const absl::StatusOr<PlayerSockets> sockets = places_[i].group->Sockets(Patience());
    if (sockets.ok()) {
      // Launchers and control channels have connections too, but they carry little.
      const int64_t at_least = std::min(LargestSize(*places_[i].contender) / 2, kCarriedBytes);
      const bool carried = sockets->bytes >= static_cast<uint64_t>(at_least);
      result_.contenders[i].congestion_control = carried ? sockets->congestion_control : "none";
    }
    const absl::Status quit = sockets.ok() ? places_[i].group->Quit(Deadline::AfterMs(kQuitMs)) : sockets.status();
    if (!quit.ok()) Tell(absl::StrCat(places_[i].contender->name, " did not end well: ", quit.message()));
    places_[i].group.reset();
  }

  const ContestOptions& options_;
  std::vector<Place> places_;
  ContestResult result_;
};

}  // namespace

ContestResult RunContest(const ContestOptions& options, const std::vector<Contender>& contenders) {
  const Subreaper subreaper;
  return Contest(options, contenders).Run();
}

}  // namespace bench
}  // namespace lockstep
