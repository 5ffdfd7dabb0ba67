#include "transport/store/store_wire.h"

#include "absl/strings/str_cat.h"
#include "transport/net/little_endian.h"

namespace lockstep {
namespace {

constexpr size_t kRequestHeaderBytes = 28;
constexpr size_t kReplyHeaderBytes = 16;

bool ValidOp(uint8_t op) {
  return op >= static_cast<uint8_t>(StoreOp::kSet) && op <= static_cast<uint8_t>(StoreOp::kDelete) && op != 3;
}

}  // namespace

std::string EncodeStoreRequest(const StoreRequest& request) {
  std::string out;
  out.reserve(kRequestHeaderBytes + request.key.size() + request.first.size() + request.second.size());
  AppendLittleEndian(&out, request.id, static_cast<uint32_t>(request.op), request.timeout_ms,
                     static_cast<uint32_t>(request.key.size()), static_cast<uint32_t>(request.first.size()),
                     static_cast<uint32_t>(request.second.size()));
  absl::StrAppend(&out, request.key, request.first, request.second);
  return out;
}

std::string EncodeStoreReply(const StoreReply& reply) {
  std::string out;
  out.reserve(kReplyHeaderBytes + reply.body.size());
  AppendLittleEndian(&out, reply.id, static_cast<uint32_t>(reply.code), static_cast<uint32_t>(reply.body.size()));
  absl::StrAppend(&out, reply.body);
  return out;
}

absl::StatusOr<size_t> ParseStoreRequest(absl::string_view input, StoreRequest* request) {
  if (input.size() < kRequestHeaderBytes) return 0;
  const char* const header = input.data();
  const auto op = static_cast<uint8_t>(header[8]);
  if (!ValidOp(op) || header[9] != 0 || header[10] != 0 || header[11] != 0) {
    return absl::InvalidArgumentError(absl::StrCat("request with unknown operation ", op));
  }
  const size_t key_bytes = LoadLittleEndian<uint32_t>(header + 16);
  const size_t first_bytes = LoadLittleEndian<uint32_t>(header + 20);
  const size_t second_bytes = LoadLittleEndian<uint32_t>(header + 24);
  if (key_bytes > kStoreKeyBytesMax || first_bytes > kStoreValueBytesMax || second_bytes > kStoreValueBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("request that announces a key of ", key_bytes, " and values of ",
                                                   first_bytes, " and ", second_bytes, " bytes"));
  }
  const size_t bytes = kRequestHeaderBytes + key_bytes + first_bytes + second_bytes;
  if (input.size() < bytes) return 0;
  request->id = LoadLittleEndian<uint64_t>(header);
  request->op = static_cast<StoreOp>(op);
  request->timeout_ms = LoadLittleEndian<uint32_t>(header + 12);
  request->key = input.substr(kRequestHeaderBytes, key_bytes);
  request->first = input.substr(kRequestHeaderBytes + key_bytes, first_bytes);
  request->second = input.substr(kRequestHeaderBytes + key_bytes + first_bytes, second_bytes);
  return bytes;
}

absl::StatusOr<size_t> ParseStoreReply(absl::string_view input, StoreReply* reply) {
  if (input.size() < kReplyHeaderBytes) return 0;
  const uint32_t code = LoadLittleEndian<uint32_t>(input.data() + 8);
  const size_t body_bytes = LoadLittleEndian<uint32_t>(input.data() + 12);
  if (code > static_cast<uint32_t>(absl::StatusCode::kUnauthenticated) || body_bytes > kStoreValueBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("reply with code ", code, " and ", body_bytes, " bytes"));
  }
  if (input.size() < kReplyHeaderBytes + body_bytes) return 0;
  reply->id = LoadLittleEndian<uint64_t>(input.data());
  reply->code = static_cast<absl::StatusCode>(code);
  reply->body = input.substr(kReplyHeaderBytes, body_bytes);
  return kReplyHeaderBytes + body_bytes;
}

}  // namespace lockstep
