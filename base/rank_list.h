// Ranks in messages.

#ifndef BASE_RANK_LIST_H_
#define BASE_RANK_LIST_H_

#include <string>

#include "absl/types/span.h"

namespace lockstep {

// "rank 3", "ranks 2, 5-7". REQUIRES that ranks are sorted, each once.
std::string RankList(absl::Span<const int> ranks);

}  // namespace lockstep

#endif  // BASE_RANK_LIST_H_
