// The signature of a collective: what must be equal on all ranks that call it. It is in the envelope of every message, so a
// mismatch is found where the first message arrives. Layout: docs/wire_formats.md, "Collective signature".

#ifndef COMM_RECORD_SIGNATURE_H_
#define COMM_RECORD_SIGNATURE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/rank.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "comm/schedule/schedule.h"
#include "transport/transport.h"

namespace lockstep {

struct Signature {
  uint64_t sequence = 0;  // counts the communicator's collectives from 1
  // Elements of the vector (Schedule's comment says which vector). With counts of each pair: of the message; 0 for the call.
  uint64_t count = 0;
  Collective collective = Collective::kBarrier;
  Algorithm algorithm = Algorithm::kAuto;
  DType dtype = DType::kU8;
  ReduceOp op = ReduceOp::kSum;
  Rank root;
  bool check = false;        // this is the exchange of signatures that precedes a collective in checked mode
  bool pair_counts = false;  // an all-to-all with counts: each pair of ranks has its own count
  uint32_t counts_hash = 0;  // of the blocks' sizes, HashOfCounts; 0: they are equal
  uint32_t history = 0;      // of the calls before, History::bits

  friend bool operator==(const Signature& a, const Signature& b) {
    return a.sequence == b.sequence && a.count == b.count && a.collective == b.collective &&
           a.algorithm == b.algorithm && a.dtype == b.dtype && a.op == b.op && a.root == b.root && a.check == b.check &&
           a.pair_counts == b.pair_counts && a.counts_hash == b.counts_hash && a.history == b.history;
  }
};

// A hash of all calls so far. A rank that only sends in a collective does not see a mismatch in it: the history in the next
// collective shows it.
class History {
 public:
  // Different histories have equal bits with probability 2^-24.
  uint32_t bits() const { return static_cast<uint32_t>(hash_ >> 40); }
  void Add(const Signature& signature);

 private:
  uint64_t hash_ = 0;
};

// FNV-1a of the counts as 64-bit little-endian numbers, its halves xor-ed; never 0.
uint32_t HashOfCounts(absl::Span<const int64_t> counts);

Envelope Encode(const Signature& signature);

// Never fails: a field out of range is shown as such in the text.
Signature DecodeSignature(const Envelope& envelope);

// OK if the signatures, given by rank, are equal. Otherwise FAILED_PRECONDITION, which lists all of them.
absl::Status CompareSignatures(absl::Span<const Envelope> signatures);

// "all_reduce #17 (6553600 f32 sum, ring)", "all_gather #18 (12 f32 in blocks of counts 5f2e11a0, ring)".
std::string ToString(const Signature& signature);

}  // namespace lockstep

#endif  // COMM_RECORD_SIGNATURE_H_
