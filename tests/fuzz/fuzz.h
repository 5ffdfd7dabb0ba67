// A fuzz target: one parser of bytes from outside, driven by any bytes. docs/fuzzing.md says how targets are run.
//
// A target is one file that defines LLVMFuzzerTestOneInput and Seeds. LLVMFuzzerTestOneInput aborts (LOCKSTEP_CHECK, or a sanitizer) if
// the parser breaks what its header promises: its errors have the documented codes, what it accepts survives a round trip through the
// encoder, and, where the bytes are another's, what it allocates is bounded.

#ifndef TESTS_FUZZ_FUZZ_H_
#define TESTS_FUZZ_FUZZ_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/check.h"

// Of libFuzzer. Returns 0.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace lockstep::fuzz {

// Valid inputs, made by the encoders of today: where fuzzing begins. The committed corpus has what was found from there.
std::vector<std::string> Seeds();

// False while libFuzzer searches, true over a corpus (run_corpus.cc), where each input may be looked at harder.
extern bool over_a_corpus;

// Aborts unless the status is OK or has one of the codes.
void CheckCode(const absl::Status& status, std::initializer_list<absl::StatusCode> codes);

// Bytes that this thread has allocated with `new` since the object was made, freed ones too.
class Allocations {
 public:
  Allocations();
  size_t bytes() const;

 private:
  const size_t before_;
};

// Takes an input apart. At its end it gives zeros and empty texts.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : left_(reinterpret_cast<const char*>(data), size) {}

  bool empty() const { return left_.empty(); }
  // Little-endian.
  template <typename T>
  T Take() {
    T value = 0;
    for (size_t i = 0; i < sizeof(T) && !left_.empty(); ++i) {
      value = static_cast<T>(value | static_cast<T>(static_cast<T>(static_cast<unsigned char>(left_[0])) << (8 * i)));
      left_.remove_prefix(1);
    }
    return value;
  }
  absl::string_view Take(size_t bytes) {
    const absl::string_view taken = left_.substr(0, bytes);
    left_.remove_prefix(taken.size());
    return taken;
  }
  // A text with its length, of one byte, before it.
  absl::string_view TakeText() { return Take(Take<uint8_t>()); }
  absl::string_view Rest() { return Take(left_.size()); }

 private:
  absl::string_view left_;
};

// What Input::TakeText takes. REQUIRES  at most 255 bytes
std::string Text(absl::string_view text);

}  // namespace lockstep::fuzz

#endif  // TESTS_FUZZ_FUZZ_H_
