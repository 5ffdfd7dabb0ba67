// lockstep/_jax_ffi.so: what XLA calls when a compiled program comes to a call of lockstep.jax (python/lockstep/jax).
//
// A program names what it works on by a handle: a number that lockstep_jax_open() gave for a communicator or a reducer.
// So a program that outlives the communicator gets an error, and ranks compile equal programs.
//
//   target                      operands -> results                             attributes besides handle and dtype
//   lockstep_all_reduce         x, token -> y, token                            option: the reduction
//   lockstep_reduce_scatter     x, token -> y, token                            option: the reduction
//   lockstep_all_gather         x, token -> y, token
//   lockstep_broadcast          x, token -> x in place, token                   option: the root
//   lockstep_reduce             x, token -> y (0 elsewhere), token              option: the root; a sum
//   lockstep_all_to_all         x, token -> y, token
//   lockstep_mark_ready         gradient, token -> mark                         option: the parameter
//   lockstep_end_backward       marks -> averages, token
//
// A token orders the calls of a process. It is a float32: the number of the call that returned it, or 0, which
// promises nothing. A call whose token is older than the communicator's last call fails: nothing orders the two, and
// ranks might make them in different orders. It also fails if its token is older than that of another communicator's last
// call with a token: XLA has few threads, and calls that wait in them for other ranks can keep each other from beginning.
//
// Of XLA there is only its C header, whose versions 0.1 to 0.3 (jaxlib 0.5 to 0.10) agree in all that is used here.
//
// THREADS  XLA calls from any of its threads, several at once.

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "capi/lockstep.h"
#include "third_party/xla_ffi/c_api.h"

