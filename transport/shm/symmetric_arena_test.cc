#include "transport/shm/symmetric_arena.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/deadline.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport_testing.h"
#include "transport/shm/shm_testing.h"
#include "transport/shm/shm_transport.h"

namespace lockstep {
namespace {

using Code = absl::StatusCode;
using testing::HasSubstr;

SymmetricArenaOptions Members(std::vector<Rank> members, size_t bytes) {
  SymmetricArenaOptions options;
  options.id = 5;
  options.bytes_per_rank = bytes;
  options.members = std::move(members);
  return options;
}

// Every rank writes into every part and reads what the others wrote, kept apart by counters in the parts alone, sleeping in
// between.
TEST(SymmetricArena, PeersReadAndWriteEachOthersParts) {
  for (const size_t bytes : {size_t{100}, size_t{3} << 20}) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(ShmTransports ranks, CreateShmWorld(3));
    RunRanks(ranks, [bytes](ShmTransport* self) {
      const std::vector<Rank> members = {Rank(2), Rank(0), Rank(1)};
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto arena, SymmetricArena::Create(self, Members(members, bytes)));
      ASSERT_THAT(arena->Await(TestDeadline()), IsOk());
      const int me = self->rank().value();
      EXPECT_EQ(reinterpret_cast<uintptr_t>(arena->base(Rank(me))) % 4096, 0);
      EXPECT_EQ(arena->base(Rank(me))[bytes / 2], 0);
      const Deadline deadline = TestDeadline();
      // In each part there is one for each writer.
      const auto counter = [&](Rank owner, Rank writer) -> std::atomic<uint64_t>& {
        return reinterpret_cast<std::atomic<uint64_t>*>(arena->base(owner) + 32)[writer.value()];
      };
      const auto barrier = [&](uint64_t number) {
        for (const Rank member : members) {
          counter(member, self->rank()).store(number);
          if (member != self->rank()) self->Nudge(member);
        }
        for (const Rank member : members) {
          while (counter(self->rank(), member).load() < number && !deadline.passed()) {
            self->Progress();
            if (counter(self->rank(), member).load() < number) self->WaitForEvent(deadline);
          }
        }
      };
      for (uint64_t round = 1; round <= 300; ++round) {
        for (const Rank member : members) {
          arena->base(member)[me] = static_cast<char>(round + me);
          arena->base(member)[bytes - 1 - me] = static_cast<char>(round - me);
        }
        barrier(2 * round);
        for (int peer = 0; peer < 3; ++peer) {
          for (const Rank member : members) {
            ASSERT_EQ(arena->base(member)[peer], static_cast<char>(round + peer));
            ASSERT_EQ(arena->base(member)[bytes - 1 - peer], static_cast<char>(round - peer));
          }
        }
        barrier(2 * round + 1);
      }
      EXPECT_FALSE(deadline.passed());
    });
  }
}

TEST(SymmetricArena, OutlivesItsPeersAndTheAbort) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(ShmTransports ranks, CreateShmWorld(2));
  std::unique_ptr<SymmetricArena> arenas[2];
  RunRanks(ranks, [&arenas](ShmTransport* self) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto arena, SymmetricArena::Create(self, Members({Rank(0), Rank(1)}, 64)));
    ASSERT_THAT(arena->Await(TestDeadline()), IsOk());
    arenas[self->rank().value()] = std::move(arena);
  });
  ASSERT_NE(arenas[0], nullptr);
  ASSERT_NE(arenas[1], nullptr);
  std::memcpy(arenas[1]->base(Rank(1)), "text", 5);
  arenas[1] = nullptr;
  ranks[1] = nullptr;
  ranks[0]->Abort(absl::AbortedError("over"));
  EXPECT_STREQ(arenas[0]->base(Rank(1)), "text");
}

