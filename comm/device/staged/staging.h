// Staging: slots of memory on the host that a device copies to and from, the two streams for the copies, and the semaphores
// by which the streams and a thread on the host wait for each other.

#ifndef COMM_DEVICE_STAGED_STAGING_H_
#define COMM_DEVICE_STAGED_STAGING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/device.h"

namespace lockstep {

class Staging {
 public:
  struct Slot {
    char* data = nullptr;
    std::unique_ptr<Event> filled;  // recorded behind the last copy to the slot and the write of its number to filled()
    std::unique_ptr<Event> emptied;  // recorded behind the last copy from it
  };

  // The device outlives the staging.
  // ERRORS  UNAVAILABLE         the device's streams cannot await and write values, which is tried
  //         RESOURCE_EXHAUSTED  there is no such memory
  //         the device's
  static absl::StatusOr<std::unique_ptr<Staging>> Create(Device* device, int slots, size_t slot_bytes);

  // Waits for the copies, 10 s at most. If a stream still hangs then, its copies may yet use the slots, so the memory is leaked.
  // REQUIRES  every wait for exchanged() is over, or exchanged() has reached the awaited number
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  size_t slot_bytes() const { return slot_bytes_; }
  // The slot of a piece, by the piece's number. Numbers count up from 1 and go round the slots.
  Slot& slot(uint64_t number) { return slots_[number % slots_.size()]; }
  int slots() const { return static_cast<int>(slots_.size()); }
  Stream* in() { return in_.get(); }    // device to slots
  Stream* out() { return out_.get(); }  // slots to device
  // For the thread that issues: ready() is recorded in a caller's stream, done() behind what was issued.
  Event* ready() { return ready_.get(); }
  Event* done() { return done_.get(); }

  // The lower 32 bits of the last piece's number that `in` has copied in, and that `out` may copy out.
  std::atomic<uint32_t>* filled() { return &words_->filled; }
  std::atomic<uint32_t>* exchanged() { return &words_->exchanged; }

 private:
  // On cache lines of their own: the device writes one, the host the other.
  struct Words {
    alignas(128) std::atomic<uint32_t> filled{UINT32_MAX};
    alignas(128) std::atomic<uint32_t> exchanged{0};
  };

  Staging(Device* device, size_t slot_bytes) : device_(device), slot_bytes_(slot_bytes) {}

  absl::Status AllocateMemory(int slots);
  // Runs both streams up to number 0, the one before the first piece's.
  absl::Status TryWords();

  Device* const device_;
  const size_t slot_bytes_;
  std::vector<Slot> slots_;
  Words* words_ = nullptr;
  std::unique_ptr<Event> ready_;
  std::unique_ptr<Event> done_;
  std::unique_ptr<Stream> in_;
  std::unique_ptr<Stream> out_;
};

}  // namespace lockstep

#endif  // COMM_DEVICE_STAGED_STAGING_H_
