// The c10d back end "lockstep", and the operators by which Python makes it (lockstep.torch.backend). It needs no headers of
// Python's, so one library serves every Python that a release of PyTorch supports.
//
// Tensors of the CPU go through the host's communicator. Tensors of a GPU go through a communicator of the process's GPU. It is made
// when the first such tensor appears, or immediately if init_process_group got a device_id. Their messages go through the host.
//
// Some releases of PyTorch lack some of the virtual functions, so those are declared here without `override`.
//
// THREADS  As c10d calls it: any thread, without the interpreter's lock.

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <future>
#include <list>
#include <unordered_set>

#include "communicator.h"
#include "events.h"
#include "recorder.h"
#include "work.h"

namespace lockstep_torch {
namespace {

using TensorLists = std::vector<Tensors>;

template <typename Item>
const Item& One(const std::vector<Item>& items) {
  LOCKSTEP_REQUIRE(items.size() == 1, "a list of ", items.size(), " tensors where one belongs");
  return items[0];
}

at::Tensor Concatenate(const Tensors& tensors) {
  const at::NoGradGuard no_grad;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
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

// Returns the elements of each tensor, as the library counts them.
std::vector<int64_t> Counts(const Tensors& tensors) {
  std::vector<int64_t> counts;
  for (const at::Tensor& tensor : tensors) counts.push_back(tensor.numel());
  return Counted(tensors[0], std::move(counts));
}

bool EquallyLong(const Tensors& tensors, const at::Tensor& own) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [&](const at::Tensor& tensor) { return tensor.numel() == own.numel(); });
}

// Returns the error of a monitored barrier in Gloo's words, for which users search. `error` is the library's: it contains
// "rank 1 has not come in time" or "ranks 1, 2 have not come in time".
std::string LateText(const std::string& error, int rank, int64_t waited_ms, bool wait_all_ranks) {
  const size_t end = std::min(error.find(" has not come in time"), error.find(" have not come in time"));
  const size_t word = end == std::string::npos ? end : error.rfind("rank", end);
  if (word == std::string::npos) return error;
  const size_t begin = error.find(' ', word) + 1;
  const std::string missing = error.substr(begin, end - begin);
  const bool several = missing.find(',') != std::string::npos;
  const std::string who =
      wait_all_ranks && several ? "Ranks " + missing : "Rank " + missing.substr(0, missing.find(','));
  const std::string text = rank == 0 ? c10::str("Rank 0 timed out in monitoredBarrier after ", waited_ms, " ms: ")
                                     : c10::str("Rank ", rank,
                                                " successfully reached monitoredBarrier, but received errors while "
                                                "waiting for send/recv from rank 0: ");
  return c10::str("[Rank ", rank, "]: ", text, who, " failed to pass monitoredBarrier (", error, ")");
}

// The arguments from which a group of ranks is made. Its subgroups get them too.
struct Setup {
  StorePtr store;
  Hosts hosts;
  int64_t timeout_ms;                  // of an operation; 0: the library's default
  int64_t setup_timeout_ms;            // of making a communicator
  std::vector<uint64_t> global_ranks;  // in the order of the group; empty: the group is the world
};

// PyTorch 2.8 does not have them there.
template <typename Options>
void SetGlobalRanks(Options& options, const std::vector<uint64_t>& ranks) {
  if constexpr (requires { options.global_ranks_in_group; }) options.global_ranks_in_group = ranks;
}
template <typename Options>
void SetGroupName(Options& options, const std::string& name) {
  if constexpr (requires { options.group_name; }) options.group_name = name;
}

class Backend : public c10d::Backend {
 public:
  // The communicator has the rank and the size.
  Backend(std::shared_ptr<Communicator> communicator, int rank, int size, Setup setup,
          c10::intrusive_ptr<Options> options)
      : c10d::Backend(rank, size),
        host_(std::move(communicator)),
        setup_(std::move(setup)),
        options_(std::move(options)),
        timeout_ms_(setup_.timeout_ms) {}

  ~Backend() override { shutdown(); }

  const std::string getBackendName() const override { return "lockstep"; }
  c10::intrusive_ptr<Options> getBackendOptions() { return options_; }
  bool supportsCoalescing() const override { return true; }
  bool supportsSplitting() const override { return true; }
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  void setSequenceNumberForGroup() override {}

  void setTimeout(std::chrono::milliseconds timeout) {
    LOCKSTEP_REQUIRE(timeout.count() > 0, "a timeout of ", timeout.count(), " ms; it must be positive");
    timeout_ms_ = timeout.count();
    options_->timeout = timeout;
  }

