#include "transport/store/store_prefix.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace lockstep {

PrefixStore::PrefixStore(Store* store, absl::string_view prefix)
    : store_(store), prefix_(absl::StrCat(absl::StrReplaceAll(prefix, {{"%", "%25"}, {"/", "%2F"}}), "/")) {}

std::string PrefixStore::Full(absl::string_view key) const { return absl::StrCat(prefix_, key); }

absl::Status PrefixStore::Set(absl::string_view key, absl::string_view value, Deadline deadline) {
  return store_->Set(Full(key), value, deadline);
}

absl::StatusOr<std::string> PrefixStore::Get(absl::string_view key, Deadline deadline) {
  return store_->Get(Full(key), deadline);
}

absl::StatusOr<int64_t> PrefixStore::Add(absl::string_view key, int64_t amount, Deadline deadline) {
  return store_->Add(Full(key), amount, deadline);
}

absl::StatusOr<std::string> PrefixStore::CompareAndSet(absl::string_view key, absl::string_view expected,
                                                       absl::string_view desired, Deadline deadline) {
  return store_->CompareAndSet(Full(key), expected, desired, deadline);
}

absl::StatusOr<std::string> PrefixStore::Wait(absl::string_view key, Deadline deadline) {
  return store_->Wait(Full(key), deadline);
}

absl::Status PrefixStore::Delete(absl::string_view key, Deadline deadline) {
  return store_->Delete(Full(key), deadline);
}

std::string PrefixStore::Describe() const { return absl::StrCat(store_->Describe(), ", keys ", prefix_, "..."); }

}  // namespace lockstep
