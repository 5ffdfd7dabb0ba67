// Staging: slots of memory on the host that a device copies to and from, the two streams on which it does, and the words
// by which those and a thread on the host wait for each other.

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
    std::unique_ptr<Event> filled;   // behind the last copy to the slot, and its number in filled()
    std::unique_ptr<Event> emptied;  // behind the last copy from it
  };

  // UNAVAILABLE where the device's streams cannot await and write values, which is tried; RESOURCE_EXHAUSTED when there
  // is no such memory; or whatever the device says. The device outlives the staging.
  static absl::StatusOr<std::unique_ptr<Staging>> Create(Device* device, int slots, size_t slot_bytes);

  // Waits for the copies, 10 s at most: what is behind a stream that does not get on may still use its slot then, and
  // the memory is given up rather than freed. Nobody waits for exchanged() any more, or it has come to what they await.
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  size_t slot_bytes() const { return slot_bytes_; }
  // Of what has this number. Numbers count up from 1 and go round the slots.
  Slot& slot(uint64_t number) { return slots_[number % slots_.size()]; }
  int slots() const { return static_cast<int>(slots_.size()); }
  Stream* in() { return in_.get(); }    // device to slots
  Stream* out() { return out_.get(); }  // slots to device
  // For whoever issues: recorded in a caller's stream, and behind what it issued.
  Event* ready() { return ready_.get(); }
  Event* done() { return done_.get(); }

  // Up to which number slots are filled, by `in`, and may be emptied, by `out`: the numbers' lower 32 bits.
  std::atomic<uint32_t>* filled() { return &words_->filled; }
  std::atomic<uint32_t>* exchanged() { return &words_->exchanged; }

 private:
  // On cache lines of their own: one is the device's to write, the other the host's.
  struct Words {
    alignas(128) std::atomic<uint32_t> filled{UINT32_MAX};
    alignas(128) std::atomic<uint32_t> exchanged{0};
  };

  Staging(Device* device, size_t slot_bytes) : device_(device), slot_bytes_(slot_bytes) {}

  absl::Status AllocateMemory(int slots);
  // Has the streams come to number 0, from which those of pieces count.
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
