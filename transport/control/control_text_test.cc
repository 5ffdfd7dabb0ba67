#include "transport/control/control_text.h"

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/rank.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/control/control_types.h"
#include "transport/net/socket.h"

namespace lockstep {
namespace control {
namespace {

TEST(RankList, CompressesRanges) {
  EXPECT_EQ(RankList({3}), "rank 3");
  EXPECT_EQ(RankList({0, 1}), "ranks 0-1");
  EXPECT_EQ(RankList({2, 5, 6, 7}), "ranks 2, 5-7");
  EXPECT_EQ(RankList({0, 2, 4}), "ranks 0, 2, 4");
}

TEST(MissingText, AgreesInNumber) {
  EXPECT_EQ(MissingText({2, 5, 6, 7}, 8), "ranks 2, 5-7 of 8 have not joined");
  EXPECT_EQ(MissingText({2}, 8), "rank 2 of 8 has not joined");
}

std::string Differences(const std::vector<std::vector<AgreedOption>>& options) {
  std::vector<const std::vector<AgreedOption>*> by_rank;
  for (const auto& one : options) by_rank.push_back(&one);
  return OptionDifferences(by_rank);
}

TEST(OptionDifferences, EqualOptionsInAnyOrderAreNone) {
  EXPECT_EQ(Differences({{}}), "");
  EXPECT_EQ(Differences({{{"a", "1"}, {"b", "2"}}, {{"b", "2"}, {"a", "1"}}}), "");
}

TEST(OptionDifferences, GroupsRanksByValueFromTheLowestRank) {
  EXPECT_EQ(Differences({{{"chunk_bytes", "262144"}},
                         {{"chunk_bytes", "262144"}},
                         {{"chunk_bytes", "262144"}},
                         {{"chunk_bytes", "65536"}}}),
            "chunk_bytes: 262144 on ranks 0-2, 65536 on rank 3");
  EXPECT_EQ(Differences({{{"v", "z"}}, {{"v", "a"}}}), "v: z on rank 0, a on rank 1");
}

TEST(OptionDifferences, AnOptionThatSomeLackDiffersToo) {
  EXPECT_EQ(Differences({{}, {{"algorithm", "ring"}}, {{"algorithm", "ring"}}}),
            "algorithm: not set on rank 0, ring on ranks 1-2");
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

class LateTextTest : public ::testing::Test {
 protected:
  void Add(LateRank::State state, uint64_t started, uint64_t completed) {
    members_.push_back(std::make_unique<Member>());
    members_.back()->rank = Rank(static_cast<int>(ranks_.size()));
    members_.back()->host = "b";
    members_.back()->pid = 69 + static_cast<int>(ranks_.size());
    ranks_.push_back({members_.back().get(), state, {started, completed}});
  }
  std::string Text() const { return DescribeLate("allreduce #17", 17, ranks_).text; }
  absl::optional<int> First() const { return DescribeLate("allreduce #17", 17, ranks_).first; }

 private:
  std::vector<std::unique_ptr<Member>> members_;
  std::vector<LateRank> ranks_;
};

using State = LateRank::State;

TEST_F(LateTextTest, NamesWhoHasNotCalledAndWhoWaits) {
  Add(State::kAnswered, 17, 16);
  Add(State::kAnswered, 17, 16);
  Add(State::kAnswered, 16, 16);
  EXPECT_EQ(Text(),
            "allreduce #17 did not finish in time: rank 2 (host b, pid 71) has not called it (it last completed #16); "
            "ranks 0-1 have called it and wait");
  EXPECT_EQ(First(), 2);
}

TEST_F(LateTextTest, WhereAllHaveCalledNobodyIsFirst) {
  Add(State::kAnswered, 17, 16);
  Add(State::kAnswered, 18, 17);
  EXPECT_EQ(Text(), "allreduce #17 did not finish in time: rank 0 has called it and waits; rank 1 has completed it");
  EXPECT_EQ(First(), absl::nullopt);
}

TEST_F(LateTextTest, TellsStagesApart) {
  Add(State::kAnswered, 17, 16);
  Add(State::kAnswered, 15, 14);
  Add(State::kAnswered, 0, 0);
  Add(State::kAnswered, 18, 17);
  Add(State::kSilent, 16, 16);
  Add(State::kLeft, 0, 0);
  EXPECT_EQ(Text(),
            "allreduce #17 did not finish in time: rank 5 (host b, pid 74) has closed its communicator; "
            "rank 4 (host b, pid 73) does not answer (when last heard, it last completed #16); "
            "rank 2 (host b, pid 71) has not called it (it has completed none); "
            "rank 1 (host b, pid 70) has not called it (it is still in #15); "
            "rank 0 has called it and waits; rank 3 has completed it");
  EXPECT_EQ(First(), 5);
}

TEST_F(LateTextTest, RanksAtTheSamePlaceShareASentence) {
  Add(State::kAnswered, 17, 16);
  for (int i = 0; i < 5; ++i) Add(State::kAnswered, 16, 16);
  EXPECT_EQ(Text(),
            "allreduce #17 did not finish in time: ranks 1-5 have not called it (they last completed #16); "
            "rank 0 has called it and waits");
  EXPECT_EQ(First(), 1);
}

TEST_F(LateTextTest, RanksThatDoNotKnowTheChannelAreNamedOnlyWhenNobodyElseIsBehind) {
  Add(State::kAnswered, 17, 16);
  Add(State::kUnaware, 0, 0);
  EXPECT_EQ(
      Text(),
      "allreduce #17 did not finish in time: rank 1 (host b, pid 70) has not opened this communicator, or takes no "
      "part in it; rank 0 has called it and waits");
  EXPECT_EQ(First(), 1);
  Add(State::kAnswered, 16, 16);
  EXPECT_EQ(First(), 2);
  EXPECT_THAT(Text(), ::testing::Not(::testing::HasSubstr("takes no part")));
}

TEST(MismatchText, NamesWhoCalledWhatLowestRankFirst) {
  EXPECT_EQ(MismatchText({"b", "a", "", "b"}), "the ranks' collectives differ: ranks 0, 3 called b; rank 1 called a");
}

TEST(OddOne, IsTheRankThatDiffersFromAllOthers) {
  EXPECT_EQ(OddOne({"b", "a", "", "b"}), 1);
  EXPECT_EQ(OddOne({"b", "a"}), absl::nullopt);
  EXPECT_EQ(OddOne({"b", "a", "c"}), absl::nullopt);
  EXPECT_EQ(OddOne({"b", "a", "b", "a"}), absl::nullopt);
}

TEST(DurationText, UsesWholeSecondsWhereItCan) {
  EXPECT_EQ(DurationText(std::chrono::milliseconds(300)), "300 ms");
  EXPECT_EQ(DurationText(std::chrono::milliseconds(30000)), "30 s");
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

}  // namespace
}  // namespace control
}  // namespace lockstep
