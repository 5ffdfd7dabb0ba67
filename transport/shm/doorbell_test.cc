#include "transport/shm/doorbell.h"

#include <poll.h>

#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/net/socket.h"

namespace lockstep {
namespace {

absl::StatusOr<PeerDoorbell> PeerOf(const Doorbell& bell) {
  return PeerDoorbell::Attach(Duplicate(bell.page_descriptor()), Duplicate(bell.event_descriptor()));
}

bool Rings(const Doorbell& bell) {
  pollfd event = {bell.event_descriptor(), POLLIN, 0};
  return poll(&event, 1, 0) == 1;
}

TEST(Doorbell, IsRungOnlyWhileItIsArmed) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Doorbell bell, Doorbell::Create());
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(PeerDoorbell peer, PeerOf(bell));
  peer.RingIfArmed();
  EXPECT_FALSE(Rings(bell));
  bell.Arm();
  EXPECT_TRUE(bell.armed());
  EXPECT_FALSE(Rings(bell));
  peer.RingIfArmed();
  EXPECT_TRUE(Rings(bell));
  bell.Disarm();
  EXPECT_FALSE(bell.armed());
  EXPECT_TRUE(Rings(bell)) << "until it is taken away";
  bell.Silence();
  EXPECT_FALSE(Rings(bell));
  peer.RingIfArmed();
  EXPECT_FALSE(Rings(bell));
}

// A ring costs a system call: a peer makes it once for each time that the owner goes to sleep, and each peer for itself.
TEST(Doorbell, EachPeerRingsOnceForEachArming) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Doorbell bell, Doorbell::Create());
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(PeerDoorbell first, PeerOf(bell));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(PeerDoorbell second, PeerOf(bell));
  bell.Arm();
  for (PeerDoorbell* peer : {&first, &second}) {
    peer->RingIfArmed();
    EXPECT_TRUE(Rings(bell));
    bell.Silence();
    peer->RingIfArmed();
    EXPECT_FALSE(Rings(bell));
  }
  bell.Arm();
  first.RingIfArmed();
  EXPECT_TRUE(Rings(bell));
}

TEST(Doorbell, ItsOwnerMayRingItAsWell) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Doorbell bell, Doorbell::Create());
  bell.Ring();
  EXPECT_TRUE(Rings(bell));
}

TEST(Doorbell, ByFutexWakesAThreadThatSleeps) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Doorbell bell, Doorbell::Create());
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(PeerDoorbell peer, PeerOf(bell));
  bell.UseFutex();
  peer.UseFutex();
  for (const bool by_owner : {false, true}) {
    bell.Silence();
    bell.Arm();
    EXPECT_FALSE(bell.Sleep(Deadline::AfterMs(1)));
    std::thread ringer([&] { by_owner ? bell.Ring() : peer.RingIfArmed(); });
    EXPECT_TRUE(bell.Sleep(Deadline::AfterMs(60'000)));
    ringer.join();
    EXPECT_TRUE(bell.Sleep(Deadline::Now())) << "until it is taken away";
  }
  peer.CountNotice();
  EXPECT_EQ(bell.notices(), 1);
}

TEST(Doorbell, WhatIsNoPageOfADoorbellIsRefused) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Doorbell bell, Doorbell::Create());
  EXPECT_THAT(PeerDoorbell::Attach(Duplicate(bell.event_descriptor()), Duplicate(bell.event_descriptor())),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

}  // namespace
}  // namespace lockstep
