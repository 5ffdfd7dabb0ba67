// A store for ranks that are threads of one process, and for tests.

#ifndef TRANSPORT_STORE_STORE_MEMORY_H_
#define TRANSPORT_STORE_STORE_MEMORY_H_

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "base/mutex.h"
#include "transport/store/store.h"
#include "transport/store/store_map.h"

namespace lockstep {

// All threads share one object. Only Wait waits; the other calls ignore their deadline.
class MemoryStore : public Store {
 public:
  MemoryStore();

  absl::Status Set(absl::string_view key, absl::string_view value, Deadline deadline) override;
  absl::StatusOr<std::string> Get(absl::string_view key, Deadline deadline) override;
  absl::StatusOr<std::string> CompareAndSet(absl::string_view key, absl::string_view expected,
                                            absl::string_view desired, Deadline deadline) override;
  absl::StatusOr<std::string> Wait(absl::string_view key, Deadline deadline) override;
  absl::Status Delete(absl::string_view key, Deadline deadline) override;
  std::string Describe() const override { return "store memory"; }

 private:
  Mutex mu_;
  CondVar changed_;
  StoreMap map_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lockstep

#endif  // TRANSPORT_STORE_STORE_MEMORY_H_
