// Links move bytes, and the prototypes compute sums: a limit that is fast because it is wrong would be none. Sides and ranks are threads
// here, for which a mapping is as shared as for forked processes.

#include <algorithm>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "base/thread.h"
#include "bench/limits/link.h"
#include "bench/limits/sealed_link.h"
#include "bench/limits/shared_memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/secure/cipher.h"

namespace lockstep::bench {
namespace {

using ::testing::HasSubstr;

std::vector<char> Bytes(size_t count, int seed) {
  std::vector<char> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<char>(i * 31 + seed);
  return bytes;
}

// Runs `body` on a thread for each of two ranks.
template <typename Body>
void OnTwoRanks(const Body& body) {
  std::vector<Thread> threads;
  for (int rank = 0; rank < 2; ++rank) threads.emplace_back("rank", [&body, rank] { body(rank); });
}

// The same, with a socket between the two.
template <typename Body>
void OnBothSides(const Body& body) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(BareListener listener, BareListener::Create(""));
  OnTwoRanks([&](int rank) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(BareSocket socket,
                                  rank == 0 ? listener.Accept() : BareSocket::Connect(listener.port(), ""));
    body(rank, socket);
  });
}

// More than the sockets' buffers hold, so that both ends must read in order to write.
TEST(BareSocket, ExchangesMoreThanTheSocketsHold) {
  OnBothSides([](int side, BareSocket& socket) {
    const size_t count = (size_t{24} << 20) + 13;
    const std::vector<char> out = Bytes(count, side);
    std::vector<char> in(count);
    EXPECT_THAT(socket.Exchange(out.data(), count, in.data(), count), IsOk());
    EXPECT_TRUE(in == Bytes(count, 1 - side));
  });
}

TEST(BareSocket, LeavesTheNextMessageInTheSocketAndTellsThatThePeerIsGone) {
  OnBothSides([](int side, BareSocket& socket) {
    if (side == 0) {
      EXPECT_THAT(socket.Send("onetwo", 6), IsOk());
      return;
    }
    socket.set_piece_bytes(1 << 20);
    char text[4] = "";
    ASSERT_THAT(socket.Receive(text, 3), IsOk());
    EXPECT_STREQ(text, "one");
    ASSERT_THAT(socket.Receive(text, 3), IsOk());
    EXPECT_STREQ(text, "two");
    EXPECT_THAT(socket.Receive(text, 0), IsOk());
    EXPECT_THAT(socket.Receive(text, 1), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("closed")));
  });
}

