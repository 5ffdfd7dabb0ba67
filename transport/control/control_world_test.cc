#include "transport/control/control_world.h"

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/error_info.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/control/control_protocol.h"
#include "transport/control/control_testing.h"
#include "transport/control/control_types.h"
#include "transport/net/socket.h"

namespace lockstep::control {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A world whose clock is a number here and whose messages end up in lists.
class WorldTest : public ::testing::Test, public World::Output {
 protected:
  void Make(int size) {
    size_ = size;
    world_ = std::make_unique<World>(
        World::Options{size, "job", 42, milliseconds(300), [this] { return why_missing_; }}, this, now_);
  }
  void Connect(int rank) { ASSERT_FALSE(world_->Connect(HelloOf(rank, size_)).has_value()) << rank; }
  void JoinAs(int rank, std::vector<AgreedOption> options = {}) {
    Join join = JoinOf(rank);
    join.options = std::move(options);
    Tell(rank, join);
  }
  void Form(int size) {
    Make(size);
    for (int rank = 0; rank < size; ++rank) Connect(rank);
    for (int rank = 0; rank < size; ++rank) JoinAs(rank);
    ASSERT_THAT(Broadcasts<Joined>(), SizeIs(1));
  }
  void Tell(int rank, Message message) { ASSERT_TRUE(world_->Handle(rank, std::move(message), now_)); }
  void Pass(milliseconds time) {
    now_ += time;
    world_->Tick(now_);
  }

  static Pong PongWith(ChannelId channel, Progress progress) {
    Pong pong;
    pong.progress = {{channel, progress}};
    return pong;
  }

  template <typename T>
  std::vector<T> Broadcasts() const {
    std::vector<T> found;
    for (const Message& message : to_all_) {
      if (const T* body = std::get_if<T>(&message)) found.push_back(*body);
    }
    return found;
  }
  // The one failure announced so far.
  absl::Status TheFailure(ChannelId channel) const {
    const auto failures = Broadcasts<FailureMessage>();
    if (failures.size() != 1) return absl::UnknownError(absl::StrCat(failures.size(), " failures"));
    if (failures[0].channel != channel) return absl::UnknownError(absl::StrCat("channel ", failures[0].channel));
    return failures[0].status;
  }
  absl::Status TheJoinFailure() const {
    const auto failures = Broadcasts<JoinFailed>();
    return failures.size() == 1 ? failures[0].status : absl::UnknownError(absl::StrCat(failures.size(), " failures"));
  }

  int size_ = 0;
  std::string why_missing_;
  World::TimePoint now_{std::chrono::hours(1)};
  std::unique_ptr<World> world_;
  std::vector<Message> to_all_;
  std::vector<std::pair<int, Message>> to_one_;

 private:
  void Send(int rank, const Message& message) override { to_one_.emplace_back(rank, message); }
  void SendToAll(const Message& message) override { to_all_.push_back(message); }
};

const absl::Status kBroken = absl::UnavailableError("recv from rank 2: connection reset");
const auto kDied = "died: control connection closed";

TEST_F(WorldTest, FormsWhenTheLastRankJoins) {
  Make(3);
  for (int rank : {2, 0, 1}) Connect(rank);
  JoinAs(1);
  JoinAs(2);
  EXPECT_THAT(to_all_, IsEmpty());
  JoinAs(0);
  const auto joined = Broadcasts<Joined>();
  ASSERT_THAT(joined, SizeIs(1));
  ASSERT_THAT(joined[0].members, SizeIs(3));
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(joined[0].members[rank].pid, 70 + rank);
}

TEST_F(WorldTest, HellosThatDoNotBelongAreRefusedWithTheReason) {
  Make(2);
  Connect(1);
  const auto answer = [this](auto change) {
    Hello hello = HelloOf(0, 2);
    change(&hello);
    const absl::optional<Reject> reject = world_->Connect(hello);
    return reject.value_or(Reject{RejectReason::kRefused, absl::OkStatus()});
  };
  Reject reject = answer([](Hello* hello) { hello->version = 9; });
  EXPECT_THAT(reject.status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                      HasSubstr("rank 0 speaks control protocol version 6, this rank 9")));
  reject = answer([](Hello* hello) { hello->job_id = "other"; });
  EXPECT_THAT(reject.status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                      AllOf(HasSubstr("another job is here"), HasSubstr("and not job 'other'"))));
  reject = answer([](Hello* hello) { hello->rank = 2; });
  EXPECT_THAT(reject.status, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("there is no rank 2")));
  reject = answer([](Hello* hello) { hello->rank = 1; });
  EXPECT_EQ(reject.reason, RejectReason::kRefused);
  EXPECT_THAT(reject.status, StatusIs(absl::StatusCode::kAlreadyExists,
                                      HasSubstr("another process takes part already as rank 1 (host h, pid 71)")));
  reject = answer([](Hello* hello) { hello->world = 1; });
  EXPECT_EQ(reject.reason, RejectReason::kOtherWorld);
  EXPECT_THAT(reject.status, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(to_all_, IsEmpty());  // nobody else was disturbed
}

