#include "base/fork.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/check.h"
#include "base/mutex.h"

namespace lockstep {

std::atomic<uint64_t> internal::fork_generation{0};

namespace {

// The descriptors to close in a child. fork() takes the mutex beforehand, so the child's copy is whole and its handler
// needs nothing but close() and stores.
class Registry {
 public:
  // Never destroyed: descriptors outlive static destructors.
  static Registry& Get() {
    static Registry* const registry = new Registry;
    return *registry;
  }

  void Add(int descriptor) {
    MutexLock lock(&mu_);
    if (static_cast<size_t>(descriptor) >= registered_.size()) registered_.resize(descriptor + 1, 0);
    registered_[descriptor] = 1;
  }

  // One step as fork() sees it: a child born between the two would keep the descriptor open.
  void RemoveAndClose(int descriptor) {
    MutexLock lock(&mu_);
    registered_[descriptor] = 0;
    close(descriptor);
  }

 private:
  Registry() {
    const int error =
        pthread_atfork([] { Get().BeforeFork(); }, [] { Get().AfterForkInParent(); }, [] { Get().AfterForkInChild(); });
    LOCKSTEP_CHECK(error == 0) << "pthread_atfork: error " << error;
  }

  // The lock is held from one handler to the next, which the analysis cannot follow.
  void BeforeFork() ABSL_NO_THREAD_SAFETY_ANALYSIS { mu_.Lock(); }
  void AfterForkInParent() ABSL_NO_THREAD_SAFETY_ANALYSIS { mu_.Unlock(); }
  void AfterForkInChild() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    for (size_t descriptor = 0; descriptor < registered_.size(); ++descriptor) {
      if (registered_[descriptor]) close(static_cast<int>(descriptor));
      registered_[descriptor] = 0;
    }
    internal::fork_generation.fetch_add(1, std::memory_order_relaxed);
    mu_.Unlock();
  }

  Mutex mu_;
  // Indexed by descriptor: the kernel hands out the smallest free number, so this stays short.
  std::vector<char> registered_ ABSL_GUARDED_BY(mu_);
};

// Forks count from the loading of the library, whether or not it holds descriptors by then.
[[maybe_unused]] Registry& installed_at_load = Registry::Get();

}  // namespace

UniqueFd::UniqueFd(int descriptor) : descriptor_(descriptor), fork_generation_(ForkGeneration()) {
  if (valid()) Registry::Get().Add(descriptor_);
}

UniqueFd::UniqueFd(UniqueFd&& other) noexcept
    : descriptor_(other.descriptor_), fork_generation_(other.fork_generation_) {
  other.descriptor_ = -1;
}

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  if (this != &other) {
    reset();
    descriptor_ = other.descriptor_;
    fork_generation_ = other.fork_generation_;
    other.descriptor_ = -1;
  }
  return *this;
}

void UniqueFd::reset() {
  // After a fork the number may already belong to something else of the child's.
  if (valid() && fork_generation_ == ForkGeneration()) Registry::Get().RemoveAndClose(descriptor_);
  descriptor_ = -1;
}

}  // namespace lockstep