TEST(BareSocket, RefusesAddressesAndCongestionControlsThatThereAreNot) {
  EXPECT_THAT(BareListener::Create("", "nowhere"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'nowhere' is no IPv4 address")));
  EXPECT_THAT(BareSocket::Connect(1, "", "::1"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'::1' is no IPv4 address")));
  EXPECT_THAT(BareListener::Create("no-such"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("no-such")));
}

class SealedSocketTest : public ::testing::TestWithParam<std::tuple<CipherMode, CipherBackend>> {
 protected:
  void SetUp() override {
    std::tie(options_.mode, options_.backend) = GetParam();
    const absl::Status status = CipherBackendVersion(options_.backend).status();
    if (absl::IsUnavailable(status)) GTEST_SKIP() << status;
    ASSERT_THAT(status, IsOk());
  }

  SealOptions options_;
};

TEST_P(SealedSocketTest, ExchangesTransfersOfAnyLengthInRecordsOfAnySize) {
  for (const auto& sizes : {std::pair<size_t, size_t>{1000, 1}, {1000, 3500}, {65536, 1 << 20}}) {
    std::tie(options_.record_bytes, options_.batch_bytes) = sizes;
    OnBothSides([&](int side, BareSocket& bare) {
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(SealedSocket socket, SealedSocket::Create(std::move(bare), side, options_));
      // The last ones are more than the sockets hold, and differ.
      for (const auto& counts : {std::pair<size_t, size_t>{1, 1},
                                 {999, 1000},
                                 {1001, 0},
                                 {0, 0},
                                 {0, 70'000},
                                 {(24 << 20) + 13, (9 << 20) + 1}}) {
        const size_t out_count = side == 0 ? counts.first : counts.second;
        const size_t in_count = side == 0 ? counts.second : counts.first;
        const std::vector<char> out = Bytes(out_count, side);
        std::vector<char> in(in_count);
        ASSERT_THAT(socket.Exchange(out.data(), out_count, in.data(), in_count), IsOk());
        EXPECT_TRUE(in == Bytes(in_count, 1 - side)) << in_count;
        EXPECT_TRUE(out == Bytes(out_count, side)) << out_count;
      }
    });
  }
}

// As it is on the wire: the length, 0, the sequence number, the payload and a tag.
TEST_P(SealedSocketTest, SendsRecordsAndRefusesWhatIsChanged) {
  options_.record_bytes = 10;
  OnBothSides([&](int side, BareSocket& bare) {
    constexpr char kText[] = "sixteen letters.";
    if (side == 0) {
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(SealedSocket socket, SealedSocket::Create(std::move(bare), side, options_));
      EXPECT_THAT(socket.Exchange(kText, 16, nullptr, 0), IsOk());
      char text[16];
      EXPECT_THAT(socket.Exchange(nullptr, 0, text, 16),
                  StatusIs(absl::StatusCode::kDataLoss, HasSubstr("record 1 is not genuine")));
      return;
    }
    std::string sent(16 + 2 * 32, '\0');
    ASSERT_THAT(bare.Receive(sent.data(), sent.size()), IsOk());
    EXPECT_EQ(sent.substr(0, 16), std::string("\12\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 16));
    EXPECT_EQ(sent.substr(42, 16), std::string("\6\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0", 16));
    EXPECT_EQ(sent.substr(16, 10) == "sixteen le", options_.mode == CipherMode::kAuthenticate);
    // Sealed as that side does, in the other direction's key, by hand; and the last bit of the second tag turned.
    DirectionKey key;
    key.key.fill(2);
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto cipher, RecordCipher::Create(options_.backend, options_.mode, key));
    for (int record = 0; record < 2; ++record) {
      auto* const header = reinterpret_cast<unsigned char*>(&sent[42 * record]);
      const size_t bytes = record == 0 ? 10 : 6;
      const iovec payload = {header + 16, bytes};
      cipher->Seal(record, {header, 16}, {&payload, 1}, options_.mode == CipherMode::kEncrypt ? header + 16 : nullptr,
                   header + 16 + bytes);
    }
    sent.back() ^= 1;
    ASSERT_THAT(bare.Send(sent.data(), sent.size()), IsOk());
  });
}

INSTANTIATE_TEST_SUITE_P(Ciphers, SealedSocketTest,
                         ::testing::Combine(::testing::Values(CipherMode::kAuthenticate, CipherMode::kEncrypt),
                                            ::testing::Values(CipherBackend::kOpenSsl, CipherBackend::kIpsecMb)));

constexpr size_t kCounts[] = {1, 2, 15, 16, 17, 1000, 40'000, 300'001};
constexpr size_t kCountMax = 300'001;
constexpr float kUntouched = -1;

// Sums of these are exact.
float Element(int rank, size_t index) { return static_cast<float>(index % 251 + 3 * rank); }

size_t CountWrong(const float* vector, size_t count) {
  size_t wrong = 0;
  for (size_t i = 0; i < count; ++i) wrong += vector[i] != Element(0, i) + Element(1, i) ? 1 : 0;
  return wrong;
}

TEST(Add, AddsToBoth) {
  // Lengths around those of vector registers.
  for (size_t count = 0; count < 70; ++count) {
    std::vector<float> a(count + 1), b(count + 1, 2);
    std::iota(a.begin(), a.end(), 0.0F);
    AddToBoth(a.data(), b.data(), count);
    for (size_t i = 0; i < count; ++i) EXPECT_EQ(a[i], static_cast<float>(i + 2));
    EXPECT_TRUE(std::equal(a.begin(), a.begin() + count, b.begin()));
    EXPECT_EQ(a[count], static_cast<float>(count));
    EXPECT_EQ(b[count], 2);
  }
}

// Runs an all-reduce of each count on the vector, which has an element more than the largest.
template <typename Run>
void SumsExactly(int rank, float* vector, const Run& run) {
  // Twice, so that calls begin at either slot.
  for (int repeat = 0; repeat < 2; ++repeat) {
    for (const size_t count : kCounts) {
      for (size_t i = 0; i < count; ++i) vector[i] = Element(rank, i);
      vector[count] = kUntouched;
      EXPECT_THAT(run(count), IsOk());
      EXPECT_EQ(CountWrong(vector, count), 0) << count << " elements, rank " << rank;
      EXPECT_EQ(vector[count], kUntouched);
    }
  }
}

TEST(DirectAllReduce, SumsExactlyForSeveralSizes) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(DirectAllReduce direct, DirectAllReduce::Create((kCountMax + 1) * sizeof(float)));
  OnTwoRanks(
      [&](int rank) { SumsExactly(rank, direct.vector(rank), [&](size_t count) { return direct.Run(rank, count); }); });
}

TEST(BounceAllReduce, SumsExactlyForSeveralSizes) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(BounceAllReduce bounce, BounceAllReduce::Create());
  OnTwoRanks([&](int rank) {
    std::vector<float> vector(kCountMax + 1);
    SumsExactly(rank, vector.data(), [&](size_t count) { return bounce.Run(rank, vector.data(), count); });
  });
}

TEST(BounceAllReduce, SumsPieces) {
  constexpr size_t kPiece = 1000;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(BounceAllReduce bounce, BounceAllReduce::Create());
  OnTwoRanks([&](int rank) {
    std::vector<float> vector(kCountMax + 1);
    std::vector<std::vector<float>> pieces(kCountMax / kPiece + 1, std::vector<float>(kPiece));
    std::vector<float*> begins;
    for (std::vector<float>& piece : pieces) begins.push_back(piece.data());
    SumsExactly(rank, vector.data(), [&](size_t count) {
      const auto part = [&](size_t begin) { return std::min(kPiece, count - begin); };
      for (size_t at = 0; at < count; at += kPiece) std::copy_n(&vector[at], part(at), begins[at / kPiece]);
      const absl::Status status = bounce.Run(rank, {begins.data(), kPiece}, count);
      for (size_t at = 0; at < count; at += kPiece) std::copy_n(begins[at / kPiece], part(at), &vector[at]);
      return status;
    });
  });
}

}  // namespace
}  // namespace lockstep::bench