TEST_F(WorldTest, AnotherWorldSizeDoesNotDisturbAWorldThatHasFormed) {
  Form(2);
  ASSERT_TRUE(world_->Connect(HelloOf(2, 3)).has_value());
  EXPECT_THAT(Broadcasts<JoinFailed>(), IsEmpty());
  EXPECT_THAT(Broadcasts<FailureMessage>(), IsEmpty());
}

// For rank 1.
absl::Status DidNotForm(const std::string& why) {
  return WithFailedRank(absl::DeadlineExceededError("the world did not form in time: " + why), 1);
}

TEST_F(WorldTest, WhatMayKeepRanksAwayIsMentionedWhereARankIsMissing) {
  Make(2);
  Connect(0);
  JoinAs(0);
  const std::string missing = "rank 1 of 2 has not joined";
  Pass(std::chrono::seconds(5));
  why_missing_ = "somebody was turned away";
  Pass(std::chrono::seconds(5));
  ASSERT_THAT(Broadcasts<Waiting>(), SizeIs(2));
  EXPECT_EQ(Broadcasts<Waiting>()[0].text, missing);
  EXPECT_EQ(Broadcasts<Waiting>()[1].text, missing + "; somebody was turned away");
  Tell(0, GiveUp{});
  EXPECT_EQ(TheJoinFailure(), DidNotForm(missing + "; somebody was turned away"));
}

TEST_F(WorldTest, ARankOfAnotherJobIsMentionedWhereARankIsMissing) {
  Make(2);
  Connect(0);
  JoinAs(0);
  Hello hello = HelloOf(1, 2);
  hello.job_id = "secret";
  const absl::optional<Reject> reject = world_->Connect(hello);
  ASSERT_TRUE(reject.has_value());
  EXPECT_EQ(reject->status.message(), "another job is here, that of rank 0 (host h, pid 70), and not job 'secret'");
  const std::string missing = "rank 1 of 2 has not joined; rank 1 (host h, pid 71) came with another job id";
  Pass(std::chrono::seconds(5));
  ASSERT_THAT(Broadcasts<Waiting>(), SizeIs(1));
  EXPECT_EQ(Broadcasts<Waiting>()[0].text, missing);
  Tell(0, GiveUp{});
  EXPECT_EQ(TheJoinFailure(), DidNotForm(missing));
}

// With the interface down at that moment a rank has nothing else.
TEST_F(WorldTest, LoopbackToldToAnotherHostFailsForAll) {
  Make(2);
  for (int rank : {0, 1}) {
    Connect(rank);
    Join join = JoinOf(rank);
    join.member.host = join.member.host_id = rank == 0 ? "a" : "b";
    join.member.data_address = *SocketAddress::Parse(rank == 0 ? "127.0.0.1:4411" : "10.0.0.2:4411");
    Tell(rank, join);
  }
  EXPECT_THAT(TheJoinFailure(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("rank 0 (host a, pid 70) listens on loopback (127.0.0.1:4411), where rank 1 (host b, "
                                 "pid 71), on another host, cannot reach it")));
}