namespace {

// ---- What XLA passes

// XLA asks each handler once for the version of the interface that it was made for.
bool AnswersVersion(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Extension_Base* extension = frame->extension_start;
  if (extension == nullptr || extension->type != XLA_FFI_Extension_Metadata) return false;
  XLA_FFI_Metadata* metadata = reinterpret_cast<XLA_FFI_Metadata_Extension*>(extension)->metadata;
  // Its own, if it is older than our header's. Version 0.1 may not tell.
  const int its_minor = frame->api == nullptr ? 1 : frame->api->api_version.minor_version;
  metadata->api_version = {XLA_FFI_Api_Version_STRUCT_SIZE, nullptr, XLA_FFI_API_MAJOR,
                           std::min(its_minor, XLA_FFI_API_MINOR)};
  metadata->traits = 0;
  return true;
}

XLA_FFI_Error* MakeError(const XLA_FFI_CallFrame* frame, lockstep_code code, const std::string& message) {
  // Lockstep's codes are XLA's.
  XLA_FFI_Error_Create_Args arguments = {XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr, message.c_str(),
                                         static_cast<XLA_FFI_Error_Code>(code)};
  return frame->api->XLA_FFI_Error_Create(&arguments);
}

// Frees `error`.
XLA_FFI_Error* TakeError(const XLA_FFI_CallFrame* frame, lockstep_error* error) {
  if (error == nullptr) return nullptr;
  XLA_FFI_Error* made = MakeError(frame, lockstep_error_code(error), lockstep_error_message(error));
  lockstep_error_free(error);
  return made;
}

// All are int64.
int64_t Attribute(const XLA_FFI_CallFrame* frame, std::string_view name) {
  const XLA_FFI_Attrs& attributes = frame->attrs;
  for (int64_t i = 0; i < attributes.size; ++i) {
    if (std::string_view(attributes.names[i]->ptr, attributes.names[i]->len) == name) {
      return *static_cast<int64_t*>(static_cast<XLA_FFI_Scalar*>(attributes.attrs[i])->value);
    }
  }
  return -1;
}

XLA_FFI_Buffer* Operand(const XLA_FFI_CallFrame* frame, int64_t i) {
  return static_cast<XLA_FFI_Buffer*>(frame->args.args[i]);
}
XLA_FFI_Buffer* Result(const XLA_FFI_CallFrame* frame, int64_t i) {
  return static_cast<XLA_FFI_Buffer*>(frame->rets.rets[i]);
}

// Borrows the buffer's shape.
lockstep_tensor View(const XLA_FFI_Buffer* buffer, int64_t dtype) {
  lockstep_tensor tensor = {};
  tensor.data = buffer->data;
  tensor.shape = buffer->dims;
  tensor.dimensions = static_cast<int32_t>(buffer->rank);
  tensor.dtype = static_cast<lockstep_dtype>(dtype);
  return tensor;
}

size_t Bytes(const lockstep_tensor& tensor) {
  size_t bytes = lockstep_dtype_size(tensor.dtype);
  for (int32_t i = 0; i < tensor.dimensions; ++i) bytes *= static_cast<size_t>(tensor.shape[i]);
  return bytes;
}

// ---- Tokens

// Calls have the numbers from 1 to kTokens, which a float32 can tell apart, and then again.
constexpr int64_t kTokens = (1 << 24) - 1;

// How many of the process's `calls` have come after the one that returned the token, if they are few.
int64_t Age(float token, int64_t calls) {
  const int64_t age = (calls - static_cast<int64_t>(token)) % kTokens;
  return age < 0 ? age + kTokens : age;
}

constexpr char kRemedy[] = ": give each call the token of the one before it, whatever their communicators are";

// ---- Handles

// A communicator or a reducer that programs may name.
struct Slot {
  // Constant.
  lockstep_communicator* communicator = nullptr;
  lockstep_reducer* reducer = nullptr;
  // Guarded by Table::mu.
  bool closed = false;
  int users = 0;          // calls in it
  int64_t last_call = 0;  // its number among all of the process
  // Of a reducer. Guards the rest.
  std::mutex step_mu;
  bool begun = false;
  std::vector<bool> marked;  // the gradients of the step
};

struct Table {
  std::mutex mu;
  std::condition_variable left;  // a slot has no more users
  std::deque<Slot> slots;        // never shrinks: programs keep their numbers
  int64_t calls = 0;             // of the process that returned
  int64_t last_ordered = 0;      // the number of the last of them that had a token
  int ordered_now = 0;           // calls with a token that are under way
};

Table& TheTable() {
  // Not destroyed: XLA's threads may outlast the destructors of static objects.
  static Table* table = new Table;
  return *table;
}

// A call in a slot. While it lasts, what the slot names is not destroyed.
class Use {
 public:
  explicit Use(const XLA_FFI_CallFrame* frame) : table_(TheTable()) {
    const std::lock_guard<std::mutex> lock(table_.mu);
    const size_t handle = static_cast<size_t>(Attribute(frame, "handle"));
    if (handle >= table_.slots.size()) {
      refusal_ = "the program was made in another process";
      return;
    }
    Slot& slot = table_.slots[handle];
    if (slot.closed) {
      refusal_ = std::string(slot.reducer ? "the reducer" : "the communicator") + " is closed";
    } else if (slot.communicator != nullptr && slot.users > 0) {
      refusal_ = "another call of this communicator is under way on another thread" + std::string(kRemedy);
    } else {
      slot_ = &slot;
      ++slot.users;
    }
  }

  ~Use() {
    if (slot_ == nullptr) return;
    const std::lock_guard<std::mutex> lock(table_.mu);
    if (ordered_) --table_.ordered_now;
    if (--slot_->users == 0) table_.left.notify_all();
  }

  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

  // Why not, or empty.
  const std::string& refusal() const { return refusal_; }
  Slot& slot() { return *slot_; }

  // Begins a call with this token. Returns why it may not begin, or "". If more than half of all tokens were given out since, it cannot
  // tell, and neither for a sum of tokens, which may be a token's gradient.
  std::string Begin(float token) {
    const std::lock_guard<std::mutex> lock(table_.mu);
    if (token == 0) return "";
    const int64_t age = Age(token, table_.calls);
    const bool known = age < kTokens / 2;
    if (known && table_.calls - age < slot_->last_call) {
      return "its token is older than the last call of this communicator" + std::string(kRemedy);
    }
    if (table_.ordered_now > 0 || (known && table_.calls - age < table_.last_ordered)) {
      // Another rank may have begun this call, and would wait.
      const std::string why = "its token is older than the last call of another communicator" + std::string(kRemedy);
      lockstep_error_free(lockstep_communicator_abort(slot_->communicator, why.c_str()));
      return why;
    }
    ordered_ = true;
    ++table_.ordered_now;
    return "";
  }

