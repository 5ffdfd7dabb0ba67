// PyTorch's device "cuda" without a GPU: memory is the host's, and a log has what was asked of streams and events, in order, by one thread.
// Every stream has the handle of the default stream of the CUDA in memory (tests/fake_cuda_library.cc), which really runs the collectives.

#include <ATen/ATen.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>
#include <torch/library.h>

namespace {

const at::Device kDevice(at::kCUDA, 0);

std::vector<std::string> calls;
thread_local c10::StreamId current_id = 0;

bool IsDone() {
  static const auto query = reinterpret_cast<int (*)(void*)>(dlsym(RTLD_DEFAULT, "lockstep_fake_cuda_stream_query"));
  return query(nullptr) == 0;
}

struct Guard : c10::impl::DeviceGuardImplInterface {
  static c10::Stream Of(c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, kDevice, id); }
  static std::string Name(const c10::Stream& stream) { return std::to_string(stream.id()); }

  at::DeviceType type() const override { return at::kCUDA; }
  at::Device exchangeDevice(at::Device) const override { return kDevice; }
  at::Device getDevice() const override { return kDevice; }
  void setDevice(at::Device) const override {}
  void uncheckedSetDevice(at::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Stream getStream(at::Device) const override { return Of(current_id); }
  c10::Stream getStreamFromGlobalPool(at::Device, bool) const override { return Of(1); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return Of(std::exchange(current_id, stream.id())); }
  void* getStreamNativeHandle(const c10::Stream) const override { return nullptr; }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    *event = reinterpret_cast<void*>(stream.id() + 1);
    calls.push_back("record " + Name(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    calls.push_back(Name(stream) + " waits for " + std::to_string(reinterpret_cast<intptr_t>(event) - 1));
  }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryEvent(void*) const override { return IsDone(); }
  void synchronizeStream(const c10::Stream& stream) const override {
    calls.push_back("synchronize " + Name(stream));
    while (!IsDone()) sched_yield();
  }
};

// A host tensor's memory as a tensor on the device.
at::Tensor OnDevice(const at::Tensor& host) {
  const auto options = host.options().device(kDevice);
  return at::for_blob(host.data_ptr(), host.sizes()).options(options).target_device(kDevice).make_tensor();
}

}  // namespace

TORCH_LIBRARY(fake_device, library) {
  static const Guard guard;
  c10::impl::device_guard_impl_registry[static_cast<size_t>(at::kCUDA)].store(&guard);
  library.def("on_device(Tensor host) -> Tensor", OnDevice);
  library.def("take_calls() -> str[]", [] { return std::exchange(calls, {}); });
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("record_stream",
               [](at::Tensor&, at::Stream stream) { calls.push_back("used on " + Guard::Name(stream)); });
}
