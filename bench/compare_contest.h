// A contest: contenders over one transport, measured in turn, round by round.
//
// All of them are started first and stay until the end; whoever is not measured sleeps. At each size every contender is
// checked, tells how many calls fill a round, and then each round measures all of them, beginning with another one each
// time, so that what the machine does meanwhile meets all alike. A contender that is wrong, dies or does not answer in
// time is ended and takes no further part; the others go on.

#ifndef BENCH_COMPARE_CONTEST_H_
#define BENCH_COMPARE_CONTEST_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/compare_contender.h"
#include "bench/compare_result.h"

namespace lockstep {
namespace bench {

struct ContestOptions {
  std::string transport;  // for the report
  int ranks = 2;
  bool pin = true;             // each rank to one core, by turns
  std::vector<int64_t> sizes;  // bytes, multiples of 4, ascending
  int rounds = 15;
  std::chrono::milliseconds round_time{20};                  // of one contender
  std::chrono::milliseconds start_patience{60'000};          // for a contender to start
  std::chrono::milliseconds patience{30'000};                // for an answer
  std::string folder;                                        // where contenders get folders of their own; it exists
  std::function<void(const std::string& text)> on_progress;  // told what happens; may be empty
  std::function<bool()> interrupted;  // asked between measurements: true ends the contest early; may be empty
};

// Every step is bounded by `patience`, so the contest ends whatever contenders do. What was measured until an
// interruption is in the result.
ContestResult RunContest(const ContestOptions& options, const std::vector<Contender>& contenders);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_COMPARE_CONTEST_H_
