// Operations of the library as c10d sees them: tensors, works, futures, and what observes them (profilers, hooks).

#ifndef PYTHON_LOCKSTEP_TORCH_CSRC_WORK_H_
#define PYTHON_LOCKSTEP_TORCH_CSRC_WORK_H_

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <pthread.h>
#include <torch/version.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <chrono>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "capi/lockstep.h"
#include "communicator.h"
#include "errors.h"

#define LOCKSTEP_TORCH_SINCE(minor) (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= (minor))

namespace lockstep_torch {

using Tensors = std::vector<at::Tensor>;
using Future = c10::ivalue::Future;
using Clock = std::chrono::steady_clock;

// How many callbacks the library has still to make, and how many threads run hooks. They may need the interpreter, so it should end
// after them.
inline std::atomic<int> callbacks_to_come{0};
// The parent's callbacks do not run in a forked child.
inline const int forgets_in_child = pthread_atfork(nullptr, nullptr, [] { callbacks_to_come = 0; });

// ---- Hooks of a process group

#if LOCKSTEP_TORCH_SINCE(15)
using c10d::CompletionHook;
using c10d::CompletionHookArgs;
#else
struct CompletionHookArgs {
  uint64_t completionKey = 0;
  std::optional<float> duration_ms;
};
using CompletionHook = std::function<void(const CompletionHookArgs&)>;
#endif
using AbortHook = std::function<void()>;

// Thread-safe. Runs hooks outside its lock.
class Hooks {
 public:
  template <typename Hook>
  void Register(std::map<int64_t, Hook> Hooks::*table, int64_t id, Hook hook) {
    const std::lock_guard<std::mutex> lock(mu_);
    (this->*table)[id] = std::move(hook);
    some_completion_ = !completion.empty();
  }

  template <typename Hook>
  void Unregister(std::map<int64_t, Hook> Hooks::*table, int64_t id) {
    const std::lock_guard<std::mutex> lock(mu_);
    (this->*table).erase(id);
    some_completion_ = !completion.empty();
  }

  // Relaxed: an operation that is started while a hook is registered may be reported to the hook or not.
  bool WantCompletion() const { return some_completion_.load(std::memory_order_relaxed); }

  void Complete(uint64_t key, float duration_ms) {
    CompletionHookArgs args;
    args.completionKey = key;
    args.duration_ms = duration_ms;
    for (const auto& [_, hook] : Copy(&Hooks::completion)) hook(args);
  }

  // Runs the abort hooks, the first time that it is called. They run on a thread, since hooks may write traces for seconds, and the
  // caller should get its error immediately.
  void Abort() {
    if (aborted_.exchange(true)) return;
    const auto hooks = Copy(&Hooks::abort);
    if (hooks.empty()) return;
    ++callbacks_to_come;
    std::thread([hooks] {
      pthread_setname_np(pthread_self(), "lockstep-hooks");
      for (const auto& [_, hook] : hooks) {
        try {
          hook();
        } catch (const std::exception& error) {
          TORCH_WARN("lockstep: an abort hook failed: ", error.what());
        }
      }
      --callbacks_to_come;
    }).detach();
  }

  // By id. Guarded by mu_.
  std::map<int64_t, AbortHook> abort;
  std::map<int64_t, CompletionHook> completion;

 private:
  template <typename Hook>
  std::map<int64_t, Hook> Copy(std::map<int64_t, Hook> Hooks::*table) {
    const std::lock_guard<std::mutex> lock(mu_);
    return this->*table;
  }