  // Returns the token of this call, which had the given one. That of a reducer is not checked, and does not count.
  float NextToken(float token = 0) {
    const std::lock_guard<std::mutex> lock(table_.mu);
    slot_->last_call = ++table_.calls;
    if (token != 0) table_.last_ordered = table_.calls;
    return static_cast<float>((slot_->last_call - 1) % kTokens + 1);
  }

 private:
  Table& table_;
  Slot* slot_ = nullptr;
  bool ordered_ = false;  // counted in ordered_now
  std::string refusal_;
};

// ---- Handlers

XLA_FFI_Error* Refuse(const XLA_FFI_CallFrame* frame, const char* name, const std::string& why) {
  return MakeError(frame, LOCKSTEP_FAILED_PRECONDITION, std::string(name) + ": " + why);
}

using Tensor = const lockstep_tensor*;
using Collective = lockstep_error* (*)(lockstep_communicator* c, Tensor input, Tensor output, int32_t option);

XLA_FFI_Error* Run(XLA_FFI_CallFrame* frame, const char* name, Collective collective) {
  if (AnswersVersion(frame)) return nullptr;
  Use use(frame);
  if (!use.refusal().empty()) return Refuse(frame, name, use.refusal());
  const float token = *static_cast<float*>(Operand(frame, 1)->data);
  const std::string unordered = use.Begin(token);
  if (!unordered.empty()) return Refuse(frame, name, unordered);
  const int64_t dtype = Attribute(frame, "dtype");
  const lockstep_tensor input = View(Operand(frame, 0), dtype), output = View(Result(frame, 0), dtype);
  const int32_t option = static_cast<int32_t>(Attribute(frame, "option"));
  lockstep_error* error = collective(use.slot().communicator, &input, &output, option);
  *static_cast<float*>(Result(frame, 1)->data) = use.NextToken(token);
  return TakeError(frame, error);
}

}  // namespace