  void eagerConnectSingleDevice(at::Device device) override {
    if (device.is_cuda()) OfDevice(device);
  }

  // The communicator for tensors on a device. Collective the first time, if the device is a GPU.
  std::shared_ptr<Communicator> OfDevice(at::Device device) {
    if (!device.is_cuda()) return host_;
    if (auto gpu = Gpu()) return gpu;
    const std::lock_guard<std::mutex> one_connects(connecting_mu_);
    if (auto gpu = Gpu()) return gpu;
    auto gpu = Communicator::Connect(setup_.store, rank_, size_, setup_.hosts, setup_.timeout_ms,
                                     setup_.setup_timeout_ms, LOCKSTEP_CUDA, device.index());
    const std::lock_guard<std::mutex> lock(gpu_mu_);
    stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
    return gpu_ = std::move(gpu);
  }

  // ---- Hooks

  bool supportsAbortHooks() const { return true; }
  void registerAbortHook(int64_t id, AbortHook hook) { hooks_->Register(&Hooks::abort, id, std::move(hook)); }
  void unregisterAbortHook(int64_t id) { hooks_->Unregister(&Hooks::abort, id); }
  bool supportsCompletionHooks() const { return true; }
  void registerCompletionHook(int64_t id, CompletionHook hook) {
    hooks_->Register(&Hooks::completion, id, std::move(hook));
  }
  void unregisterCompletionHook(int64_t id) { hooks_->Unregister(&Hooks::completion, id); }

  // ---- Collectives

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override {
    const auto operation = std::make_shared<Operation>(OpType::BROADCAST);
    const lockstep_tensor tensor = operation->InputAndOutput(One(tensors));
    return Start(operation, opts, lockstep_broadcast, &tensor, opts.rootRank);
  }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override {
    if (One(tensors).is_sparse()) return allreduce_sparse(tensors, opts);
    const auto operation = std::make_shared<Operation>(OpType::ALLREDUCE, /*reduces=*/true);
    const lockstep_tensor tensor = operation->InputAndOutput(tensors[0]);
    return Start(operation, opts, lockstep_all_reduce, &tensor, &tensor, operation->Reduction(opts.reduceOp));
  }

  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override {
    const auto operation = std::make_shared<Operation>(OpType::ALLREDUCE_COALESCED, /*reduces=*/true);
    std::vector<lockstep_tensor> all;
    for (const at::Tensor& tensor : tensors) all.push_back(operation->InputAndOutput(tensor));
    return Start(operation, opts, lockstep_all_reduce_coalesced, all.data(), all.data(), all.size(),
                 operation->Reduction(opts.reduceOp));
  }

  // Gathers all ranks' indices and values, and adds up. Blocks.
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) override {
    LOCKSTEP_REQUIRE(opts.reduceOp.op_ == c10d::ReduceOp::SUM, "sparse tensors can only be summed");
    LOCKSTEP_REQUIRE(!InGroup(), "sparse tensors cannot be coalesced");
    const auto operation = std::make_shared<Operation>(OpType::_ALLREDUCE_SPARSE);
    operation->inputs = tensors;
    const auto work = NewWork(operation);
    const at::Tensor own = One(tensors).coalesce();
    const at::Tensor counts = at::empty({size_}, at::kLong);
    Gather(at::scalar_tensor(own._nnz(), at::kLong), counts, nullptr, opts.timeout);
    const auto gather_rows = [&](const at::Tensor& rows) {
      std::vector<int64_t> shape = rows.sizes().vec();
      shape[0] = counts.sum().item<int64_t>();
      const at::Tensor all = at::empty(shape, rows.options());
      std::vector<int64_t> elements(counts.const_data_ptr<int64_t>(), counts.const_data_ptr<int64_t>() + size_);
      for (int64_t& count : elements) count *= c10::multiply_integers(rows.sizes().slice(1));
      Gather(rows, all, Counted(rows, std::move(elements)).data(), opts.timeout);
      return all;
    };
    const at::Tensor indices = gather_rows(own.indices().t()), values = gather_rows(own.values());
    const c10::InferenceMode mode(tensors[0].is_inference());
    const at::NoGradGuard no_grad;
    tensors[0].copy_(at::sparse_coo_tensor(indices.t(), values, own.sizes()).coalesce());
    operation->results = tensors;
    work->isCompleted();
    return work;
  }

  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override {
    const auto operation = std::make_shared<Operation>(OpType::REDUCE, /*reduces=*/true);
    const lockstep_tensor tensor = operation->InputAndOutput(One(tensors));
    return Start(operation, opts, lockstep_reduce, &tensor, &tensor, operation->Reduction(opts.reduceOp),
                 opts.rootRank);
  }

