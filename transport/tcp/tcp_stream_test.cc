#include "transport/tcp/tcp_stream.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "transport/link/byte_stream.h"

namespace lockstep {
namespace {

// What lies between two ends. Owned by the test, which outlives its ends.
struct Pipe {
  std::string held;
  size_t capacity = 1 << 30;
  int when_empty = -EAGAIN;
};

class PipeEnd final : public ByteStream {
 public:
  explicit PipeEnd(Pipe* pipe) : pipe_(pipe) {}

  ssize_t Write(const iovec* pieces, int count) override {
    std::string all;
    for (int i = 0; i < count; ++i) all.append(static_cast<const char*>(pieces[i].iov_base), pieces[i].iov_len);
    const size_t written = std::min(all.size(), pipe_->capacity - pipe_->held.size());
    if (written == 0) return -EAGAIN;
    pipe_->held.append(all, 0, written);
    return static_cast<ssize_t>(written);
  }

  ssize_t Read(const iovec* pieces, int count) override {
    if (pipe_->held.empty()) return pipe_->when_empty;
    size_t read = 0;
    for (int i = 0; i < count; ++i) {
      const size_t bytes = std::min(pieces[i].iov_len, pipe_->held.size());
      std::memcpy(pieces[i].iov_base, pipe_->held.data(), bytes);
      pipe_->held.erase(0, bytes);
      read += bytes;
    }
    return static_cast<ssize_t>(read);
  }

  std::string Defect() const override { return pipe_->when_empty == -EBADMSG ? "a defect" : ""; }

 private:
  Pipe* const pipe_;
};

class StripedStreamTest : public testing::Test {
 protected:
  static constexpr size_t kStripe = 10;

  std::unique_ptr<StripedStream> End() {
    std::vector<std::unique_ptr<ByteStream>> ends;
    for (Pipe& pipe : pipes_) ends.push_back(std::make_unique<PipeEnd>(&pipe));
    return std::make_unique<StripedStream>(std::move(ends), kStripe);
  }

  static ssize_t Write(StripedStream* stream, std::string first, std::string second = "") {
    const iovec pieces[2] = {{&first[0], first.size()}, {&second[0], second.size()}};
    return stream->Write(pieces, second.empty() ? 1 : 2);
  }

  Pipe pipes_[3];
};

TEST_F(StripedStreamTest, StripesGoRoundTheSockets) {
  const auto source = End();
  EXPECT_EQ(Write(source.get(), "abcd", "efghijKLMNOPQRSTuvwxyz012345678"), 35);
  EXPECT_EQ(pipes_[0].held, "abcdefghij45678");
  EXPECT_EQ(pipes_[1].held, "KLMNOPQRST");
  EXPECT_EQ(pipes_[2].held, "uvwxyz0123");
  EXPECT_EQ(Write(source.get(), "9"), 1);
  EXPECT_EQ(pipes_[0].held, "abcdefghij456789") << "until the stripe is full";
}

// Random pieces, random room: whatever the calls, what was written is read.
TEST_F(StripedStreamTest, EverythingArrivesInOrder) {
  std::mt19937 random(11);
  for (Pipe& pipe : pipes_) pipe.capacity = 25;
  const auto source = End();
  const auto target = End();
  std::string written, read;
  while (read.size() < 20'000) {
    const std::string all(random() % 60 + 1, static_cast<char>('a' + random() % 26));
    const size_t cut = random() % all.size();
    const ssize_t wrote =
        cut == 0 ? Write(source.get(), all) : Write(source.get(), all.substr(0, cut), all.substr(cut));
    ASSERT_TRUE(wrote > 0 || wrote == -EAGAIN);
    if (wrote > 0) written.append(all, 0, wrote);
    char first[40], second[40];
    const iovec pieces[2] = {{first, random() % 40 + 1}, {second, random() % 40 + 1}};
    const ssize_t got = target->Read(pieces, 2);
    ASSERT_TRUE(got > 0 || got == -EAGAIN);
    if (got <= 0) continue;
    read.append(first, std::min<size_t>(got, pieces[0].iov_len));
    if (got > pieces[0].iov_len) read.append(second, got - pieces[0].iov_len);
  }
  ASSERT_LE(read.size(), written.size());
  EXPECT_EQ(read, written.substr(0, read.size()));
}

TEST_F(StripedStreamTest, TheEndComesAfterWhatIsThere) {
  const auto source = End();
  const auto target = End();
  EXPECT_EQ(Write(source.get(), std::string(15, 'x')), 15);
  for (Pipe& pipe : pipes_) pipe.when_empty = 0;
  char bytes[40];
  const iovec piece = {bytes, sizeof(bytes)};
  EXPECT_EQ(target->Read(&piece, 1), 15);
  EXPECT_EQ(target->Read(&piece, 1), 0);
  for (Pipe& pipe : pipes_) pipe.when_empty = -ECONNRESET;
  EXPECT_EQ(target->Read(&piece, 1), -ECONNRESET);
}

// No event tells of it later.
TEST_F(StripedStreamTest, WhatIsNotGenuineIsToldAtOnce) {
  const auto source = End();
  const auto target = End();
  EXPECT_EQ(Write(source.get(), std::string(15, 'x')), 15);
  pipes_[1].held.clear();
  pipes_[1].when_empty = -EBADMSG;
  char bytes[40];
  const iovec piece = {bytes, sizeof(bytes)};
  EXPECT_EQ(target->Read(&piece, 1), -EBADMSG);
  EXPECT_EQ(target->Defect(), "a defect");
}

}  // namespace
}  // namespace lockstep
