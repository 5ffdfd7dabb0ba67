// A rank that runs collectives in shared memory only, for tests.

#ifndef COMM_ENGINE_MEMORY_TESTING_H_
#define COMM_ENGINE_MEMORY_TESTING_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/rank.h"
#include "base/status.h"
#include "comm/communicator.h"
#include "comm/engine/executor.h"
#include "comm/engine/memory_executor.h"
#include "comm/engine/symmetric_memory.h"
#include "comm/plan/call_plan.h"
#include "comm/plan/prepared_schedule.h"
#include "comm/record/flight_recorder.h"
#include "comm/record/signature.h"
#include "comm/schedule/schedule.h"
#include "transport/shm/shm_transport.h"
#include "transport/shm/symmetric_arena.h"
#include "transport/transport.h"

namespace lockstep {

class MemoryRank;

// One collective of one rank, and how it ended.
struct MemoryJob : Job {
  MemoryJob() = default;
  MemoryJob(const MemoryJob&) = delete;
  MemoryJob& operator=(const MemoryJob&) = delete;
  // Aborts the job if it is in flight, as after a failed assertion.
  ~MemoryJob();

  MemoryRank* in_flight_of = nullptr;
  std::shared_ptr<const CallPlan> call;
  int ends = 0;
  absl::Status end;
  int failures = 0;
  absl::Status failure;
  Rank failed_peer;
  Signature arrived;
  std::function<void()> then;  // called at the end
};

// All ranks of the transport, in the order of `ranks` if that is not empty. Used by one thread.
class MemoryRank : public Executor::Owner {
 public:
  // Collective. Makes the barrier's slots and one region. Borrows the transport.
  static absl::StatusOr<std::unique_ptr<MemoryRank>> Create(ShmTransport* transport, size_t region_bytes,
                                                            Deadline deadline, std::vector<Rank> ranks = {}) {
    if (ranks.empty()) {
      for (int i = 0; i < transport->size(); ++i) ranks.emplace_back(i);
    }
    std::unique_ptr<MemoryRank> self(new MemoryRank(transport, std::move(ranks)));
    LOCKSTEP_ASSIGN_OR_RETURN(auto slots, self->MakeArena(MemoryExecutor::ArenaBytesPerRank(transport->size()),
                                                          /*huge_pages=*/false, deadline));
    LOCKSTEP_RETURN_IF_ERROR(self->AddRegion(region_bytes, deadline).status());
    self->executor_ =
        std::make_unique<MemoryExecutor>(transport, std::move(slots), self->ranks_, &self->memory_, self.get());
    return self;
  }
  ~MemoryRank() override {
    if (executor_ != nullptr) executor_->FailAll(absl::CancelledError("the test is over"));
  }

  Rank rank() const { return rank_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  ShmTransport& transport() { return *transport_; }
  SymmetricMemory& memory() { return memory_; }
  MemoryExecutor& executor() { return *executor_; }
  // This rank's part of the region that was added first.
  char* data() const { return regions_.front()->base(transport_->rank()); }
  const std::vector<std::shared_ptr<SymmetricArena>>& regions() const { return regions_; }

  // Collective.
  absl::StatusOr<std::shared_ptr<SymmetricArena>> AddRegion(size_t bytes, Deadline deadline) {
    LOCKSTEP_ASSIGN_OR_RETURN(std::shared_ptr<SymmetricArena> arena, MakeArena(bytes, /*huge_pages=*/true, deadline));
    LOCKSTEP_RETURN_IF_ERROR(memory_.Add(arena));
    regions_.push_back(arena);
    return arena;
  }

  // Sets the job up for any number of runs; it may not be in flight.
  absl::Status Prepare(MemoryJob* job, const CollectiveRequest& request, Algorithm algorithm) {
    LOCKSTEP_ASSIGN_OR_RETURN(Schedule schedule,
                              BuildSchedule(request.collective, algorithm, rank_, size(), request.root));
    LOCKSTEP_ASSIGN_OR_RETURN(
        job->call, MakeCallPlan(request, std::make_shared<const PreparedSchedule>(std::move(schedule)), 1 << 20));
    job->plan = job->call->execution.get();
    job->signature = job->call->signature;
    job->input = static_cast<const char*>(request.input);
    job->output = static_cast<char*>(request.output);
    return absl::OkStatus();
  }

  void Start(MemoryJob* job, FlightRecord* record = nullptr) {
    StartUnpolled(job, record);
    executor_->Poll();
  }
  void StartUnpolled(MemoryJob* job, FlightRecord* record = nullptr) {
    job->signature.sequence = ++sequence_;
    job->record = record;
    job->ends = 0;
    job->in_flight_of = this;
    executor_->Start(job);
  }

  // Executes what was started and sleeps while nothing moves, so that a lost wake-up shows as a passed deadline. False when the job
  // has not ended by then.
  bool Await(const MemoryJob& job, Deadline deadline) {
    while (job.ends == 0 && !deadline.passed()) {
      bool moved = transport_->Progress();
      moved |= executor_->Poll();
      if (!moved) transport_->WaitForEvent(deadline);
    }
    return job.ends > 0;
  }

  void OnDone(Job* job, const absl::Status& status) override {
    MemoryJob* const done = static_cast<MemoryJob*>(job);
    done->in_flight_of = nullptr;
    ++done->ends;
    done->end = status;
    if (done->then) done->then();
  }
  void OnOperationFailed(Job* job, const absl::Status& status, Rank peer, const Envelope& expected,
                         const Operation& operation) override {
    MemoryJob* const failing = static_cast<MemoryJob*>(job);
    ++failing->failures;
    failing->failure = status;
    failing->failed_peer = peer;
    failing->arrived = DecodeSignature(operation.arrived);
  }

 private:
  MemoryRank(ShmTransport* transport, std::vector<Rank> ranks)
      : transport_(transport), ranks_(std::move(ranks)), rank_(Find()), memory_(ranks_, rank_) {}

  Rank Find() const {
    int place = 0;
    while (ranks_[place] != transport_->rank()) ++place;
    return Rank(place);
  }

  absl::StatusOr<std::unique_ptr<SymmetricArena>> MakeArena(size_t bytes, bool huge_pages, Deadline deadline) {
    SymmetricArenaOptions options;
    options.id = ++arenas_;
    options.bytes_per_rank = bytes;
    options.members = ranks_;
    options.huge_pages = huge_pages;
    LOCKSTEP_ASSIGN_OR_RETURN(auto arena, SymmetricArena::Create(transport_, std::move(options)));
    LOCKSTEP_RETURN_IF_ERROR(arena->Await(deadline));
    return arena;
  }

  ShmTransport* const transport_;
  const std::vector<Rank> ranks_;
  const Rank rank_;
  uint32_t arenas_ = 0;
  uint64_t sequence_ = 0;
  std::vector<std::shared_ptr<SymmetricArena>> regions_;
  SymmetricMemory memory_;
  std::unique_ptr<MemoryExecutor> executor_;
};

inline MemoryJob::~MemoryJob() {
  if (in_flight_of != nullptr) in_flight_of->executor().FailAll(absl::CancelledError("a job is destroyed"));
}

}  // namespace lockstep

#endif  // COMM_ENGINE_MEMORY_TESTING_H_
