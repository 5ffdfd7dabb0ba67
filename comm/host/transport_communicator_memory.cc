// The shared memory of a TransportCommunicator: what its ranks make together, and which calls it carries out.

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/status.h"
#include "comm/host/transport_call.h"
#include "comm/host/transport_communicator.h"

namespace lockstep {

namespace {

// What a rank is about to touch, and what there is for it: looked at before any rank can have touched its own. On the wire, in the
// order of this machine and so of all.
struct Room {
  Room() = default;
  Room(size_t wanted, const MemoryLeft& left)
      : bytes(wanted), machine(left.machine), group(left.group), group_id(left.group_id) {}

  uint64_t bytes = 0;
  uint64_t machine = 0;
  uint64_t group = 0;
  uint64_t group_id = 0;
};

void Add(uint64_t more, uint64_t* sum) {
  if (__builtin_add_overflow(*sum, more, sum)) *sum = MemoryLeft::kUnknown - 1;
}

// What all ranks' rooms come to, as Communicator::CheckMemory says it. `left`: this rank's.
absl::Status Judge(const std::vector<Room>& rooms, Rank rank, const std::vector<int32_t>& hosts,
                   const MemoryLeft& left) {
  absl::Status of_another;
  for (size_t r = 0; r < rooms.size(); ++r) {
    const Room& room = rooms[r];
    uint64_t on_machine = 0;
    uint64_t in_group = 0;
    for (size_t other = 0; other < rooms.size(); ++other) {
      if (!hosts.empty() && hosts[other] != hosts[r]) continue;
      Add(rooms[other].bytes, &on_machine);
      if (other == r || (room.group_id != 0 && rooms[other].group_id == room.group_id)) {
        Add(rooms[other].bytes, &in_group);
      }
    }
    const std::string why =
        WhyNoMemory({room.machine, room.group, room.group_id, "its control group"}, on_machine, in_group);
    if (why.empty()) continue;
    const uint64_t needed = in_group > room.group ? in_group : on_machine;
    if (Rank(static_cast<int>(r)) == rank) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the ranks of this host need ", needed, " bytes of memory together, ", room.bytes,
                       " of them this rank; ", WhyNoMemory(left, on_machine, in_group)));
    }
    if (!of_another.ok()) continue;
    of_another = absl::UnavailableError(
        absl::StrCat("rank ", r, " has no memory: the ranks of its host need ", needed, " bytes together; ", why));
  }
  return of_another;
}

// Whether all buffers that the call uses on this rank lie in `memory`.
bool LiesIn(const SymmetricMemory& memory, const CollectiveRequest& request, Rank rank, int size) {
  if (memory.empty() || request.count == 0) return false;
  if (request.input_pieces != nullptr || request.output_pieces != nullptr) return request.shared_pieces;
  const Collective collective = request.collective;
  if (!request.counts.empty() && request.counts.size() != static_cast<size_t>(size)) return false;
  // What a premul-sum multiplies first goes to memory of this rank's own, unless it fits the output.
  const bool has_factor = HasReduction(collective) && request.op == ReduceOp::kPremulSum;
  if (has_factor && collective != Collective::kAllReduce) return false;
  const bool pair_counts = collective == Collective::kAllToAll && !request.counts.empty();
  if (pair_counts || (collective == Collective::kAllToAll && request.input == request.output)) return false;

  const bool own_block_in = IsOwnBlock(collective, Window::kInput);
  const bool own_block_out = IsOwnBlock(collective, Window::kOutput);
  // With a block of its own that is empty a rank may have nothing by which to tell.
  const bool some_empty = std::count(request.counts.begin(), request.counts.end(), 0) > 0;
  if (some_empty && HasRoot(collective)) return false;
  const size_t block = request.counts.empty() ? request.count / size : request.counts[rank.value()];
  const size_t element = SizeOf(request.dtype);
  const bool at_root = !HasRoot(collective) || request.root == rank;
  const bool reads = at_root || (collective != Collective::kBroadcast && collective != Collective::kScatter);
  const bool writes = at_root || (collective != Collective::kReduce && collective != Collective::kGather);
  const auto within = [&](const void* data, size_t count) {
    size_t bytes = 0;
    if (__builtin_mul_overflow(count, element, &bytes)) return false;
    return count == 0 || memory.Find(data, bytes) != SymmetricMemory::kNowhere;
  };
  return (!reads || within(request.input, own_block_in ? block : request.count)) &&
         (!writes || within(request.output, own_block_out ? block : request.count));
}

}  // namespace

bool TransportCommunicator::SharesMemory() const {
  MutexLock lock(mu());
  return memory_ != nullptr;
}

bool TransportCommunicator::Shares(const void* memory, size_t bytes) const {
  MutexLock lock(mu());
  return memory_ != nullptr && memory_->Find(memory, bytes) != SymmetricMemory::kNowhere;
}