TEST_F(WorldTest, WhatARankReportsWhileTheWorldGathersFailsForAll) {
  Make(3);
  Connect(0);
  Connect(2);
  Tell(2, Report{kAllChannels, kNoRank, absl::ResourceExhaustedError("rank 2: no descriptor is left")});
  EXPECT_EQ(TheJoinFailure(), absl::ResourceExhaustedError("rank 2: no descriptor is left"));
  world_->Fail(absl::InternalError("later"));
  EXPECT_THAT(Broadcasts<JoinFailed>(), SizeIs(1));
}

TEST_F(WorldTest, DeathIsAnnouncedOnceForAllChannels) {
  Form(3);
  world_->Gone(2, kDied);
  world_->Gone(2, "again");
  world_->Gone(1, kDied);
  Tell(0, Report{5, kNoRank, kBroken});
  EXPECT_THAT(TheFailure(kAllChannels),
              StatusIs(absl::StatusCode::kAborted, "rank 2 (host h, pid 72) died: control connection closed"));
  EXPECT_EQ(GetErrorInfo(TheFailure(kAllChannels)).failed_rank, 2);
  const absl::optional<Reject> back = world_->Connect(HelloOf(2, 3));
  ASSERT_TRUE(back.has_value());
  EXPECT_THAT(back->status, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("has died in it")));
}

TEST_F(WorldTest, WhoComesBackIsSentToTheNextWorld) {
  Form(3);
  Tell(1, Disconnect{});
  absl::optional<Reject> back = world_->Connect(HelloOf(1, 3));
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->reason, RejectReason::kOtherWorld);
  EXPECT_THAT(back->status, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 1 (host h, pid 71) has left")));

  Make(2);
  Connect(0);
  Connect(1);
  Tell(1, Disconnect{});
  back = world_->Connect(HelloOf(1, 2));
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->reason, RejectReason::kOtherWorld) << "it knows why this one did not form";
}

