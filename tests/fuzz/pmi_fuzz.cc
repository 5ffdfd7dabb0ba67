// What a launcher's process manager answers over PMI-1 and PMI-2, and what rank 0 has put there for the others: where its store is, and
// the secret.
//
//   input = form:u8 answers        form: bit 0 PMI-2; bit 1 the input is a value of rank 0's, and no answers

#include <sys/socket.h>

#include <memory>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/fuzz/fuzz.h"
#include "transport/exchange/exchange.h"
#include "transport/exchange/pmi.h"
#include "transport/net/socket.h"
#include "transport/secure/credentials.h"
#include "transport/secure/secret.h"
#include "transport/store/rendezvous.h"
#include "transport/store/store_open.h"

namespace lockstep {
namespace {

using Code = absl::StatusCode;

// Answers with one value.
class OneValue final : public Exchange {
 public:
  explicit OneValue(absl::string_view value) : value(value) {}
  absl::Status Put(absl::string_view, absl::string_view text, Deadline) override {
    value = std::string(text);
    return absl::OkStatus();
  }
  absl::Status Fence(Deadline) override { return absl::OkStatus(); }
  absl::StatusOr<std::string> Get(absl::string_view, Deadline) override { return value; }

  std::string value;
};

Credentials WithoutSecret() {
  Credentials credentials;
  credentials.level = SecurityLevel::kAuthenticate;
  return credentials;
}

void ReadStore(const std::string& text) {
  const fuzz::Allocations allocations;
  WorldSpec world;
  world.exchange = ExchangeKind::kPmi1;
  Credentials credentials = WithoutSecret();
  const absl::Status taken = TakeExchangedText(text, &world, &credentials);
  fuzz::CheckCode(taken, {Code::kInvalidArgument});
  LOCKSTEP_CHECK(allocations.bytes() <= text.size() + 1024) << allocations.bytes();
  LOCKSTEP_CHECK(world.store_url == text.substr(0, text.find(' ')));
  const bool drawn = absl::StrContains(text, ' ');
  LOCKSTEP_CHECK((credentials.secret != nullptr) == (taken.ok() && drawn));
  // An error says nothing of what stands there.
  if (!taken.ok()) {
    std::string masked = text;
    for (size_t i = world.store_url.size() + 1; i < masked.size(); ++i) {
      masked[i] = absl::ascii_isxdigit(masked[i]) ? '0' : 'x';
    }
    LOCKSTEP_CHECK(TakeExchangedText(masked, &world, &credentials) == taken) << taken;
  }
  // Read again, it is the same. Who has a secret keeps it.
  if (credentials.secret == nullptr) return;
  const std::shared_ptr<const Secret> secret = credentials.secret;
  const std::string again = absl::StrCat(world.store_url, " ", secret->Hex());
  LOCKSTEP_CHECK(TakeExchangedText(again, &world, &credentials).ok() && credentials.secret == secret);
  Credentials others = WithoutSecret();
  LOCKSTEP_CHECK(TakeExchangedText(again, &world, &others).ok() && others.secret->bytes() == secret->bytes());
}

void ReadValue(absl::string_view value) {
  OneValue exchange(value);
  const absl::StatusOr<std::string> told = TellAll(&exchange, Rank(1), "", Deadline::Infinite());
  LOCKSTEP_CHECK(static_cast<int>(told.status().code()) == told.status().raw_code());
  if (told.ok()) ReadStore(*told);
  // Any text of rank 0's comes whole up to 700 bytes.
  OneValue lent("");
  const std::string text(value.substr(0, 700));
  LOCKSTEP_CHECK(TellAll(&lent, Rank(0), text, Deadline::Infinite()).ok());
  LOCKSTEP_CHECK(lent.value.size() <= kExchangeValueBytesMax) << lent.value.size();
  LOCKSTEP_CHECK(TellAll(&lent, Rank(1), "", Deadline::Infinite()).value() == text);
}

void ReadAnswers(ExchangeKind kind, absl::string_view answers) {
  int ends[2];
  LOCKSTEP_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
  const UniqueFd launcher(ends[1]);
  PmiExchange exchange(kind, UniqueFd(ends[0]), {"job.0", "1"});
  // All answers are there before they are asked for, and then the launcher has ended: nothing waits.
  const Deadline deadline = Deadline::AfterMs(10'000);
  if (!SendAll(launcher.get(), answers.data(), answers.size(), Deadline::Now()).ok()) return;
  LOCKSTEP_CHECK(shutdown(launcher.get(), SHUT_WR) == 0);
  const fuzz::Allocations allocations;
  bool failed = false;
  const auto check = [&failed](const absl::Status& status) {
    fuzz::CheckCode(status, {Code::kUnavailable, Code::kFailedPrecondition});
    LOCKSTEP_CHECK(!failed || absl::IsFailedPrecondition(status)) << "an answer after one that makes no sense";
  };
  check(exchange.Begin(deadline));
  failed = !exchange.failure().ok();
  check(exchange.Put("lockstep-0", "Adm9pY2U", deadline));
  failed = !exchange.failure().ok();
  check(exchange.Fence(deadline));
  failed = !exchange.failure().ok();
  check(exchange.Get("lockstep-0", deadline).status());
  fuzz::CheckCode(exchange.End(deadline), {Code::kUnavailable, Code::kFailedPrecondition});
  // Each of PMI-1's five answers has room for 16 KiB, and each question for 2 KiB, so that they leave no copies behind as they grow.
  LOCKSTEP_CHECK(allocations.bytes() <= 256 * answers.size() + 98304) << allocations.bytes();
}

}  // namespace

std::vector<std::string> fuzz::Seeds() {
  const std::string pmi1 =
      "cmd=my_kvsname kvsname=space\ncmd=put_result rc=0\ncmd=barrier_out rc=0\n"
      "cmd=get_result rc=0 value=Adm9pY2U\ncmd=finalize_ack\n";
  const auto answer = [](const std::string& body) {
    std::string length = std::to_string(body.size());
    length.resize(6, ' ');
    return length + body;
  };
  const std::string pmi2 = "cmd=response_to_init rc=0\n" + answer("cmd=fullinit-response;rc=0;") +
                           answer("cmd=kvs-put-response;rc=0;") + answer("cmd=kvs-fence-response;rc=0;") +
                           answer("cmd=kvs-get-response;rc=0;found=TRUE;value=Adm9pY2U;") +
                           answer("cmd=finalize-response;rc=0;");
  const auto told = [](const std::string& text) { return "\2A" + absl::WebSafeBase64Escape(text); };
  return {'\0' + pmi1,
          '\1' + pmi2,
          '\0' + std::string("cmd=my_kvsname rc=-1 msg=none\nfinalize_ack"),
          told("tcp://10.0.0.7:4411"),
          told("tcp://10.0.0.7:4411 " + std::string(64, '7')),
          told("tcp://10.0.0.7:4411 " + std::string(63, '7') + "g"),
          "\2OdGhlIHJlYXNvbg"};
}

}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using lockstep::ExchangeKind;
  lockstep::fuzz::Input input(data, size);
  const auto form = input.Take<uint8_t>();
  if (form & 2) {
    lockstep::ReadValue(input.Rest());
  } else {
    lockstep::ReadAnswers(form & 1 ? ExchangeKind::kPmi2 : ExchangeKind::kPmi1, input.Take(65536));
  }
  return 0;
}