  std::mutex mu_;
  std::atomic<bool> some_completion_{false}, aborted_{false};
};

// ---- Tensors and reductions

inline std::string Name(at::ScalarType type) { return c10::str("torch.", c10::getDtypeNames(type).first); }

// As Python writes a tuple.
inline std::string Tuple(at::IntArrayRef items) {
  return c10::str("(", c10::Join(", ", items), items.size() == 1 ? ",)" : ")");
}

// nullopt: Lockstep does not have it.
inline std::optional<lockstep_dtype> ToDtype(at::ScalarType type) {
  static constexpr std::pair<at::ScalarType, lockstep_dtype> kDtypes[] = {
      {at::kFloat, LOCKSTEP_F32},
      {at::kDouble, LOCKSTEP_F64},
      {at::kHalf, LOCKSTEP_F16},
      {at::kBFloat16, LOCKSTEP_BF16},
      {at::kInt, LOCKSTEP_I32},
      {at::kLong, LOCKSTEP_I64},
      {at::kBool, LOCKSTEP_BOOL},
      {at::kByte, LOCKSTEP_U8},
      {at::kChar, LOCKSTEP_I8},
      {at::kUInt32, LOCKSTEP_U32},
      {at::kUInt64, LOCKSTEP_U64},
      {at::kFloat8_e4m3fn, LOCKSTEP_F8E4M3},
      {at::kFloat8_e5m2, LOCKSTEP_F8E5M2},
      {at::kComplexFloat, LOCKSTEP_COMPLEX64},
      {at::kComplexDouble, LOCKSTEP_COMPLEX128},
  };
  for (const auto& [torch_type, dtype] : kDtypes) {
    if (torch_type == type) return dtype;
  }
  return std::nullopt;
}

// Returns the tensor, or a row-major copy without gaps.
inline at::Tensor Dense(const at::Tensor& tensor) {
  if (tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg()) return tensor;
  const at::NoGradGuard no_grad;
  return tensor.resolve_conj().resolve_neg().contiguous();
}

// ---- Operations

// Never used again.
inline uint64_t NewCompletionKey() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

// One operation in flight: the library's work, the tensors that it borrows until it is done, and where the results go then.
struct Operation {
  // reduces: whether it computes; else dtypes that Lockstep does not have travel as bytes.
  explicit Operation(c10d::OpType op_type, bool reduces = false) : type(op_type), arithmetic(reduces) {}
  Operation(const Operation&) = delete;
  ~Operation() { lockstep_work_destroy(work); }

  // A tensor that the library reads.
  lockstep_tensor Input(const at::Tensor& tensor) {
    inputs.push_back(tensor);
    return Borrow(Dense(tensor));
  }

  // Tensors that the library reads, one after the other in `flat`.
  lockstep_tensor InputList(const Tensors& tensors, const at::Tensor& flat) {
    inputs = tensors;
    return Borrow(flat);
  }

  // A tensor that the library writes, and may read first.
  lockstep_tensor Output(const at::Tensor& tensor) {
    const at::Tensor dense = Dense(tensor);
    if (!dense.is_same(tensor)) copies.emplace_back(tensor, dense);
    results.push_back(tensor);
    return Borrow(dense);
  }

  lockstep_tensor InputAndOutput(const at::Tensor& tensor) {
    inputs.push_back(tensor);
    return Output(tensor);
  }

  // An output that has to be row-major and without gaps.
  lockstep_tensor ContiguousOutput(const at::Tensor& tensor) {
    LOCKSTEP_REQUIRE(tensor.is_contiguous(), "a tensor of shape ", Tuple(tensor.sizes()), " with strides ",
                     Tuple(tensor.strides()),
                     " is not contiguous; pass tensor.contiguous(), and copy it back if it is an output");
    return Output(tensor);
  }

