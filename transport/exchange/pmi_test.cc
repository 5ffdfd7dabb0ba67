// Against a launcher that is a thread at the other end of a socket pair.

#include "transport/exchange/pmi.h"

#include <sys/socket.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "base/thread.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using Code = absl::StatusCode;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kSilence[] = "silence";

std::string Framed(const std::string& body) {
  std::string length = absl::StrCat(body.size());
  length.resize(6, ' ');
  return length + body;
}

// Answers each question with the next of these, then closes. The questions are noted as they came.
class Launcher {
 public:
  Launcher(ExchangeKind kind, std::vector<std::string> answers) {
    int pair[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    ours_ = UniqueFd(pair[0]);
    exchange_ = std::make_unique<PmiExchange>(kind, UniqueFd(pair[1]), PmiExchange::Identity{"7.0", "3"});
    thread_ = Thread("launcher", [this, answers = std::move(answers)] {
      for (const std::string& answer : answers) {
        char question[1024];
        const ssize_t bytes = recv(ours_.get(), question, sizeof(question), 0);
        if (bytes <= 0) return;
        questions_.emplace_back(question, bytes);
        if (answer == kSilence) continue;
        // A byte at a time: a stream has no messages.
        for (const char byte : answer) send(ours_.get(), &byte, 1, MSG_NOSIGNAL);
      }
      ours_.reset();
    });
  }

  // A launcher that nobody reads from would wait for ever.
  ~Launcher() { exchange_.reset(); }

  PmiExchange& exchange() { return *exchange_; }

  // Waits until all has been asked.
  void Join() { thread_.Join(); }

  // Of an exchange that then ends.
  std::vector<std::string> Questions() {
    exchange_.reset();
    Join();
    return questions_;
  }

 private:
  UniqueFd ours_;
  std::unique_ptr<PmiExchange> exchange_;
  std::vector<std::string> questions_;
  Thread thread_;
};

Deadline Soon() { return Deadline::AfterMs(10000); }

TEST(Pmi1, AsksAsHydraAnswers) {
  Launcher launcher(ExchangeKind::kPmi1,
                    {"cmd=my_kvsname kvsname=kvs_1_0\n", "cmd=put_result rc=0 msg=success\n", "cmd=barrier_out\n",
                     "cmd=get_result rc=0 msg=success value=BdGNwOi8v==\n", "cmd=finalize_ack\n"});
  EXPECT_THAT(launcher.exchange().Begin(Soon()), IsOk());
  EXPECT_THAT(launcher.exchange().Put("lockstep-0", "abc", Soon()), IsOk());
  EXPECT_THAT(launcher.exchange().Fence(Soon()), IsOk());
  EXPECT_THAT(launcher.exchange().Get("lockstep-0", Soon()), IsOkAndHolds("BdGNwOi8v=="));
  EXPECT_THAT(launcher.exchange().End(Soon()), IsOk());
  EXPECT_THAT(launcher.Questions(),
              ElementsAre("cmd=get_my_kvsname\n", "cmd=put kvsname=kvs_1_0 key=lockstep-0 value=abc\n",
                          "cmd=barrier_in\n", "cmd=get kvsname=kvs_1_0 key=lockstep-0\n", "cmd=finalize\n"));
}

TEST(Pmi2, AsksAsSlurmAnswers) {
  Launcher launcher(ExchangeKind::kPmi2, {"cmd=response_to_init rc=0 pmi_version=2 pmi_subversion=0\n",
                                          Framed("cmd=fullinit-response;rc=0;pmi-version=2;rank=3;size=8;"),
                                          Framed("cmd=kvs-put-response;rc=0;"), Framed("cmd=kvs-fence-response;rc=0;"),
                                          Framed("cmd=kvs-get-response;rc=0;found=TRUE;value=Bd==;"),
                                          Framed("cmd=finalize-response;rc=0;")});
  EXPECT_THAT(launcher.exchange().Begin(Soon()), IsOk());
  EXPECT_THAT(launcher.exchange().Put("lockstep-0", "abc", Soon()), IsOk());
  EXPECT_THAT(launcher.exchange().Fence(Soon()), IsOk());
  EXPECT_THAT(launcher.exchange().Get("lockstep-0", Soon()), IsOkAndHolds("Bd=="));
  EXPECT_THAT(launcher.exchange().End(Soon()), IsOk());
  EXPECT_THAT(launcher.Questions(),
              ElementsAre("cmd=init pmi_version=2 pmi_subversion=0\n",
                          "51    cmd=fullinit;pmijobid=7.0;pmirank=3;threaded=FALSE;",
                          "37    cmd=kvs-put;key=lockstep-0;value=abc;", "14    cmd=kvs-fence;",
                          "45    cmd=kvs-get;jobid=7.0;srcid=0;key=lockstep-0;", "13    cmd=finalize;"));
}

TEST(Pmi, SaysThatRankZeroHasPutNothing) {
  Launcher one(ExchangeKind::kPmi1, {"cmd=get_result rc=-1 msg=key_k_not_found value=unknown\n"});
  EXPECT_THAT(one.exchange().Get("k", Soon()), StatusIs(Code::kUnavailable, HasSubstr("key_k_not_found")));
  Launcher two(ExchangeKind::kPmi2, {Framed("cmd=kvs-get-response;rc=0;found=FALSE;")});
  EXPECT_THAT(two.exchange().Get("k", Soon()), StatusIs(Code::kUnavailable, "PMI-2: rank 0 has put no k"));
}

TEST(Pmi, NoErrorShowsAValue) {
  Launcher launcher(ExchangeKind::kPmi1, {"cmd=get_result rc=3 value=secret\n"});
  EXPECT_THAT(launcher.exchange().Get("k", Soon()),
              StatusIs(Code::kUnavailable, AllOf(HasSubstr("rc=3"), Not(HasSubstr("secret")))));
}

TEST(Pmi, RefusesAnswersThatMakeNoSense) {
  const struct {
    ExchangeKind kind;
    std::string answer;
    std::string message;
  } cases[] = {
      {ExchangeKind::kPmi1, "\n", "PMI-1, barrier_in: the launcher answers ''"},
      {ExchangeKind::kPmi1, "HTTP/1.1 400 Bad Request\r\n", "HTTP/1.1"},
      {ExchangeKind::kPmi1, "cmd=barrier_outside\n", "cmd=barrier_outside"},
      {ExchangeKind::kPmi1, "cmd=put_result rc=0\n", "cmd=put_result"},
      {ExchangeKind::kPmi1, "cmd=barrier_out rc=7 msg=no\n", "rc=7 msg=no"},
      {ExchangeKind::kPmi1, std::string(20000, 'x'), "has no end"},
      {ExchangeKind::kPmi2, "cmd=in", "begins with 'cmd=in'"},
      {ExchangeKind::kPmi2, "-1    ", "begins with '-1"},
      {ExchangeKind::kPmi2, "999999", "begins with '999999'"},
      {ExchangeKind::kPmi2, Framed(""), "PMI-2, kvs-fence: the launcher answers ''"},
      {ExchangeKind::kPmi2, Framed("cmd=kvs-fence-response;rc=14;errmsg=failed to send;"), "errmsg=failed to send"},
      {ExchangeKind::kPmi2, Framed("cmd=kvs-put-response;rc=0;"), "kvs-put-response"},
  };
  for (const auto& c : cases) {
    Launcher launcher(c.kind, {c.answer});
    EXPECT_THAT(launcher.exchange().Fence(Soon()), StatusIs(Code::kUnavailable, HasSubstr(c.message)));
    // The next answer could be that of the last question.
    EXPECT_THAT(
        launcher.exchange().Fence(Soon()),
        StatusIs(Code::kFailedPrecondition, AllOf(HasSubstr("an earlier call has failed"), HasSubstr(c.message))));
    EXPECT_THAT(launcher.Questions(), testing::SizeIs(1));
  }
}

TEST(Pmi, EndsAtTheDeadlineAndStaysUnusable) {
  for (const ExchangeKind kind : {ExchangeKind::kPmi1, ExchangeKind::kPmi2}) {
    const std::string late = kind == ExchangeKind::kPmi1
                                 ? "cmd=barrier_out\ncmd=finalize_ack\n"
                                 : Framed("cmd=kvs-fence-response;rc=0;") + Framed("cmd=finalize-response;rc=0;");
    Launcher launcher(kind, {kSilence, late});
    EXPECT_THAT(launcher.exchange().Fence(Deadline::AfterMs(50)),
                StatusIs(Code::kDeadlineExceeded, HasSubstr(Name(kind))));
    EXPECT_THAT(launcher.exchange().Put("k", "v", Soon()),
                StatusIs(Code::kFailedPrecondition, HasSubstr("an earlier call")));
    // A process that goes on and ends well has not failed for the launcher.
    EXPECT_THAT(launcher.exchange().End(Soon()), IsOk());
    EXPECT_THAT(launcher.Questions(), ElementsAre(testing::_, HasSubstr("cmd=finalize")));
  }
}

// At exit, another thread may be in a call.
TEST(Pmi, DoesNotEndWhileAnAnswerIsUnderWay) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  const UniqueFd launcher(pair[0]);
  PmiExchange exchange(ExchangeKind::kPmi1, UniqueFd(pair[1]), {"7.0", "3"});
  Thread thread("fence", [&] { EXPECT_THAT(exchange.Fence(Soon()), IsOk()); });
  char question[100];
  ASSERT_GT(recv(launcher.get(), question, sizeof(question), 0), 0);
  EXPECT_THAT(exchange.End(Soon()), StatusIs(Code::kFailedPrecondition, HasSubstr("another thread")));
  const std::string answer = "cmd=barrier_out\n";
  EXPECT_EQ(send(launcher.get(), answer.data(), answer.size(), MSG_NOSIGNAL), static_cast<ssize_t>(answer.size()));
  thread.Join();
}

TEST(Pmi, SaysWhenTheLauncherIsGone) {
  for (const ExchangeKind kind : {ExchangeKind::kPmi1, ExchangeKind::kPmi2}) {
    Launcher silent(kind, {});
    silent.Join();
    EXPECT_THAT(silent.exchange().Begin(Soon()), StatusIs(Code::kUnavailable, HasSubstr("PMI-")));
    Launcher half(kind, {kind == ExchangeKind::kPmi1 ? "cmd=barr" : "26    cmd=kv"});
    EXPECT_THAT(half.exchange().Fence(Soon()), StatusIs(Code::kUnavailable, HasSubstr(Name(kind))));
  }
}

}  // namespace
}  // namespace lockstep
