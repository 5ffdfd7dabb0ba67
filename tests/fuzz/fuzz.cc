#include "tests/fuzz/fuzz.h"

#include <algorithm>
#include <cstdlib>
#include <new>

namespace {

thread_local size_t allocated_bytes = 0;

void* Allocate(size_t bytes) noexcept {
  allocated_bytes += bytes;
  return std::malloc(std::max<size_t>(bytes, 1));
}

void* AllocateOrThrow(size_t bytes) {
  void* const memory = Allocate(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

// All of them: AddressSanitizer's own know each other.
void* operator new(size_t bytes) { return AllocateOrThrow(bytes); }
void* operator new[](size_t bytes) { return AllocateOrThrow(bytes); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return Allocate(bytes); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return Allocate(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }

namespace lockstep::fuzz {

bool over_a_corpus = false;

void CheckCode(const absl::Status& status, std::initializer_list<absl::StatusCode> codes) {
  LOCKSTEP_CHECK(status.ok() || std::count(codes.begin(), codes.end(), status.code()) > 0)
      << status.ToString() << " is none of the documented errors";
  LOCKSTEP_CHECK(status.ok() || !status.message().empty()) << "an error without a text";
}

Allocations::Allocations() : before_(allocated_bytes) {}
size_t Allocations::bytes() const { return allocated_bytes - before_; }

std::string Text(absl::string_view text) {
  LOCKSTEP_CHECK(text.size() <= 255) << text.size() << " bytes";
  std::string taken(1, static_cast<char>(text.size()));
  taken.append(text.data(), text.size());
  return taken;
}

}  // namespace lockstep::fuzz