  WorkPtr allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override {
    const auto operation = std::make_shared<Operation>(OpType::ALLGATHER);
    const lockstep_tensor input = operation->Input(One(inputs));
    if (One(outputs).size() == static_cast<size_t>(size_) && outputs[0][rank_].numel() == inputs[0].numel() &&
        !EquallyLong(outputs[0], inputs[0])) {
      const lockstep_tensor output = operation->Blocks(OfDtype(outputs[0], inputs[0]));
      return Start(operation, opts, lockstep_all_gather_v, &input, &output, Counts(outputs[0]).data());
    }
    const lockstep_tensor output = operation->Blocks(OneForEachRank(outputs[0], inputs[0]));
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
    const auto operation = std::make_shared<Operation>(OpType::ALLGATHER_COALESCED);
    const auto [sources, targets] = Pairs(operation, inputs, outputs);
    return Start(operation, opts, lockstep_all_gather_coalesced, sources.data(), targets.data(), sources.size());
  }

  WorkPtr gather_into_tensor(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& opts) {
    const auto operation = std::make_shared<Operation>(OpType::GATHER);
    const lockstep_tensor source = operation->Input(input);
    lockstep_tensor target = {};
    if (rank_ == opts.rootRank) target = operation->ContiguousOutput(output);
    return Start(operation, opts, lockstep_gather, &source, &target, nullptr, opts.rootRank);
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
    if (rank_ == opts.rootRank) {
      input = operation->InputList(One(inputs), Concatenate(OneForEachRank(inputs[0], One(outputs))));
    }
    const lockstep_tensor output = operation->Output(One(outputs));
    return Start(operation, opts, lockstep_scatter, &input, &output, nullptr, opts.rootRank);
  }

  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& opts) override {
    const auto operation = std::make_shared<Operation>(OpType::REDUCE_SCATTER, /*reduces=*/true);
    const at::Tensor& output = One(outputs);
    const bool uneven = One(inputs).size() == static_cast<size_t>(size_) &&
                        inputs[0][rank_].numel() == output.numel() && !EquallyLong(inputs[0], output);
    const lockstep_tensor source = operation->InputList(
        inputs[0], Concatenate(uneven ? OfDtype(inputs[0], output) : OneForEachRank(inputs[0], output)));
    const lockstep_tensor target = operation->Output(output);
    const lockstep_reduce_op op = operation->Reduction(opts.reduceOp);
    if (!uneven) return Start(operation, opts, lockstep_reduce_scatter, &source, &target, op);
    return Start(operation, opts, lockstep_reduce_scatter_v, &source, &target, Counts(inputs[0]).data(), op);
  }

  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) override {
    const auto operation = std::make_shared<Operation>(OpType::_REDUCE_SCATTER_BASE, /*reduces=*/true);
    const lockstep_tensor source = operation->Input(input), target = operation->ContiguousOutput(output);
    return Start(operation, opts, lockstep_reduce_scatter, &source, &target, operation->Reduction(opts.reduceOp));
  }

  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& opts) override {
    const auto operation = std::make_shared<Operation>(OpType::REDUCE_SCATTER, /*reduces=*/true);
    const auto [sources, targets] = Pairs(operation, inputs, outputs);
    return Start(operation, opts, lockstep_reduce_scatter_coalesced, sources.data(), targets.data(), sources.size(),
                 operation->Reduction(opts.reduceOp));
  }

  // Splits are rows; none: equal blocks.
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& opts) override {
    const auto operation = std::make_shared<Operation>(OpType::ALLTOALL_BASE);
    const lockstep_tensor source = operation->Input(input), target = operation->ContiguousOutput(output);
    const std::vector<int64_t> input_counts = OfRows(input, input_splits),
                               output_counts = OfRows(output, output_splits);
    if (output_splits.empty() && input_splits.empty())
      return Start(operation, opts, lockstep_all_to_all, &source, &target);
    operation->input_splits = input_splits, operation->output_splits = output_splits;
    return Start(operation, opts, lockstep_all_to_all_v, &source, &target, input_counts.data(), output_counts.data());
  }

  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override {
    LOCKSTEP_REQUIRE(inputs.size() == static_cast<size_t>(size_) && outputs.size() == inputs.size(), inputs.size(),
                     " inputs and ", outputs.size(), " outputs for ", size_, " ranks");
    const auto operation = std::make_shared<Operation>(OpType::ALLTOALL);
    const lockstep_tensor source = operation->InputList(inputs, Concatenate(inputs)),
                          target = operation->Blocks(outputs);
    const std::vector<int64_t> input_counts = Counts(inputs), output_counts = Counts(outputs);
    return Start(operation, opts, lockstep_all_to_all_v, &source, &target, input_counts.data(), output_counts.data());
  }

  WorkPtr barrier(const c10d::BarrierOptions& opts) override {
    if (const auto gpu = Gpu())
      c10::impl::VirtualGuardImpl(stream_->device_type()).getStream(stream_->device()).synchronize();
    return Start(std::make_shared<Operation>(OpType::BARRIER), opts, lockstep_barrier);
  }

  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override {
    const int64_t timeout_ms = opts.timeout.count() == 0 ? 1 : TimeoutOf(opts);
    const auto began = Clock::now();
    try {
      Wait([host = host_, timeout_ms] { host->Call(lockstep_monitored_barrier, timeout_ms); });
    } catch (const c10::DistBackendError& error) {
      const int64_t waited_ms = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - began).count();
      C10_THROW_ERROR(DistBackendError, LateText(error.what_without_backtrace(), rank_, waited_ms, wait_all_ranks));
    }
  }

  // ---- Messages

  WorkPtr send(Tensors& tensors, int target, int tag) override {
    const auto operation = std::make_shared<Operation>(OpType::SEND);
    const lockstep_tensor tensor = operation->Input(OnHost(One(tensors)));
    operation->peer = target;
    return Launch(operation, true, lockstep_send, &tensor, target, tag, timeout_ms_.load());
  }

  WorkPtr recv(Tensors& tensors, int source, int tag) override {
    const auto operation =
        std::make_shared<Operation>(source == LOCKSTEP_ANY_SOURCE ? OpType::RECVANYSOURCE : OpType::RECV);
    const at::Tensor& given = One(tensors);
    const at::Tensor used = OnHost(given);
    const lockstep_tensor tensor = operation->InputAndOutput(used);
    if (!used.is_same(given)) {
      operation->copies.emplace_back(given, used);
      operation->results = tensors;
    }
    operation->peer = source;
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
    group_.clear();
    group_on_ = nullptr;
    group_thread_ = std::this_thread::get_id();
  }

  // NULL if the group has no calls, or the process group was aborted meanwhile.
  WorkPtr endCoalescing() override {
    if (!InGroup()) return nullptr;
    group_thread_ = std::thread::id();
    const auto communicator = std::exchange(group_on_, nullptr);
    if (communicator == nullptr) return nullptr;
    const auto operation = std::make_shared<Operation>(OpType::COALESCED);
    operation->calls = std::move(group_);
    for (const OperationPtr& call : operation->calls) {
      operation->results.insert(operation->results.end(), call->results.begin(), call->results.end());
    }
    auto work = NewWork(operation);
    Reporting(operation, *communicator, [&] { communicator->Call(lockstep_group_end, &operation->work); });
    Observe(operation);
    return work;
  }

  // ---- Others made from it, and its end

  // Every rank of this group calls it at the same time, or LeaveSplit(). Groups that are made at the same time have no common member.
  c10::intrusive_ptr<c10d::Backend> split(const StorePtr& store, const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<Options>& opts) {
    const auto found = std::find(ranks.begin(), ranks.end(), rank_);
    if (found == ranks.end()) {
      LeaveSplit();
      return nullptr;
    }
    const auto rank = static_cast<int>(found - ranks.begin());
    auto communicator = Split(*std::min_element(ranks.begin(), ranks.end()), rank);
    // A copy: c10d may give the options of this group itself.
    auto options = opts == nullptr ? c10::make_intrusive<Options>("lockstep", options_->timeout)
                                   : c10::make_intrusive<Options>(*opts);
    Setup setup = setup_;
    setup.store = store;
    setup.global_ranks.clear();
    for (const int member : ranks) {
      setup.global_ranks.push_back(setup_.global_ranks.empty() ? member : setup_.global_ranks[member]);
    }
    SetGlobalRanks(*options, setup.global_ranks);
    if (setup.timeout_ms != 0 || options->timeout != kBackendDefaultTimeout)
      setup.timeout_ms = options->timeout.count();
    return c10::make_intrusive<Backend>(std::move(communicator), rank, static_cast<int>(ranks.size()), std::move(setup),
                                        std::move(options));
  }

  // For ranks that are no members of a new group, while its members call split().
  void LeaveSplit() { Split(-1, 0); }

  // A communicator of the same ranks, which belongs to the caller. Collective.
  lockstep_communicator* Duplicate(at::Device device) {
    lockstep_communicator* made = nullptr;
    OfDevice(device)->Call(lockstep_communicator_duplicate, &made);
    return made;
  }

  void abort() {
    for (const auto& communicator : {host_, Gpu()}) {
      if (communicator != nullptr) communicator->Abort("the process group was aborted");
    }
    shutdown();
  }

  void shutdown() {
    group_thread_ = std::thread::id();
    for (const auto& communicator : {Gpu(), host_}) {
      if (communicator != nullptr) communicator->Close();
    }
  }

  c10d::ErrorType getError() override {
    const auto gpu = Gpu();
    lockstep_code code = host_->Status();
    if (code == LOCKSTEP_OK && gpu != nullptr) code = gpu->Status();
    if (code == LOCKSTEP_OK) return c10d::ErrorType::SUCCESS;
    // Perhaps no operation has met the failure: the wrapper, whose collectives are its reducer's, asks after a failed step.
    if (code != LOCKSTEP_CANCELLED) hooks_->Abort();
    if (code == LOCKSTEP_DEADLINE_EXCEEDED) return c10d::ErrorType::TIMEOUT;
    return code == LOCKSTEP_ABORTED ? c10d::ErrorType::REMOTE_ERROR : c10d::ErrorType::COMM_ERROR;
  }

 private:
  std::shared_ptr<Communicator> Gpu() {
    const std::lock_guard<std::mutex> lock(gpu_mu_);
    return gpu_;
  }

  // ---- Calls that wait and have no work

  // From the main thread the call is made on another thread, so that a signal can end the wait. Then the call continues, and
  // later operations wait for it. With a GPU it is made here, since another thread's current device is device 0.
  template <typename Call>
  void Wait(const Call& call) {
    FinishInterrupted();
    if (!InMainThread() || Gpu() != nullptr) return call();
    const std::shared_future<void> made = std::async(std::launch::async, call).share();
    try {
      AwaitEnd(made);
    } catch (...) {  // of a signal's handler
      const std::lock_guard<std::mutex> lock(interrupted_mu_);
      interrupted_call_ = made;
      interrupted_ = true;
      throw;
    }
    made.get();
  }

  static void AwaitEnd(const std::shared_future<void>& call) {
    // GCC 8's libstdc++, which a release's wheel has to do with, has no wait by a steady clock.
    const auto slice = [] { return std::chrono::system_clock::now() + std::chrono::milliseconds(kSliceMs); };
    while (call.wait_until(slice()) != std::future_status::ready) {
      if (InMainThread()) CheckSignals();
    }
  }

  // Returns when a call of Wait() has that a signal interrupted, with its error. If a signal ends this wait too, the next operation waits.
  void FinishInterrupted() {
    if (!interrupted_) return;
    std::shared_future<void> call;
    {
      const std::lock_guard<std::mutex> lock(interrupted_mu_);
      call = interrupted_call_;
    }
    AwaitEnd(call);
    interrupted_ = false;
    call.get();
  }

  std::shared_ptr<Communicator> Split(int color, int key) {
    struct Out {
      ~Out() { lockstep_communicator_destroy(made); }
      lockstep_communicator* made = nullptr;
    };
    const auto out = std::make_shared<Out>();
    Wait([host = host_, out, color, key] { host->Call(lockstep_communicator_split, color, key, &out->made); });
    return color < 0 ? nullptr : Communicator::Own(std::exchange(out->made, nullptr));
  }

  // ---- Operations

  // REQUIRES the operation has its inputs, and has not started.
  c10::intrusive_ptr<Work> NewWork(const OperationPtr& operation, bool in_group = false) {
    auto work = c10::make_intrusive<Work>(operation, at::hasCallbacks() ? Title(operation->type) : nullptr, in_group);
    work->sequence = sequence_;
    operation->hooks = hooks_;
    return work;
  }

  // Lets the library report the end of an operation that has started, if a profiler or a hook needs it: its work may never be waited for.
  void Observe(const OperationPtr& operation) {
    if (operation->end_of_event || hooks_->WantCompletion()) Check(CompleteWhenDone(operation, nullptr).release());
  }

  // Makes the call that starts an operation. If the communicator has failed, the operation ends here and never has a lockstep_work.
  template <typename Call>
  static void Reporting(const OperationPtr& operation, Communicator& communicator, const Call& call) {
    try {
      call();
    } catch (const c10::DistBackendError&) {
      if (const ErrorPtr error = communicator.Error()) operation->Report(error.get());
      throw;
    }
  }

  // function(communicator, arguments...), in an event with the metadata of the collective.
  template <typename Function, typename... Arguments>
  void Issue(const OperationPtr& operation, Communicator& communicator, const Function& function,
             const Arguments&... arguments) {
    // As with NCCL, messages have their own numbers.
    InParamComms(*operation, *this, operation->IsMessage() ? messages_ : sequence_, pg_uid_, pg_desc_,
                 setup_.global_ranks,
                 [&] { Reporting(operation, communicator, [&] { communicator.Call(function, arguments...); }); });
  }

  // Starts an operation: function(communicator, arguments..., &work). If it is not asynchronous, it is done when this returns, unless the
  // thread has a group open.
  template <typename Function, typename... Arguments>
  WorkPtr Launch(const OperationPtr& operation, bool asynchronous, const Function& function,
                 const Arguments&... arguments) {
    if (interrupted_) FinishInterrupted();
    const auto communicator = operation->device ? AfterStream(*operation->device) : host_;
    const bool in_group = InGroup();
    if (in_group && group_on_ == nullptr) {
      communicator->Call(lockstep_group_start);
      group_on_ = communicator;
    }
    operation->asynchronous = asynchronous;
    if (operation->IsMessage()) ++messages_;
    auto work = NewWork(operation, in_group && !asynchronous);
    Issue(operation, *communicator, function, arguments..., &operation->work);
    if (in_group) {
      group_.push_back(operation);
    } else if (asynchronous) {
      Observe(operation);
    } else {
      work->wait(kNoTimeout);
    }
    return work;
  }

  // Starts a collective: function(communicator, arguments..., options, stream, &work).
  template <typename Given, typename Function, typename... Arguments>
  WorkPtr Start(const OperationPtr& operation, const Given& given, const Function& function,
                const Arguments&... arguments) {
    lockstep_collective_options options;
    LOCKSTEP_INIT(options);
    options.timeout_ms = TimeoutOf(given);
    // Work::wait() continues the wait in slices, and handles signals between them.
    options.wait_ms = given.asyncOp ? 0 : kSliceMs;
    if (operation->factor) options.factor = &*operation->factor;
    ++sequence_;
    if (operation->device && !InGroup()) return Enqueue(operation, given.asyncOp, function, arguments..., &options);
    return Launch(operation, given.asyncOp, function, arguments..., &options, nullptr);
  }

  // ms; 0: the communicator's.
  template <typename Given>
  int64_t TimeoutOf(const Given& given) const {
    // torch.distributed.monitored_barrier passes torch's default where the program names no timeout.
    const bool torch_default = given.timeout == kBackendDefaultTimeout && timeout_ms_ == 0;
    if (torch_default || given.timeout == c10d::kUnsetTimeout) return timeout_ms_;
    LOCKSTEP_REQUIRE(given.timeout.count() >= 0, "a timeout of ", given.timeout.count(), " ms; it must be positive");
    return given.timeout.count() > 0 ? given.timeout.count() : timeout_ms_.load();
  }

  // ---- On a GPU

  // Returns the tensor, or a copy on the host.
  static at::Tensor OnHost(const at::Tensor& tensor) {
    const at::NoGradGuard no_grad;
    return tensor.is_cuda() ? tensor.cpu() : tensor;
  }

  // The GPU's communicator, once the current stream has finished with the tensors: for calls that are not enqueued.
  std::shared_ptr<Communicator> AfterStream(at::Device device) {
    c10::impl::VirtualGuardImpl(device.type()).getStream(device).synchronize();
    return OfDevice(device);
  }

  // Enqueues a collective: on the group's own stream if it is asynchronous, else on the current one.
  template <typename Function, typename... Arguments>
  WorkPtr Enqueue(const OperationPtr& operation, bool asynchronous, const Function& function,
                  const Arguments&... arguments) {
#if LOCKSTEP_TORCH_SINCE(12)
    if (interrupted_) FinishInterrupted();
    ReportEnqueued();
    const auto communicator = OfDevice(*operation->device);
    const c10::impl::VirtualGuardImpl guard(operation->device->type());
    const c10::Stream current = guard.getStream(*operation->device);
    const c10::Stream stream = asynchronous ? *stream_ : current;
    if (asynchronous) {
      c10::Event ready(current.device_type());
      ready.record(current);
      ready.block(stream);
    }
    const lockstep_stream c_stream = {stream.native_handle(), LOCKSTEP_CUDA, stream.device_index()};
    operation->hooks = hooks_;
    operation->asynchronous = asynchronous;
    Issue(operation, *communicator, function, arguments..., &c_stream, nullptr);
    {
      const c10::StreamGuard on(stream);
      operation->Finish();
    }
    // Else their memory may be reused before the stream has finished with it.
    if (asynchronous) {
      for (const Tensors* tensors : {&operation->results, &operation->borrowed}) {
        for (const at::Tensor& tensor : *tensors) tensor.record_stream(stream);
      }
    }
    auto work = c10::make_intrusive<DeviceWork>(operation, at::hasCallbacks() ? Title(operation->type) : nullptr,
                                                stream, communicator);
    work->sequence = sequence_;
    const std::lock_guard<std::mutex> lock(gpu_mu_);
    if (hooks_->WantCompletion()) enqueued_.push_back(work);
    return work;
#else
    (void)asynchronous, (void)function, ((void)arguments, ...);
    LOCKSTEP_REQUIRE(false, "a tensor on ", *operation->device, "; tensors of a GPU need PyTorch 2.12 or later");
#endif
  }

  // Reports the ends of works on the GPU: no thread waits for them, so each call looks at the earlier ones.
  void ReportEnqueued() {
    std::list<WorkPtr> works;
    {
      const std::lock_guard<std::mutex> lock(gpu_mu_);
      works.swap(enqueued_);
    }
    works.remove_if([](const WorkPtr& work) { return work->isCompleted(); });  // runs hooks
    const std::lock_guard<std::mutex> lock(gpu_mu_);
    enqueued_.splice(enqueued_.begin(), works);
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

  static const Tensors& OfDtype(const Tensors& tensors, const at::Tensor& like) {
    for (const at::Tensor& tensor : tensors) {
      LOCKSTEP_REQUIRE(tensor.scalar_type() == like.scalar_type(), "a ", Name(tensor.scalar_type()),
                       " in the list, beside a ", Name(like.scalar_type()));
    }
    return tensors;
  }

  // The counts of each rank's rows. No splits: an equal number of rows each.
  std::vector<int64_t> OfRows(const at::Tensor& tensor, std::vector<int64_t> splits) const {
    const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
    if (splits.empty()) {
      LOCKSTEP_REQUIRE(rows % size_ == 0, "Tensor's dim 0 does not divide equally across group size: ", rows,
                       " rows for ", size_, " ranks");
      splits.assign(size_, rows / size_);
    }
    LOCKSTEP_REQUIRE(splits.size() == static_cast<size_t>(size_) && c10::sum_integers(splits) == rows,
                     "Split sizes doesn't match total dim 0 size: ", splits, " for ", size_, " ranks and ", rows,
                     " rows");
    for (int64_t& split : splits) split *= tensor.numel() / std::max<int64_t>(rows, 1);
    return Counted(tensor, std::move(splits));
  }

  // Relaxed: a thread that has a group open wrote the value itself, and to another one any other value is the same.
  bool InGroup() const { return group_thread_.load(std::memory_order_relaxed) == std::this_thread::get_id(); }

  const std::shared_ptr<Communicator> host_;
  const Setup setup_;
  const c10::intrusive_ptr<Options> options_;
  const std::shared_ptr<Hooks> hooks_ = std::make_shared<Hooks>();
  std::atomic<int64_t> timeout_ms_;    // 0: the communicator's
  std::atomic<uint64_t> sequence_{0};  // of the last collective
  std::atomic<uint64_t> messages_{0};  // sent and received
  // Whether a signal has interrupted a call of Wait(), which may not have returned. Each thread has its own copy of the future.
  std::atomic<bool> interrupted_{false};
  std::mutex interrupted_mu_;
  std::shared_future<void> interrupted_call_;  // guarded by interrupted_mu_
  std::mutex connecting_mu_;                   // taken before gpu_mu_
  std::mutex gpu_mu_;
  // Guarded by gpu_mu_. The stream is of asynchronous collectives, and constant once the communicator is there.
  std::shared_ptr<Communicator> gpu_;
  std::optional<c10::Stream> stream_;
  std::list<WorkPtr> enqueued_;
  // The thread that has a group open. It alone touches the group's calls.
  std::atomic<std::thread::id> group_thread_{};
  std::vector<OperationPtr> group_;
  std::shared_ptr<Communicator> group_on_;  // NULL: no call yet
};

