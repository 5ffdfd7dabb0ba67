// DefaultFloats: as long as one lives, its thread rounds to nearest, keeps subnormals and traps nothing, whatever the embedder has set
// (torch.set_flush_denormal, for example). Else ranks that compute the same sum, or two threads of a rank, would have different bits.

#ifndef BASE_DEFAULT_FLOATS_H_
#define BASE_DEFAULT_FLOATS_H_

#include <cstdint>

#ifdef __x86_64__
#include <xmmintrin.h>
#endif

namespace lockstep {

class DefaultFloats {
 public:
  DefaultFloats() {
    if (before_ != kDefault) Set(kDefault);
  }
  ~DefaultFloats() {
    if (before_ != kDefault) Set(before_);
  }
  DefaultFloats(const DefaultFloats&) = delete;
  DefaultFloats& operator=(const DefaultFloats&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr uint64_t kDefault = 0x1f80;  // of MXCSR, without the flags of past exceptions
  static uint64_t Get() { return _mm_getcsr() & ~uint64_t{0x3f}; }
  static void Set(uint64_t mode) { _mm_setcsr(static_cast<uint32_t>(mode)); }
#elif defined(__aarch64__)
  static constexpr uint64_t kDefault = 0;  // of FPCR
  static uint64_t Get() {
    uint64_t mode = 0;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void Set(uint64_t mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
#else
#error "no floating-point environment of this processor"
#endif

  const uint64_t before_ = Get();
};

}  // namespace lockstep

#endif  // BASE_DEFAULT_FLOATS_H_
