#include "comm/signature.h"

#include "absl/strings/str_cat.h"

namespace lockstep {
namespace {

// offset  bytes  field (integers little-endian)
//      0      8  sequence
//      8      8  count
//     16      4  root
//     20      1  collective
//     21      1  algorithm
//     22      1  dtype
//     23      1  op
//     24      1  flags: bit 0 check
//     25      7  zero
constexpr int kSequenceAt = 0;
constexpr int kCountAt = 8;
constexpr int kRootAt = 16;
constexpr int kCollectiveAt = 20;
constexpr int kAlgorithmAt = 21;
constexpr int kDTypeAt = 22;
constexpr int kOpAt = 23;
constexpr int kFlagsAt = 24;
constexpr unsigned char kCheckFlag = 1;

void Store(Envelope& envelope, int at, int bytes, uint64_t value) {
  for (int i = 0; i < bytes; ++i) envelope[at + i] = static_cast<unsigned char>(value >> (8 * i));
}

uint64_t Load(const Envelope& envelope, int at, int bytes) {
  uint64_t value = 0;
  for (int i = 0; i < bytes; ++i) value |= static_cast<uint64_t>(envelope[at + i]) << (8 * i);
  return value;
}

}  // namespace

Envelope Encode(const Signature& signature) {
  Envelope envelope = {};
  Store(envelope, kSequenceAt, 8, signature.sequence);
  Store(envelope, kCountAt, 8, signature.count);
  Store(envelope, kRootAt, 4, static_cast<uint32_t>(signature.root.value()));
  envelope[kCollectiveAt] = static_cast<unsigned char>(signature.collective);
  envelope[kAlgorithmAt] = static_cast<unsigned char>(signature.algorithm);
  envelope[kDTypeAt] = static_cast<unsigned char>(signature.dtype);
  envelope[kOpAt] = static_cast<unsigned char>(signature.op);
  envelope[kFlagsAt] = signature.check ? kCheckFlag : 0;
  return envelope;
}

Signature DecodeSignature(const Envelope& envelope) {
  Signature signature;
  signature.sequence = Load(envelope, kSequenceAt, 8);
  signature.count = Load(envelope, kCountAt, 8);
  signature.root = Rank(static_cast<int32_t>(Load(envelope, kRootAt, 4)));
  signature.collective = static_cast<Collective>(envelope[kCollectiveAt]);
  signature.algorithm = static_cast<Algorithm>(envelope[kAlgorithmAt]);
  signature.dtype = static_cast<DType>(envelope[kDTypeAt]);
  signature.op = static_cast<ReduceOp>(envelope[kOpAt]);
  signature.check = (envelope[kFlagsAt] & kCheckFlag) != 0;
  return signature;
}

std::string ToString(const Signature& signature) {
  std::string text = absl::StrCat(Name(signature.collective), " #", signature.sequence);
  if (signature.collective == Collective::kBarrier) return text;
  absl::StrAppend(&text, " (", signature.count, " ", Name(signature.dtype));
  if (HasReduction(signature.collective)) absl::StrAppend(&text, " ", Name(signature.op));
  if (HasRoot(signature.collective)) absl::StrAppend(&text, ", root ", signature.root.value());
  absl::StrAppend(&text, ", ", Name(signature.algorithm), ")");
  return text;
}

}  // namespace lockstep
