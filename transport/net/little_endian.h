// Integers on the wire and in files: little-endian, whatever the machine.

#ifndef TRANSPORT_NET_LITTLE_ENDIAN_H_
#define TRANSPORT_NET_LITTLE_ENDIAN_H_

#include <cstddef>
#include <cstring>
#include <string>
#include <type_traits>

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

template <typename T>
void AppendLittleEndian(T value, std::string* out) {
  char bytes[sizeof(T)];
  StoreLittleEndian(value, bytes);
  out->append(bytes, sizeof(T));
}

}  // namespace lockstep

#endif  // TRANSPORT_NET_LITTLE_ENDIAN_H_