// ---- Operators

using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;

// The back end "lockstep" of a process group; NULL if it has another one.
Backend* BackendOf(const GroupPtr& group, at::DeviceType device) {
  return dynamic_cast<Backend*>(group->getBackend(device).get());
}

// What ProcessGroup::getStore() returns, which PyTorch 2.8 does not have.
struct OpenGroup : c10d::ProcessGroup {
  static StorePtr StoreOf(const c10d::ProcessGroup& group) { return group.*(&OpenGroup::store_); }
};

// Connects the ranks of a group that has only a store, a rank and a size, and gives it the back end. Every rank calls it.
void Create(const GroupPtr& group, const std::string& name, const std::vector<int64_t>& global_ranks,
            int64_t timeout_ms, int64_t setup_timeout_ms, int64_t hosts) {
  const std::chrono::milliseconds timeout(timeout_ms);
  LOCKSTEP_REQUIRE(timeout_ms > 0, "a timeout of ", timeout_ms, " ms; it must be positive");
  // The default of torch.distributed gives way to LOCKSTEP_TIMEOUT_MS.
  const Setup setup = {OpenGroup::StoreOf(*group), static_cast<Hosts>(hosts),
                       timeout == kBackendDefaultTimeout ? 0 : timeout_ms, setup_timeout_ms,
                       std::vector<uint64_t>(global_ranks.begin(), global_ranks.end())};
  auto options = c10::make_intrusive<Backend::Options>("lockstep", timeout);
  SetGroupName(*options, name);
  SetGlobalRanks(*options, setup.global_ranks);
  const int rank = group->getRank(), size = group->getSize();
  auto communicator = Communicator::Connect(setup.store, rank, size, setup.hosts, setup.timeout_ms,
                                            setup.setup_timeout_ms, LOCKSTEP_HOST, 0);
  group->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::CUSTOM,
                    c10::make_intrusive<Backend>(std::move(communicator), rank, size, setup, std::move(options)));
}

