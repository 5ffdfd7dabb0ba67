// Operations of the library as c10d sees them: errors, tensors, works and futures.
//
// ERRORS  ValueError for what the caller can fix; else DistBackendError, with Lockstep's text.

#ifndef PYTHON_LOCKSTEP_TORCH_CPP_WORK_H_
#define PYTHON_LOCKSTEP_TORCH_CPP_WORK_H_

#include <ATen/ATen.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "capi/lockstep.h"

namespace lockstep_torch {

using Tensors = std::vector<at::Tensor>;
using Future = c10::ivalue::Future;

constexpr int64_t kSliceMs = 100;  // between looks at signals
constexpr int64_t kForeverMs = int64_t{1} << 40;

// ---- Errors

#define LOCKSTEP_REQUIRE(condition, ...) TORCH_CHECK_VALUE(condition, "lockstep: ", __VA_ARGS__)

// A DistBackendError with the attribute failed_rank in Python: the rank that died, stopped answering or differed, or None.
struct Error : c10::DistBackendError {
  Error(const std::string& message, int32_t rank)
      : c10::DistBackendError({__func__, __FILE__, __LINE__}, "lockstep: " + message), failed_rank(rank) {}

  const int32_t failed_rank;  // -1: none
};

inline std::exception_ptr ToException(const lockstep_error* error) {
  const std::string message = lockstep_error_message(error);
  const lockstep_code code = lockstep_error_code(error);
  if (code == LOCKSTEP_INVALID_ARGUMENT) {
    return std::make_exception_ptr(c10::ValueError({__func__, __FILE__, __LINE__}, "lockstep: " + message));
  }
  // The words that PyTorch's own users look for.
  const char* const late = code == LOCKSTEP_DEADLINE_EXCEEDED ? "Timed out waiting: " : "";
  return std::make_exception_ptr(Error(late + message, lockstep_error_failed_rank(error)));
}

// Frees what a call returned, and throws it if it is an error.
inline void Check(lockstep_error* error) {
  if (error == nullptr) return;
  const std::exception_ptr exception = ToException(error);
  lockstep_error_free(error);
  std::rethrow_exception(exception);
}

// ---- Tensors and reductions

inline std::string Name(at::ScalarType type) { return c10::str("torch.", c10::getDtypeNames(type).first); }

// As Python writes a tuple.
inline std::string Tuple(at::IntArrayRef items) {
  return c10::str("(", c10::Join(", ", items), items.size() == 1 ? ",)" : ")");
}

inline lockstep_dtype ToDtype(at::ScalarType type) {
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
  LOCKSTEP_REQUIRE(false, "no ", Name(type),
                   "; convert the tensor, or pass tensor.view(torch.uint8) if it is only moved");
}

// The tensor, or a copy of it that has its elements as in C.
inline at::Tensor Dense(const at::Tensor& tensor) {
  if (tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg()) return tensor;
  const at::NoGradGuard no_grad;
  return tensor.resolve_conj().resolve_neg().contiguous();
}

// Borrows a dense tensor.
inline lockstep_tensor Describe(const at::Tensor& tensor) {
  LOCKSTEP_REQUIRE(tensor.device().is_cpu(), "a tensor on ", tensor.device(), "; this back end has the CPU");
  const auto dimensions = static_cast<int32_t>(tensor.dim());
  return {
      tensor.data_ptr(), tensor.sizes().data(), nullptr, dimensions, ToDtype(tensor.scalar_type()), LOCKSTEP_HOST, 0};
}

// ---- Operations

// One operation in flight: the library's work, the tensors that it borrows until it is done, and where the results go then.
struct Operation {
  explicit Operation(c10d::OpType op_type) : type(op_type) {}
  Operation(const Operation&) = delete;
  ~Operation() { lockstep_work_destroy(work); }

  // What the library reads.
  lockstep_tensor Input(const at::Tensor& tensor) { return Describe(borrowed.emplace_back(Dense(tensor))); }

  // What the library writes, and may read first.
  lockstep_tensor Output(const at::Tensor& tensor) {
    const at::Tensor dense = Dense(tensor);
    if (!dense.is_same(tensor)) copies.emplace_back(tensor, dense);
    results.push_back(tensor);
    return Describe(borrowed.emplace_back(dense));
  }