  // Returns one tensor, which the library writes, for several: it holds them one after the other.
  lockstep_tensor Blocks(const Tensors& tensors) {
    int64_t total = 0, begin = 0;
    for (const at::Tensor& tensor : tensors) total += tensor.numel();
    const at::Tensor flat = at::empty({total}, tensors.at(0).options());
    for (const at::Tensor& tensor : tensors) {
      copies.emplace_back(tensor, flat.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
      results.push_back(tensor);
      begin += tensor.numel();
    }
    return Borrow(flat);
  }

  lockstep_reduce_op Reduction(const c10d::ReduceOp& given) {
    // In the order of c10d::ReduceOp::RedOpType.
    static constexpr lockstep_reduce_op kOps[] = {LOCKSTEP_SUM, LOCKSTEP_AVG, LOCKSTEP_PROD,
                                                  LOCKSTEP_MIN, LOCKSTEP_MAX, LOCKSTEP_AND,
                                                  LOCKSTEP_OR,  LOCKSTEP_XOR, LOCKSTEP_PREMUL_SUM};
    LOCKSTEP_REQUIRE(given.op_ < std::size(kOps), "no reduction ", static_cast<int>(given.op_));
    if (given.op_ == c10d::ReduceOp::PREMUL_SUM) {
      const auto& by = static_cast<const c10d::NCCLPreMulSumSupplement&>(*given.supplement_);
      factor = by.tensor_factor.defined() ? by.tensor_factor.item<double>() : by.double_factor;
    }
    return kOps[given.op_];
  }

  bool IsMessage() const { return IsReceive() || type == c10d::OpType::SEND; }
  bool IsReceive() const { return type == c10d::OpType::RECV || type == c10d::OpType::RECVANYSOURCE; }
  bool Done() const { return lockstep_work_done(work) != 0; }

  // Copies the results of a success to their targets, once. ValueError for a message of another size.
  void Finish() {
    if (copies.empty() && calls.empty() && !IsReceive()) return;
    std::call_once(finished, [this] {
      CheckMessage();
      for (auto& [target, source] : copies) {
        // A tensor of inference mode can be written in this mode only, and the waiter may have left it.
        const c10::InferenceMode mode(target.is_inference());
        const at::NoGradGuard no_grad;
        target.copy_(source);
      }
      for (const auto& call : calls) call->Finish();
    });
  }

  // Reports the end, once, to the profiler and the hooks. REQUIRES the operation is done, and its results are in place. error: its result.
  void Report(const lockstep_error* error) {
    std::call_once(reported, [&] {
      duration_ms = std::chrono::duration<float, std::milli>(Clock::now() - started).count();
      if (end_of_event) end_of_event();
      for (const auto& call : calls) call->Report(error);
      if (hooks == nullptr) return;
      if (error == nullptr) return hooks->Complete(key, duration_ms);
      const lockstep_code code = lockstep_error_code(error);
      if (code != LOCKSTEP_INVALID_ARGUMENT && code != LOCKSTEP_CANCELLED) hooks->Abort();
    });
  }

  // Checks the size of a message that was received.
  void CheckMessage() const {
    if (!IsReceive()) return;
    lockstep_message message;
    Check(lockstep_work_message(work, &message));
    LOCKSTEP_REQUIRE(message.bytes == borrowed[0].nbytes(), message.bytes, " bytes came from rank ", message.source,
                     ", with tag ", message.tag, ", for a tensor of ", borrowed[0].nbytes(), " bytes");
  }

  const c10d::OpType type;
  const bool arithmetic;
  const uint64_t key = NewCompletionKey();
  const Clock::time_point started = Clock::now();
  lockstep_work* work = nullptr;     // NULL: done
  std::optional<double> factor;      // of LOCKSTEP_PREMUL_SUM
  std::optional<at::Device> device;  // of the tensors; nullopt: the host, or no tensors
  int peer = -1;                     // of a message; -1: any rank
  bool asynchronous = true;
  std::vector<int64_t> input_splits, output_splits;  // of an all_to_all that has them, as they were given
  Tensors inputs;                                    // as they were given
  Tensors borrowed;
  Tensors results;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // targets and sources
  std::vector<std::shared_ptr<Operation>> calls;          // of a group
  std::shared_ptr<Hooks> hooks;                           // NULL: not used
  std::function<void()> end_of_event;                     // of the profiler's
  std::once_flag finished, reported;
  std::atomic<float> duration_ms{-1};  // below 0: its end is not reported

 private:
  // Describes a dense tensor, and keeps it.
  lockstep_tensor Borrow(const at::Tensor& tensor) {
    const at::Device on = tensor.device();
    LOCKSTEP_REQUIRE(on.is_cpu() || on.is_cuda(), "a tensor on ", on, "; Lockstep has the CPU and CUDA");
    if (on.is_cuda()) device = on;
    borrowed.push_back(tensor);
    lockstep_tensor made = {tensor.data_ptr(),
                            tensor.sizes().data(),
                            nullptr,
                            static_cast<int32_t>(tensor.dim()),
                            0,
                            on.is_cuda() ? LOCKSTEP_CUDA : LOCKSTEP_HOST,
                            on.is_cuda() ? on.index() : 0};
    if (const auto dtype = ToDtype(tensor.scalar_type())) {
      made.dtype = *dtype;
      return made;
    }
    LOCKSTEP_REQUIRE(!arithmetic, "no ", Name(tensor.scalar_type()), " in reductions; convert the tensor");
    made.shape = &byte_counts.emplace_back(tensor.nbytes());
    made.dimensions = 1;
    made.dtype = LOCKSTEP_U8;
    return made;
  }

  std::deque<int64_t> byte_counts;  // shapes of tensors that travel as bytes
};

using OperationPtr = std::shared_ptr<Operation>;

// Elements of a tensor as the library counts them: bytes if its dtype travels as bytes.
inline std::vector<int64_t> Counted(const at::Tensor& tensor, std::vector<int64_t> elements) {
  if (!ToDtype(tensor.scalar_type())) {
    for (int64_t& count : elements) count *= tensor.element_size();
  }
  return elements;
}

// Whether this thread runs a callback.
inline thread_local bool in_callback = false;

// The context of a callback: an operation, which it keeps until that is done, and its future, or NULL.
struct Completion {
  OperationPtr operation;
  c10::intrusive_ptr<Future> future;
};

inline void Complete(const Completion& completion, const lockstep_error* error) {
  std::exception_ptr exception;
  try {
    if (error == nullptr) {
      completion.operation->Finish();
    } else if (completion.future != nullptr) {
      exception = ToException(error);
    }
  } catch (...) {
    exception = std::current_exception();
  }
  completion.operation->Report(error);
  if (completion.future == nullptr) return;
  if (exception != nullptr) {
    completion.future->setError(exception);
  } else {
    completion.future->markCompleted(completion.operation->results);
  }
}

// Calls Complete() when the operation is done: immediately if it is done already. Returns the library's error if it will not call it.
inline ErrorPtr CompleteWhenDone(OperationPtr operation, c10::intrusive_ptr<Future> future) {
  auto completion = std::make_unique<Completion>(Completion{std::move(operation), std::move(future)});
  const auto callback = [](void* context, const lockstep_error* error) {
    const bool outer = std::exchange(in_callback, true);
    {
      // A future may free Python objects, which needs the interpreter too.
      const std::unique_ptr<Completion> given(static_cast<Completion*>(context));
      Complete(*given, error);
    }
    in_callback = outer;
    --callbacks_to_come;
  };
  ++callbacks_to_come;
  ErrorPtr error(lockstep_work_on_complete(completion->operation->work, callback, completion.get()));
  if (error != nullptr) {
    --callbacks_to_come;
  } else {
    completion.release();
  }
  return error;
}

// What works of the host and of a device have in common.
class OperationWork : public c10d::Work {
 public:
  void synchronize() override { wait(kNoTimeout); }

