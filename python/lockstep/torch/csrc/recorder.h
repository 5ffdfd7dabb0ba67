// What c10d's operators leave behind, for collectives that do not go through them: the back end of a process group that communicates
// nothing. Its works are records of c10d's flight recorder and events of the profiler, from the call until End().

#ifndef PYTHON_LOCKSTEP_TORCH_CSRC_RECORDER_H_
#define PYTHON_LOCKSTEP_TORCH_CSRC_RECORDER_H_

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "events.h"
#include "work.h"

namespace lockstep_torch {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// THREADS  one at a time
class Recorder : public c10d::Backend {
 public:
  using c10d::Backend::Backend;

  const std::string getBackendName() const override { return "lockstep"; }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions&) override {
    return Begin(OpType::ALLREDUCE, tensors);
  }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions&) override {
    return Begin(OpType::BROADCAST, tensors);
  }

  bool supportsCompletionHooks() const { return true; }
  void registerCompletionHook(int64_t id, CompletionHook hook) {
    hooks_->Register(&Hooks::completion, id, std::move(hook));
  }
  void unregisterCompletionHook(int64_t id) { hooks_->Unregister(&Hooks::completion, id); }

  // Ends what has begun. Without success no hook is told, as of any collective that fails.
  void End(bool success) {
    for (const auto& operation : std::exchange(begun_, {})) {
      if (!success) operation->hooks = nullptr;
      operation->Report(nullptr);
    }
  }

 private:
  class Record : public OperationWork {
   public:
    Record(OperationPtr operation, const char* title) : OperationWork(std::move(operation), title) {}
    bool isCompleted() override { return operation_->duration_ms >= 0; }
    bool wait(std::chrono::milliseconds) override { return true; }
  };

  WorkPtr Begin(OpType type, const Tensors& tensors) {
    const auto operation = std::make_shared<Operation>(type);
    operation->inputs = operation->results = tensors;
    operation->hooks = hooks_;
    auto work = c10::make_intrusive<Record>(operation, at::hasCallbacks() ? Title(type) : nullptr);
    work->sequence = ++sequence_;
    InParamComms(*operation, *this, sequence_, pg_uid_, pg_desc_, {}, [] {});
    begun_.push_back(operation);
    return work;
  }

  uint64_t sequence_ = 0;
  std::vector<OperationPtr> begun_;
  const std::shared_ptr<Hooks> hooks_ = std::make_shared<Hooks>();
};

}  // namespace lockstep_torch

#endif  // PYTHON_LOCKSTEP_TORCH_CSRC_RECORDER_H_