  // An output that has to be as in C.
  lockstep_tensor ContiguousOutput(const at::Tensor& tensor) {
    LOCKSTEP_REQUIRE(tensor.is_contiguous(), "a tensor of shape ", Tuple(tensor.sizes()), " with strides ",
                     Tuple(tensor.strides()),
                     " is not contiguous; pass tensor.contiguous(), and copy it back if it is an output");
    return Output(tensor);
  }

  // One tensor for several, one behind the other, which the library writes.
  lockstep_tensor Blocks(const Tensors& tensors) {
    int64_t total = 0, begin = 0;
    for (const at::Tensor& tensor : tensors) total += tensor.numel();
    const at::Tensor flat = at::empty({total}, tensors.at(0).options());
    for (const at::Tensor& tensor : tensors) {
      copies.emplace_back(tensor, flat.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
      results.push_back(tensor);
      begin += tensor.numel();
    }
    return Describe(borrowed.emplace_back(flat));
  }

  lockstep_reduce_op Reduction(const c10d::ReduceOp& given) {
    // In the order of c10d::ReduceOp::RedOpType.
    static constexpr lockstep_reduce_op kOps[] = {LOCKSTEP_SUM, LOCKSTEP_AVG, LOCKSTEP_PROD,
                                                  LOCKSTEP_MIN, LOCKSTEP_MAX, LOCKSTEP_AND,
                                                  LOCKSTEP_OR,  LOCKSTEP_XOR, LOCKSTEP_PREMUL_SUM};
    LOCKSTEP_REQUIRE(given.op_ < std::size(kOps), "no reduction ", static_cast<int>(given.op_));
    if (given.op_ == c10d::ReduceOp::PREMUL_SUM) {
      const auto& by = static_cast<const c10d::PreMulSumSupplement&>(*given.supplement_);
      factor = by.tensor_factor.defined() ? by.tensor_factor.item<double>() : by.double_factor;
    }
    return kOps[given.op_];
  }

  bool IsReceive() const { return type == c10d::OpType::RECV || type == c10d::OpType::RECVANYSOURCE; }
  bool Done() const { return lockstep_work_done(work) != 0; }

  // Takes the results of a success where they belong, once. ValueError for a message of another size.
  void Finish() {
    if (copies.empty() && calls.empty() && !IsReceive()) return;
    std::call_once(finished, [this] {
      CheckMessage();
      const at::NoGradGuard no_grad;
      for (auto& [target, source] : copies) target.copy_(source);
      for (const auto& call : calls) call->Finish();
    });
  }

  // Of a receive that has succeeded.
  void CheckMessage() const {
    if (!IsReceive()) return;
    lockstep_message message;
    Check(lockstep_work_message(work, &message));
    LOCKSTEP_REQUIRE(message.bytes == borrowed[0].nbytes(), message.bytes, " bytes came from rank ", message.source,
                     ", with tag ", message.tag, ", for a tensor of ", borrowed[0].nbytes(), " bytes");
  }

  const c10d::OpType type;
  lockstep_work* work = nullptr;  // NULL: done
  std::optional<double> factor;   // of LOCKSTEP_PREMUL_SUM
  Tensors borrowed;
  Tensors results;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // targets and sources
  std::vector<std::shared_ptr<Operation>> calls;          // of a group
  std::once_flag finished;
};

using OperationPtr = std::shared_ptr<Operation>;

// Callbacks that the library owes. They may need the interpreter: it should end behind them.
inline std::atomic<int> callbacks_to_come{0};

// Whether this thread is in one.
inline thread_local bool in_callback = false;

// What a callback takes: an operation, which it keeps until it is done, and its future, or NULL.
struct Completion {
  OperationPtr operation;
  c10::intrusive_ptr<Future> future;
};

inline void Complete(const Completion& completion, const lockstep_error* error) {
  if (completion.future == nullptr) return;
  try {
    if (error != nullptr) {
      completion.future->setError(ToException(error));
    } else {
      completion.operation->Finish();
      completion.future->markCompleted(completion.operation->results);
    }
  } catch (...) {
    completion.future->setErrorIfNeeded(std::current_exception());
  }
}

// Complete() once the operation is done: here if it is. Returns the library's refusal to call it.
inline lockstep_error* CompleteWhenDone(OperationPtr operation, c10::intrusive_ptr<Future> future) {
  auto completion = std::make_unique<Completion>(Completion{std::move(operation), std::move(future)});
  const auto callback = [](void* context, const lockstep_error* error) {
    const bool outer = std::exchange(in_callback, true);
    const std::unique_ptr<Completion> given(static_cast<Completion*>(context));
    Complete(*given, error);
    in_callback = outer;
    --callbacks_to_come;
  };
  ++callbacks_to_come;
  lockstep_error* const error = lockstep_work_on_complete(completion->operation->work, callback, completion.get());
  if (error != nullptr) {
    --callbacks_to_come;
  } else {
    completion.release();
  }
  return error;
}

// Throws KeyboardInterrupt, or what another signal's handler raises. Python handles signals in its main thread alone.
inline void LookAtSignals() {
  if (gettid() != getpid()) return;
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() == 0) return;
  python_error raised;
  raised.persist();
  throw raised;
}

// Returns when the operation is done, and throws its error.
inline void Await(lockstep_work* work, int64_t timeout_ms) {
  std::optional<py::gil_scoped_release> without_interpreter;
  if (PyGILState_Check()) without_interpreter.emplace();
  for (bool done = false; work != nullptr; done = lockstep_work_done(work) != 0) {
    const int64_t slice_ms = std::min(timeout_ms, kSliceMs);
    timeout_ms -= slice_ms;
    lockstep_error* const error = lockstep_work_wait(work, slice_ms);
    // DEADLINE_EXCEEDED is the end of the slice, or the operation's own result: what comes once it is done.
    if (done || timeout_ms <= 0 || lockstep_error_code(error) != LOCKSTEP_DEADLINE_EXCEEDED) return Check(error);
    lockstep_error_free(error);
    LookAtSignals();
  }
}

class Work : public c10d::Work {
 public:
  explicit Work(OperationPtr operation) : c10d::Work(-1, operation->type), operation_(std::move(operation)) {}
  // What the operation borrows lives until it is done.
  ~Work() override {
    if (operation_->Done()) return;
    lockstep_error* const error = CompleteWhenDone(operation_, nullptr);
    // FAILED_PRECONDITION: a group that is open has it. Else the library may write its memory at any time: it stays.
    if (error != nullptr && lockstep_error_code(error) != LOCKSTEP_FAILED_PRECONDITION) new OperationPtr(operation_);
    lockstep_error_free(error);
  }