  Tensors result() override {
    wait(kNoTimeout);
    return operation_->results;
  }

  float getDuration() const override {
    LOCKSTEP_REQUIRE(operation_->duration_ms >= 0, "the operation is not done");
    return operation_->duration_ms;
  }

  uint64_t getSequencenumber() const override { return sequence; }
  uint64_t getCompletionKey() const { return operation_->key; }

  uint64_t sequence = 0;

 protected:
  // title: of the profiler's event, NULL for none.
  OperationWork(OperationPtr operation, const char* title)
      : c10d::Work(-1, operation->type, title, title == nullptr ? std::nullopt : std::optional(operation->inputs)),
        operation_(std::move(operation)) {
    operation_->end_of_event = std::move(recordFunctionEndCallback_);
  }

  const OperationPtr operation_;
};

// An operation on the host, or one whose waiters wait on the host for a device.
class Work : public OperationWork {
 public:
  // in_group: a synchronous call in a group, whose wait() is the group's.
  Work(OperationPtr operation, const char* title, bool in_group = false)
      : OperationWork(std::move(operation), title), in_group_(in_group) {}

  // The tensors of the operation live until it is done.
  ~Work() override {
    if (operation_->Done()) {
      // The program may have dropped it without waiting. Its results are still due.
      if (operation_->work == nullptr || (operation_->copies.empty() && operation_->calls.empty())) return;
      try {
        isCompleted();
      } catch (const c10::Error&) {
      }
      return;
    }
    const ErrorPtr error = CompleteWhenDone(operation_, nullptr);
    // FAILED_PRECONDITION: an open group has the operation. After another error the library may write the tensors at any time, so they
    // are never freed.
    if (error != nullptr && lockstep_error_code(error.get()) != LOCKSTEP_FAILED_PRECONDITION)
      new OperationPtr(operation_);
  }

  bool isCompleted() override {
    if (!operation_->Done()) return false;
    const ErrorPtr error = Result();
    if (error == nullptr) operation_->Finish();
    operation_->Report(error.get());
    return true;
  }

