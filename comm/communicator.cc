#include "comm/communicator.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status.h"

namespace lockstep {

absl::Status Communicator::HeldError(const char* holder) {
  return absl::FailedPreconditionError(absl::StrCat("the communicator is in use by ", holder,
                                                    ", which is under way: call this before or after it, or on a ",
                                                    "duplicate of the communicator"));
}

absl::Status Communicator::CanCapture() const {
  return absl::FailedPreconditionError("the communicator has no device whose streams could be captured");
}

absl::Status Communicator::Enqueue(const CollectiveRequest& request, Stream* stream, absl::AnyInvocable<void()> before,
                                   absl::AnyInvocable<void(const absl::Status&)> done) {
  LOCKSTEP_RETURN_IF_ERROR(CheckHeld(request.by_holder));
  return stream->Enqueue([this, request = request, before = std::move(before), done = std::move(done)]() mutable {
    if (before) before();
    // The stream's order says when, whoever holds the communicator then.
    request.by_holder = true;
    done(Run(request));
    return absl::OkStatus();
  });
}

absl::Status CheckOutsideGroup(Communicator& communicator) {
  if (!communicator.InGroup()) return absl::OkStatus();
  return communicator.Refuse(
      absl::FailedPreconditionError("inside a group: this call needs the result of a collective"));
}

absl::Status CheckOnHost(DeviceId device) {
  if (device.kind == DeviceKind::kHost) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the buffers are on ", Name(device),
                   ", and this communicator was made for the host alone: name the device at creation"));
}

absl::Status CheckMessage(const SendRequest& request, int size) {
  if (request.target.value() < 0 || request.target.value() >= size) {
    return absl::InvalidArgumentError(
        absl::StrCat("send: target ", request.target.value(), " is not a rank of a world of ", size));
  }
  if (request.tag < 0) return absl::InvalidArgumentError(absl::StrCat("send: the tag is negative: ", request.tag));
  return absl::OkStatus();
}

absl::Status CheckMessage(const ReceiveRequest& request, int size) {
  if (request.source != kAnySource && (request.source.value() < 0 || request.source.value() >= size)) {
    return absl::InvalidArgumentError(
        absl::StrCat("receive: source ", request.source.value(), " is not a rank of a world of ", size));
  }
  if (request.tag >= 0 || request.tag == kAnyTag) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("receive: the tag is negative: ", request.tag));
}

absl::Status Communicator::CheckMemory(size_t bytes) {
  const std::string why = WhyNoMemory(bytes);
  if (why.empty()) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(bytes, " bytes of memory are needed, ", why));
}

absl::StatusOr<std::unique_ptr<SymmetricBuffer>> Communicator::AllocateOnDevice(size_t) {
  return absl::UnimplementedError("this communicator has no device");
}

absl::Status Communicator::MonitoredBarrier(std::chrono::milliseconds, std::vector<Rank>*) {
  return absl::UnimplementedError("monitored barriers need a control channel");
}

absl::Status SymmetricBuffer::Detach() {
  constexpr size_t kStepBytes = size_t{4} << 20;  // what is there twice at a time
  for (size_t done = 0; shared_ && done < bytes_; done += kStepBytes) {
    char* const begin = data_ + done;
    const size_t bytes = std::min(kStepBytes, bytes_ - done);
    void* const copy = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED) return absl::ResourceExhaustedError(ErrnoStatus(errno, "mmap").message());
    std::memcpy(copy, begin, bytes);
    // The peers still map these pages.
    (void)madvise(begin, bytes, MADV_REMOVE);
    if (mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, begin) == MAP_FAILED) {
      const absl::Status failed = absl::ResourceExhaustedError(ErrnoStatus(errno, "mremap").message());
      std::memcpy(begin, copy, bytes);
      munmap(copy, bytes);
      return failed;
    }
  }
  shared_ = false;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SymmetricBuffer>> MakePrivateBuffer(size_t bytes) {
  if (bytes == 0) return absl::InvalidArgumentError("a buffer of 0 bytes");
  if (const std::string why = WhyNoMemory(bytes); !why.empty()) {
    return absl::ResourceExhaustedError(absl::StrCat("allocate ", bytes, " bytes: ", why));
  }
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("allocate ", bytes, " bytes: ", ErrnoStatus(errno, "mmap").message()));
  }
  return std::make_unique<SymmetricBuffer>(static_cast<char*>(data), bytes, /*shared=*/false,
                                           [data, bytes] { munmap(data, bytes); });
}

}  // namespace lockstep
