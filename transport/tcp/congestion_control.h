// Which congestion control a socket uses.

#ifndef TRANSPORT_TCP_CONGESTION_CONTROL_H_
#define TRANSPORT_TCP_CONGESTION_CONTROL_H_

#include <string>

#include "absl/status/status.h"

namespace lockstep {

// Does nothing for an empty name. NOT_FOUND when the kernel has none of that name, PERMISSION_DENIED when its
// administrator does not let everyone use it; both name what is allowed.
absl::Status SetCongestionControl(int socket, const std::string& name);

}  // namespace lockstep

#endif  // TRANSPORT_TCP_CONGESTION_CONTROL_H_
