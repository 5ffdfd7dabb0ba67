// The c10d back end "lockstep" in C++: collectives, messages and works, on tensors of the CPU. What is not called often it leaves to the
// back end in Python (lockstep.torch.backend), in whose place it stands. Both make the same calls in the same order: each rank may have
// either.
//
// THREADS  As c10d calls it: any thread, without the interpreter's lock.

#include <pybind11/chrono.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <cstring>
#include <shared_mutex>
#include <thread>
#include <unordered_set>

#include "cpp_work.h"

namespace lockstep_torch {
namespace {

using c10d::OpType;
using TensorLists = std::vector<Tensors>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// A communicator's handle, which belongs to Python.
class Handle {
 public:
  explicit Handle(uintptr_t address) : communicator_(reinterpret_cast<lockstep_communicator*>(address)) {}

  // function(communicator, arguments...), while nobody closes it.
  template <typename Function, typename... Arguments>
  void Call(const Function& function, const Arguments&... arguments) {
    const std::shared_lock<std::shared_mutex> lock(mu_);
    if (communicator_ == nullptr) throw Error("the communicator is closed", -1);
    Check(function(communicator_, arguments...));
  }

  // Returns once no call is made any more.
  void Close() {
    const std::unique_lock<std::shared_mutex> lock(mu_);
    communicator_ = nullptr;
  }

 private:
  std::shared_mutex mu_;
  // Guarded by mu_.
  lockstep_communicator* communicator_;
};

template <typename Item>
const Item& One(const std::vector<Item>& items) {
  LOCKSTEP_REQUIRE(items.size() == 1, "a list of ", items.size(), " tensors where one belongs");
  return items[0];
}

at::Tensor Concatenate(const Tensors& tensors) {
  const at::NoGradGuard no_grad;
  Tensors flat;
  for (const at::Tensor& tensor : tensors) {
    LOCKSTEP_REQUIRE(tensor.scalar_type() == tensors[0].scalar_type(), "a ", Name(tensor.scalar_type()),
                     " in the list, beside a ", Name(tensors[0].scalar_type()));
    flat.push_back(tensor.reshape(-1));
  }
  return at::cat(flat);
}

// Inputs of a list. One that is there twice is copied: the library takes no list whose tensors overlap.
Tensors Distinct(const Tensors& tensors) {
  std::unordered_set<const void*> seen;
  Tensors distinct;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor dense = Dense(tensor);
    distinct.push_back(seen.insert(dense.const_data_ptr()).second ? dense : dense.detach().clone());
  }
  return distinct;
}

std::vector<int64_t> Sizes(const Tensors& tensors) {
  std::vector<int64_t> sizes;
  for (const at::Tensor& tensor : tensors) sizes.push_back(tensor.numel());
  return sizes;
}

class Backend : public c10d::Backend {
 public:
  // python: the back end in Python, whose communicator's handle this is.
  Backend(std::shared_ptr<Handle> handle, py::object python)
      : c10d::Backend(python.attr("rank")().cast<int>(), python.attr("size")().cast<int>()),
        handle_(std::move(handle)),
        options_(python.attr("options").cast<c10::intrusive_ptr<Options>>()),
        python_(std::move(python)) {}

  ~Backend() override {
    PyObject* const python = python_.release().ptr();
    if (!Py_IsInitialized()) return;
    const py::gil_scoped_acquire gil;
    Py_DECREF(python);
  }

  const py::object& python() const { return python_; }

