// Communicators that belong to back ends: how they are made over c10d's store, called, and closed.

#ifndef PYTHON_LOCKSTEP_TORCH_CSRC_COMMUNICATOR_H_
#define PYTHON_LOCKSTEP_TORCH_CSRC_COMMUNICATOR_H_

#include <unistd.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <vector>

#include "capi/lockstep.h"
#include "errors.h"

namespace lockstep_torch {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

// A lockstep_store over one of c10d's, whose calls may last longer than they are given: the library leaves them alone then.
class StoreAdapter {
 public:
  explicit StoreAdapter(const StorePtr& store) {
    lockstep_store_callbacks callbacks;
    LOCKSTEP_INIT(callbacks);
    callbacks.context = new StorePtr(store);
    callbacks.release = [](void* context) { delete static_cast<StorePtr*>(context); };
    callbacks.set = [](void* context, const char* key, const void* value, size_t bytes, int64_t) {
      return Run(context, [&](c10d::Store& store) {
        const auto* const begin = static_cast<const uint8_t*>(value);
        store.set(key, std::vector<uint8_t>(begin, begin + bytes));
        return lockstep_code{LOCKSTEP_OK};
      });
    };
    callbacks.get = [](void* context, const char* key, void* buffer, size_t capacity, size_t* out_bytes, int64_t) {
      return Run(context, [&](c10d::Store& store) {
        // get() would wait for the key.
        if (!store.check({key})) return lockstep_code{LOCKSTEP_NOT_FOUND};
        const std::vector<uint8_t> value = store.get(key);
        if (!value.empty()) memcpy(buffer, value.data(), std::min(value.size(), capacity));
        *out_bytes = value.size();
        return lockstep_code{LOCKSTEP_OK};
      });
    };
    callbacks.remove = [](void* context, const char* key, int64_t) {
      return Run(context, [&](c10d::Store& store) {
        store.deleteKey(key);
        return lockstep_code{LOCKSTEP_OK};
      });
    };
    Check(lockstep_store_create(&callbacks, &c_));
  }
  StoreAdapter(const StoreAdapter&) = delete;
  ~StoreAdapter() { lockstep_store_destroy(c_); }

  lockstep_store* c() const { return c_; }

 private:
  template <typename Function>
  static lockstep_code Run(void* context, const Function& function) {
    try {
      return function(**static_cast<StorePtr*>(context));
    } catch (const c10::DistStoreError&) {
      return LOCKSTEP_DEADLINE_EXCEEDED;
    } catch (...) {
      return LOCKSTEP_UNAVAILABLE;
    }
  }

  lockstep_store* c_ = nullptr;
};

// How many hosts the ranks have.
enum class Hosts : int64_t { kUnknown = 0, kOne = 1, kSeveral = 2 };

// A communicator. close_all() closes it when the interpreter ends, if it is still open. Thread-safe.
class Communicator {
 public:
  // Connects the ranks, each of which calls it. kind and index: its device, or LOCKSTEP_HOST.
  static std::shared_ptr<Communicator> Connect(const StorePtr& store, int rank, int size, Hosts hosts,
                                               int64_t timeout_ms, int64_t setup_timeout_ms, lockstep_device_kind kind,
                                               int index) {
    const StoreAdapter adapter(c10::make_intrusive<c10d::PrefixStore>(kind == LOCKSTEP_HOST ? "host" : "cuda", store));
    lockstep_communicator_options options;
    LOCKSTEP_INIT(options);
    options.world_size = size;
    options.rank = rank;
    if (hosts != Hosts::kUnknown) options.local_world_size = hosts == Hosts::kOne ? size : 1;
    if (hosts == Hosts::kOne) options.local_rank = rank;
    options.store = adapter.c();
    options.timeout_ms = timeout_ms;
    options.setup_timeout_ms = setup_timeout_ms;
    options.device_kind = kind;
    options.device_index = index;
    lockstep_communicator* made = nullptr;
    Check(lockstep_communicator_create(&options, &made));
    return Own(made);
  }

  static std::shared_ptr<Communicator> Own(lockstep_communicator* c) {
    auto made = std::shared_ptr<Communicator>(new Communicator(c));
    const std::lock_guard<std::mutex> lock(open_mu());
    open().emplace(made.get(), made);
    return made;
  }

  // Those that are not closed.
  static std::vector<std::shared_ptr<Communicator>> AllOpen() {
    std::vector<std::shared_ptr<Communicator>> found;
    const std::lock_guard<std::mutex> lock(open_mu());
    for (const auto& [_, communicator] : open()) {
      if (auto alive = communicator.lock()) found.push_back(std::move(alive));
    }
    return found;
  }

  Communicator(const Communicator&) = delete;
  ~Communicator() { Close(); }

  // function(the handle, arguments...), while no thread closes it.
  template <typename Function, typename... Arguments>
  void Call(const Function& function, const Arguments&... arguments) {
    const std::shared_lock<std::shared_mutex> lock(mu_);
    TORCH_CHECK_WITH(DistBackendError, c_ != nullptr, "lockstep: the communicator is closed");
    Check(function(c_, arguments...));
  }

  // Returns why it is unusable; NULL if it is usable or closed.
  ErrorPtr Error() {
    const std::shared_lock<std::shared_mutex> lock(mu_);
    return ErrorPtr(c_ == nullptr ? nullptr : lockstep_communicator_status(c_));
  }

  // LOCKSTEP_OK while it is usable.
  lockstep_code Status() {
    const std::shared_lock<std::shared_mutex> lock(mu_);
    if (c_ == nullptr) return LOCKSTEP_CANCELLED;
    return lockstep_error_code(ErrorPtr(lockstep_communicator_status(c_)).get());
  }

  // Unless it has failed or is closed.
  void Abort(const char* reason) {
    const std::shared_lock<std::shared_mutex> lock(mu_);
    if (c_ == nullptr || ErrorPtr(lockstep_communicator_status(c_)) != nullptr) return;
    const ErrorPtr ignored(lockstep_communicator_abort(c_, reason));
  }

  // Other ranks can finish what this one has finished. A call of another thread ends with an error first. Has no effect in a forked child,
  // where such a thread might have left the lock held.
  void Close() {
    if (getpid() != pid_) return;
    {
      const std::lock_guard<std::mutex> lock(open_mu());
      open().erase(this);
    }
    std::unique_lock<std::shared_mutex> lock(mu_, std::try_to_lock);
    if (!lock) {
      Abort("closed by another thread");
      lock.lock();
    }
    lockstep_communicator_destroy(c_);
    c_ = nullptr;
  }

 private:
  explicit Communicator(lockstep_communicator* c) : c_(c) {}

  static std::mutex& open_mu() {
    static std::mutex* const mu = new std::mutex;
    return *mu;
  }
  // Guarded by open_mu().
  static std::map<Communicator*, std::weak_ptr<Communicator>>& open() {
    static auto* const open = new std::map<Communicator*, std::weak_ptr<Communicator>>;
    return *open;
  }

  const pid_t pid_ = getpid();
  std::shared_mutex mu_;
  // Guarded by mu_. NULL: closed.
  lockstep_communicator* c_;
};

}  // namespace lockstep_torch

#endif  // PYTHON_LOCKSTEP_TORCH_CSRC_COMMUNICATOR_H_
