#include "comm/ipc_memory.h"

#include <unistd.h>

#include <cstdint>
#include <iterator>
#include <list>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/cuda_ipc.h"
#include "base/fork.h"
#include "base/mutex.h"
#include "base/status.h"
#include "comm/agreement.h"
#include "comm/byte_objects.h"

namespace lockstep {
namespace {

// A part that was given up, while others may still have it open.
struct GivenUp {
  Device* device;
  void* memory;
  std::shared_ptr<IpcPage> page;
  int number;
  int rank;
  int size;
  uint64_t fork_generation;

  bool IsMineAlone() const {
    const uint32_t left = page->left(number)->load(std::memory_order_acquire);
    for (int r = 0; r < size; ++r) {
      if ((left >> r & 1) == 0 && !page->HasEnded(r)) return false;
    }
    return true;
  }
};

// All of this process.
class Attic {
 public:
  static Attic& Get() {
    static auto* const attic = new Attic;
    return *attic;
  }

  void Keep(GivenUp part) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    parts_.push_back(std::move(part));
  }

  // Frees what no other rank has open any more.
  void Clear() ABSL_LOCKS_EXCLUDED(mu_) {
    std::list<GivenUp> to_be_freed;
    {
      MutexLock lock(&mu_);
      for (auto part = parts_.begin(); part != parts_.end();) {
        const auto next = std::next(part);
        // What came along into a forked child is the parent's.
        if (part->fork_generation == ForkGeneration() && part->IsMineAlone()) {
          to_be_freed.splice(to_be_freed.end(), parts_, part);
        }
        part = next;
      }
    }
    // Freeing may wait for the device, which may wait for another rank of this process.
    for (const GivenUp& part : to_be_freed) part.device->Free(part.memory);
  }

 private:
  Mutex mu_;
  std::list<GivenUp> parts_ ABSL_GUARDED_BY(mu_);
};

size_t RoundedUp(size_t bytes) { return (bytes + kCudaIpcGranularity - 1) / kCudaIpcGranularity * kCudaIpcGranularity; }

}  // namespace

IpcMemory::IpcMemory(Device* device, std::shared_ptr<IpcPage> page, int number, int rank, int size, size_t bytes)
    : device_(device),
      page_(std::move(page)),
      number_(number),
      rank_(rank),
      bytes_(bytes),
      parts_(size),
      opened_(size) {}

IpcMemory::~IpcMemory() {
  for (size_t r = 0; r < parts_.size(); ++r) {
    if (opened_[r]) CloseCudaMemory(device_->id().index, parts_[r]);
  }
  page_->left(number_)->fetch_or(uint32_t{1} << rank_, std::memory_order_release);
  if (mine() != nullptr) {
    Attic::Get().Keep({device_, mine(), page_, number_, rank_, static_cast<int>(parts_.size()), ForkGeneration()});
  }
  Attic::Get().Clear();
}

absl::StatusOr<std::string> IpcMemory::Offer() {
  LOCKSTEP_ASSIGN_OR_RETURN(void* const memory, device_->Allocate(RoundedUp(bytes_)));
  parts_[rank_] = static_cast<char*>(memory);
  // address device handle, the latter for other processes only
  const std::string text = absl::StrCat(reinterpret_cast<uintptr_t>(memory), " ", device_->id().index, " ");
  bool all_here = true;
  for (size_t r = 0; r < parts_.size(); ++r) all_here = all_here && page_->process(static_cast<int>(r)) == getpid();
  if (all_here) return text;
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string handle, ExportCudaMemory(device_->id().index, memory));
  return absl::StrCat(text, absl::BytesToHexString(handle));
}

absl::Status IpcMemory::Map(int rank, const std::string& offer) {
  if (rank == rank_) return absl::OkStatus();
  const std::vector<std::string> words = absl::StrSplit(offer, ' ');
  uint64_t address = 0;
  int device = 0;
  if (words.size() != 3 || !absl::SimpleAtoi(words[0], &address) || !absl::SimpleAtoi(words[1], &device)) {
    return absl::InternalError(absl::StrCat("rank ", rank, " offers \"", offer, "\", which is no memory"));
  }
  const int own_device = device_->id().index;
  if (page_->process(rank) == getpid()) {
    LOCKSTEP_RETURN_IF_ERROR(EnableCudaPeer(own_device, device));
    parts_[rank] = reinterpret_cast<char*>(static_cast<uintptr_t>(address));
    return absl::OkStatus();
  }
  LOCKSTEP_ASSIGN_OR_RETURN(void* const memory, OpenCudaMemory(own_device, absl::HexStringToBytes(words[2])));
  parts_[rank] = static_cast<char*>(memory);
  opened_[rank] = true;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<IpcMemory>> IpcMemory::Create(Communicator* host, Device* device,
                                                             std::shared_ptr<IpcPage> page, int number, size_t bytes) {
  Attic::Get().Clear();
  std::unique_ptr<IpcMemory> memory(
      new IpcMemory(device, std::move(page), number, host->rank().value(), host->size(), bytes));
  const absl::StatusOr<std::string> offer = memory->Offer();
  LOCKSTEP_RETURN_IF_ERROR(
      AgreeThatAllCan(host, Annotate(offer.status(), absl::StrCat(bytes, " bytes that the other ranks are to map"))));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> offers, AllGatherBytes(host, *offer));
  absl::Status mapped;
  for (int r = 0; r < host->size() && mapped.ok(); ++r) {
    mapped = Annotate(memory->Map(r, offers[r]), absl::StrCat("memory of rank ", r));
  }
  LOCKSTEP_RETURN_IF_ERROR(AgreeThatAllCan(host, mapped));
  return memory;
}

}  // namespace lockstep
