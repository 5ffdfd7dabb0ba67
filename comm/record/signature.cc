#include "comm/record/signature.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "transport/net/little_endian.h"

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
//     25      3  history
//     28      4  hash of the blocks' counts
constexpr int kSequenceAt = 0;
constexpr int kCountAt = 8;
constexpr int kRootAt = 16;
constexpr int kCollectiveAt = 20;
constexpr int kAlgorithmAt = 21;
constexpr int kDTypeAt = 22;
constexpr int kOpAt = 23;
constexpr int kFlagsAndHistoryAt = 24;
constexpr int kCountsHashAt = 28;
constexpr uint32_t kCheckFlag = 1;
constexpr uint32_t kPairCountsFlag = 2;

}  // namespace

Envelope Encode(const Signature& signature) {
  Envelope envelope = {};
  StoreLittleEndian<uint64_t>(signature.sequence, &envelope[kSequenceAt]);
  StoreLittleEndian<uint64_t>(signature.count, &envelope[kCountAt]);
  StoreLittleEndian(static_cast<uint32_t>(signature.root.value()), &envelope[kRootAt]);
  envelope[kCollectiveAt] = static_cast<unsigned char>(signature.collective);
  envelope[kAlgorithmAt] = static_cast<unsigned char>(signature.algorithm);
  envelope[kDTypeAt] = static_cast<unsigned char>(signature.dtype);
  envelope[kOpAt] = static_cast<unsigned char>(signature.op);
  const uint32_t flags = (signature.check ? kCheckFlag : 0) | (signature.pair_counts ? kPairCountsFlag : 0);
  StoreLittleEndian<uint32_t>(flags | signature.history << 8, &envelope[kFlagsAndHistoryAt]);
  StoreLittleEndian<uint32_t>(signature.counts_hash, &envelope[kCountsHashAt]);
  return envelope;
}

Signature DecodeSignature(const Envelope& envelope) {
  Signature signature;
  signature.sequence = LoadLittleEndian<uint64_t>(&envelope[kSequenceAt]);
  signature.count = LoadLittleEndian<uint64_t>(&envelope[kCountAt]);
  signature.root = Rank(static_cast<int32_t>(LoadLittleEndian<uint32_t>(&envelope[kRootAt])));
  signature.collective = static_cast<Collective>(envelope[kCollectiveAt]);
  signature.algorithm = static_cast<Algorithm>(envelope[kAlgorithmAt]);
  signature.dtype = static_cast<DType>(envelope[kDTypeAt]);
  signature.op = static_cast<ReduceOp>(envelope[kOpAt]);
  const uint32_t flags_and_history = LoadLittleEndian<uint32_t>(&envelope[kFlagsAndHistoryAt]);
  signature.check = (flags_and_history & kCheckFlag) != 0;
  signature.pair_counts = (flags_and_history & kPairCountsFlag) != 0;
  signature.history = flags_and_history >> 8;
  signature.counts_hash = LoadLittleEndian<uint32_t>(&envelope[kCountsHashAt]);
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

void History::Add(const Signature& signature) {
  const uint64_t call = static_cast<uint64_t>(signature.collective) | static_cast<uint64_t>(signature.algorithm) << 8 |
                        static_cast<uint64_t>(signature.dtype) << 16 | static_cast<uint64_t>(signature.op) << 24 |
                        static_cast<uint64_t>(static_cast<uint32_t>(signature.root.value())) << 32;
  // Each product takes what is in the low bits to the high ones, which are those that count.
  for (const uint64_t word : {signature.count, call, static_cast<uint64_t>(signature.counts_hash)}) {
    hash_ = (hash_ ^ hash_ >> 32 ^ word) * 0x9e3779b97f4a7c15u;
  }
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

absl::Status CompareSignatures(absl::Span<const Envelope> signatures) {
  const auto is_first = [&](const Envelope& other) { return other == signatures[0]; };
  if (std::all_of(signatures.begin(), signatures.end(), is_first)) return absl::OkStatus();
  std::string text;
  for (size_t r = 0; r < signatures.size(); ++r) {
    absl::StrAppend(&text, r == 0 ? "" : "; ", "rank ", r, " called ", ToString(DecodeSignature(signatures[r])));
  }
  return absl::FailedPreconditionError(absl::StrCat("the ranks' collectives differ: ", text));
}

}  // namespace lockstep
