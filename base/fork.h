// What fork() does to us: the child has none of our threads and must hold none of our descriptors.
//
// A forked child (a data loader, say) that kept a socket open would hide its parent's death from the peers. So every
// descriptor of ours is registered here, and a handler that runs in the child of fork() closes them all at once.
// Programs started by exec get none either: all are close-on-exec. Objects made before a fork are not usable in the
// child; they remember ForkGeneration() and answer FAILED_PRECONDITION when it has moved.

#ifndef BASE_FORK_H_
#define BASE_FORK_H_

#include <cstdint>

namespace lockstep {

// How many forks lie between this process and the one that loaded the library. Async-signal-safe.
uint64_t ForkGeneration();

// Thread-safe. The handler is installed when the library is loaded. Unregister before closing. A child
// that is forked between the making of a descriptor and its registration keeps it: register at once.
void CloseInForkedChild(int descriptor);
void ForgetDescriptor(int descriptor);

// Owns a descriptor: registered while it is held, closed at the end. In a forked child it was closed already, and the
// destructor knows. Movable.
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