TEST(SymmetricArena, CreationSaysWhatIsWrong) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(ShmTransports ranks, CreateShmWorld(2));
  const auto create = [&](std::vector<Rank> members, size_t bytes) {
    return SymmetricArena::Create(ranks[0].get(), Members(std::move(members), bytes)).status();
  };
  EXPECT_THAT(create({Rank(0), Rank(1)}, 0), StatusIs(Code::kInvalidArgument, HasSubstr("arena 5: 0 bytes")));
  EXPECT_THAT(create({Rank(1)}, 64), StatusIs(Code::kInvalidArgument, HasSubstr("rank 0 is no member")));
  EXPECT_THAT(create({Rank(0), Rank(0)}, 64), StatusIs(Code::kInvalidArgument, HasSubstr("named twice")));
  EXPECT_THAT(create({Rank(0), Rank(2)}, 64),
              StatusIs(Code::kInvalidArgument, HasSubstr("rank 2 shares no memory with rank 0")));
  ranks[1] = nullptr;
  ASSERT_TRUE(Drive({ranks[0].get()}, [&] { return !ranks[0]->status(Rank(1)).ok(); }));
  EXPECT_THAT(create({Rank(0), Rank(1)}, 64), StatusIs(Code::kInvalidArgument, HasSubstr("rank 1 shares no memory")));
}

// Whatever goes wrong at one member, all are told.
TEST(SymmetricArena, MembersThatDifferAllFail) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(ShmTransports ranks, CreateShmWorld(3));
  absl::Status found[3];
  RunRanks(ranks, [&found](ShmTransport* self) {
    const size_t bytes = self->rank() == Rank(2) ? 8192 : 4096;
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto arena,
                                  SymmetricArena::Create(self, Members({Rank(0), Rank(1), Rank(2)}, bytes)));
    found[self->rank().value()] = arena->Await(TestDeadline());
    EXPECT_EQ(arena->Ready().status(), found[self->rank().value()]);
  });
  for (const absl::Status& status : found) {
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(status.message(), HasSubstr("symmetric arena 5: "));
  }
}

TEST(SymmetricArena, AMemberThatCannotMakeItsPartTellsTheOthers) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(ShmTransports ranks, CreateShmWorld(2));
  absl::Status found[2];
  RunRanks(ranks, [&found](ShmTransport* self) {
    // More than any machine's address space.
    const size_t bytes = self->rank() == Rank(1) ? size_t{1} << 50 : 4096;
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto arena, SymmetricArena::Create(self, Members({Rank(0), Rank(1)}, bytes)));
    found[self->rank().value()] = arena->Await(TestDeadline());
  });
  EXPECT_THAT(found[0], StatusIs(Code::kUnavailable, HasSubstr("rank 1 could not make it or map it")));
  EXPECT_THAT(found[1], StatusIs(Code::kResourceExhausted, HasSubstr("bytes of shared memory")));
}

// The others name the one that failed, not one that heard of it before them.
TEST(SymmetricArena, AMemberThatFailsForAnothersSakeIsNotBlamed) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(ShmTransports ranks, CreateShmWorld(3));
  std::unique_ptr<SymmetricArena> arenas[3];
  for (const int rank : {0, 2, 1}) {
    const size_t bytes = rank == 1 ? size_t{1} << 50 : 4096;
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(
        arenas[rank], SymmetricArena::Create(ranks[rank].get(), Members({Rank(0), Rank(1), Rank(2)}, bytes)));
  }
  for (const int rank : {0, 2}) {
    EXPECT_THAT(arenas[rank]->Await(TestDeadline()),
                StatusIs(Code::kUnavailable, HasSubstr("rank 1 could not make it or map it")));
  }
}

TEST(SymmetricArena, AMemberThatLeavesOrIsLateIsNamed) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(ShmTransports ranks, CreateShmWorld(2));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto arena, SymmetricArena::Create(ranks[0].get(), Members({Rank(0), Rank(1)}, 4096)));
  EXPECT_THAT(arena->Await(Deadline::AfterMs(10)),
              StatusIs(Code::kDeadlineExceeded, HasSubstr("rank 1 did not map it in time")));
  ranks[1] = nullptr;
  EXPECT_THAT(arena->Await(TestDeadline()), StatusIs(Code::kUnavailable, HasSubstr("rank 1: connection closed")));
}

}  // namespace
}  // namespace lockstep
