// The memory through which a process of the same host sends: a reader of whatever a broken writer left there, and a writer whose reader's
// counts make no sense.
//
//   input = cells_read:u64 bytes_read:u64 { cell:64 bytes }        the cells follow each other around the ring

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>

#include "tests/fuzz/fuzz.h"
#include "transport/net/little_endian.h"
#include "transport/shm/mailbox.h"

namespace lockstep {
namespace {

constexpr MailboxGeometry kGeometry = {8, 4096};
constexpr size_t kLinesBytes = sizeof(internal::MailboxLines);

// The sum of all that was read, so that the compiler leaves none of it out.
volatile unsigned all_read;

// Exactly as much as a mailbox has, so that a sanitizer sees what is read beyond it.
struct Memory {
  Memory() : bytes(static_cast<char*>(::operator new (kGeometry.bytes(), std::align_val_t{4096}))) {
    std::memset(bytes, 0, kGeometry.bytes());
  }
  ~Memory() { ::operator delete (bytes, std::align_val_t{4096}); }
  internal::MailboxLines* lines() const { return reinterpret_cast<internal::MailboxLines*>(bytes); }

  char* const bytes;
};

void Read(const Memory& memory, absl::string_view cells) {
  MailboxReader reader(memory.bytes, kGeometry);
  uint64_t left = 0;
  uint64_t message_bytes = 0;
  size_t next_cell = 0;
  unsigned sum = 0;
  const fuzz::Allocations allocations;
  for (size_t pieces = 0; pieces < 64; ++pieces) {
    // The writer overwrites cells as they become free.
    const absl::string_view cell = cells.substr(0, kMailboxCellBytes);
    cells.remove_prefix(cell.size());
    if (!cell.empty()) {
      std::memcpy(memory.bytes + kLinesBytes + next_cell * kMailboxCellBytes, cell.data(), cell.size());
      next_cell = (next_cell + 1) % kGeometry.cells;
    }
    MailboxReader::Piece piece;
    const MailboxResult result = reader.Peek(left, &piece);
    if (result == MailboxResult::kCorrupt) break;
    if (result == MailboxResult::kBlocked) {
      if (cells.empty()) break;
      continue;
    }
    const bool first = piece.envelope != nullptr;
    LOCKSTEP_CHECK(first == (left == 0)) << "the pieces of two messages are mixed";
    if (first) {
      for (size_t i = 0; i < sizeof(Envelope); ++i) sum += piece.envelope[i];
      message_bytes = piece.message_bytes;
      left = message_bytes;
    }
    LOCKSTEP_CHECK(piece.bytes <= left) << piece.bytes << " bytes where " << left << " are left";
    LOCKSTEP_CHECK(piece.bytes == left || piece.bytes % 64 == 0) << "an element may be cut";
    for (size_t i = 0; i < piece.bytes; ++i) sum += piece.data[i];
    left -= piece.bytes;
    (void)reader.Pop(piece);
  }
  LOCKSTEP_CHECK(allocations.bytes() == 0) << allocations.bytes() << " bytes allocated";
  all_read = sum;
}

void Write(const Memory& memory, uint64_t cells_read, uint64_t bytes_read) {
  MailboxWriter writer(memory.bytes, kGeometry, 1024);
  const std::vector<char> message(3000, 'x');
  for (size_t messages = 0; messages < 16; ++messages) {
    if (messages == 2) {
      memory.lines()->cells_read.store(cells_read);
      memory.lines()->bytes_read.store(bytes_read);
    }
    const size_t bytes = messages % 2 == 0 ? message.size() : 10;
    size_t done = 0;
    do {
      const size_t before = done;
      const MailboxResult result = writer.Put({}, message.data(), bytes, &done);
      LOCKSTEP_CHECK(done >= before && done <= bytes);
      if (result != MailboxResult::kDone) return;
    } while (done < bytes);
  }
}

std::string Seed(const std::vector<size_t>& messages) {
  const Memory memory;
  MailboxWriter writer(memory.bytes, kGeometry, 1024);
  const std::string message(4000, 'x');
  for (const size_t bytes : messages) {
    size_t done = 0;
    do {
      LOCKSTEP_CHECK(writer.Put({'e'}, message.data(), bytes, &done) == MailboxResult::kDone);
    } while (done < bytes);
  }
  std::string seed;
  AppendLittleEndian(&seed, uint64_t{2}, uint64_t{1024});
  return seed.append(memory.bytes + kLinesBytes, size_t{kGeometry.cells} * kMailboxCellBytes);
}

}  // namespace

std::vector<std::string> fuzz::Seeds() { return {Seed({10, 0, 24, 25, 2000}), Seed({3000, 1}), Seed({})}; }

}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  lockstep::fuzz::Input input(data, size);
  const auto cells_read = input.Take<uint64_t>();
  const auto bytes_read = input.Take<uint64_t>();
  lockstep::Read(lockstep::Memory(), input.Rest());
  lockstep::Write(lockstep::Memory(), cells_read, bytes_read);
  return 0;
}
