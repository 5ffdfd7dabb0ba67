// A device whose memory faults when the host touches it, as that of a GPU without managed memory does. For tests of what is
// to stay away from it: an access ends the test with SIGSEGV.
//
// An address of such memory maps nothing; what it stands for is elsewhere, and is known to what plays the hardware: the
// device's streams, GuardedFoldKernels(), and whoever asks Reach, such as a fake of the network's device.

#ifndef TESTS_GUARDED_DEVICE_H_
#define TESTS_GUARDED_DEVICE_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device.h"
#include "kernels/fold_kernels.h"
#include "tests/fake_device.h"

namespace lockstep {

// What an address stands for, if it is one of guarded memory; else itself. Thread-safe.
void* ReachGuarded(const void* address);

// Thread-safe. Outlives what it made.
class GuardedDevice : public Device {
 public:
  explicit GuardedDevice(int index = 0, int queues = 0) : fake_(index, queues) {}

  DeviceId id() const override { return fake_.id(); }
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream(const std::string& name) override;
  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override { return fake_.CreateEvent(); }
  absl::StatusOr<std::unique_ptr<Stream>> BorrowStream(void* native) override { return fake_.BorrowStream(native); }
  absl::StatusOr<void*> Allocate(size_t bytes) override;
  void Free(void* memory) override;
  absl::StatusOr<void*> AllocateOnHost(size_t bytes) override { return fake_.AllocateOnHost(bytes); }
  void FreeOnHost(void* memory) override { fake_.FreeOnHost(memory); }
  absl::Status RegisterOnHost(void* memory, size_t bytes) override { return fake_.RegisterOnHost(memory, bytes); }
  void UnregisterOnHost(void* memory) override { fake_.UnregisterOnHost(memory); }

 private:
  FakeDevice fake_;
};

// Of guarded devices. Never destroyed.
const kernels::FoldKernels* GuardedFoldKernels();

}  // namespace lockstep

#endif  // TESTS_GUARDED_DEVICE_H_
