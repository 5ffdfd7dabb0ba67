// The commit of a build that is not stamped: looking for it would build anew with every commit what has not changed.

#include "base/build_commit.h"

namespace lockstep {

const char* BuildCommit() { return "unknown"; }

}  // namespace lockstep