// Returns the address of a new lockstep_communicator of the group's ranks, for tensors on the device; 0 if the group has another back
// end. It belongs to the caller, who destroys it, and may outlive the group. Collective.
int64_t Duplicate(const GroupPtr& group, at::Device device) {
  Backend* const backend = BackendOf(group, device.type());
  return backend == nullptr ? 0 : reinterpret_cast<intptr_t>(backend->Duplicate(device));
}

void LeaveSplit(const GroupPtr& group) {
  Backend* const backend = BackendOf(group, at::kCPU);
  LOCKSTEP_REQUIRE(backend != nullptr, "the process group has another back end");
  backend->LeaveSplit();
}

// Gives a group that has only a rank and a size the back end Recorder.
void CreateRecorder(const GroupPtr& group) {
  constexpr auto kType = c10d::ProcessGroup::BackendType::CUSTOM;
  group->setBackend(at::kCPU, kType, c10::make_intrusive<Recorder>(group->getRank(), group->getSize()));
  group->setDefaultBackend(kType);
}

void EndRecords(const GroupPtr& group, bool success) {
  static_cast<Recorder&>(*group->getBackend(at::kCPU)).End(success);
}

void AbortAll(const std::string& reason) {
  for (const auto& communicator : Communicator::AllOpen()) communicator->Abort(reason.c_str());
}

