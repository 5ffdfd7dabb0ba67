// The secret that the processes of a job, or of a world, share.

#ifndef TRANSPORT_SECURE_SECRET_H_
#define TRANSPORT_SECURE_SECRET_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep {

// 32 random bytes. They lie in memory of their own that is locked where the limit allows, left out of core files, empty in a forked
// child, and overwritten at the end. Constant, so any thread may use it. There is no way to print it but Hex.
class Secret {
 public:
  static constexpr size_t kBytes = 32;

  Secret(const Secret&) = delete;
  Secret& operator=(const Secret&) = delete;
  ~Secret();

  // New ones, from the kernel.
  static absl::StatusOr<std::shared_ptr<const Secret>> Draw();

  // `bytes` are kBytes of raw bytes, `hex` twice as many hex digits. INVALID_ARGUMENT says how many there are instead, and never what.
  static absl::StatusOr<std::shared_ptr<const Secret>> FromBytes(absl::string_view bytes);
  static absl::StatusOr<std::shared_ptr<const Secret>> FromHex(absl::string_view hex);

  // 64 hex digits and up to 64 bytes of white space behind them.
  // ERRORS  NOT_FOUND          there is no such file
  //         PERMISSION_DENIED  it is no regular file, belongs to neither this user nor root (user.h), or others may read or write it. A
  //                            group of this process's may read a file of root's: that is how Kubernetes hands secrets to a process of
  //                            another user
  //         INVALID_ARGUMENT   it holds something else
  //         All name the path, and the owner and mode, but nothing of the contents. Of a launcher's file (/proc/71/fd/8) they say what to
  //         do where that cannot be reached
  static absl::StatusOr<std::shared_ptr<const Secret>> ReadFile(const std::string& path);

  absl::string_view bytes() const { return absl::string_view(memory_, kBytes); }
  // To be wiped by the caller.
  std::string Hex() const;

  // True in the process that made it, false in a forked child, where the bytes are gone.
  bool usable() const;

 private:
  explicit Secret(char* memory) : memory_(memory) {}
  static absl::StatusOr<std::shared_ptr<Secret>> Allocate();

  char* const memory_;  // a mapping: kBytes, and a byte that is 1 where they are there
};

// Has the pages of this memory left out of core files, also after it is freed.
void LeaveOutOfCoreFiles(const void* memory, size_t bytes);

// Overwrites a text that is, or has, a secret.
void Wipe(std::string* text);

// The same at the end of a scope, however that is left.
class WipedAtEnd {
 public:
  explicit WipedAtEnd(std::string* text) : text_(text) {}
  // What is no error.
  explicit WipedAtEnd(absl::StatusOr<std::string>* text) : text_(text->ok() ? &**text : nullptr) {}
  ~WipedAtEnd() {
    if (text_ != nullptr) Wipe(text_);
  }
  WipedAtEnd(const WipedAtEnd&) = delete;
  WipedAtEnd& operator=(const WipedAtEnd&) = delete;

 private:
  std::string* const text_;
};

}  // namespace lockstep

#endif  // TRANSPORT_SECURE_SECRET_H_
