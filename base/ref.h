// Ref: shared ownership with the count inside the object.
//
// A Ref can tell that it is the last one (unique()), so that an owner may hand out an object again once it is back. The object
// takes one allocation. std::shared_ptr offers neither.
//
// One Ref is for one thread at a time. Different Refs to one object may be used and dropped by any thread.

#ifndef BASE_REF_H_
#define BASE_REF_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace lockstep {

template <typename T>
class Ref;

// Base of what Ref holds. The last Ref deletes the object; one that no Ref ever held is an ordinary object.
class RefCounted {
 public:
  RefCounted() = default;
  RefCounted(const RefCounted&) = delete;
  RefCounted& operator=(const RefCounted&) = delete;

 protected:
  ~RefCounted() = default;

  // Whether a Ref holds the object.
  bool held() const { return refs_.load(std::memory_order_relaxed) > 0; }

 private:
  template <typename T>
  friend class Ref;

  mutable std::atomic<int32_t> refs_{0};
};

template <typename T>
class Ref {
 public:
  Ref() = default;
  Ref(std::nullptr_t) {}  // NOLINT(google-explicit-constructor): as a pointer
  explicit Ref(T* object) : object_(object) { Share(); }
  Ref(const Ref& other) : object_(other.object_) { Share(); }
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  // From a Ref to a class derived from T.
  template <typename U>
  Ref(const Ref<U>& other) : object_(other.get()) {  // NOLINT(google-explicit-constructor): as a pointer
    Share();
  }
  template <typename U>
  Ref(Ref<U>&& other) noexcept : object_(other.Give()) {}  // NOLINT(google-explicit-constructor): as a pointer
  Ref& operator=(Ref other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() {
    // Each holder releases what it did; the last acquires it before it deletes.
    if (object_ != nullptr && count().fetch_sub(1, std::memory_order_acq_rel) == 1) delete object_;
  }

  T* get() const { return object_; }
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }
  friend bool operator==(const Ref& a, std::nullptr_t) { return a.object_ == nullptr; }
  friend bool operator!=(const Ref& a, std::nullptr_t) { return a.object_ != nullptr; }

  // Whether no other Ref holds the object. REQUIRES that this one is not null. Acquires what former holders released by
  // dropping theirs.
  bool unique() const { return count().load(std::memory_order_acquire) == 1; }

 private:
  template <typename U>
  friend class Ref;

  std::atomic<int32_t>& count() const { return static_cast<const RefCounted*>(object_)->refs_; }
  void Share() {
    // Relaxed: the Ref copied from keeps the object alive.
    if (object_ != nullptr) count().fetch_add(1, std::memory_order_relaxed);
  }
  T* Give() { return std::exchange(object_, nullptr); }

  T* object_ = nullptr;
};

template <typename T, typename... Args>
Ref<T> MakeRef(Args&&... args) {
  return Ref<T>(new T(std::forward<Args>(args)...));
}

}  // namespace lockstep

#endif  // BASE_REF_H_
