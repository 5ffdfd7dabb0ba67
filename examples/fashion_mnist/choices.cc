#include "examples/fashion_mnist/choices.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace fashion_mnist {
namespace {

constexpr std::pair<const char*, Hook> kHooks[] = {{"none", Hook::kNone},
                                                   {"all_reduce", Hook::kAllReduce},
                                                   {"fp16_compress", Hook::kFp16Compress},
                                                   {"bf16_compress", Hook::kBf16Compress},
                                                   {"callback", Hook::kCallback}};
constexpr std::pair<const char*, SyncStrategy> kSyncStrategies[] = {{"single_auto_sync", SyncStrategy::kSingleAutoSync},
                                                                    {"multi_auto_sync", SyncStrategy::kMultiAutoSync},
                                                                    {"forced_sync", SyncStrategy::kForcedSync}};

template <typename Value, size_t n>
bool ParseName(const std::pair<const char*, Value> (&names)[n], absl::string_view text, Value* value,
               std::string* error) {
  for (const auto& [name, named] : names) {
    if (text != name) continue;
    *value = named;
    return true;
  }
  const auto append_name = [](std::string* out, const auto& entry) { out->append(entry.first); };
  *error = absl::StrCat("it takes ", absl::StrJoin(names, ", ", append_name));
  return false;
}

template <typename Value, size_t n>
std::string NameOf(const std::pair<const char*, Value> (&names)[n], Value value) {
  return std::find_if(names, names + n, [value](const auto& entry) { return entry.second == value; })->first;
}

}  // namespace

bool AbslParseFlag(absl::string_view text, Hook* hook, std::string* error) {
  if (text != "noop") return ParseName(kHooks, text, hook, error);
  *error = "it leaves each process its own gradients, so that their parameters drift apart";
  return false;
}
std::string AbslUnparseFlag(Hook hook) { return NameOf(kHooks, hook); }

bool AbslParseFlag(absl::string_view text, SyncStrategy* strategy, std::string* error) {
  return ParseName(kSyncStrategies, text, strategy, error);
}
std::string AbslUnparseFlag(SyncStrategy strategy) { return NameOf(kSyncStrategies, strategy); }

}  // namespace fashion_mnist