  bool isCompleted() override {
    if (!operation_->Done()) return false;
    if (isSuccess()) operation_->Finish();
    return true;
  }

  bool isSuccess() const override { return operation_->Done() && exception() == nullptr; }

  std::exception_ptr exception() const override {
    if (operation_->work == nullptr || !operation_->Done()) return nullptr;
    lockstep_error* const error = lockstep_work_wait(operation_->work, 0);
    const std::exception_ptr found = error == nullptr ? nullptr : ToException(error);
    lockstep_error_free(error);
    return found;
  }

  int sourceRank() const override {
    LOCKSTEP_REQUIRE(operation_->IsReceive(), "only a receive has a source rank");
    lockstep_message message;
    Check(lockstep_work_message(operation_->work, &message));
    return message.source;
  }

  Tensors result() override {
    wait(kNoTimeout);
    return operation_->results;
  }

  bool wait(std::chrono::milliseconds timeout) override {
    Await(operation_->work, timeout.count() > 0 ? timeout.count() : kForeverMs);
    operation_->Finish();
    return true;
  }

  // Its continuations run on the library's thread lockstep-done, one at a time.
  c10::intrusive_ptr<Future> getFuture() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (future_ != nullptr) return future_;
    auto future = c10::make_intrusive<Future>(c10::ListType::create(c10::TensorType::get()));
    if (operation_->work == nullptr) {
      Complete({operation_, future}, nullptr);
    } else {
      // A continuation may wait for the future, which could be completed only behind it.
      if (in_callback) AwaitEnd();
      Check(CompleteWhenDone(operation_, future));
    }
    future_ = std::move(future);
    return future_;
  }

 private:
  void AwaitEnd() {
    try {
      Await(operation_->work, kForeverMs);
    } catch (const c10::Error&) {
      // The future gets it.
    }
  }

  OperationPtr operation_;
  // Guarded by mutex_.
  c10::intrusive_ptr<Future> future_;
};

}  // namespace lockstep_torch

#endif  // PYTHON_LOCKSTEP_TORCH_CPP_WORK_H_
