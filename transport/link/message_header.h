// What stands before each message on a byte stream (docs/wire_formats.md):
//
//   message  = header payload
//   header   = magic:u32 flags:u32 payload_bytes:u64 envelope:32 bytes
//
// Numbers are little-endian; flags are 0 in version 1.

#ifndef TRANSPORT_LINK_MESSAGE_HEADER_H_
#define TRANSPORT_LINK_MESSAGE_HEADER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "transport/net/little_endian.h"
#include "transport/transport.h"

namespace lockstep {

inline constexpr size_t kMessageHeaderBytes = 48;
inline constexpr uint32_t kMessageMagic = 0x31474d4c;  // "LMG1"

struct MessageHeader {
  uint64_t bytes = 0;
  Envelope envelope = {};
};

inline void EncodeMessageHeader(const MessageHeader& header, unsigned char* target) {
  StoreLittleEndian<uint32_t>(kMessageMagic, target);
  StoreLittleEndian<uint32_t>(0, target + 4);
  StoreLittleEndian<uint64_t>(header.bytes, target + 8);
  std::copy(header.envelope.begin(), header.envelope.end(), target + 16);
}

// False when this is no header of ours.
inline bool DecodeMessageHeader(const unsigned char* source, MessageHeader* header) {
  if (LoadLittleEndian<uint32_t>(source) != kMessageMagic || LoadLittleEndian<uint32_t>(source + 4) != 0) return false;
  header->bytes = LoadLittleEndian<uint64_t>(source + 8);
  std::copy(source + 16, source + kMessageHeaderBytes, header->envelope.begin());
  return true;
}

}  // namespace lockstep

#endif  // TRANSPORT_LINK_MESSAGE_HEADER_H_
