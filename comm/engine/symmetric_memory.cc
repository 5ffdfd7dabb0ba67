#include "comm/engine/symmetric_memory.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lockstep {
namespace {

// The last number would let a place be kNowhere.
constexpr uint64_t kRegionsMax = (uint64_t{1} << (64 - SymmetricMemory::kOffsetBits)) - 1;

}  // namespace

SymmetricMemory::SymmetricMemory(std::vector<Rank> ranks, Rank rank) : ranks_(std::move(ranks)), rank_(rank) {}

absl::Status SymmetricMemory::Add(std::shared_ptr<SymmetricArena> arena) {
  LockAndSweep();
  if (arena->bytes_per_rank() > kRegionBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("a region of shared memory of ", arena->bytes_per_rank(),
                                                   " bytes: at most ", kRegionBytesMax, " are allowed"));
  }
  if (regions_added_ == kRegionsMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a communicator has no more than ", kRegionsMax, " regions of shared memory in its life"));
  }
  auto region = std::make_unique<Region>();
  region->number = regions_added_++;
  region->bytes = arena->bytes_per_rank();
  for (const Rank member : ranks_) region->parts.push_back(arena->base(member));
  region->begin = reinterpret_cast<uintptr_t>(region->parts[rank_.value()]);
  region->arena = std::move(arena);
  const auto after = std::upper_bound(by_address_.begin(), by_address_.end(), region->begin, BeginsAfter);
  by_address_.insert(after, region.get());
  regions_.push_back(std::move(region));
  return absl::OkStatus();
}

void SymmetricMemory::Remove(const SymmetricArena& arena) {
  MutexLock lock(&mu_);
  removals_.push_back(&arena);
  removal_asked_.store(true, std::memory_order_relaxed);
  if (closed_) Sweep();
}

SymmetricMemory::Place SymmetricMemory::Find(const void* data, size_t bytes) const {
  if (bytes == 0) return kNowhere;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(data);
  const auto holds = [=](const Region& region) {
    // Of what begins before the region the difference is huge.
    const uintptr_t offset = begin - region.begin;
    return offset < region.bytes && bytes <= region.bytes - offset;
  };
  if (last_ == nullptr || !holds(*last_)) {
    const auto after = std::upper_bound(by_address_.begin(), by_address_.end(), begin, BeginsAfter);
    if (after == by_address_.begin() || !holds(**std::prev(after))) return kNowhere;
    last_ = *std::prev(after);
  }
  return last_->number << kOffsetBits | (begin - last_->begin);
}

char* SymmetricMemory::Address(Rank rank, Place place, size_t bytes) const {
  const uint64_t number = place >> kOffsetBits;
  const uint64_t offset = place & (kRegionBytesMax - 1);
  if (last_ == nullptr || last_->number != number) {
    const auto found = std::lower_bound(regions_.begin(), regions_.end(), number,
                                        [](const auto& region, uint64_t wanted) { return region->number < wanted; });
    if (found == regions_.end() || (*found)->number != number) return nullptr;
    last_ = found->get();
  }
  if (bytes > last_->bytes || offset > last_->bytes - bytes) return nullptr;
  return last_->parts[rank.value()] + offset;
}

void SymmetricMemory::Close() {
  MutexLock lock(&mu_);
  closed_ = true;
  Sweep();
}

void SymmetricMemory::LockAndSweep() {
  MutexLock lock(&mu_);
  Sweep();
}

void SymmetricMemory::Sweep() {
  for (const SymmetricArena* const arena : removals_) {
    for (const auto& region : regions_) {
      if (region->arena.get() != arena || region->leaving) continue;
      region->leaving = true;
      region->last_job = jobs_started_;
      ++leaving_;
    }
  }
  removals_.clear();
  removal_asked_.store(false, std::memory_order_relaxed);
  const auto is_over = [this](const Region& region) { return region.leaving && region.last_job <= jobs_done_; };
  by_address_.erase(
      std::remove_if(by_address_.begin(), by_address_.end(), [&](const Region* region) { return is_over(*region); }),
      by_address_.end());
  const size_t regions = regions_.size();
  regions_.erase(std::remove_if(regions_.begin(), regions_.end(), [&](const auto& region) { return is_over(*region); }),
                 regions_.end());
  if (regions_.size() == regions) return;
  leaving_ -= static_cast<int>(regions - regions_.size());
  last_ = nullptr;
}

}  // namespace lockstep