extern "C" {

// A number for programs to name a communicator or a reducer by; the other is NULL.
LOCKSTEP_EXPORT int64_t lockstep_jax_open(lockstep_communicator* communicator, lockstep_reducer* reducer) {
  Table& table = TheTable();
  const std::lock_guard<std::mutex> lock(table.mu);
  Slot& slot = table.slots.emplace_back();
  slot.communicator = communicator;
  slot.reducer = reducer;
  return static_cast<int64_t>(table.slots.size()) - 1;
}

// To be called before what the handle names is destroyed. Later calls fail, and a call under way has returned. It is
// ended where the handle names a communicator; a reducer's ends with its communicator, or by itself.
LOCKSTEP_EXPORT void lockstep_jax_close(int64_t handle) {
  Table& table = TheTable();
  std::unique_lock<std::mutex> lock(table.mu);
  Slot& slot = table.slots[static_cast<size_t>(handle)];
  slot.closed = true;
  if (slot.users > 0 && slot.communicator != nullptr) {
    const std::string reason = "rank " + std::to_string(lockstep_communicator_rank(slot.communicator)) +
                               " closed the communicator while a program was in a call";
    lockstep_error_free(lockstep_communicator_abort(slot.communicator, reason.c_str()));
  }
  table.left.wait(lock, [&slot] { return slot.users == 0; });
}

LOCKSTEP_EXPORT XLA_FFI_Error* lockstep_jax_all_reduce(XLA_FFI_CallFrame* frame) {
  return Run(frame, "all_reduce", [](lockstep_communicator* c, Tensor input, Tensor output, int32_t op) {
    return lockstep_all_reduce(c, input, output, op, nullptr, nullptr, nullptr);
  });
}

LOCKSTEP_EXPORT XLA_FFI_Error* lockstep_jax_reduce_scatter(XLA_FFI_CallFrame* frame) {
  return Run(frame, "reduce_scatter", [](lockstep_communicator* c, Tensor input, Tensor output, int32_t op) {
    return lockstep_reduce_scatter(c, input, output, op, nullptr, nullptr, nullptr);
  });
}

LOCKSTEP_EXPORT XLA_FFI_Error* lockstep_jax_all_gather(XLA_FFI_CallFrame* frame) {
  return Run(frame, "all_gather", [](lockstep_communicator* c, Tensor input, Tensor output, int32_t) {
    return lockstep_all_gather(c, input, output, nullptr, nullptr, nullptr);
  });
}

LOCKSTEP_EXPORT XLA_FFI_Error* lockstep_jax_broadcast(XLA_FFI_CallFrame* frame) {
  return Run(frame, "broadcast", [](lockstep_communicator* c, Tensor, Tensor output, int32_t root) {
    return lockstep_broadcast(c, output, root, nullptr, nullptr, nullptr);
  });
}

LOCKSTEP_EXPORT XLA_FFI_Error* lockstep_jax_reduce(XLA_FFI_CallFrame* frame) {
  return Run(frame, "reduce", [](lockstep_communicator* c, Tensor input, Tensor output, int32_t root) {
    const size_t bytes = lockstep_communicator_rank(c) == root ? 0 : Bytes(*output);
    if (bytes > 0) std::memset(output->data, 0, bytes);
    return lockstep_reduce(c, input, output, LOCKSTEP_SUM, root, nullptr, nullptr, nullptr);
  });
}

LOCKSTEP_EXPORT XLA_FFI_Error* lockstep_jax_all_to_all(XLA_FFI_CallFrame* frame) {
  return Run(frame, "all_to_all", [](lockstep_communicator* c, Tensor input, Tensor output, int32_t) {
    return lockstep_all_to_all(c, input, output, nullptr, nullptr, nullptr);
  });
}

// Copies the gradient into its bucket. The first mark of a step begins it.
LOCKSTEP_EXPORT XLA_FFI_Error* lockstep_jax_mark_ready(XLA_FFI_CallFrame* frame) {
  if (AnswersVersion(frame)) return nullptr;
  Use use(frame);
  if (!use.refusal().empty()) return Refuse(frame, "mark_ready", use.refusal());
  Slot& slot = use.slot();
  const size_t index = static_cast<size_t>(Attribute(frame, "option"));
  {
    const std::lock_guard<std::mutex> lock(slot.step_mu);
    if (!slot.begun) {
      lockstep_error* error = lockstep_reducer_begin_backward(slot.reducer, nullptr);
      if (error != nullptr) return TakeError(frame, error);
      slot.begun = true;
      slot.marked.clear();
    }
    if (slot.marked.size() <= index) slot.marked.resize(index + 1);
    if (slot.marked[index]) {
      return Refuse(
          frame, "mark_ready",
          "an earlier program with this reducer failed before its end, and the reducer with it: make another");
    }
    slot.marked[index] = true;
  }
  lockstep_tensor view;
  if (lockstep_error* error = lockstep_reducer_gradient_view(slot.reducer, index, &view))
    return TakeError(frame, error);
  if (const size_t bytes = Bytes(view)) std::memcpy(view.data, Operand(frame, 0)->data, bytes);
  *static_cast<float*>(Result(frame, 0)->data) = 0;
  return TakeError(frame, lockstep_reducer_mark_ready(slot.reducer, index, &view, nullptr));
}

// Copies the averages out of the buckets.
LOCKSTEP_EXPORT XLA_FFI_Error* lockstep_jax_end_backward(XLA_FFI_CallFrame* frame) {
  if (AnswersVersion(frame)) return nullptr;
  Use use(frame);
  if (!use.refusal().empty()) return Refuse(frame, "end_backward", use.refusal());
  Slot& slot = use.slot();
  const std::lock_guard<std::mutex> lock(slot.step_mu);
  slot.begun = false;
  if (lockstep_error* error = lockstep_reducer_end_backward(slot.reducer, nullptr)) return TakeError(frame, error);
  const int64_t gradients = frame->rets.size - 1;
  for (int64_t i = 0; i < gradients; ++i) {
    lockstep_tensor view;
    lockstep_error* error = lockstep_reducer_gradient_view(slot.reducer, static_cast<size_t>(i), &view);
    if (error != nullptr) return TakeError(frame, error);
    if (const size_t bytes = Bytes(view)) std::memcpy(Result(frame, i)->data, view.data, bytes);
  }
  *static_cast<float*>(Result(frame, gradients)->data) = use.NextToken();
  return nullptr;
}

}  // extern "C"
