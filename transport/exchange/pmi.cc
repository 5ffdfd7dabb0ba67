#include "transport/exchange/pmi.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/clipped.h"
#include "base/env.h"
#include "base/mutex.h"
#include "base/status.h"
#include "transport/exchange/mpi_presence.h"
#include "transport/net/socket.h"
#include "transport/secure/secret.h"

namespace lockstep {
namespace {

constexpr size_t kAnswerBytesMax = 16384;
constexpr size_t kLengthBytes = 6;
// Room for a question with a value, so that growing leaves no copy of it behind.
constexpr size_t kQuestionBytes = 2 * kExchangeValueBytesMax;
// How long an exiting process waits for the answer to finalize.
constexpr int kEndMs = 1000;

struct Question {
  const char* name;
  const char* answer;
};

struct Protocol {
  Question put, fence, get, end;
};

constexpr Protocol kPmi1Protocol = {
    {"put", "put_result"}, {"barrier_in", "barrier_out"}, {"get", "get_result"}, {"finalize", "finalize_ack"}};
constexpr Protocol kPmi2Protocol = {{"kvs-put", "kvs-put-response"},
                                    {"kvs-fence", "kvs-fence-response"},
                                    {"kvs-get", "kvs-get-response"},
                                    {"finalize", "finalize-response"}};

const Protocol& Of(ExchangeKind kind) { return kind == ExchangeKind::kPmi1 ? kPmi1Protocol : kPmi2Protocol; }

}  // namespace

PmiExchange::PmiExchange(ExchangeKind kind, UniqueFd socket, Identity self)
    : kind_(kind), socket_(std::move(socket)), self_(std::move(self)) {}

absl::Status PmiExchange::Begin(Deadline deadline) {
  MutexLock lock(&mu_);
  if (kind_ == ExchangeKind::kPmi1) {
    LOCKSTEP_ASSIGN_OR_RETURN(const Fields fields, Ask(kind_, "get_my_kvsname", {}, "my_kvsname", deadline));
    for (const auto& [key, value] : fields) {
      if (key == "kvsname") space_ = value;
    }
    return absl::OkStatus();
  }
  LOCKSTEP_RETURN_IF_ERROR(
      Ask(ExchangeKind::kPmi1, "init", {{"pmi_version", "2"}, {"pmi_subversion", "0"}}, "response_to_init", deadline));
  return Ask(kind_, "fullinit", {{"pmijobid", self_.job}, {"pmirank", self_.rank}, {"threaded", "FALSE"}},
             "fullinit-response", deadline)
      .status();
}

absl::Status PmiExchange::Put(absl::string_view key, absl::string_view value, Deadline deadline) {
  MutexLock lock(&mu_);
  Fields fields;
  if (kind_ == ExchangeKind::kPmi1) fields.emplace_back("kvsname", space_);
  fields.emplace_back("key", key);
  fields.emplace_back("value", value);
  const WipedAtEnd wiped(&fields.back().second);
  return Ask(kind_, Of(kind_).put.name, fields, Of(kind_).put.answer, deadline).status();
}

absl::Status PmiExchange::Fence(Deadline deadline) {
  MutexLock lock(&mu_);
  return Ask(kind_, Of(kind_).fence.name, {}, Of(kind_).fence.answer, deadline).status();
}

absl::StatusOr<std::string> PmiExchange::Get(absl::string_view key, Deadline deadline) {
  MutexLock lock(&mu_);
  Fields fields;
  if (kind_ == ExchangeKind::kPmi1) {
    fields.emplace_back("kvsname", space_);
  } else {
    fields.emplace_back("jobid", self_.job);
    fields.emplace_back("srcid", "0");
  }
  fields.emplace_back("key", key);
  LOCKSTEP_ASSIGN_OR_RETURN(Fields answer, Ask(kind_, Of(kind_).get.name, fields, Of(kind_).get.answer, deadline));
  for (auto& [name, value] : answer) {
    if (name == "value") return std::move(value);
  }
  return absl::UnavailableError(absl::StrCat(Name(kind_), ": rank 0 has put no ", key));
}

absl::Status PmiExchange::failure() const {
  MutexLock lock(&mu_);
  return failure_;
}

absl::Status PmiExchange::End(Deadline deadline) {
  if (!mu_.TryLock()) return absl::FailedPreconditionError("another thread waits for the launcher");
  const absl::Status ended = EndLocked(deadline);
  mu_.Unlock();
  return ended;
}

absl::Status PmiExchange::EndLocked(Deadline deadline) {
  if (failure_.ok()) return Ask(kind_, Of(kind_).end.name, {}, Of(kind_).end.answer, deadline).status();
  // What comes before its answer is of earlier questions. Hydra fails where nobody is left to take its answer.
  LOCKSTEP_RETURN_IF_ERROR(Send(kind_, absl::StrCat("cmd=", Of(kind_).end.name), deadline));
  const std::string answer = absl::StrCat("cmd=", Of(kind_).end.answer);
  std::string text;
  for (char byte = 0; text.size() <= kAnswerBytesMax && !absl::EndsWith(text, answer); text.push_back(byte)) {
    LOCKSTEP_RETURN_IF_ERROR(ReceiveAll(socket_.get(), &byte, 1, deadline));
  }
  return absl::OkStatus();
}

absl::StatusOr<PmiExchange::Fields> PmiExchange::Ask(ExchangeKind form, absl::string_view name, const Fields& fields,
                                                     absl::string_view answer, Deadline deadline) {
  const char separator = form == ExchangeKind::kPmi1 ? ' ' : ';';
  std::string message;
  const WipedAtEnd message_wiped(&message);
  message.reserve(kQuestionBytes);
  absl::StrAppend(&message, "cmd=", name);
  for (const auto& [key, value] : fields) absl::StrAppend(&message, std::string(1, separator), key, "=", value);
  const std::string attempt = absl::StrCat(Name(kind_), ", ", name);
  LOCKSTEP_RETURN_IF_ERROR(failure_);
  const auto fail = [&](const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    failure_ = absl::FailedPreconditionError(absl::StrCat("an earlier call has failed: ", status.message()));
    return status;
  };
  absl::StatusOr<std::string> text = AskRaw(form, message, deadline);
  const WipedAtEnd text_wiped(&text);
  if (absl::IsDeadlineExceeded(text.status()))
    return fail(absl::DeadlineExceededError(attempt + ": no answer in time"));
  if (!text.ok()) return fail(Annotate(text.status(), attempt));
  absl::string_view rest = *text;
  Fields answered;
  if (absl::ConsumePrefix(&rest, absl::StrCat("cmd=", answer)) && (rest.empty() || rest[0] == separator)) {
    std::string result = "0";
    for (const absl::string_view field : absl::StrSplit(rest, separator, absl::SkipEmpty())) {
      answered.push_back(absl::StrSplit(field, absl::MaxSplits('=', 1)));
      if (answered.back().first == "rc") result = answered.back().second;
    }
    if (result == "0") return answered;
  }
  // A value may be the job's secret.
  const absl::string_view shown = absl::string_view(*text).substr(0, text->find("value="));
  return fail(absl::UnavailableError(absl::StrCat(attempt, ": the launcher answers '", Clipped(shown), "'")));
}

absl::Status PmiExchange::Send(ExchangeKind form, const std::string& message, Deadline deadline) {
  std::string sent;
  const WipedAtEnd wiped(&sent);
  if (form == ExchangeKind::kPmi1) {
    sent = absl::StrCat(message, "\n");
  } else {
    sent = absl::StrCat(message.size() + 1);
    sent.resize(kLengthBytes, ' ');
    absl::StrAppend(&sent, message, ";");
  }
  return SendAll(socket_.get(), sent.data(), sent.size(), deadline);
}

absl::StatusOr<std::string> PmiExchange::AskRaw(ExchangeKind form, const std::string& message, Deadline deadline) {
  LOCKSTEP_RETURN_IF_ERROR(Send(form, message, deadline));
  std::string answer;
  if (form == ExchangeKind::kPmi1) {
    answer.reserve(kAnswerBytesMax + 1);
    for (char byte = 0; answer.size() <= kAnswerBytesMax;) {
      // Not a byte further than the line: what follows may be for MPI.
      LOCKSTEP_RETURN_IF_ERROR(ReceiveAll(socket_.get(), &byte, 1, deadline));
      if (byte == '\n') return answer;
      answer.push_back(byte);
    }
    return absl::UnavailableError("the launcher's answer has no end");
  }
  std::string length(kLengthBytes, ' ');
  LOCKSTEP_RETURN_IF_ERROR(ReceiveAll(socket_.get(), &length[0], length.size(), deadline));
  int64_t bytes = 0;
  if (!ParseInteger(absl::StripTrailingAsciiWhitespace(length), &bytes) || bytes < 0 || bytes > kAnswerBytesMax) {
    return absl::UnavailableError(absl::StrCat("the launcher's answer begins with '", Clipped(length), "'"));
  }
  answer.resize(static_cast<size_t>(bytes));
  LOCKSTEP_RETURN_IF_ERROR(ReceiveAll(socket_.get(), &answer[0], answer.size(), deadline));
  return answer;
}

namespace {

// The process's connection, once it has begun.
struct ProcessPmi {
  static ProcessPmi& Get() {
    static ProcessPmi* const pmi = new ProcessPmi;
    return *pmi;
  }

