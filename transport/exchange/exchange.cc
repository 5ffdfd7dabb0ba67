#include "transport/exchange/exchange.h"

#include <atomic>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/error_info.h"
#include "base/status.h"
#include "transport/exchange/pmi.h"
#include "transport/exchange/pmix.h"
#include "transport/secure/secret.h"

namespace lockstep {
namespace {

constexpr size_t kTextBytesMax = 700;  // its Base64, after a letter for the code, fits in a value

}  // namespace

const char* Name(ExchangeKind kind) {
  switch (kind) {
    case ExchangeKind::kNone:
      return "none";
    case ExchangeKind::kPmix:
      return "PMIx";
    case ExchangeKind::kPmi1:
      return "PMI-1";
    case ExchangeKind::kPmi2:
      return "PMI-2";
  }
  return "?";
}

absl::StatusOr<Exchange*> OpenExchange(ExchangeKind kind, Deadline deadline) {
  LOCKSTEP_CHECK(kind != ExchangeKind::kNone);
  if (kind == ExchangeKind::kPmix) return OpenPmix(deadline);
  return OpenPmi(kind, deadline);
}

absl::StatusOr<std::string> TellAll(Exchange* exchange, Rank rank, const absl::StatusOr<std::string>& text,
                                    Deadline deadline) {
  // A new key each time: launchers differ in what a second value of a key does. So another program in the same task cannot use it.
  static std::atomic<int> told{0};
  const std::string key = absl::StrCat("lockstep-", told++);
  if (rank == Rank(0)) {
    const absl::string_view plain = text.ok() ? absl::string_view(*text) : text.status().message();
    std::string escaped = absl::WebSafeBase64Escape(plain.substr(0, kTextBytesMax));
    const WipedAtEnd escaped_wiped(&escaped);
    std::string value = absl::StrCat(std::string(1, static_cast<char>('A' + text.status().raw_code())), escaped);
    const WipedAtEnd value_wiped(&value);
    LOCKSTEP_RETURN_IF_ERROR(exchange->Put(key, value, deadline));
  }
  if (const absl::Status fence = exchange->Fence(deadline); absl::IsDeadlineExceeded(fence)) {
    return Annotate(fence, kNotAllHaveCome);
  } else if (!fence.ok()) {
    return fence;
  }
  if (rank == Rank(0)) return text;
  absl::StatusOr<std::string> found = exchange->Get(key, deadline);
  const WipedAtEnd wiped(&found);
  LOCKSTEP_RETURN_IF_ERROR(found.status());
  const absl::string_view value = *found;
  std::string plain;
  if (value.empty() || value[0] < 'A' || value[0] > 'Q' || !absl::WebSafeBase64Unescape(value.substr(1), &plain)) {
    // Not shown: it may be a secret that was damaged on its way.
    return absl::UnavailableError(
        absl::StrCat("rank 0 has put ", value.size(), " bytes that are nothing of Lockstep's"));
  }
  if (value[0] == 'A') return plain;
  ErrorInfo info;
  info.failed_rank = 0;
  return WithErrorInfo(absl::Status(static_cast<absl::StatusCode>(value[0] - 'A'), absl::StrCat("rank 0: ", plain)),
                       info);
}

}  // namespace lockstep
