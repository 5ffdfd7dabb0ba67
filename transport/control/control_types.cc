#include "transport/control/control_types.h"

#include "absl/strings/str_cat.h"

namespace lockstep {

std::string Describe(const Member& member) {
  return absl::StrCat("rank ", member.rank.value(), " (host ", member.host, ", pid ", member.pid, ")");
}

}  // namespace lockstep
