// A stream of sealed records, changed on its way: what a reader gives is the beginning of what was written, and nothing else.
//
//   input  = mode:u8 lengths:u8 { bytes:u16 } { change }       mode: bit 0 encrypted, bits 1 to 4 records for each key,
//                                                            bit 5 the stream ends, else no more has come;
//                                                            bit 6 it is viewed, not read;
//                                                            bit 7 64 times as much is written and read
//   change = kind:u8 at:u16 value:u8                           kind: flip, drop, repeat, cut

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/fuzz/fuzz.h"
#include "transport/link/record_stream.h"

namespace lockstep {
namespace {

// What was written to it is read from it.
class Wire final : public ByteStream {
 public:
  Wire(std::string* bytes, ssize_t ending) : bytes_(bytes), ending_(ending) {}

  ssize_t Write(const iovec* pieces, int count) override {
    size_t written = 0;
    for (int i = 0; i < count; ++i) {
      bytes_->append(static_cast<const char*>(pieces[i].iov_base), pieces[i].iov_len);
      written += pieces[i].iov_len;
    }
    return static_cast<ssize_t>(written);
  }
  ssize_t Read(const iovec* pieces, int count) override {
    size_t read = 0;
    for (int i = 0; i < count; ++i) {
      const size_t bytes = std::min(pieces[i].iov_len, bytes_->size());
      if (bytes > 0) std::memcpy(pieces[i].iov_base, bytes_->data(), bytes);
      bytes_->erase(0, bytes);
      read += bytes;
    }
    return read > 0 ? static_cast<ssize_t>(read) : ending_;
  }

 private:
  std::string* const bytes_;
  const ssize_t ending_;
};

RecordSecret TheSecret() {
  std::array<char, RecordSecret::kBytes> bytes;
  bytes.fill('s');
  return RecordSecret(bytes);
}

void Change(fuzz::Input* input, std::string* wire) {
  while (!input->empty() && !wire->empty()) {
    const int kind = input->Take<uint8_t>() % 4;
    const size_t at = input->Take<uint16_t>() % wire->size();
    const uint8_t value = input->Take<uint8_t>();
    if (kind == 0) (*wire)[at] = static_cast<char>((*wire)[at] ^ value);
    if (kind == 1) wire->erase(at, value);
    if (kind == 2) wire->insert(at, wire->substr(at, value));
    if (kind == 3) wire->resize(at);
  }
}

}  // namespace

std::vector<std::string> fuzz::Seeds() {
  std::vector<std::string> seeds;
  for (const char mode : {'\2', '\3', '\x1f', '\x23', '\x42', '\x43', '\x82', '\xc3'}) {
    const std::string written = std::string(1, mode) + std::string("\3\5\0\x40\1\1\0", 7);
    seeds.push_back(written);
    seeds.push_back(written + std::string("\0\x20\0\1", 4));
    seeds.push_back(written + std::string("\2\0\0\x25", 4));
  }
  return seeds;
}

}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using lockstep::SecurityLevel;
  lockstep::fuzz::Input input(data, size);
  const uint8_t mode = input.Take<uint8_t>();
  const SecurityLevel level = (mode & 1) != 0 ? SecurityLevel::kEncrypt : SecurityLevel::kAuthenticate;
  const uint64_t records_per_key = std::max(1, mode >> 1 & 15);
  const ssize_t ending = (mode & 32) != 0 ? 0 : -EAGAIN;
  const size_t scale = (mode & 128) != 0 ? 64 : 1;  // long messages, of several records
  std::string wire, written;
  lockstep::RecordWriter writer(std::make_unique<lockstep::Wire>(&wire, ending), level, lockstep::TheSecret(),
                                records_per_key);
  for (int left = input.Take<uint8_t>() % 16; left > 0; --left) {
    std::string bytes(input.Take<uint16_t>() % 4096 * scale, static_cast<char>('a' + left));
    const size_t head = std::min<size_t>(bytes.size(), 48);
    const iovec pieces[] = {{&bytes[0], head}, {&bytes[head], bytes.size() - head}};
    LOCKSTEP_CHECK(bytes.empty() || writer.Write(pieces, 2) == static_cast<ssize_t>(bytes.size()));
    written += bytes;
  }
  const std::string genuine = wire;
  lockstep::Change(&input, &wire);
  const bool changed = wire != genuine;
  const size_t wire_bytes = wire.size();
  size_t allocated = 0;
  lockstep::RecordReader reader(std::make_unique<lockstep::Wire>(&wire, ending), level, lockstep::TheSecret(),
                                records_per_key);
  std::string read;
  std::vector<unsigned char> bytes(2000 * scale);
  for (;;) {
    const iovec piece = {bytes.data(), bytes.size()};
    const unsigned char* data = bytes.data();
    const lockstep::fuzz::Allocations allocations;
    const ssize_t count = (mode & 64) != 0 ? reader.View(bytes.size(), &data) : reader.Read(&piece, 1);
    allocated += allocations.bytes();
    LOCKSTEP_CHECK(count >= 0 || count == -EBADMSG || count == ending);
    LOCKSTEP_CHECK(count != -EBADMSG || (changed && !reader.Defect().empty())) << "nothing was changed";
    if (count <= 0) break;
    read.append(reinterpret_cast<const char*>(data), static_cast<size_t>(count));
  }
  LOCKSTEP_CHECK(allocated <= 2 * lockstep::kRecordReadBytes + 64 * wire_bytes + 4096) << allocated;
  LOCKSTEP_CHECK(read == written.substr(0, read.size())) << "not what was written";
  LOCKSTEP_CHECK(changed || ending == 0 || read == written) << "nothing was changed";
  return 0;
}
