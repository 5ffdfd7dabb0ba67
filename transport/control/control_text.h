// Texts of the control channel about several ranks. Pure functions; ranks are sorted and without duplicates.

#ifndef TRANSPORT_CONTROL_CONTROL_TEXT_H_
#define TRANSPORT_CONTROL_CONTROL_TEXT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "transport/control/control_types.h"

namespace lockstep::control {

// "chunk_bytes: 262144 on ranks 0-2, 65536 on rank 3; algorithm: ring on rank 0, not set on ranks 1-3". Empty when all
// ranks have the same options; their order does not matter.
std::string OptionDifferences(absl::Span<const std::vector<AgreedOption>* const> by_rank);

// "rank 1 (host b, pid 7) listens on loopback (127.0.0.1:4411), where rank 0 (host a, pid 5), on another host, ...": of the first
// rank with a loopback address, if a rank of another host has another address. Empty if there is none. Hosts that all have only
// loopback are one machine under several names. `by_rank` has all members.
std::string UnreachableText(absl::Span<const Member* const> by_rank);

// What is known of one rank when an operation is late.
struct LateRank {
  enum class State {
    kAnswered,
    kSilent,  // its progress is the last known
    kLeft,
    kUnaware,  // does not list the channel: is no member, or has not opened it yet
  };
  const Member* member = nullptr;
  State state = State::kAnswered;
  Progress progress;
};

struct LateReport {
  // "allreduce #17 (25 MiB f32 sum) did not finish in time: rank 2 (host b, pid 71) has not called it (it last completed
  // #16); rank 1 has called it and waits". Names the rank to blame first. Ranks in one situation share a sentence.
  std::string text;
  absl::optional<int> first;  // the rank to blame; none if all have called the operation
};
LateReport DescribeLate(absl::string_view operation, uint64_t sequence, absl::Span<const LateRank> ranks);

// "the ranks' collectives differ: rank 0 called reduce #2 (...); ranks 1, 3 called ...". `called` is by rank; empty: unknown.
std::string MismatchText(absl::Span<const std::string> called);
// The only rank that called something else than all others; else the lowest one that differs from the lowest one whose call is known.
// REQUIRES  two calls differ
int OddOne(absl::Span<const std::string> called);

}  // namespace lockstep::control

#endif  // TRANSPORT_CONTROL_CONTROL_TEXT_H_