  Mutex mu;
  PmiExchange* begun ABSL_GUARDED_BY(mu) = nullptr;
  uint64_t fork_generation ABSL_GUARDED_BY(mu) = 0;
};

void EndAtExit() {
  ProcessPmi& pmi = ProcessPmi::Get();
  if (!pmi.mu.TryLock()) return;  // a thread waits for the launcher, and this one should not; as in End
  if (pmi.fork_generation == ForkGeneration() && MpiOfThisProcess() < MpiPresence::kInitialized) {
    (void)pmi.begun->End(Deadline::AfterMs(kEndMs));  // nobody is left to be told
  }
  pmi.mu.Unlock();
}

absl::StatusOr<UniqueFd> CopyOfDescriptor() {
  const std::string text = GetEnv("PMI_FD").value_or("");
  const auto unusable = [&](absl::string_view why) {
    return absl::UnavailableError(absl::StrCat("PMI_FD=", Clipped(text), ": ", why));
  };
  int64_t descriptor = -1;
  if (!ParseInteger(text, &descriptor) || descriptor < 0 || descriptor > std::numeric_limits<int>::max()) {
    return unusable("is no descriptor");
  }
  // The number may be another file's by now.
  if (MpiOfThisProcess() == MpiPresence::kFinalized) return unusable("MPI_Finalize has closed the descriptor");
  struct stat status = {};
  if (fstat(static_cast<int>(descriptor), &status) != 0 || !S_ISSOCK(status.st_mode)) {
    return unusable(
        "the descriptor of the launcher's process manager is not open here: did a program between it and this one "
        "close it?");
  }
  // A copy: MPI closes the original, whose number may then be another file's.
  UniqueFd copy(fcntl(static_cast<int>(descriptor), F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) return ErrnoStatus(errno, "copy the descriptor PMI_FD");
  return copy;
}

}  // namespace

absl::StatusOr<Exchange*> OpenPmi(ExchangeKind kind, Deadline deadline) {
  ProcessPmi& pmi = ProcessPmi::Get();
  MutexLock lock(&pmi.mu);
  if (pmi.begun != nullptr && pmi.fork_generation == ForkGeneration()) {
    LOCKSTEP_RETURN_IF_ERROR(pmi.begun->failure());
    return pmi.begun;
  }
  LOCKSTEP_ASSIGN_OR_RETURN(UniqueFd socket, CopyOfDescriptor());
  auto made = std::make_unique<PmiExchange>(
      kind, std::move(socket),
      PmiExchange::Identity{GetEnv("PMI_JOBID").value_or(""), GetEnv("PMI_RANK").value_or("")});
  if (pmi.begun == nullptr) std::atexit(EndAtExit);
  pmi.begun = made.release();
  pmi.fork_generation = ForkGeneration();
  // Where this fails, it stays: an answer that comes later would be taken for that of another question.
  LOCKSTEP_RETURN_IF_ERROR(pmi.begun->Begin(deadline));
  return pmi.begun;
}

}  // namespace lockstep
