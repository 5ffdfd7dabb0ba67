#include "comm/device/nccl/nccl_peers.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

NcclPeer Peer(const std::string& host, const std::string& gpu, int version = 22809) {
  NcclPeer peer;
  peer.host = host;
  peer.gpu = gpu;
  peer.version = version;
  return peer;
}

TEST(NcclPeers, GpusOfTheirOwnAreJoined) {
  EXPECT_THAT(CheckNcclPeers({Peer("a", "1")}), IsOk());
  EXPECT_THAT(CheckNcclPeers({Peer("a", "1"), Peer("a", "2"), Peer("b", "1")}), IsOk());
}

TEST(NcclPeers, TwoRanksOnOneGpuAreNamedAndToldWhatToDo) {
  EXPECT_THAT(CheckNcclPeers({Peer("a", "1"), Peer("b", "0000:3b:00.0"), Peer("b", "0000:3b:00.0")}),
              StatusIs(Code::kFailedPrecondition,
                       AllOf(HasSubstr("ranks 1 and 2 are both on the GPU 0000:3b:00.0"), HasSubstr("NCCL 2.28.9"),
                             HasSubstr("NCCL_HOSTID"), HasSubstr("NCCL_SOCKET_IFNAME=lo"), HasSubstr("staged"))));
}

TEST(NcclPeers, AnNcclThatSharesGpusMayDoSo) {
  std::vector<NcclPeer> peers = {Peer("a", "1", 23003), Peer("a", "1", 23003)};
  EXPECT_THAT(CheckNcclPeers(peers), StatusIs(Code::kFailedPrecondition));
  for (NcclPeer& peer : peers) peer.shares_gpu = true;
  EXPECT_THAT(CheckNcclPeers(peers), IsOk());
}

TEST(NcclPeers, ARankThatCannotIsNamedBeforeAnythingElse) {
  std::vector<NcclPeer> peers = {Peer("a", "1"), Peer("a", "1"), NcclPeer()};
  peers[2].error = "no usable NCCL";
  EXPECT_THAT(CheckNcclPeers(peers), StatusIs(Code::kUnavailable, "rank 2: no usable NCCL"));
}

TEST(NcclPeers, DifferentVersionsAreNamed) {
  EXPECT_THAT(CheckNcclPeers({Peer("a", "1"), Peer("a", "2"), Peer("a", "3", 22100)}),
              StatusIs(Code::kFailedPrecondition, HasSubstr("rank 0 has NCCL 2.28.9 and rank 2 NCCL 2.21.0")));
}

TEST(NcclPeers, WhatARankSaysTravels) {
  NcclPeer peer = Peer("host \"of\"\nours", "0000:3b:00.0");
  peer.error = "not \xff UTF-8";
  peer.shares_gpu = true;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const NcclPeer arrived, DecodeNcclPeer(Encode(peer)));
  EXPECT_EQ(arrived.host, peer.host);
  EXPECT_EQ(arrived.gpu, peer.gpu);
  EXPECT_EQ(arrived.version, peer.version);
  EXPECT_EQ(arrived.shares_gpu, peer.shares_gpu);
  EXPECT_THAT(arrived.error, AllOf(HasSubstr("not "), HasSubstr(" UTF-8")));
}

TEST(NcclPeers, WhatNoRankSaysIsAnError) {
  for (const char* text : {"", "[]", "{}", "{\"error\":3}", "nonsense",
                           R"({"error":"","version":"2","host":"","gpu":"","shares_gpu":false})",
                           R"({"error":"","version":4294967296,"host":"","gpu":"","shares_gpu":false})",
                           R"({"error":"","version":18446744073709551615,"host":"","gpu":"","shares_gpu":false})"}) {
    EXPECT_THAT(DecodeNcclPeer(text), StatusIs(Code::kInvalidArgument, HasSubstr("not what a rank says"))) << text;
  }
}

}  // namespace
}  // namespace lockstep
