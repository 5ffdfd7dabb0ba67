#include "transport/link/sink_writer.h"

#include <cstddef>
#include <cstring>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tests/transport_testing.h"

namespace lockstep {
namespace {

struct alignas(16) Memory {
  unsigned char bytes[64];
};

TEST(SinkWriter, CopiesStraightIntoTheTarget) {
  Memory memory;
  SinkWriter writer({memory.bytes, sizeof(memory.bytes)});
  unsigned char target[1000];
  writer.Begin({target, sizeof(target)});
  EXPECT_EQ(writer.Next().iov_base, target);
  EXPECT_EQ(writer.Next().iov_len, 1000);
  writer.Commit(999);
  EXPECT_EQ(writer.Next().iov_base, target + 999);
  writer.Commit(1);
  EXPECT_EQ(writer.Next().iov_len, 0);
}

// Reduces in pieces of random lengths; the staging memory is spoilt between pieces, as other streams do.
TEST(SinkWriter, ReducesWholeElementsWhateverLengthsArrive) {
  std::mt19937 random(7);
  for (size_t count : {0, 1, 2, 100}) {
    for (bool in_place : {true, false}) {
      Memory memory;
      SinkWriter writer({memory.bytes, sizeof(memory.bytes)});
      std::vector<Wide> arriving, own, other(count), expected;
      for (size_t i = 0; i < count; ++i) {
        arriving.push_back({1.0 * i, 2.0 * i});
        own.push_back({0.5, 1.0 * i});
        expected.push_back({1.0 * i + 0.5, 3.0 * i});
      }
      std::vector<Wide>& target = in_place ? own : other;
      writer.Begin({target.data(), count * sizeof(Wide), own.data(), &kAddWide});
      const auto* source = reinterpret_cast<const unsigned char*>(arriving.data());
      for (iovec place = writer.Next(); place.iov_len > 0; place = writer.Next()) {
        ASSERT_GE(static_cast<unsigned char*>(place.iov_base), memory.bytes);
        ASSERT_LE(static_cast<unsigned char*>(place.iov_base) + place.iov_len, memory.bytes + sizeof(memory.bytes));
        const size_t left = reinterpret_cast<const unsigned char*>(arriving.data() + count) - source;
        const bool elsewhere = random() % 2 == 0;
        const size_t bytes = 1 + random() % (elsewhere ? left : place.iov_len);
        if (elsewhere) {
          writer.Put(source, bytes);
        } else {
          std::memcpy(place.iov_base, source, bytes);
          writer.Commit(bytes);
        }
        source += bytes;
        std::memset(memory.bytes, 0xee, sizeof(memory.bytes));
      }
      EXPECT_EQ(source, reinterpret_cast<const unsigned char*>(arriving.data() + count));
      EXPECT_TRUE(target == expected);
    }
  }
}

}  // namespace
}  // namespace lockstep
