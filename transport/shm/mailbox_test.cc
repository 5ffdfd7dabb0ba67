#include "transport/shm/mailbox.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "base/deadline.h"
#include "base/thread.h"
#include "gtest/gtest.h"
#include "tests/transport_testing.h"

namespace lockstep {
namespace {

constexpr MailboxGeometry kSmallGeometry = {8, 4096};

// A mailbox in ordinary memory, with both ends.
class Mailbox {
 public:
  explicit Mailbox(const MailboxGeometry& geometry, size_t piece_bytes_max = 1024)
      : pages_(geometry.bytes() / sizeof(Page)),
        writer(memory(), geometry, piece_bytes_max),
        reader(memory(), geometry) {}

  char* memory() { return pages_.front().bytes; }
  // As transport/shm/mailbox.h draws it: three lines, then the cells.
  std::atomic<uint64_t>* Stamp(int cell) { return Word(64 * (3 + cell)); }
  std::atomic<uint64_t>* CellsRead() { return Word(64); }

  // Puts as much of a message as goes; true when all of it is put.
  bool Put(unsigned char envelope, const std::vector<unsigned char>& message, size_t* done) {
    for (;;) {
      const MailboxResult result = writer.Put(TestEnvelope(envelope), message.data(), message.size(), done);
      EXPECT_NE(result, MailboxResult::kCorrupt);
      if (result != MailboxResult::kDone) return false;
      if (*done == message.size()) return true;
    }
  }

  // Takes as much of a message as is there; true when all of it is taken.
  bool Take(std::vector<unsigned char>* taken, size_t bytes, Envelope* envelope) {
    for (;;) {
      MailboxReader::Piece piece;
      const MailboxResult result = reader.Peek(taken->empty() ? 0 : bytes - taken->size(), &piece);
      EXPECT_NE(result, MailboxResult::kCorrupt);
      if (result != MailboxResult::kDone) return false;
      if (piece.envelope != nullptr) {
        EXPECT_EQ(piece.message_bytes, bytes);
        std::memcpy(envelope->data(), piece.envelope, envelope->size());
      }
      taken->insert(taken->end(), piece.data, piece.data + piece.bytes);
      reader.Pop(piece);
      if (taken->size() >= bytes) return true;
    }
  }

 private:
  struct alignas(4096) Page {
    char bytes[4096];
  };
  std::atomic<uint64_t>* Word(size_t offset) { return reinterpret_cast<std::atomic<uint64_t>*>(memory() + offset); }

  std::vector<Page> pages_;  // zeros

