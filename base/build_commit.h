// Which commit the library was built from.

#ifndef BASE_BUILD_COMMIT_H_
#define BASE_BUILD_COMMIT_H_

namespace lockstep {

// RETURNS  the first 12 digits of git's commit ("3f1c2ab90d4e"), followed by "-modified" if files under version control were changed;
//          "unknown" unless it was built with --config=release in a checkout. Valid for ever.
const char* BuildCommit();

}  // namespace lockstep

#endif  // BASE_BUILD_COMMIT_H_
