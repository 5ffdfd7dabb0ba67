#include "transport/shm/symmetric_arena.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/fork.h"
#include "base/status.h"
#include "transport/net/socket.h"
#include "transport/shm/handshake.h"

namespace lockstep {

absl::StatusOr<std::unique_ptr<SymmetricArena>> SymmetricArena::Create(ShmTransport* transport,
                                                                       SymmetricArenaOptions options) {
  const auto invalid = [&options](auto... what) {
    return absl::InvalidArgumentError(absl::StrCat("symmetric arena ", options.id, ": ", what...));
  };
  if (options.bytes_per_rank == 0) return invalid("0 bytes");
  std::vector<Rank> sorted = options.members;
  std::sort(sorted.begin(), sorted.end(), [](Rank a, Rank b) { return a.value() < b.value(); });
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) return invalid("a member is named twice");
  if (std::find(sorted.begin(), sorted.end(), transport->rank()) == sorted.end()) {
    return invalid("rank ", transport->rank().value(), " is no member of it");
  }
  for (const Rank member : sorted) {
    if (member == transport->rank()) continue;
    if (member.value() < 0 || member.value() >= transport->size() || !transport->status(member).ok()) {
      return invalid("rank ", member.value(), " shares no memory with rank ", transport->rank().value());
    }
  }
  std::unique_ptr<SymmetricArena> arena(new SymmetricArena(transport, std::move(options)));
  const auto pages = arena->options_.huge_pages ? SharedMemory::Pages::kHuge : SharedMemory::Pages::kSmall;
  absl::StatusOr<SharedMemory> own = SharedMemory::Create(arena->bytes_per_rank(), pages);
  if (own.ok()) {
    arena->parts_[transport->rank().value()] = *std::move(own);
    arena->Notify({ShmNoticeKind::kArena, arena->options_.id, {}, arena->bytes_per_rank()}, /*with_memory=*/true);
    arena->parts_[transport->rank().value()].TakeDescriptor().reset();
  } else {
    arena->Fail(own.status());
  }
  return arena;
}

SymmetricArena::SymmetricArena(ShmTransport* transport, SymmetricArenaOptions options)
    : transport_(transport), options_(std::move(options)), parts_(transport->size()) {}

void SymmetricArena::Notify(const ShmNotice& notice, bool with_memory) {
  for (const Rank member : options_.members) {
    if (member == transport_->rank()) continue;
    UniqueFd memory;
    if (with_memory) {
      memory = Duplicate(parts_[transport_->rank().value()].descriptor());
      if (!memory.valid()) return Fail(ErrnoStatus(errno, "copy the descriptor of an arena"));
    }
    transport_->local_peers_->Notify(member, notice, std::move(memory));
  }
}

void SymmetricArena::Fail(const absl::Status& status) {
  if (!status_.ok()) return;
  status_ = Annotate(status, absl::StrCat("symmetric arena ", options_.id));
  if (told_) return;
  told_ = true;
  Notify({ShmNoticeKind::kMapped, options_.id, {}, 0}, /*with_memory=*/false);
}

bool SymmetricArena::MapParts() {
  bool all = true;
  for (const Rank member : options_.members) {
    SharedMemory& part = parts_[member.value()];
    if (part.data() != nullptr) continue;
    ShmTransport::PeerArena& offer = transport_->peers_[member.value()].arenas[options_.id];
    if (!offer.offered) {
      all = false;
      continue;
    }
    const auto pages = options_.huge_pages ? SharedMemory::Pages::kHuge : SharedMemory::Pages::kSmall;
    absl::StatusOr<SharedMemory> mapped = SharedMemory::Attach(std::move(offer.memory), bytes_per_rank(), pages);
    if (!mapped.ok()) {
      Fail(Annotate(mapped.status(), absl::StrCat("the part of rank ", member.value())));
      return false;
    }
    part = *std::move(mapped);
  }
  return all;
}

absl::StatusOr<bool> SymmetricArena::Ready() {
  if (status_.ok() && !told_ && MapParts()) {
    told_ = true;
    Notify({ShmNoticeKind::kMapped, options_.id, {}, 1}, /*with_memory=*/false);
  }
  bool all = told_;
  for (const Rank member : options_.members) {
    if (!status_.ok()) return status_;
    if (member == transport_->rank()) continue;
    const ShmTransport::PeerArena& said = transport_->peers_[member.value()].arenas[options_.id];
    if (said.mapped_known && !said.mapped) {
      // It tells everybody itself: from here the others would hear this rank's name for it.
      told_ = true;
      Fail(absl::UnavailableError(absl::StrCat("rank ", member.value(), " could not make it or map it")));
    } else if (!said.mapped_known && !transport_->status(member).ok()) {
      Fail(Annotate(transport_->status(member), absl::StrCat("rank ", member.value())));
    }
    all &= said.mapped_known;
  }
  if (!status_.ok()) return status_;
  return all;
}

absl::Status SymmetricArena::Await(Deadline deadline) {
  for (;;) {
    const bool moved = transport_->Progress();
    LOCKSTEP_ASSIGN_OR_RETURN(const bool ready, Ready());
    if (ready) return absl::OkStatus();
    if (deadline.passed()) break;
    if (!moved) transport_->WaitForEvent(deadline);
  }
  for (const Rank member : options_.members) {
    if (member == transport_->rank() || transport_->peers_[member.value()].arenas[options_.id].mapped_known) continue;
    return absl::DeadlineExceededError(
        absl::StrCat("symmetric arena ", options_.id, ": rank ", member.value(), " did not map it in time"));
  }
  return absl::OkStatus();
}

}  // namespace lockstep
