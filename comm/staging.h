// Staging: slots of memory on the host that a device copies to and from, and the two streams on which it does.

#ifndef COMM_STAGING_H_
#define COMM_STAGING_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/device.h"

namespace lockstep {

class Staging {
 public:
  struct Slot {
    char* data = nullptr;
    std::unique_ptr<Event> filled;   // behind the last copy to the slot
    std::unique_ptr<Event> emptied;  // behind the last copy from it
  };

  // RESOURCE_EXHAUSTED when there is no such memory, or whatever the device says. The device outlives the staging.
  static absl::StatusOr<std::unique_ptr<Staging>> Create(Device* device, int slots, size_t slot_bytes);

  // Waits for the copies, 10 s at most: what is behind a stream that does not get on may still use its slot then, and
  // the memory is given up rather than freed.
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  size_t slot_bytes() const { return slot_bytes_; }
  std::vector<Slot>& slots() { return slots_; }
  Stream* in() { return in_.get(); }    // device to slots
  Stream* out() { return out_.get(); }  // slots to device

 private:
  Staging(Device* device, size_t slot_bytes) : device_(device), slot_bytes_(slot_bytes) {}

  Device* const device_;
  const size_t slot_bytes_;
  std::vector<Slot> slots_;
  std::unique_ptr<Stream> in_;
  std::unique_ptr<Stream> out_;
};

}  // namespace lockstep

#endif  // COMM_STAGING_H_
