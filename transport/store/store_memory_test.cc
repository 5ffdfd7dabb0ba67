#include "transport/store/store_memory.h"

#include <memory>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tests/store_conformance.h"
#include "transport/store/store.h"

namespace lockstep {
namespace {

// The clients of a memory store are one object.
class MemoryWorld : public StoreWorld {
 public:
  absl::StatusOr<Store*> NewClient() override { return &store_; }

 private:
  MemoryStore store_;
};

INSTANTIATE_TEST_SUITE_P(Memory, StoreConformance,
                         testing::Values(StoreWorldFactory([] { return std::make_unique<MemoryWorld>(); })));

}  // namespace
}  // namespace lockstep
