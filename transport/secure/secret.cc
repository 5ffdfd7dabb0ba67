#include "transport/secure/secret.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/fork.h"
#include "base/status.h"
#include "transport/secure/user.h"

namespace lockstep {
namespace {

constexpr size_t kMappingBytes = 4096;
constexpr size_t kWhiteSpaceBytesMax = 64;  // behind the digits of a file

int HexDigit(char digit) {
  if (digit >= '0' && digit <= '9') return digit - '0';
  const char lower = absl::ascii_tolower(digit);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

// "/etc/s: owner 1000, mode 0644"
std::string Describe(const std::string& path, const struct stat& file) {
  return absl::StrFormat("%s (owner %d, mode %04o)", path, file.st_uid, file.st_mode & 07777);
}

absl::Status Judge(const std::string& path, const struct stat& file) {
  const auto refuse = [&](absl::string_view why) {
    return absl::PermissionDeniedError(absl::StrCat("secret file ", Describe(path, file), ": ", why));
  };
  if (!S_ISREG(file.st_mode)) return refuse("is no regular file");
  const bool of_root = IsRoot(file.st_uid);
  if (!of_root && !IsThisUser(file.st_uid)) {
    return refuse(absl::StrCat("belongs to ", DescribeUser(file.st_uid),
                               ", and neither to root nor to this process's user ", geteuid()));
  }
  const mode_t group = of_root ? S_IRGRP : 0;
  if ((file.st_mode & (S_IRWXG | S_IRWXO) & ~group) != 0) {
    return refuse(
        "others than its owner may read or change it: chmod 600 (in Kubernetes defaultMode: 0400), and make a new "
        "secret");
  }
  if ((file.st_mode & S_IRGRP) != 0 && !IsGroupOfThisProcess(file.st_gid)) {
    return refuse(absl::StrCat("group ", file.st_gid, ", which this process is not in, may read it"));
  }
  return absl::OkStatus();
}

// The process of "/proc/71/fd/8". Empty for another path.
absl::string_view ProcessOf(absl::string_view path) {
  const std::vector<absl::string_view> parts = absl::StrSplit(path, '/');
  const bool descriptor = parts.size() == 5 && parts[0].empty() && parts[1] == "proc" && parts[3] == "fd";
  const bool number =
      descriptor && !parts[2].empty() && std::all_of(parts[2].begin(), parts[2].end(), absl::ascii_isdigit);
  return number ? parts[2] : absl::string_view();
}

absl::StatusOr<std::shared_ptr<const Secret>> Read(const std::string& path) {
  // Not blocking: it may be a pipe, which is refused below.
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file.valid()) {
    const int error = errno;
    return ErrnoStatus(error, absl::StrCat("secret file ", path));
  }
  struct stat state = {};
  if (fstat(file.get(), &state) != 0) return ErrnoStatus(errno, absl::StrCat("secret file ", path));
  LOCKSTEP_RETURN_IF_ERROR(Judge(path, state));
  char text[2 * Secret::kBytes + kWhiteSpaceBytesMax + 1];
  const ssize_t bytes = pread(file.get(), text, sizeof(text), 0);
  if (bytes < 0) return ErrnoStatus(errno, absl::StrCat("secret file ", path));
  absl::string_view hex(text, static_cast<size_t>(bytes));
  // What is longer may go on with anything.
  if (hex.size() < sizeof(text)) hex = absl::StripTrailingAsciiWhitespace(hex);
  auto secret = Secret::FromHex(hex);
  explicit_bzero(text, sizeof(text));
  if (!secret.ok()) return Annotate(secret.status(), absl::StrCat("secret file ", Describe(path, state)));
  return secret;
}

}  // namespace

absl::StatusOr<std::shared_ptr<Secret>> Secret::Allocate() {
  void* const memory = mmap(nullptr, kMappingBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return ErrnoStatus(errno, "memory for a secret");
  // Each makes it harder to find, none is needed for it to work.
  LeaveOutOfCoreFiles(memory, kMappingBytes);
  (void)madvise(memory, kMappingBytes, MADV_WIPEONFORK);
  (void)mlock(memory, kMappingBytes);
  return std::shared_ptr<Secret>(new Secret(static_cast<char*>(memory)));
}

Secret::~Secret() {
  explicit_bzero(memory_, kMappingBytes);
  (void)munmap(memory_, kMappingBytes);
}

bool Secret::usable() const { return memory_[kBytes] == 1; }

absl::StatusOr<std::shared_ptr<const Secret>> Secret::Draw() {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::shared_ptr<Secret> secret, Allocate());
  // Up to 256 bytes come whole, once the kernel's generator has been seeded (getrandom(2)).
  while (getrandom(secret->memory_, kBytes, 0) != ssize_t{kBytes}) {
    if (errno != EINTR) return ErrnoStatus(errno, "getrandom");
  }
  secret->memory_[kBytes] = 1;
  return secret;
}

absl::StatusOr<std::shared_ptr<const Secret>> Secret::FromBytes(absl::string_view bytes) {
  if (bytes.size() != kBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a secret has ", kBytes, " bytes, not ", bytes.size()));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const std::shared_ptr<Secret> secret, Allocate());
  std::memcpy(secret->memory_, bytes.data(), kBytes);
  secret->memory_[kBytes] = 1;
  return secret;
}

absl::StatusOr<std::shared_ptr<const Secret>> Secret::FromHex(absl::string_view hex) {
  const bool digits = std::all_of(hex.begin(), hex.end(), [](char digit) { return HexDigit(digit) >= 0; });
  if (hex.size() != 2 * kBytes || !digits) {
    return absl::InvalidArgumentError(absl::StrCat("a secret is written as ", 2 * kBytes, " hex digits, not as ",
                                                   hex.size(), digits ? " of them" : " characters of other kinds"));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const std::shared_ptr<Secret> secret, Allocate());
  for (size_t i = 0; i < kBytes; ++i) {
    secret->memory_[i] = static_cast<char>(HexDigit(hex[2 * i]) * 16 + HexDigit(hex[2 * i + 1]));
  }
  secret->memory_[kBytes] = 1;
  return secret;
}

absl::StatusOr<std::shared_ptr<const Secret>> Secret::ReadFile(const std::string& path) {
  auto secret = Read(path);
  const absl::string_view process = ProcessOf(path);
  if (secret.ok() || process.empty()) return secret;
  return Reworded(
      secret.status(),
      absl::StrCat(
          secret.status().message(), "; it is of process ", process,
          ", the launcher, which has ended, or is in another container (pid namespace) or of another user: to do "
          "without, set LOCKSTEP_SECRET_FILE for the launcher to a file that all ranks can read"));
}

std::string Secret::Hex() const {
  std::string hex(2 * kBytes, '\0');
  for (size_t i = 0; i < kBytes; ++i) {
    const auto byte = static_cast<unsigned char>(memory_[i]);
    hex[2 * i] = "0123456789abcdef"[byte >> 4];
    hex[2 * i + 1] = "0123456789abcdef"[byte & 15];
  }
  return hex;
}

void LeaveOutOfCoreFiles(const void* memory, size_t bytes) {
  static const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = reinterpret_cast<uintptr_t>(memory) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(memory) + bytes;
  (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTDUMP);
}

void Wipe(std::string* text) { explicit_bzero(&(*text)[0], text->size()); }

}  // namespace lockstep
