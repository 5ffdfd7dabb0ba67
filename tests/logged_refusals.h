// What the logs of a job say about the peers that its listeners have turned away.

#ifndef TESTS_LOGGED_REFUSALS_H_
#define TESTS_LOGGED_REFUSALS_H_

#include <cstdint>
#include <map>

#include "absl/strings/string_view.h"
#include "transport/secure/channel.h"

namespace lockstep {

// How many of each kind. Of a listener that has ended, as the line at level info says that has its counts. Of others, those that were left
// out of the log because of its rate are not counted until a later line names their number.
std::map<Refusal, int64_t> LoggedRefusals(absl::string_view log);

}  // namespace lockstep

#endif  // TESTS_LOGGED_REFUSALS_H_