 public:
  MailboxWriter writer;
  MailboxReader reader;
};

TEST(Mailbox, GeometriesThatDoNotWorkAreInvalid) {
  EXPECT_TRUE(MailboxGeometry().valid());
  EXPECT_TRUE(kSmallGeometry.valid());
  for (const MailboxGeometry& bad :
       {MailboxGeometry{0, 4096}, MailboxGeometry{4, 4096}, MailboxGeometry{9, 4096}, MailboxGeometry{131072, 4096},
        MailboxGeometry{8, 0}, MailboxGeometry{8, 2048}, MailboxGeometry{8, 5000}, MailboxGeometry{8, 1u << 30}}) {
    EXPECT_FALSE(bad.valid()) << bad.cells << " cells, " << bad.ring_bytes << " bytes";
  }
  EXPECT_EQ(kSmallGeometry.bytes(), 4096 + 4096);
}

// Sizes around every boundary, through a ring that is far smaller than some of them, many times around.
TEST(Mailbox, KeepsMessagesWholeAndInOrder) {
  for (const size_t piece_bytes_max : {64, 1024, 1 << 20}) {
    Mailbox mailbox({piece_bytes_max == 1024 ? 64u : 8u, 4096}, piece_bytes_max);
    uint32_t seed = 0;
    for (int round = 0; round < 20; ++round) {
      for (const size_t bytes :
           {0, 1, 23, 24, 25, 79, 80, 81, 127, 191, 192, 193, 1000, 1032, 1033, 4095, 4096, 4097, 20'000}) {
        const std::vector<unsigned char> message = TestPayload(bytes, ++seed);
        std::vector<unsigned char> taken;
        Envelope envelope = {};
        size_t done = 0;
        bool put = false, all = false;
        for (int iterations = 0; !all; ++iterations) {
          ASSERT_LT(iterations, 20'000) << "neither end moves";
          if (!put) put = mailbox.Put(static_cast<unsigned char>(seed), message, &done);
          all = mailbox.Take(&taken, bytes, &envelope);
        }
        ASSERT_TRUE(put);
        ASSERT_EQ(taken, message) << bytes << " bytes, pieces of " << piece_bytes_max;
        ASSERT_EQ(envelope, TestEnvelope(static_cast<unsigned char>(seed)));
      }
    }
  }
}

TEST(Mailbox, AFullOneBlocksTheWriterUntilAStepWasRead) {
  Mailbox mailbox({16, 4096});
  size_t done = 0;
  for (int i = 0; i < 16; ++i) EXPECT_TRUE(mailbox.Put(1, {1, 2, 3}, &(done = 0)));
  EXPECT_FALSE(mailbox.Put(1, {1, 2, 3}, &(done = 0)));
  MailboxReader::Piece piece;
  ASSERT_EQ(mailbox.reader.Peek(0, &piece), MailboxResult::kDone);
  EXPECT_FALSE(mailbox.reader.Pop(piece)) << "one cell is less than an eighth";
  EXPECT_FALSE(mailbox.Put(1, {1, 2, 3}, &(done = 0)));
  ASSERT_EQ(mailbox.reader.Peek(0, &piece), MailboxResult::kDone);
  EXPECT_TRUE(mailbox.reader.Pop(piece));
  EXPECT_TRUE(mailbox.Put(1, {1, 2, 3}, &(done = 0)));
}

// Pieces of every message but its last end at a multiple of 64, so elements stay whole.
TEST(Mailbox, PiecesHoldWholeElements) {
  Mailbox mailbox(kSmallGeometry, 192);
  const std::vector<unsigned char> message = TestPayload(3000, 1);
  size_t done = 0, taken = 0;
  while (taken < message.size()) {
    (void)mailbox.Put(1, message, &done);
    MailboxReader::Piece piece;
    while (mailbox.reader.Peek(taken == 0 ? 0 : message.size() - taken, &piece) == MailboxResult::kDone) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(piece.data) % 64, 0);
      taken += piece.bytes;
      EXPECT_TRUE(piece.bytes % 64 == 0 || taken == message.size()) << piece.bytes;
      mailbox.reader.Pop(piece);
      if (taken == message.size()) break;
    }
  }
}

TEST(Mailbox, EachEndSeesTheOtherClose) {
  Mailbox mailbox(kSmallGeometry);
  size_t done = 0;
  EXPECT_TRUE(mailbox.Put(1, {1}, &done));
  EXPECT_FALSE(mailbox.reader.writer_closed());
  mailbox.writer.Close();
  EXPECT_TRUE(mailbox.reader.writer_closed());
  MailboxReader::Piece piece;
  EXPECT_EQ(mailbox.reader.Peek(0, &piece), MailboxResult::kDone) << "what was put before is still there";
  EXPECT_FALSE(mailbox.writer.reader_closed());
  mailbox.reader.Close();
  EXPECT_TRUE(mailbox.writer.reader_closed());
}

// A broken peer writes whatever it likes; nothing of it is used.
TEST(Mailbox, WhatABrokenPeerWritesIsFoundOut) {
  const auto stamp = [](uint64_t kind, uint64_t bytes, uint64_t position) {
    return (kind << 30 | bytes) << 32 | (position + 1);
  };
  struct Case {
    const char* name;
    uint64_t stamp;
    uint64_t message_bytes;
    uint64_t left_bytes;
  };
  for (const Case& c :
       {Case{"unknown kind", stamp(0, 8, 0), 0, 0}, Case{"long small message", stamp(1, 25, 0), 0, 0},
        Case{"next without first", stamp(3, 64, 0), 0, 0}, Case{"first within a message", stamp(2, 64, 0), 64, 100},
        Case{"small within a message", stamp(1, 8, 0), 0, 100},
        Case{"piece beyond its message", stamp(2, 128, 0), 100, 0},
        Case{"piece beyond the ring", stamp(2, 8192, 0), 8192, 0}, Case{"piece of no bytes", stamp(2, 0, 0), 100, 0},
        Case{"piece that cuts elements", stamp(2, 65, 0), 1000, 0},
        Case{"next beyond its message", stamp(3, 128, 0), 0, 100}}) {
    SCOPED_TRACE(c.name);
    Mailbox mailbox(kSmallGeometry);
    std::memcpy(mailbox.memory() + 64 * 3 + 8 + 32, &c.message_bytes, sizeof(c.message_bytes));
    mailbox.Stamp(0)->store(c.stamp);
    MailboxReader::Piece piece;
    EXPECT_EQ(mailbox.reader.Peek(c.left_bytes, &piece), MailboxResult::kCorrupt);
  }
  for (const uint64_t cells_read : {uint64_t{9}, ~uint64_t{0}}) {
    Mailbox mailbox(kSmallGeometry);
    size_t done = 0;
    for (int i = 0; i < 8; ++i) EXPECT_TRUE(mailbox.Put(1, {1}, &(done = 0)));
    mailbox.CellsRead()->store(cells_read);
    EXPECT_EQ(mailbox.writer.Put(TestEnvelope(1), "x", 1, &(done = 0)), MailboxResult::kCorrupt);
  }
  // Of another lap: not there yet.
  Mailbox mailbox(kSmallGeometry);
  mailbox.Stamp(0)->store(stamp(1, 8, 8));
  MailboxReader::Piece piece;
  EXPECT_EQ(mailbox.reader.Peek(0, &piece), MailboxResult::kBlocked);
}

// Both ends on threads of their own, through the smallest mailbox: what pairs with what, under a sanitizer's eyes.
TEST(Mailbox, CarriesMessagesBetweenThreads) {
  constexpr int kMessages = 3000;
  Mailbox mailbox(kSmallGeometry, 256);
  const auto payload = [](int k) { return TestPayload(k % 7 == 0 ? 6000 : k % 40, k); };
  const Deadline deadline = TestDeadline();
  Thread sender("sender", [&] {
    for (int k = 0; k < kMessages; ++k) {
      const std::vector<unsigned char> message = payload(k);
      size_t done = 0;
      while (!mailbox.Put(static_cast<unsigned char>(k), message, &done) && !deadline.passed()) {
        std::this_thread::yield();
      }
    }
  });
  for (int k = 0; k < kMessages && !deadline.passed(); ++k) {
    const std::vector<unsigned char> expected = payload(k);
    std::vector<unsigned char> taken;
    Envelope envelope = {};
    while (!mailbox.Take(&taken, expected.size(), &envelope) && !deadline.passed()) std::this_thread::yield();
    ASSERT_EQ(taken, expected) << "message " << k;
    ASSERT_EQ(envelope, TestEnvelope(static_cast<unsigned char>(k)));
  }
  EXPECT_FALSE(deadline.passed());
}

}  // namespace
}  // namespace lockstep
