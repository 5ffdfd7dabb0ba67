// What ranks find out about each other when a reducer is opened over a communicator, beside that their tables are equal
// (reducer/plan/agreement.h).

#ifndef REDUCER_PIPELINE_OPENING_H_
#define REDUCER_PIPELINE_OPENING_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/communicator.h"

namespace lockstep {

// How a reducer came to the communicator. The numbers are sent.
enum class Opening : uint64_t { kCreated = 0, kChanged = 1 };

// Every rank calls it, with its plan as text. Whether all have the same. Where they have not and a reducer was newly created, whose plan
// was asked for, FAILED_PRECONDITION on every rank.
absl::StatusOr<bool> SamePlan(Communicator& communicator, const std::string& plan, Opening opening);

// Every rank calls it. Rank 0 counts its process's reducers and tells the others, so that two reducers of one communicator, at a time or
// one after the other, do not read each other's notes: 2^40 topics from here on are nobody else's.
absl::StatusOr<uint64_t> AgreeOnFirstTopic(Communicator& communicator);

}  // namespace lockstep

#endif  // REDUCER_PIPELINE_OPENING_H_