  const std::string getBackendName() const override { return "lockstep"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  bool supportsCoalescing() const override { return true; }
  bool supportsSplitting() const override { return true; }
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  void setSequenceNumberForGroup() override {}

  void setTimeout(std::chrono::milliseconds timeout) override {
    timeout_ms_ = timeout.count();
    const py::gil_scoped_acquire gil;
    python_.attr("set_timeout")(timeout);
  }

  // ---- Collectives

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override {
    const auto operation = std::make_shared<Operation>(OpType::BROADCAST);
    const lockstep_tensor tensor = operation->Output(One(tensors));
    return Start(operation, opts, lockstep_broadcast, &tensor, opts.rootRank);
  }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override {
    if (One(tensors).is_sparse()) return allreduce_sparse(tensors, opts);
    const auto operation = std::make_shared<Operation>(OpType::ALLREDUCE);
    const lockstep_tensor tensor = operation->Output(tensors[0]);
    return Start(operation, opts, lockstep_all_reduce, &tensor, &tensor, operation->Reduction(opts.reduceOp));
  }

  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override {
    const auto operation = std::make_shared<Operation>(OpType::ALLREDUCE_COALESCED);
    std::vector<lockstep_tensor> all;
    for (const at::Tensor& tensor : tensors) all.push_back(operation->Output(tensor));
    return Start(operation, opts, lockstep_all_reduce_coalesced, all.data(), all.data(), all.size(),
                 operation->Reduction(opts.reduceOp));
  }

  // Gathers all ranks' indices and values, and adds up. Blocks.
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) override {
    LOCKSTEP_REQUIRE(opts.reduceOp.op_ == c10d::ReduceOp::SUM, "sparse tensors can only be summed");
    LOCKSTEP_REQUIRE(!InGroup(), "sparse tensors cannot be coalesced");
    const at::Tensor own = One(tensors).coalesce();
    const at::Tensor counts = at::empty({size_}, at::kLong);
    Gather(at::scalar_tensor(own._nnz(), at::kLong), counts, nullptr, opts.timeout);
    const auto gather_rows = [&](const at::Tensor& rows) {
      std::vector<int64_t> shape = rows.sizes().vec();
      shape[0] = counts.sum().item<int64_t>();
      const at::Tensor all = at::empty(shape, rows.options());
      const at::Tensor elements = counts * c10::multiply_integers(rows.sizes().slice(1));
      Gather(rows, all, elements.const_data_ptr<int64_t>(), opts.timeout);
      return all;
    };
    const at::Tensor indices = gather_rows(own.indices().t()), values = gather_rows(own.values());
    const at::NoGradGuard no_grad;
    tensors[0].copy_(at::sparse_coo_tensor(indices.t(), values, own.sizes()).coalesce());
    const auto operation = std::make_shared<Operation>(OpType::_ALLREDUCE_SPARSE);
    operation->results = tensors;
    return c10::make_intrusive<Work>(operation);
  }

  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override {
    const auto operation = std::make_shared<Operation>(OpType::REDUCE);
    const lockstep_tensor tensor = operation->Output(One(tensors));
    return Start(operation, opts, lockstep_reduce, &tensor, &tensor, operation->Reduction(opts.reduceOp),
                 opts.rootRank);
  }

  WorkPtr allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override {
    const auto operation = std::make_shared<Operation>(OpType::ALLGATHER);
    const lockstep_tensor input = operation->Input(One(inputs));
    const lockstep_tensor output = operation->Blocks(OneForEachRank(One(outputs), inputs[0]));
    return Start(operation, opts, lockstep_all_gather, &input, &output);
  }

  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) override {
    const auto operation = std::make_shared<Operation>(OpType::_ALLGATHER_BASE);
    const lockstep_tensor source = operation->Input(input), target = operation->ContiguousOutput(output);
    return Start(operation, opts, lockstep_all_gather, &source, &target);
  }

  // outputs[r][i] is inputs[i] of rank r.
  WorkPtr allgather_coalesced(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override {
    const auto operation = std::make_shared<Operation>(OpType::ALLGATHER_COALESCED);
    const Tensors distinct = Distinct(inputs);
    std::vector<lockstep_tensor> sources, targets;
    for (size_t i = 0; i < inputs.size(); ++i) {
      Tensors of_all_ranks;
      for (const Tensors& of_rank : outputs) {
        LOCKSTEP_REQUIRE(of_rank.size() == inputs.size(), "lists of ", of_rank.size(), " outputs for ", inputs.size(),
                         " inputs");
        of_all_ranks.push_back(of_rank[i]);
      }
      sources.push_back(operation->Input(distinct[i]));
      targets.push_back(operation->Blocks(OneForEachRank(of_all_ranks, inputs[i])));
    }
    return Start(operation, opts, lockstep_all_gather_coalesced, sources.data(), targets.data(), sources.size());
  }

  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) override {
    const auto operation = std::make_shared<Operation>(OpType::ALLGATHER_INTO_TENSOR_COALESCED);
    const auto [sources, targets] = Pairs(operation, inputs, outputs);
    return Start(operation, opts, lockstep_all_gather_coalesced, sources.data(), targets.data(), sources.size());
  }

  WorkPtr gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override {
    const auto operation = std::make_shared<Operation>(OpType::GATHER);
    const lockstep_tensor input = operation->Input(One(inputs));
    lockstep_tensor output = {};
    if (rank_ == opts.rootRank) output = operation->Blocks(OneForEachRank(One(outputs), inputs[0]));
    return Start(operation, opts, lockstep_gather, &input, &output, nullptr, opts.rootRank);
  }

