#include "bench/limits/add.h"

namespace lockstep {
namespace bench {
namespace {

// Plain loops that the compiler turns into vector instructions, once for every instruction set that matters (the target
// is built with -O3).
#define LOCKSTEP_BENCH_ADDS(suffix, attributes)                                                 \
  attributes void AddToBoth##suffix(float* __restrict a, float* __restrict b, size_t count) {   \
    for (size_t i = 0; i < count; ++i) a[i] = b[i] = a[i] + b[i];                               \
  }                                                                                             \
  attributes void AddTo##suffix(float* __restrict a, const float* __restrict b, size_t count) { \
    for (size_t i = 0; i < count; ++i) a[i] += b[i];                                            \
  }

LOCKSTEP_BENCH_ADDS(Plain, )

#ifdef __x86_64__
LOCKSTEP_BENCH_ADDS(Avx2, __attribute__((target("avx2"))))
LOCKSTEP_BENCH_ADDS(Avx512, __attribute__((target("avx512f"))))
#endif

struct Adds {
  void (*to_both)(float*, float*, size_t) = &AddToBothPlain;
  void (*to)(float*, const float*, size_t) = &AddToPlain;
};

Adds Choose() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f")) return {&AddToBothAvx512, &AddToAvx512};
  if (__builtin_cpu_supports("avx2")) return {&AddToBothAvx2, &AddToAvx2};
#endif
  return {};
}

const Adds kAdds = Choose();

}  // namespace

void AddToBoth(float* a, float* b, size_t count) { kAdds.to_both(a, b, count); }

void AddTo(float* a, const float* b, size_t count) { kAdds.to(a, b, count); }

}  // namespace bench
}  // namespace lockstep
