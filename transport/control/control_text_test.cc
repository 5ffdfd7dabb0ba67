#include "transport/control/control_text.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/rank.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/control/control_types.h"
#include "transport/net/socket.h"

namespace lockstep::control {
namespace {

std::string Differences(const std::vector<std::vector<AgreedOption>>& options) {
  std::vector<const std::vector<AgreedOption>*> by_rank;
  for (const auto& one : options) by_rank.push_back(&one);
  return OptionDifferences(by_rank);
}

TEST(OptionDifferences, GroupsRanksByValueFromTheLowestRank) {
  const AgreedOption chunk = {"chunk_bytes", "262144"}, ring = {"algorithm", "ring"};
  EXPECT_EQ(Differences({{}}), "");
  EXPECT_EQ(Differences({{{"a", "1"}, {"b", "2"}}, {{"b", "2"}, {"a", "1"}}}), "");
  EXPECT_EQ(Differences({{chunk}, {chunk}, {chunk}, {{"chunk_bytes", "65536"}}}),
            "chunk_bytes: 262144 on ranks 0-2, 65536 on rank 3");
  EXPECT_EQ(Differences({{{"v", "z"}}, {{"v", "a"}}}), "v: z on rank 0, a on rank 1");
  // An option that some lack differs, too.
  EXPECT_EQ(Differences({{}, {ring}, {ring}}), "algorithm: not set on rank 0, ring on ranks 1-2");
  EXPECT_EQ(Differences({{{"a", ""}, {"b", "1"}}, {{"b", "2"}}}),
            "a: \"\" on rank 0, not set on rank 1; b: 1 on rank 0, 2 on rank 1");
}

TEST(OptionDifferences, ManyValuesAreCutShort) {
  std::vector<std::vector<AgreedOption>> options;
  for (int rank = 0; rank < 20; ++rank) options.push_back({{"seed", absl::StrCat("s", rank)}});
  const std::string text = Differences(options);
  EXPECT_THAT(text, ::testing::StartsWith("seed: s0 on rank 0, s1 on rank 1"));
  EXPECT_THAT(text, ::testing::EndsWith("s7 on rank 7, and 12 more values"));
}

using State = LateRank::State;

TEST(DescribeLate, NamesTheRanksToBlameFirst) {
  struct Rank {
    State state;
    uint64_t started;
    uint64_t completed;
  };
  const Rank waits = {State::kAnswered, 17, 16};
  const Rank done = {State::kAnswered, 18, 17};
  const Rank behind = {State::kAnswered, 16, 16};
  const Rank unaware = {State::kUnaware, 0, 0};
  const struct {
    std::vector<Rank> ranks;
    const char* text;
    absl::optional<int> first;
  } cases[] = {
      {{waits, waits, behind},
       "rank 2 (host b, pid 71) has not called it (it last completed #16); ranks 0-1 have called it and wait",
       2},
      {{waits, done}, "rank 0 has called it and waits; rank 1 has completed it", absl::nullopt},
      {{waits,
        {State::kAnswered, 15, 14},
        {State::kAnswered, 0, 0},
        done,
        {State::kSilent, 16, 16},
        {State::kLeft, 0, 0}},
       "rank 5 (host b, pid 74) has closed its communicator; "
       "rank 4 (host b, pid 73) does not answer (when last heard, it last completed #16); "
       "rank 2 (host b, pid 71) has not called it (it has completed none); "
       "rank 1 (host b, pid 70) has not called it (it is still in #15); "
       "rank 0 has called it and waits; rank 3 has completed it",
       5},
      // Ranks at the same place share a sentence.
      {{waits, behind, behind, behind, behind, behind},
       "ranks 1-5 have not called it (they last completed #16); rank 0 has called it and waits",
       1},
      // Ranks that do not know the channel are named only if nobody else is behind.
      {{waits, unaware},
       "rank 1 (host b, pid 70) has not opened this communicator, or takes no part in it; rank 0 has called it and "
       "waits",
       1},
      {{waits, unaware, behind},
       "rank 2 (host b, pid 71) has not called it (it last completed #16); rank 0 has called it and waits",
       2},
  };
  for (const auto& c : cases) {
    std::vector<Member> members(c.ranks.size());
    std::vector<LateRank> ranks;
    for (size_t i = 0; i < members.size(); ++i) {
      members[i].rank = lockstep::Rank(static_cast<int>(i));
      members[i].host = "b";
      members[i].pid = 69 + static_cast<int>(i);
      ranks.push_back({&members[i], c.ranks[i].state, {c.ranks[i].started, c.ranks[i].completed}});
    }
    const LateReport late = DescribeLate("allreduce #17", 17, ranks);
    EXPECT_EQ(late.text, absl::StrCat("allreduce #17 did not finish in time: ", c.text));
    EXPECT_EQ(late.first, c.first);
  }
}

TEST(MismatchText, NamesWhoCalledWhatLowestRankFirst) {
  EXPECT_EQ(MismatchText({"b", "a", "", "b"}), "the ranks' collectives differ: ranks 0, 3 called b; rank 1 called a");
}

TEST(OddOne, IsTheRankThatDiffersFromAllOthersElseTheLowestThatDiffersFromTheLowest) {
  EXPECT_EQ(OddOne({"b", "a", "", "b"}), 1);
  EXPECT_EQ(OddOne({"b", "a", "a"}), 0);
  EXPECT_EQ(OddOne({"b", "a"}), 1);
  EXPECT_EQ(OddOne({"", "b", "b", "a", "c"}), 3);
  EXPECT_EQ(OddOne({"b", "b", "a", "a"}), 2);
}

TEST(UnreachableText, NamesWhoTellsAnotherHostOfLoopback) {
  std::vector<Member> members(3);
  const auto set = [&](int rank, const char* host, const char* address) {
    members[rank].rank = Rank(rank);
    members[rank].host = members[rank].host_id = host;
    members[rank].pid = 70 + rank;
    members[rank].data_address = address[0] == '\0' ? SocketAddress() : *SocketAddress::Parse(address);
  };
  const auto text = [&] { return UnreachableText({&members[0], &members[1], &members[2]}); };
  set(0, "a", "10.0.0.1:1");
  set(1, "b", "127.0.0.1:2");
  set(2, "b", "10.0.0.2:3");
  EXPECT_EQ(
      text(),
      "rank 1 (host b, pid 71) listens on loopback (127.0.0.1:2), where rank 0 (host a, pid 70), on another host, "
      "cannot reach it: see LOCKSTEP_INTERFACE");
  // It is only told to its own host.
  set(0, "b", "10.0.0.1:1");
  EXPECT_EQ(text(), "");
  // One machine that plays several hosts.
  set(0, "a", "127.0.0.1:1");
  set(2, "c", "[::1]:3");
  EXPECT_EQ(text(), "");
  // Without TCP.
  for (int rank = 0; rank < 3; ++rank) set(rank, rank == 0 ? "a" : "b", "");
  EXPECT_EQ(text(), "");
}

TEST(Describe, EscapesTheHostNameOfAPeer) {
  Member member;
  member.rank = Rank(2);
  member.host = "b\x1b[2J\n" + std::string(200, 'x');
  member.pid = 71;
  const std::string text = Describe(member);
  EXPECT_THAT(text, ::testing::StartsWith("rank 2 (host b\\x1b[2J\\x0axxx"));
  EXPECT_THAT(text, ::testing::HasSubstr("... (206 bytes), pid 71)"));
}

}  // namespace
}  // namespace lockstep::control