  WorkPtr scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& opts) override {
    const auto operation = std::make_shared<Operation>(OpType::SCATTER);
    lockstep_tensor input = {};
    if (rank_ == opts.rootRank) input = operation->Input(Concatenate(OneForEachRank(One(inputs), One(outputs))));
    const lockstep_tensor output = operation->Output(One(outputs));
    return Start(operation, opts, lockstep_scatter, &input, &output, nullptr, opts.rootRank);
  }

  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& opts) override {
    const auto operation = std::make_shared<Operation>(OpType::REDUCE_SCATTER);
    const lockstep_tensor input = operation->Input(Concatenate(OneForEachRank(One(inputs), One(outputs))));
    const lockstep_tensor output = operation->Output(outputs[0]);
    return Start(operation, opts, lockstep_reduce_scatter, &input, &output, operation->Reduction(opts.reduceOp));
  }

  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) override {
    const auto operation = std::make_shared<Operation>(OpType::_REDUCE_SCATTER_BASE);
    const lockstep_tensor source = operation->Input(input), target = operation->ContiguousOutput(output);
    return Start(operation, opts, lockstep_reduce_scatter, &source, &target, operation->Reduction(opts.reduceOp));
  }

  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& opts) override {
    const auto operation = std::make_shared<Operation>(OpType::REDUCE_SCATTER_TENSOR_COALESCED);
    const auto [sources, targets] = Pairs(operation, inputs, outputs);
    return Start(operation, opts, lockstep_reduce_scatter_coalesced, sources.data(), targets.data(), sources.size(),
                 operation->Reduction(opts.reduceOp));
  }

  // Splits are rows; none: equal blocks.
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& opts) override {
    const auto operation = std::make_shared<Operation>(OpType::ALLTOALL_BASE);
    const lockstep_tensor source = operation->Input(input), target = operation->ContiguousOutput(output);
    if (output_splits.empty() && input_splits.empty())
      return Start(operation, opts, lockstep_all_to_all, &source, &target);
    const std::vector<int64_t> input_counts = Elements(input, input_splits),
                               output_counts = Elements(output, output_splits);
    return Start(operation, opts, lockstep_all_to_all_v, &source, &target, input_counts.data(), output_counts.data());
  }

  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override {
    LOCKSTEP_REQUIRE(inputs.size() == static_cast<size_t>(size_) && outputs.size() == inputs.size(), inputs.size(),
                     " inputs and ", outputs.size(), " outputs for ", size_, " ranks");
    const auto operation = std::make_shared<Operation>(OpType::ALLTOALL);
    const lockstep_tensor source = operation->Input(Concatenate(inputs)), target = operation->Blocks(outputs);
    const std::vector<int64_t> input_counts = Sizes(inputs), output_counts = Sizes(outputs);
    return Start(operation, opts, lockstep_all_to_all_v, &source, &target, input_counts.data(), output_counts.data());
  }

  WorkPtr barrier(const c10d::BarrierOptions& opts) override {
    return Start(std::make_shared<Operation>(OpType::BARRIER), opts, lockstep_barrier);
  }

  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override {
    const py::gil_scoped_acquire gil;
    WaitInPython(python_, "monitored_barrier", opts, wait_all_ranks);
  }

  // ---- Messages

  WorkPtr send(Tensors& tensors, int target, int tag) override {
    const auto operation = std::make_shared<Operation>(OpType::SEND);
    const lockstep_tensor tensor = operation->Input(One(tensors));
    return Launch(operation, true, lockstep_send, &tensor, target, tag, timeout_ms_.load());
  }

  WorkPtr recv(Tensors& tensors, int source, int tag) override {
    const auto operation =
        std::make_shared<Operation>(source == LOCKSTEP_ANY_SOURCE ? OpType::RECVANYSOURCE : OpType::RECV);
    const lockstep_tensor tensor = operation->Output(One(tensors));
    return Launch(operation, true, lockstep_receive, &tensor, source, tag, timeout_ms_.load(), nullptr);
  }

  WorkPtr recvAnysource(Tensors& tensors, int tag) override { return recv(tensors, LOCKSTEP_ANY_SOURCE, tag); }

  // ---- Groups of calls

  void startCoalescing() override {
    if (InGroup()) {  // left by a block that raised
      try {
        endCoalescing();
      } catch (const c10::Error&) {
        // The block has raised it.
      }
    }
    handle_->Call(lockstep_group_start);
    group_.clear();
    group_thread_ = std::this_thread::get_id();
  }

  // NULL if the process group was aborted meanwhile.
  WorkPtr endCoalescing() override {
    if (!InGroup()) return nullptr;
    group_thread_ = std::thread::id();
    const auto operation = std::make_shared<Operation>(OpType::COALESCED);
    operation->calls = std::move(group_);
    for (const OperationPtr& call : operation->calls) {
      operation->results.insert(operation->results.end(), call->results.begin(), call->results.end());
    }
    return Launch(operation, true, lockstep_group_end);
  }

  // ---- Others made from it, and its end

  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<Options>& opts) override {
    const py::gil_scoped_acquire gil;
    if (std::find(ranks.begin(), ranks.end(), rank_) == ranks.end()) {
      performNocolorSplit();
      return nullptr;
    }
    const py::object made = WaitInPython(python_, "split", store, ranks, opts);
    return py::module_::import("lockstep.torch.cpp").attr("over")(made).cast<c10::intrusive_ptr<c10d::Backend>>();
  }

  // For ranks that are no members of a new group, while its members call split().
  void performNocolorSplit() {
    const py::gil_scoped_acquire gil;
    WaitInPython(python_, "perform_nocolor_split", py::none());
  }

  void abort() override { End("abort"); }
  void shutdown() override { End("shutdown"); }

  c10d::ErrorType getError() override {
    lockstep_code code = LOCKSTEP_OK;
    handle_->Call([&](lockstep_communicator* communicator) -> lockstep_error* {
      lockstep_error* const error = lockstep_communicator_status(communicator);
      code = lockstep_error_code(error);
      lockstep_error_free(error);
      return nullptr;
    });
    if (code == LOCKSTEP_OK) return c10d::ErrorType::SUCCESS;
    if (code == LOCKSTEP_DEADLINE_EXCEEDED) return c10d::ErrorType::TIMEOUT;
    return code == LOCKSTEP_ABORTED ? c10d::ErrorType::REMOTE_ERROR : c10d::ErrorType::COMM_ERROR;
  }

 private:
  // A call in Python that waits. A signal may end the wait: then what was called goes on, and later operations come behind it.
  template <typename... Arguments>
  py::object WaitInPython(const py::object& object, const char* name, const Arguments&... arguments) {
    try {
      return object.attr(name)(arguments...);
    } catch (...) {
      interrupted_ = true;
      throw;
    }
  }

  void FinishInterrupted() {
    const py::gil_scoped_acquire gil;
    interrupted_ = false;
    WaitInPython(python_.attr("_communicator"), "_finish_interrupted");
  }

  void End(const char* how) {
    group_thread_ = std::thread::id();
    const py::gil_scoped_acquire gil;
    python_.attr(how)();
  }

  // Starts an operation: function(communicator, arguments..., &work). Not asynchronous: returns NULL, as c10d has it, when it is done; in
  // a group at once.
  template <typename Function, typename... Arguments>
  WorkPtr Launch(const OperationPtr& operation, bool asynchronous, Function function, const Arguments&... arguments) {
    if (interrupted_) FinishInterrupted();
    handle_->Call(function, arguments..., &operation->work);
    if (InGroup()) {
      group_.push_back(operation);
      if (!asynchronous) return nullptr;
    }
    auto work = c10::make_intrusive<Work>(operation);
    if (asynchronous) return work;
    work->wait(kNoTimeout);
    return nullptr;
  }

  // Launch() of a collective: function(communicator, arguments..., options, stream, &work).
  template <typename Given, typename Function, typename... Arguments>
  WorkPtr Start(const OperationPtr& operation, const Given& given, Function function, const Arguments&... arguments) {
    lockstep_collective_options options;
    LOCKSTEP_INIT(options);
    options.timeout_ms = given.timeout.count() > 0 ? given.timeout.count() : timeout_ms_.load();
    if (operation->factor) options.factor = &*operation->factor;
    const bool defaults = options.timeout_ms == 0 && options.factor == nullptr;
    ++sequence_;
    return Launch(operation, given.asyncOp, function, arguments..., defaults ? nullptr : &options, nullptr);
  }

  // counts NULL: as much of each rank.
  void Gather(const at::Tensor& input, const at::Tensor& output, const int64_t* counts,
              std::chrono::milliseconds timeout) {
    const c10d::AllgatherOptions opts = {timeout, /*asyncOp=*/false};
    const auto operation = std::make_shared<Operation>(OpType::ALLGATHER);
    const lockstep_tensor source = operation->Input(input), target = operation->ContiguousOutput(output);
    if (counts == nullptr) {
      Start(operation, opts, lockstep_all_gather, &source, &target);
    } else {
      Start(operation, opts, lockstep_all_gather_v, &source, &target, counts);
    }
  }

  static std::pair<std::vector<lockstep_tensor>, std::vector<lockstep_tensor>> Pairs(const OperationPtr& operation,
                                                                                     const Tensors& inputs,
                                                                                     const Tensors& outputs) {
    LOCKSTEP_REQUIRE(inputs.size() == outputs.size(), inputs.size(), " inputs and ", outputs.size(), " outputs");
    std::vector<lockstep_tensor> sources, targets;
    for (const at::Tensor& input : Distinct(inputs)) sources.push_back(operation->Input(input));
    for (const at::Tensor& output : outputs) targets.push_back(operation->ContiguousOutput(output));
    return {sources, targets};
  }

  const Tensors& OneForEachRank(const Tensors& tensors, const at::Tensor& like) const {
    LOCKSTEP_REQUIRE(tensors.size() == static_cast<size_t>(size_), "a list of ", tensors.size(), " tensors for ", size_,
                     " ranks");
    for (const at::Tensor& tensor : tensors) {
      LOCKSTEP_REQUIRE(tensor.scalar_type() == like.scalar_type() && tensor.numel() == like.numel(), "a ",
                       Name(tensor.scalar_type()), " of shape ", Tuple(tensor.sizes()), " in the list, beside a ",
                       Name(like.scalar_type()), " of shape ", Tuple(like.sizes()));
    }
    return tensors;
  }

  // The elements of each rank's rows.
  std::vector<int64_t> Elements(const at::Tensor& tensor, std::vector<int64_t> splits) const {
    const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
    if (splits.empty()) splits.assign(size_, rows / size_);
    LOCKSTEP_REQUIRE(splits.size() == static_cast<size_t>(size_) && c10::sum_integers(splits) == rows,
                     "Split sizes doesn't match total dim 0 size: ", splits, " for ", size_, " ranks and ", rows,
                     " rows");
    for (int64_t& split : splits) split *= tensor.numel() / std::max<int64_t>(rows, 1);
    return splits;
  }

  bool InGroup() const { return group_thread_.load(std::memory_order_relaxed) == std::this_thread::get_id(); }

  const std::shared_ptr<Handle> handle_;
  const c10::intrusive_ptr<Options> options_;
  py::object python_;
  std::atomic<int64_t> timeout_ms_{0};    // 0: the communicator's
  std::atomic<uint64_t> sequence_{0};     // of the last collective
  std::atomic<bool> interrupted_{false};  // a call in Python may go on
  // The thread that has a group open. It alone touches the group's calls.
  std::atomic<std::thread::id> group_thread_{};
  std::vector<OperationPtr> group_;
};

}  // namespace
}  // namespace lockstep_torch

