// What an error is about, as text in the messages of ranks.

#include "base/error_info.h"
#include "tests/fuzz/fuzz.h"

namespace lockstep::fuzz {

std::vector<std::string> Seeds() {
  ErrorInfo info;
  info.failed_rank = 1;
  info.parameter = 3;
  info.collective = "all_reduce";
  info.sequence = 17;
  info.bucket = 2;
  return {ToText(info), PackMessage(WithErrorInfo(absl::AbortedError("rank 1 died"), info)), "no info", ""};
}

}  // namespace lockstep::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;  // NOLINT: nothing else is here
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const fuzz::Allocations allocations;
  const ErrorInfo info = ErrorInfoFromText(text);
  LOCKSTEP_CHECK(ErrorInfoFromText(ToText(info)) == info) << ToText(info);
  const absl::Status status = UnpackMessage(absl::StatusCode::kAborted, text);
  LOCKSTEP_CHECK(allocations.bytes() <= 64 * size + 4096) << allocations.bytes() << " bytes allocated for " << size;
  LOCKSTEP_CHECK(absl::IsAborted(status));
  const absl::Status again = UnpackMessage(absl::StatusCode::kAborted, PackMessage(status));
  LOCKSTEP_CHECK(GetErrorInfo(again) == GetErrorInfo(status)) << PackMessage(status);
  if (!GetErrorInfo(status).empty()) LOCKSTEP_CHECK(again.message() == status.message());
  return 0;
}