TEST_F(WorldTest, SuspectThatDiesWithinTheGraceIsNamed) {
  Form(3);
  Tell(1, Report{5, 2, kBroken});
  Pass(milliseconds(499));
  EXPECT_THAT(Broadcasts<FailureMessage>(), IsEmpty());
  world_->Gone(2, kDied);
  Pass(milliseconds(1000));
  EXPECT_THAT(TheFailure(kAllChannels),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 2 (host h, pid 72) died")));
}

TEST_F(WorldTest, SuspectThatLivesOnIsNotBlamed) {
  Form(3);
  Tell(1, Report{5, 2, kBroken});
  EXPECT_EQ(world_->next_event() - now_, milliseconds(500));
  Pass(milliseconds(500));
  EXPECT_EQ(TheFailure(5), kBroken);
}

TEST_F(WorldTest, AnySuspectThatLeavesWithinTheGraceExplainsTheReport) {
  Form(4);
  Tell(0, Report{5, 3, kBroken});
  Tell(1, Report{5, 2, kBroken});
  Tell(2, Disconnect{});
  EXPECT_THAT(TheFailure(5), StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 2 (host h, pid 72) has closed")));
  EXPECT_EQ(GetErrorInfo(TheFailure(5)).failed_rank, 2);
}

TEST_F(WorldTest, WhoHasClosedAChannelIsNamedOnceAnotherGoesOnThere) {
  Form(3);
  Tell(1, Closed{6, 3, 4});
  Tell(0, PongWith(6, {4, 3}));  // in what is its last, too
  Tell(2, PongWith(7, {9, 9}));
  Pass(milliseconds(5000));
  EXPECT_THAT(Broadcasts<FailureMessage>(), IsEmpty());
  Tell(0, PongWith(6, {5, 4}));
  EXPECT_THAT(TheFailure(6),
              StatusIs(absl::StatusCode::kAborted, "rank 1 (host h, pid 71) has closed its communicator"));
}

TEST_F(WorldTest, WhoGoesOnBeforeTheOthersCloseLearnsItThen) {
  Form(2);
  Tell(0, PongWith(6, {5, 4}));
  Tell(1, Closed{6, 2, 4});
  EXPECT_THAT(TheFailure(6), StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 1 ")));
}

TEST_F(WorldTest, WhereAllCloseAChannelNothingIsSaid) {
  Form(2);
  Tell(0, Closed{6, 2, 4});
  Tell(1, PongWith(6, {4, 3}));
  Tell(1, Closed{6, 2, 4});
  Pass(milliseconds(5000));
  EXPECT_THAT(Broadcasts<FailureMessage>(), IsEmpty());
}

TEST_F(WorldTest, ASuspectThatHasClosedTheChannelIsSaidToHave) {
  Form(3);
  Tell(2, Closed{6, 3, 4});
  Tell(0, Report{6, 2, kBroken});
  EXPECT_THAT(TheFailure(6), StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 2 (host h, pid 72) has closed")));
  to_all_.clear();
  Tell(0, Report{8, 2, kBroken});
  EXPECT_THAT(Broadcasts<FailureMessage>(), IsEmpty());
  Tell(2, Closed{8, 3, 4});
  EXPECT_THAT(TheFailure(8), StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 2 (host h, pid 72) has closed")));
}

TEST_F(WorldTest, SuspectThatReportsTheCauseItselfIsHeardFirst) {
  Form(3);
  Tell(1, Report{5, 2, kBroken});
  Tell(2, Report{5, kNoRank, absl::InternalError("out of memory")});
  EXPECT_THAT(TheFailure(5), StatusIs(absl::StatusCode::kInternal, "out of memory"));
}

TEST_F(WorldTest, SuspectsThatAreNoneCountAsNone) {
  Form(2);
  Tell(1, Report{5, 1, kBroken});  // itself
  EXPECT_EQ(TheFailure(5), kBroken);
  Tell(1, Report{6, 77, kBroken});
  EXPECT_THAT(Broadcasts<FailureMessage>(), SizeIs(2));
}

TEST_F(WorldTest, LateAsksAllRanksAndNamesTheOneBehind) {
  Form(3);
  Tell(1, Late{5, 17, "allreduce #17"});
  Tell(0, Late{5, 17, "allreduce #17"});
  const auto pings = Broadcasts<Ping>();
  ASSERT_THAT(pings, SizeIs(1));
  Tell(0, Pong{pings[0].nonce, {{5, {17, 16}}}});
  Tell(1, Pong{pings[0].nonce, {{5, {17, 16}}}});
  EXPECT_THAT(Broadcasts<FailureMessage>(), IsEmpty());
  Tell(2, Pong{pings[0].nonce, {{4, {99, 99}}, {5, {16, 16}}}});
  EXPECT_THAT(
      TheFailure(5),
      StatusIs(absl::StatusCode::kDeadlineExceeded,
               "allreduce #17 did not finish in time: rank 2 (host h, pid 72) has not called it (it last completed "
               "#16); ranks 0-1 have called it and wait"));
}

TEST_F(WorldTest, LateWithoutAnAnswerUsesWhatWasKnown) {
  Form(2);
  Tell(1, Pong{0, {{5, {16, 16}}}});
  Tell(0, Late{5, 17, "allreduce #17"});
  Tell(0, Pong{1, {{5, {17, 16}}}});
  Pass(milliseconds(299));
  EXPECT_THAT(Broadcasts<FailureMessage>(), IsEmpty());
  Pass(milliseconds(1));
  EXPECT_THAT(TheFailure(5),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("rank 1 (host h, pid 71) does not answer (when last heard, it last completed #16)")));
}

TEST_F(WorldTest, LateDoesNotWaitForRanksThatLeave) {
  Form(3);
  Tell(0, Late{5, 1, "barrier #1"});
  Tell(0, Pong{1, {{5, {1, 0}}}});
  Tell(2, Pong{1, {{5, {1, 0}}}});
  Tell(1, Disconnect{});
  EXPECT_THAT(TheFailure(5), StatusIs(absl::StatusCode::kDeadlineExceeded,
                                      HasSubstr("rank 1 (host h, pid 71) has closed its communicator; ranks 0, 2")));
}

TEST_F(WorldTest, DeathOverridesALateOperationBeingLookedInto) {
  Form(2);
  Tell(0, Late{5, 1, "barrier #1"});
  world_->Gone(1, kDied);
  Pass(milliseconds(1000));
  EXPECT_THAT(TheFailure(kAllChannels), StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 1")));
}

TEST_F(WorldTest, ClosingAnnouncesWhatIsBeingLookedInto) {
  Form(2);
  Tell(0, Report{5, 1, kBroken});
  world_->Close();
  EXPECT_EQ(TheFailure(5), kBroken);
}

TEST_F(WorldTest, MessagesOutOfPlaceAreRefused) {
  Form(2);
  EXPECT_FALSE(world_->Handle(1, Join{}, now_));
  EXPECT_FALSE(world_->Handle(1, Welcome{}, now_));
  EXPECT_FALSE(world_->Handle(1, Hello{}, now_));
}

// Who had entered, according to the answers given to these ranks, which are taken out.
std::map<int, std::vector<int>> EnteredIn(std::vector<std::pair<int, Message>>* sent) {
  std::map<int, std::vector<int>> answers;
  for (const auto& [rank, message] : *sent) {
    for (const auto& [who, text] : std::get<PostedMessages>(message).messages) answers[rank].push_back(who.value());
  }
  sent->clear();
  return answers;
}

TEST_F(WorldTest, ABarrierIsOverWhenAllHaveEntered) {
  using Answers = std::map<int, std::vector<int>>;
  Form(4);
  // One of all, and one of three on another channel, under the same number.
  for (const int rank : {3, 0, 2}) Tell(rank, EnterBarrier{7, 5, 1, 4, 1000});
  for (const int rank : {1, 2}) Tell(rank, EnterBarrier{8, 6, 1, 3, 1000});
  EXPECT_THAT(to_one_, IsEmpty());
  Tell(1, EnterBarrier{9, 5, 1, 4, 1000});
  EXPECT_EQ(std::get<PostedMessages>(to_one_.back().second).request, 7u);
  const std::vector<int> all = {0, 1, 2, 3};
  EXPECT_EQ(EnteredIn(&to_one_), (Answers{{0, all}, {1, all}, {2, all}, {3, all}}));
  Tell(3, EnterBarrier{9, 6, 1, 3, 1000});
  const std::vector<int> three = {1, 2, 3};
  EXPECT_EQ(EnteredIn(&to_one_), (Answers{{1, three}, {2, three}, {3, three}}));
  Pass(milliseconds(5000));
  EXPECT_THAT(to_one_, IsEmpty());
}

// The first who has no time left ends it for all; whoever comes then is told the same, and enters the next one like the others.
TEST_F(WorldTest, ABarrierWhoseTimeIsUpNamesTheSameRanksToAll) {
  using Answers = std::map<int, std::vector<int>>;
  Form(4);
  Tell(0, EnterBarrier{1, 5, 1, 4, 1000});
  Pass(milliseconds(100));
  Tell(2, EnterBarrier{1, 5, 1, 4, 400});
  EXPECT_EQ(world_->next_event(), now_ + milliseconds(400));
  Pass(milliseconds(399));
  EXPECT_THAT(to_one_, IsEmpty());
  Pass(milliseconds(1));
  const std::vector<int> two = {0, 2};
  EXPECT_EQ(EnteredIn(&to_one_), (Answers{{0, two}, {2, two}}));
  Tell(1, EnterBarrier{1, 5, 1, 4, 1000});
  EXPECT_EQ(EnteredIn(&to_one_), (Answers{{1, two}}));
  // Those that wait in the next one do not get the last late comer.
  for (const int rank : {0, 1, 2}) Tell(rank, EnterBarrier{2, 5, 2, 4, 1000});
  Tell(3, EnterBarrier{1, 5, 1, 4, 1000});
  EXPECT_EQ(EnteredIn(&to_one_), (Answers{{3, two}}));
  Tell(3, EnterBarrier{2, 5, 2, 4, 1000});
  EXPECT_THAT(EnteredIn(&to_one_), SizeIs(4));
  // Without a limit nothing is due.
  Tell(0, EnterBarrier{3, 5, 3, 4, UINT64_MAX});
  EXPECT_EQ(world_->next_event(), World::TimePoint::max());
}

TEST_F(WorldTest, ARankThatIsGoneHasNoAnswerInABarrier) {
  Form(3);
  Tell(0, EnterBarrier{1, 5, 1, 3, 1000});
  Tell(1, EnterBarrier{1, 5, 1, 3, 1000});
  world_->Left(1);
  Pass(milliseconds(1000));
  ASSERT_THAT(to_one_, SizeIs(1));
  EXPECT_EQ(to_one_[0].first, 0);
  EXPECT_THAT(std::get<PostedMessages>(to_one_[0].second).messages, SizeIs(2)) << "it had entered";
}

// A heartbeat of a rank that has started `started` collectives of channel 5 and finished `completed` of them.
Pong Beat(uint64_t started, uint64_t completed) { return Pong{0, {{5, {started, completed}}}}; }

TEST_F(WorldTest, ARankThatIsStuckHasEveryRankSayWhatItCalled) {
  Form(3);
  Tell(0, Beat(4, 2));
  Tell(0, Beat(4, 3));
  EXPECT_THAT(to_one_, IsEmpty()) << "it gets on";
  Tell(0, Beat(4, 3));
  ASSERT_THAT(to_one_, SizeIs(3));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(to_one_[rank].first, rank);
    const Ask* const ask = std::get_if<Ask>(&to_one_[rank].second);
    ASSERT_NE(ask, nullptr);
    EXPECT_EQ(ask->channel, 5u);
    EXPECT_EQ(ask->sequence, 4u);
  }
  Tell(0, Called{5, 4, "reduce #4 (8 f32 sum, root 1)"});
  Tell(2, Called{5, 4, "reduce #4 (8 f32 sum, root 1)"});
  EXPECT_THAT(Broadcasts<FailureMessage>(), IsEmpty());
  Tell(1, Called{5, 4, "reduce #4 (8 f32 sum, root 0)"});
  EXPECT_EQ(TheFailure(5),
            WithFailedRank(absl::FailedPreconditionError(
                               "the ranks' collectives differ: ranks 0, 2 called reduce #4 (8 f32 sum, root 1); "
                               "rank 1 called reduce #4 (8 f32 sum, root 0)"),
                           1));
  to_one_.clear();
  Tell(0, Beat(4, 3));
  EXPECT_THAT(to_one_, IsEmpty()) << "the channel is over";
}

TEST_F(WorldTest, WhoeverIsOnlyLateIsAskedAgainAndBlamedForNothing) {
  Form(3);
  for (int i = 0; i < 2; ++i) Tell(1, Beat(1, 0));
  Tell(0, Called{5, 1, "barrier #1"});
  Tell(1, Called{5, 1, "barrier #1"});
  Tell(2, Called{5, 1, ""});
  to_one_.clear();
  Tell(1, Beat(1, 0));
  EXPECT_THAT(to_one_, IsEmpty()) << "too early to ask again";
  Pass(milliseconds(300));
  Tell(1, Beat(1, 0));
  ASSERT_THAT(to_one_, SizeIs(1));
  EXPECT_EQ(to_one_[0].first, 2);
  Tell(2, Called{5, 1, "barrier #1"});
  EXPECT_THAT(Broadcasts<FailureMessage>(), IsEmpty());
}

TEST_F(WorldTest, AnswersToWhatNobodyAskedAreIgnored) {
  Form(2);
  Tell(0, Called{5, 1, "barrier #1"});
  Tell(1, Called{5, 1, "all_reduce #1"});
  for (int i = 0; i < 2; ++i) Tell(1, Beat(1, 0));
  Tell(0, Called{5, 1, "barrier #1"});
  Pass(std::chrono::seconds(10));
  Tell(1, Called{5, 1, "all_reduce #1"});
  EXPECT_THAT(Broadcasts<FailureMessage>(), IsEmpty()) << "nobody has been stuck for long";
}

TEST(MessageBoard, KeepsTheNewest64Topics) {
  MessageBoard board;
  for (uint64_t topic = 0; topic < 65; ++topic) board.Post(0, {1, topic, "x"});
  EXPECT_FALSE(board.Await(0, {1, 1, 0, 1}).has_value());
  EXPECT_TRUE(board.Await(0, {2, 1, 1, 1}).has_value());
  EXPECT_TRUE(board.Await(0, {3, 1, 64, 1}).has_value());
}

TEST(MessageBoard, ForgetsWaitsThatAreOver) {
  MessageBoard board;
  for (uint64_t request = 0; request < 100; ++request) board.Await(1, {request, 1, 1, 1});
  board.Drop(1, 3);
  EXPECT_THAT(board.Post(0, {1, 1, "x"}), SizeIs(63)) << "of 64, which is as many as it keeps";
  EXPECT_THAT(board.Post(0, {1, 1, "x"}), IsEmpty());
  board.Await(1, {1, 1, 2, 1});
  board.Forget(1);
  EXPECT_THAT(board.Post(0, {1, 2, "x"}), IsEmpty());
}

TEST(MessageBoard, ATopicIsBounded) {
  MessageBoard board;
  const std::string text(kPostedBytesMax, 'x');
  for (int rank = 0; rank < 100; ++rank) board.Post(rank, {1, 1, text});
  const absl::optional<PostedMessages> messages = board.Await(0, {1, 1, 1, 100});
  ASSERT_TRUE(messages.has_value());
  EXPECT_LE(Encode(*messages).size(), size_t{3} << 20);
  EXPECT_EQ(messages->messages[0].second.size(), kPostedBytesMax);
  EXPECT_EQ(messages->messages[99].second.size(), 64u);
}

TEST(MessageBoard, ASecondMessageOfARankReplacesItsFirst) {
  MessageBoard board;
  board.Post(0, {1, 1, "first"});
  board.Post(0, {1, 1, "second"});
  EXPECT_FALSE(board.Await(0, {1, 1, 1, 2}).has_value());
  EXPECT_EQ(board.Await(0, {2, 1, 1, 1})->messages[0].second, "second");
}

TEST(Barriers, KeepNoMoreThanTheyMay) {
  Barriers barriers;
  const World::TimePoint now{std::chrono::hours(1)};
  for (uint64_t sequence = 1; sequence <= 3000; ++sequence) barriers.Enter(0, {sequence, 5, sequence, 2, 1000}, now);
  EXPECT_EQ(barriers.barrier_count(), 1024u);
  EXPECT_THAT(barriers.Expire(now + milliseconds(1000)), SizeIs(1024));
  for (uint64_t sequence = 1; sequence <= 3000; ++sequence) barriers.Enter(1, {sequence, 5, sequence, 2, 1000}, now);
  for (uint64_t sequence = 1; sequence <= 3000; ++sequence) barriers.Enter(0, {sequence, 5, sequence, 2, 1000}, now);
  EXPECT_LE(barriers.barrier_count(), 1024u);
}

}  // namespace
}  // namespace lockstep::control
