#include "bench/overlap/process_memory.h"

#include <cstddef>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace bench {
namespace {

TEST(ProcessMemory, CountsWhatWasTouched) {
  constexpr size_t kBytes = 64 << 20;
  ASSERT_THAT(ResetPeakMemory(), IsOk());
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const ProcessMemory before, MeasureProcessMemory());
  EXPECT_GT(before.resident_bytes, 0);
  EXPECT_LT(before.peak_resident_bytes, before.resident_bytes + (16 << 20)) << "the peak was not reset";
  {
    std::vector<char> memory(kBytes);
    // A compiler may leave out writes that nobody reads, but not these.
    for (size_t i = 0; i < kBytes; i += 4096) *static_cast<volatile char*>(&memory[i]) = 1;
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const ProcessMemory with, MeasureProcessMemory());
    EXPECT_GE(with.resident_bytes, before.resident_bytes + static_cast<int64_t>(kBytes * 9 / 10));
    EXPECT_GE(with.proportional_bytes, before.proportional_bytes + static_cast<int64_t>(kBytes * 9 / 10));
  }
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const ProcessMemory after, MeasureProcessMemory());
  EXPECT_GE(after.peak_resident_bytes, before.resident_bytes + static_cast<int64_t>(kBytes * 9 / 10));
}

}  // namespace
}  // namespace bench
}  // namespace lockstep