  bool isSuccess() const override { return operation_->Done() && Result() == nullptr; }

  std::exception_ptr exception() const override {
    if (!operation_->Done()) return nullptr;
    const ErrorPtr error = Result();
    return error == nullptr ? nullptr : ToException(error.get());
  }

  int sourceRank() const override {
    LOCKSTEP_REQUIRE(operation_->IsReceive(), "only a receive has a source rank");
    lockstep_message message;
    Check(lockstep_work_message(operation_->work, &message));
    return message.source;
  }

  bool wait(std::chrono::milliseconds timeout) override {
    ErrorPtr error = Await(operation_->work, timeout.count() > 0 ? timeout.count() : kForeverMs);
    if (in_group_ && lockstep_error_code(error.get()) == LOCKSTEP_FAILED_PRECONDITION && !operation_->Done())
      return true;
    if (error == nullptr) operation_->Finish();
    if (operation_->Done()) operation_->Report(error.get());
    Check(error.release());
    return true;
  }

  // Its continuations run on the library's thread lockstep-done, one at a time.
  c10::intrusive_ptr<Future> getFuture() override {
    const std::lock_guard<std::mutex> lock(future_mu_);
    if (future_ != nullptr) return future_;
    auto future = c10::make_intrusive<Future>(c10::ListType::create(c10::TensorType::get()));
    if (operation_->work == nullptr) {
      Complete({operation_, future}, nullptr);
    } else {
      // A continuation may wait for the future, which could be completed only after the continuation.
      if (in_callback) const ErrorPtr ignored = Await(operation_->work, kForeverMs);
      Check(CompleteWhenDone(operation_, future).release());
    }
    future_ = std::move(future);
    return future_;
  }

 private:
  ErrorPtr Result() const {
    return ErrorPtr(operation_->work == nullptr ? nullptr : lockstep_work_wait(operation_->work, 0));
  }

  const bool in_group_;
  std::mutex future_mu_;
  // Guarded by future_mu_.
  c10::intrusive_ptr<Future> future_;
};

// A collective that is enqueued on a stream of a device. An event marks its end, and wait() makes the current stream wait for the event.
// If the communicator fails before the event is seen, the collective has failed.
class DeviceWork : public OperationWork {
 public:
  DeviceWork(OperationPtr operation, const char* title, c10::Stream stream, std::shared_ptr<Communicator> communicator)
      : OperationWork(std::move(operation), title),
        stream_(stream),
        event_(stream.device_type()),
        communicator_(std::move(communicator)) {
    event_.record(stream);
  }

  bool isCompleted() override {
    const bool done = event_.query();  // asked first: a failure also ends the stream's wait
    const ErrorPtr error = Error();
    if (!done && error == nullptr) return false;
    if (error == nullptr) succeeded_ = true;
    operation_->Report(error.get());
    return true;
  }

  bool isSuccess() const override { return event_.query() && Error() == nullptr; }

  std::exception_ptr exception() const override {
    const ErrorPtr error = Error();
    return error == nullptr ? nullptr : ToException(error.get());
  }

  bool wait(std::chrono::milliseconds) override {
    try {
      communicator_->Call(lockstep_communicator_status);
    } catch (const c10::Error&) {
      isCompleted();  // reports the error
      throw;
    }
    const c10::impl::VirtualGuardImpl guard(stream_.device_type());
    event_.block(guard.getStream(stream_.device()));
    isCompleted();
    return true;
  }

  // Its continuations run on the thread that adds them, and enqueue on the stream.
  c10::intrusive_ptr<Future> getFuture() override {
    const c10::StreamGuard guard(stream_);
    auto future = c10::make_intrusive<Future>(c10::ListType::create(c10::TensorType::get()),
                                              std::vector<at::Device>{stream_.device()});
    future->markCompleted(operation_->results);
    return future;
  }

 private:
  ErrorPtr Error() const { return succeeded_ ? nullptr : communicator_->Error(); }

  const c10::Stream stream_;
  c10::Event event_;
  const std::shared_ptr<Communicator> communicator_;
  std::atomic<bool> succeeded_{false};  // whether the end was seen before any failure of the communicator
};

}  // namespace lockstep_torch

#endif  // PYTHON_LOCKSTEP_TORCH_CSRC_WORK_H_
