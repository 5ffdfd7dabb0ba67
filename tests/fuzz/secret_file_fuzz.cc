// A job's secret as text: what its file holds.
//
//   input = mode:u16 text        mode: the file's, as chmod has it

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "tests/fuzz/fuzz.h"
#include "transport/secure/secret.h"

namespace lockstep {
namespace {

using Code = absl::StatusCode;
using SecretOr = absl::StatusOr<std::shared_ptr<const Secret>>;

constexpr size_t kWhiteSpaceBytesMax = 64;
constexpr mode_t kOfOthers = S_IWGRP | S_IXGRP | S_IRWXO;

bool IsHex(absl::string_view text) {
  for (const char digit : text) {
    if (!absl::ascii_isxdigit(digit)) return false;
  }
  return text.size() == 2 * Secret::kBytes;
}

// Another text of the same kind.
std::string Masked(absl::string_view text) {
  std::string masked(text);
  for (char& digit : masked) {
    if (!absl::ascii_isspace(digit)) digit = absl::ascii_isxdigit(digit) ? '0' : 'x';
  }
  return masked;
}

void CheckSecret(const SecretOr& secret, absl::string_view hex) {
  LOCKSTEP_CHECK(secret.ok() == IsHex(hex)) << secret.status().ToString();
  if (!secret.ok()) return;
  LOCKSTEP_CHECK((*secret)->usable() && (*secret)->bytes().size() == Secret::kBytes);
  LOCKSTEP_CHECK((*secret)->Hex() == absl::AsciiStrToLower(hex)) << "another secret";
}

SecretOr ReadFile(mode_t mode, absl::string_view text) {
  static const int file = memfd_create("secret", MFD_CLOEXEC);
  LOCKSTEP_CHECK(file >= 0 && fchmod(file, mode) == 0 && ftruncate(file, 0) == 0);
  LOCKSTEP_CHECK(pwrite(file, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
  return Secret::ReadFile(absl::StrCat("/proc/self/fd/", file));
}

}  // namespace

std::vector<std::string> fuzz::Seeds() {
  const std::string hex = "0123456789abcdefABCDEF9876543210ffffffffffffffff0000000000000000";
  const auto seed = [](mode_t mode, const std::string& text) {
    return std::string{static_cast<char>(mode), static_cast<char>(mode >> 8)} + text;
  };
  return {seed(0600, hex),           seed(0400, hex + "\n"), seed(0644, hex),
          seed(0600, hex.substr(1)), seed(0600, "0x" + hex), seed(0600, hex + std::string(64, ' ') + "more")};
}

}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;  // NOLINT: nothing else is here
  fuzz::Input input(data, size);
  const mode_t mode = input.Take<uint16_t>() & 0777;
  const absl::string_view text = input.Rest();

  const fuzz::Allocations allocations;
  const SecretOr of_bytes = Secret::FromBytes(text);
  const SecretOr of_hex = Secret::FromHex(text);
  const SecretOr of_file = ReadFile(mode, text);
  LOCKSTEP_CHECK(allocations.bytes() <= 4096) << allocations.bytes() << " bytes allocated for " << size;

  fuzz::CheckCode(of_bytes.status(), {Code::kInvalidArgument});
  LOCKSTEP_CHECK(of_bytes.ok() == (text.size() == Secret::kBytes));
  if (of_bytes.ok()) LOCKSTEP_CHECK((*of_bytes)->bytes() == text);
  fuzz::CheckCode(of_hex.status(), {Code::kInvalidArgument});
  CheckSecret(of_hex, text);
  fuzz::CheckCode(of_file.status(), {Code::kPermissionDenied, Code::kInvalidArgument});
  if ((mode & kOfOthers) != 0) {
    LOCKSTEP_CHECK(absl::IsPermissionDenied(of_file.status())) << "others may read it, or change it";
  } else if (!absl::IsPermissionDenied(of_file.status())) {
    const bool too_long = text.size() > 2 * Secret::kBytes + kWhiteSpaceBytesMax;
    CheckSecret(of_file, too_long ? text : absl::StripTrailingAsciiWhitespace(text));
  }
  // Errors say nothing of what stands there.
  const std::string masked = Masked(text);
  LOCKSTEP_CHECK(Secret::FromHex(masked).status() == of_hex.status());
  LOCKSTEP_CHECK(ReadFile(mode, masked).status() == of_file.status());
  return 0;
}
