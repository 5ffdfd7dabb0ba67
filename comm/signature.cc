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
//     24      1  flags: bit 0 check, bit 1 counts of each pair
//     25      3  zero
//     28      4  hash of the blocks' counts
constexpr int kSequenceAt = 0;
constexpr int kCountAt = 8;
constexpr int kRootAt = 16;
constexpr int kCollectiveAt = 20;
constexpr int kAlgorithmAt = 21;
constexpr int kDTypeAt = 22;
constexpr int kOpAt = 23;
constexpr int kFlagsAt = 24;
constexpr int kCountsHashAt = 28;
constexpr unsigned char kCheckFlag = 1;
constexpr unsigned char kPairCountsFlag = 2;

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
  envelope[kFlagsAt] = (signature.check ? kCheckFlag : 0) | (signature.pair_counts ? kPairCountsFlag : 0);
  Store(envelope, kCountsHashAt, 4, signature.counts_hash);
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
  signature.pair_counts = (envelope[kFlagsAt] & kPairCountsFlag) != 0;
  signature.counts_hash = static_cast<uint32_t>(Load(envelope, kCountsHashAt, 4));
  return signature;
}

std::string ToString(const Signature& signature) {
  std::string text = absl::StrCat(Name(signature.collective), " #", signature.sequence);
  if (signature.collective == Collective::kBarrier) return text;
  absl::StrAppend(&text, " (");
  if (!signature.pair_counts || signature.count > 0) absl::StrAppend(&text, signature.count, " ");
  absl::StrAppend(&text, Name(signature.dtype));
  if (HasReduction(signature.collective)) absl::StrAppend(&text, " ", Name(signature.op));
  if (HasRoot(signature.collective)) absl::StrAppend(&text, ", root ", signature.root.value());
  if (signature.counts_hash != 0) {
    absl::StrAppend(&text, " in blocks of counts ", absl::Hex(signature.counts_hash, absl::kZeroPad8));
  }
  if (signature.pair_counts) absl::StrAppend(&text, " with counts of each pair");
  absl::StrAppend(&text, ", ", Name(signature.algorithm), ")");
  return text;
}

uint32_t HashOfCounts(absl::Span<const int64_t> counts) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const int64_t count : counts) {
    for (int byte = 0; byte < 8; ++byte) {
      hash = (hash ^ (static_cast<uint64_t>(count) >> (8 * byte) & 0xff)) * 0x100000001b3u;
    }
  }
  const uint32_t folded = static_cast<uint32_t>(hash ^ hash >> 32);
  return folded == 0 ? 1 : folded;
}

}  // namespace lockstep
