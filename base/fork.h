// Protection against fork(): the child has none of our threads and must hold none of our descriptors.
//
// A forked child (a data loader, for example) that kept a socket open would hide its parent's death from the peers. So every
// descriptor of ours is registered here, and a handler that runs in the child of fork() closes them all. Programs started by
// exec get none either: all are close-on-exec. Objects made before a fork are not usable in the child: they remember
// ForkGeneration() and return FAILED_PRECONDITION once it has changed.

#ifndef BASE_FORK_H_
#define BASE_FORK_H_

#include <atomic>
#include <cstdint>

namespace lockstep {

namespace internal {
// Written only by the child's handler, when the process has one thread.
extern std::atomic<uint64_t> fork_generation;
}  // namespace internal

// The number of forks between the process that loaded the library and this one. Async-signal-safe. Inline: every call asks it.
inline uint64_t ForkGeneration() { return internal::fork_generation.load(std::memory_order_relaxed); }

// Owns a descriptor: registers it, and closes it at the end, except in a forked child, where it is closed already. Movable.
// Registration is thread-safe. A child that is forked before the registration keeps the descriptor, so wrap it at once. The
// handler is installed when the library is loaded.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int descriptor);
  ~UniqueFd() { reset(); }
  UniqueFd(UniqueFd&& other) noexcept;
  UniqueFd& operator=(UniqueFd&& other) noexcept;

  int get() const { return descriptor_; }
  bool valid() const { return descriptor_ >= 0; }
  void reset();

 private:
  int descriptor_ = -1;
  uint64_t fork_generation_ = 0;
};

}  // namespace lockstep

#endif  // BASE_FORK_H_
