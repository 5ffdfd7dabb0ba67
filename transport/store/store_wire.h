// What a TcpStoreClient and a TcpStoreServer say to each other over a Channel (transport/secure/channel.h, purpose store). Pure functions
// on bytes; docs/wire_formats.md explains it.
//
//   connection    = { request | reply }                                  numbers are little-endian
//   request       = id:u64  op:u8  zero:u8[3]  timeout_ms:u32  key_bytes:u32  first_bytes:u32  second_bytes:u32
//                   key  first  second
//   reply         = id:u64  code:u32  bytes:u32  body
//
//   op                  first           second    body of an OK reply
//   1 set               value                     empty
//   2 get                                         value
//   3 reserved
//   4 compare-and-set   expected        desired   value that stands afterwards
//   5 wait                                        value
//   6 delete                                      empty
//
// Requests may overlap. A reply has the id of its request; replies come in any order. A `wait` is answered once the key is there. If
// timeout_ms (0xffffffff: never) passes first, it is dropped without an answer, since the client has given up by then. `code` is an
// absl::StatusCode; if it is not 0, the body is the message.
//
// This is version 2, to which the channel's preamble belongs. Version 1 had hellos of its own, which began with "LKST".

#ifndef TRANSPORT_STORE_STORE_WIRE_H_
#define TRANSPORT_STORE_STORE_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "transport/store/store.h"

namespace lockstep {

inline constexpr uint32_t kStoreNoTimeout = 0xffffffff;

// Views are into the input it was parsed from.
struct StoreRequest : StoreCall {
  uint64_t id = 0;
  uint32_t timeout_ms = 0;
};

struct StoreReply {
  uint64_t id = 0;
  absl::StatusCode code = absl::StatusCode::kOk;
  absl::string_view body = "";
};

std::string EncodeStoreRequest(const StoreRequest& request);
std::string EncodeStoreReply(const StoreReply& reply);

// Parse the message at the front of `input`.
// RETURNS  its size, or 0 while it is incomplete
// ERRORS   INVALID_ARGUMENT  a header is not ours or asks for more than store.h allows; known before the body arrives or is allocated
absl::StatusOr<size_t> ParseStoreRequest(absl::string_view input, StoreRequest* request);
absl::StatusOr<size_t> ParseStoreReply(absl::string_view input, StoreReply* reply);

}  // namespace lockstep

#endif  // TRANSPORT_STORE_STORE_WIRE_H_
