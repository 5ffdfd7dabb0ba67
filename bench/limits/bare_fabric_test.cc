#include "bench/limits/bare_fabric.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "base/thread.h"
#include "bench/limits/bare_sockets.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace bench {
namespace {

using ::testing::HasSubstr;

// Two sides of this process, each doing the same.
template <typename Do>
void OnBothSides(const Do& side) {
  absl::StatusOr<BareListener> listener = BareListener::Create("");
  ASSERT_THAT(listener, IsOk());
  Thread other("other", [&] {
    absl::StatusOr<BareSocket> socket = BareSocket::Connect(listener->port(), "");
    ASSERT_THAT(socket, IsOk());
    side(1, &*socket);
  });
  absl::StatusOr<BareSocket> socket = listener->Accept();
  ASSERT_THAT(socket, IsOk());
  side(0, &*socket);
}

// The last byte is another.
std::vector<char> Filled(size_t bytes, char value) {
  std::vector<char> filled(bytes - 1, value);
  filled.push_back('z');
  return filled;
}

class BareFabricOver : public ::testing::TestWithParam<std::string> {};

// Both ways: what is injected, sent at once, by rendezvous, and in pieces of which the last one is shorter.
TEST_P(BareFabricOver, ExchangesBothWays) {
  OnBothSides([](int side, BareSocket* socket) {
    absl::StatusOr<std::unique_ptr<BareFabric>> fabric = BareFabric::Connect(GetParam(), "127.0.0.1", socket);
    ASSERT_THAT(fabric, IsOk());
    EXPECT_EQ((*fabric)->provider(), GetParam());
    for (const size_t piece_bytes : {BareFabric::kWhole, BareFabric::kPieceBytes}) {
      (*fabric)->set_piece_bytes(piece_bytes);
      for (const size_t bytes : {size_t{1}, size_t{4096}, size_t{300'000}, (size_t{5} << 20) + 13}) {
        const std::vector<char> out = Filled(bytes, side == 0 ? 'a' : 'b');
        std::vector<char> in(bytes);
        ASSERT_THAT((*fabric)->Exchange(out.data(), bytes, in.data(), bytes), IsOk());
        EXPECT_TRUE(in == Filled(bytes, side == 0 ? 'b' : 'a')) << bytes << " bytes";
      }
    }
    // Until the other has everything, too: what moves its bytes is this side's polling.
    char byte = 0;
    EXPECT_THAT((*fabric)->Exchange(&byte, 1, &byte, 1), IsOk());
    EXPECT_THAT(socket->Exchange(&byte, 1, &byte, 1), IsOk());
  });
}

INSTANTIATE_TEST_SUITE_P(Providers, BareFabricOver, ::testing::Values("tcp;ofi_rxm", "net;ofi_rxm"),
                         [](const auto& info) { return info.param.substr(0, 3); });

TEST(BareFabric, AProviderThatDoesNotExistIsAnError) {
  OnBothSides([](int, BareSocket* socket) {
    EXPECT_THAT(BareFabric::Connect("no-such", "127.0.0.1", socket),
                StatusIs(absl::StatusCode::kNotFound, HasSubstr("no-such")));
  });
}

}  // namespace
}  // namespace bench
}  // namespace lockstep
