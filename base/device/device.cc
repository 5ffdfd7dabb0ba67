#include "base/device/device.h"

#include "absl/strings/str_cat.h"

namespace lockstep {

const char* Name(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::kHost:
      return "host";
    case DeviceKind::kCuda:
      return "cuda";
  }
  return "unknown device";
}

std::string Name(DeviceId device) {
  return device.kind == DeviceKind::kHost ? Name(device.kind) : absl::StrCat(Name(device.kind), ":", device.index);
}

}  // namespace lockstep
