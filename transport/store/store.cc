#include "transport/store/store.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace lockstep {
namespace {

constexpr size_t kShownBytesMax = 80;

}  // namespace

std::string DescribeStoreKey(absl::string_view key) {
  if (key.size() <= kShownBytesMax) return absl::StrCat("key '", absl::CHexEscape(key), "'");
  return absl::StrCat("key '", absl::CHexEscape(key.substr(0, kShownBytesMax)), "...' (", key.size(), " bytes)");
}

absl::StatusOr<std::string> Store::Call(const StoreCall& call, Deadline deadline) {
  if (call.key.size() > kStoreKeyBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(DescribeStoreKey(call.key), ": a key has at most ", kStoreKeyBytesMax, " bytes"));
  }
  for (const absl::string_view value : {call.first, call.second}) {
    if (value.size() <= kStoreValueBytesMax) continue;
    return absl::InvalidArgumentError(absl::StrCat(DescribeStoreKey(call.key), ": a value has at most ",
                                                   kStoreValueBytesMax, " bytes, this one ", value.size()));
  }
  return Perform(call, deadline);
}

}  // namespace lockstep