absl::Status TransportCommunicator::ShareMemory(uint32_t arena, Deadline deadline) {
  const std::vector<int32_t>& hosts = options_.shape.topology.host_of_rank;
  const bool on_one_host = std::adjacent_find(hosts.begin(), hosts.end(), std::not_equal_to<>()) == hosts.end();
  if (options_.shared_memory == nullptr || !on_one_host) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<SymmetricArena>> memory =
      MakeArena(arena, MemoryExecutor::ArenaBytesPerRank(size_), /*huge_pages=*/false, deadline);
  MutexLock lock(mu());
  if (!memory.ok()) {
    if (absl::IsDeadlineExceeded(memory.status()) || !status_.ok()) return memory.status();
    no_memory_ = absl::StrCat("no collectives in shared memory: ", memory.status().message(), "\n");
    LOCKSTEP_LOG(kWarning) << "rank " << rank_ << ": " << no_memory_;
    return absl::OkStatus();
  }
  memory_ = std::make_shared<SymmetricMemory>(members_, rank_);
  Executor::Owner* const owner = this;
  memory_executor_ =
      std::make_unique<MemoryExecutor>(options_.shared_memory, *std::move(memory), members_, memory_.get(), owner);
  plans_.AllowSharedMemory();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SymmetricArena>> TransportCommunicator::MakeArena(uint32_t arena, size_t bytes,
                                                                                 bool huge_pages, Deadline deadline) {
  SymmetricArenaOptions options;
  options.id = arena;
  options.bytes_per_rank = bytes;
  options.members = members_;
  options.huge_pages = huge_pages;
  AskedArena asked(engine_);
  {
    MutexLock lock(mu());
    if (!status_.ok()) return Over({"allocating memory", {}});
    LOCKSTEP_ASSIGN_OR_RETURN(asked.arena, SymmetricArena::Create(options_.shared_memory, std::move(options)));
    asked_arenas_.push_back(&asked);
  }
  engine_->Drive(asked.state.done(), deadline, /*spin=*/true);
  MutexLock lock(mu());
  asked_arenas_.erase(std::remove(asked_arenas_.begin(), asked_arenas_.end(), &asked), asked_arenas_.end());
  if (!asked.state.done().load(std::memory_order_acquire)) return asked.arena->Await(Deadline::Now());
  LOCKSTEP_RETURN_IF_ERROR(Annotate(asked.state.status(), "allocating memory"));
  return std::move(asked.arena);
}

absl::Status TransportCommunicator::CheckMemory(size_t bytes) {
  if (size() == 1) return Communicator::CheckMemory(bytes);
  const MemoryLeft left = ReadMemoryLeft();
  const Room mine(bytes, left);
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<Room> rooms, AllGatherValues(*this, mine, "looking for memory"));
  return Judge(rooms, rank_, options_.shape.topology.host_of_rank, left);
}

absl::StatusOr<std::unique_ptr<SymmetricBuffer>> TransportCommunicator::Allocate(size_t bytes) {
  LOCKSTEP_RETURN_IF_ERROR(CheckHeld(/*by_holder=*/false));
  if (options_.registry == nullptr) return registered_memory_->Allocate(bytes);
  {
    MutexLock lock(mu());
    if (Collecting()) return absl::FailedPreconditionError("memory cannot be allocated inside a group");
  }
  struct Request {
    Room room;
    uint64_t number = 0;
  };
  const MemoryLeft left = ReadMemoryLeft();
  const Request mine = {Room(bytes, left), options_.registry->TakeMemoryNumber()};
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<Request> requests, AllGatherValues(*this, mine, "allocating memory"));
  std::string sizes;
  std::vector<Room> rooms;
  bool equal = true;
  for (const Request& request : requests) {
    absl::StrAppend(&sizes, sizes.empty() ? "" : ", ", request.room.bytes);
    rooms.push_back(request.room);
    equal = equal && request.room.bytes == bytes;
  }
  if (!equal) {
    return absl::InvalidArgumentError(absl::StrCat("the ranks allocate buffers of different sizes: ", sizes, " bytes"));
  }
  LOCKSTEP_RETURN_IF_ERROR(Judge(rooms, rank_, options_.shape.topology.host_of_rank, left));
  if (bytes == 0 || !SharesMemory()) return registered_memory_->Allocate(bytes);

  const auto leader = std::min_element(members_.begin(), members_.end());
  const uint64_t number = requests[leader - members_.begin()].number;
  if (number >= ChannelRegistry::kMemoriesMax) {
    return absl::ResourceExhaustedError(absl::StrCat("world rank ", leader->value(), " has allocated memory ", number,
                                                     " times: there is no number left"));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const std::shared_ptr<SymmetricArena> arena,
                            MakeArena(ChannelRegistry::MemoryOf(*leader, static_cast<uint32_t>(number)), bytes,
                                      /*huge_pages=*/true, Deadline::After(timeout())));
  {
    MutexLock lock(mu());
    if (!status_.ok()) return Over({"allocating memory", {}});
    LOCKSTEP_RETURN_IF_ERROR(memory_->Add(arena));
  }
  return std::make_unique<SymmetricBuffer>(arena->base(TransportRank(rank_)), arena->bytes_per_rank(), /*shared=*/true,
                                           [memory = memory_, arena] { memory->Remove(*arena); });
}

absl::StatusOr<const TransportCommunicator::Plan*> TransportCommunicator::FindPlan(const CollectiveRequest& request) {
  return plans_.Find(request, memory_ != nullptr && LiesIn(*memory_, request, rank_, size_));
}

bool TransportCommunicator::Poll() {
  bool moved = memory_executor_ != nullptr && memory_executor_->Poll();
  for (AskedArena* const asked : asked_arenas_) {
    // Relaxed: only this function completes it, with the engine's mutex held.
    if (asked->state.done().load(std::memory_order_relaxed)) continue;
    const absl::StatusOr<bool> ready = asked->arena->Ready();
    if (ready.ok() && !*ready) continue;
    asked->state.Complete(ready.status());
    engine_->Notify();
    moved = true;
  }
  return moved;
}

}  // namespace lockstep
