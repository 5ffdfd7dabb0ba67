// Integers on the wire and in files: little-endian, whatever the machine.

#ifndef TRANSPORT_NET_LITTLE_ENDIAN_H_
#define TRANSPORT_NET_LITTLE_ENDIAN_H_

#include <cstddef>
#include <cstring>
#include <string>
#include <type_traits>

#include "absl/strings/string_view.h"

namespace lockstep {

template <typename T>
void StoreLittleEndian(T value, void* target) {
  static_assert(std::is_unsigned<T>::value, "signed values are converted by the caller");
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  // One store; not every compiler makes one of the loop.
  std::memcpy(target, &value, sizeof(T));
#else
  unsigned char* const bytes = static_cast<unsigned char*>(target);
  for (size_t i = 0; i < sizeof(T); ++i) bytes[i] = static_cast<unsigned char>(value >> (8 * i));
#endif
}

template <typename T>
T LoadLittleEndian(const void* source) {
  static_assert(std::is_unsigned<T>::value, "signed values are converted by the caller");
  const unsigned char* const bytes = static_cast<const unsigned char*>(source);
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) value = static_cast<T>(value | static_cast<T>(T{bytes[i]} << (8 * i)));
  return value;
}

// Several, one behind the other. Both return the end.
template <typename... T>
unsigned char* StoreLittleEndians(unsigned char* target, T... values) {
  ((StoreLittleEndian(values, target), target += sizeof(T)), ...);
  return target;
}
template <typename... T>
const unsigned char* LoadLittleEndians(const unsigned char* source, T*... values) {
  ((*values = LoadLittleEndian<T>(source), source += sizeof(T)), ...);
  return source;
}

template <typename... T>
void AppendLittleEndian(std::string* out, T... values) {
  const auto append = [out](auto value) {
    out->resize(out->size() + sizeof(value));
    StoreLittleEndian(value, &(*out)[out->size() - sizeof(value)]);
  };
  (append(values), ...);
}

// Takes integers from the front. Asked for more than there is, it gives zeros and is not complete() from then on.
class LittleEndianReader {
 public:
  explicit LittleEndianReader(absl::string_view bytes) : left_(bytes) {}
  template <typename T>
  T Take() {
    if (left_.size() < sizeof(T)) {
      complete_ = false;
      return 0;
    }
    const T value = LoadLittleEndian<T>(left_.data());
    left_.remove_prefix(sizeof(T));
    return value;
  }
  template <typename... T>
  void TakeAll(T*... values) {
    ((*values = Take<T>()), ...);
  }
  bool complete() const { return complete_; }
  absl::string_view left() const { return left_; }

 private:
  absl::string_view left_;
  bool complete_ = true;
};

}  // namespace lockstep

#endif  // TRANSPORT_NET_LITTLE_ENDIAN_H_