PYBIND11_MODULE(lockstep_torch, m) {
  using lockstep_torch::Backend;
  using lockstep_torch::Handle;
  py::class_<Handle, std::shared_ptr<Handle>>(m, "Handle")
      .def(py::init<uintptr_t>())
      .def("close", &Handle::Close, py::call_guard<py::gil_scoped_release>());
  py::class_<Backend, c10d::Backend, c10::intrusive_ptr<Backend>>(m, "Backend")
      .def(py::init<std::shared_ptr<Handle>, py::object>())
      .def("perform_nocolor_split", [](Backend& backend, const py::object&) { backend.performNocolorSplit(); })
      // What people ask of a back end and c10d does not: _communicator.
      .def("__getattr__",
           [](const Backend& backend, const std::string& name) { return backend.python().attr(name.c_str()); });
  m.def("callbacks_to_come", [] { return lockstep_torch::callbacks_to_come.load(); });
  py::register_exception_translator([](std::exception_ptr exception) {
    try {
      std::rethrow_exception(exception);
    } catch (const lockstep_torch::Error& error) {
      const py::object type = py::module_::import("torch.distributed").attr("DistBackendError");
      const py::object made = type(error.what_without_backtrace());
      made.attr("failed_rank") = error.failed_rank < 0 ? py::object(py::none()) : py::int_(error.failed_rank);
      PyErr_SetObject(type.ptr(), made.ptr());
    }
  });
}
