// What of a channel's keys a core file of this process would have.

#include <fcntl.h>
#include <openssl/hmac.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/fork.h"
#include "gtest/gtest.h"
#include "transport/secure/channel.h"
#include "transport/secure/hkdf.h"

namespace lockstep {
namespace {

constexpr size_t kKeyBytes = 48;
constexpr size_t kPartBytes = 8;
constexpr size_t kPieceBytes = size_t{1} << 20;
// Reserved, like the shadow of a sanitizer, and not used: nothing of ours.
constexpr uint64_t kRegionMax = uint64_t{1} << 31;

// Bytes to look for, kept so that the memory that has them is not found.
class Needle {
 public:
  explicit Needle(unsigned char* bytes) {
    for (size_t i = 0; i < kKeyBytes; ++i) {
      masked_[i] = bytes[i] ^ 0x5a;
      bytes[i] = 0;
    }
  }

  bool In(const unsigned char* memory, size_t bytes) const {
    // A part of the bytes is no find.
    unsigned char part[kPartBytes];
    for (size_t i = 0; i < kPartBytes; ++i) part[i] = masked_[i] ^ 0x5a;
    const unsigned char* const end = memory + bytes;
    for (const unsigned char* at = memory;; ++at) {
      at = static_cast<const unsigned char*>(memmem(at, end - at, part, kPartBytes));
      if (at == nullptr || end - at < static_cast<ptrdiff_t>(kKeyBytes)) return false;
      size_t same = 0;
      while (same < kKeyBytes && (at[same] ^ 0x5a) == masked_[same]) ++same;
      if (same == kKeyBytes) return true;
    }
  }

  // Where a core file of this process has it: the line of /proc/self/smaps. "" where it has not.
  std::string Find() const {
    const UniqueFd memory(open("/proc/self/mem", O_RDONLY | O_CLOEXEC));
    EXPECT_TRUE(memory.valid());
    std::ifstream maps("/proc/self/smaps");
    std::string region;
    std::string found;
    size_t looked_at = 0;
    bool empty = false;
    for (std::string line; std::getline(maps, line);) {
      const bool flags = absl::StartsWith(line, "VmFlags:");
      if (!flags && line.find('-') < line.find(' ')) region = line;
      if (absl::StartsWith(line, "Rss:")) empty = absl::StrContains(line, " 0 kB");
      if (!flags || empty || absl::StrContains(line, " dd")) continue;
      uint64_t begin = 0;
      uint64_t end = 0;
      EXPECT_EQ(std::sscanf(region.c_str(), "%lx-%lx", &begin, &end), 2);
      if (end - begin > kRegionMax) continue;
      // Pieces overlap, so that nothing lies across.
      for (uint64_t at = begin; at < end; at += kPieceBytes - kKeyBytes) {
        const ssize_t bytes = pread(memory.get(), piece_, std::min<uint64_t>(kPieceBytes, end - at), at);
        if (bytes <= 0) break;
        looked_at += bytes;
        if (In(piece_, bytes)) found = region;
      }
    }
    EXPECT_GT(looked_at, size_t{1} << 20);
    return found;
  }

 private:
  static unsigned char* NewPiece() {
    void* const memory = mmap(nullptr, kPieceBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    LeaveOutOfCoreFiles(memory, kPieceBytes);
    return static_cast<unsigned char*>(memory);
  }

  unsigned char masked_[kKeyBytes];
  static unsigned char* const piece_;
};

unsigned char* const Needle::piece_ = Needle::NewPiece();

TEST(CoreFileTest, TheSearchFindsWhatIsThere) {
  unsigned char bytes[kKeyBytes];
  for (size_t i = 0; i < kKeyBytes; ++i) bytes[i] = static_cast<unsigned char>(7 * i + 1);
  void* const page = mmap(nullptr, kKeyBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  std::memcpy(page, bytes, kKeyBytes);
  const Needle needle(bytes);
  EXPECT_NE(needle.Find(), "");
  LeaveOutOfCoreFiles(page, kKeyBytes);
  EXPECT_EQ(needle.Find(), "");
  (void)munmap(page, kKeyBytes);
}

// Who has either of these keys is let in (RFC 8446, 7.1).
TEST(CoreFileTest, HasNoKeyOfTheHandshake) {
  Credentials credentials;
  credentials.level = SecurityLevel::kAuthenticate;
  credentials.secret = Secret::FromBytes(std::string(Secret::kBytes, '\x7b')).value();
  unsigned char psk[kKeyBytes];
  HkdfExpand(credentials.secret->bytes(), "lockstep 1 control authenticate", psk, sizeof(psk));
  const unsigned char salt[kKeyBytes] = {};
  unsigned char early[kKeyBytes];
  unsigned int early_bytes = 0;
  ASSERT_NE(HMAC(EVP_sha384(), salt, sizeof(salt), psk, sizeof(psk), early, &early_bytes), nullptr);
  ASSERT_EQ(early_bytes, kKeyBytes);
  const Needle psk_needle(psk);
  const Needle early_needle(early);

  auto connects = std::make_unique<Channel>(Purpose::kControl, Channel::Side::kConnects, credentials);
  auto listens = std::make_unique<Channel>(Purpose::kControl, Channel::Side::kListens, credentials);
  std::string to_listener = connects->Start();
  std::string to_connecting;
  std::string plain;
  EXPECT_EQ(psk_needle.Find(), "");
  EXPECT_EQ(early_needle.Find(), "");
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(listens->Receive(to_listener, &plain, &to_connecting).ok());
    to_listener.clear();
    EXPECT_EQ(psk_needle.Find(), "");
    EXPECT_EQ(early_needle.Find(), "");
    ASSERT_TRUE(connects->Receive(to_connecting, &plain, &to_listener).ok());
    to_connecting.clear();
    EXPECT_EQ(psk_needle.Find(), "");
    EXPECT_EQ(early_needle.Find(), "");
    if (listens->ready() && connects->ready()) break;
  }
  ASSERT_TRUE(listens->ready() && connects->ready());
  EXPECT_EQ(psk_needle.Find(), "");
  EXPECT_EQ(early_needle.Find(), "");
  connects = nullptr;
  listens = nullptr;
  EXPECT_EQ(psk_needle.Find(), "");
  EXPECT_EQ(early_needle.Find(), "");
}

}  // namespace
}  // namespace lockstep