// Also waits until callbacks and hooks, which may need the interpreter, have returned.
void CloseAll(int64_t timeout_ms) {
  for (const auto& communicator : Communicator::AllOpen()) communicator->Close();
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  while (callbacks_to_come > 0 && Clock::now() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace
}  // namespace lockstep_torch

#define LOCKSTEP_GROUP "__torch__.torch.classes.c10d.ProcessGroup group"

TORCH_LIBRARY_FRAGMENT(lockstep, library) {
  library.def("create(" LOCKSTEP_GROUP
              ", str name, int[] global_ranks, int timeout_ms, int setup_timeout_ms, int hosts) -> ()",
              lockstep_torch::Create);
  library.def("duplicate(" LOCKSTEP_GROUP ", Device device) -> int", lockstep_torch::Duplicate);
  library.def("leave_split(" LOCKSTEP_GROUP ") -> ()", lockstep_torch::LeaveSplit);
  library.def("create_recorder(" LOCKSTEP_GROUP ") -> ()", lockstep_torch::CreateRecorder);
  library.def("end_records(" LOCKSTEP_GROUP ", bool success) -> ()", lockstep_torch::EndRecords);
  library.def("abort_all(str reason) -> ()", lockstep_torch::AbortAll);
  library.def("close_all(int timeout_ms) -> ()", lockstep_torch::CloseAll);
  library.def("failed_rank(str text) -> int",
              [](const std::string& text) { return lockstep_torch::FailedRanks::Of().Find(text); });
  library.def("check_signals() -> ()");  // implemented in Python
}
