// The status trailer of a bucket: flags of each rank behind its data, counted by the same all-reduce. Entries are elements of the bucket's
// dtype: zero or one before the sum, and after it the number of ranks that set them.
//
//   failed       ranks that could not fill the bucket: its data are no average
//   joined       ranks that have no more inputs and take part with zeros
//   unrequested  ranks that have not requested a new bucket plan
//   used(slot)   ranks that have a gradient for the slot's parameter; none: its gradient stays as it is
//   hash         in the last bucket, if replicas are checked (reducer/replicas): for each of 32 bits two entries, of which a rank sets the
//                one that stands for the value of the bit in its hash. If both have been set, the ranks' hashes differ. A rank without a
//                hash sets none. Such a pair needs no exact count, so it works in every dtype and for any number of ranks.
//
// A sum of ones is exact up to 2048 ranks in f16, 256 in bf16, 16 in f8e4m3 and 8 in f8e5m2. Beyond that it stops
// growing, but is never zero. Most entries need no more.

#ifndef REDUCER_PLAN_STATUS_TRAILER_H_
#define REDUCER_PLAN_STATUS_TRAILER_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/types/dtype.h"

namespace lockstep {

class StatusTrailer {
 public:
  enum Entry : size_t { kFailed = 0, kJoined = 1, kUnrequested = 2, kUsed = 3 };  // the last: of the first slot

  static constexpr size_t kHashEntries = 64;

  static size_t Elements(size_t slots) { return kUsed + slots; }
  // The number of the first of kHashEntries entries.
  static size_t Hash(size_t slots) { return kUsed + slots; }
  static size_t Used(size_t slot) { return kUsed + slot; }

  // The number of ranks up to which a count in this dtype is exact.
  static int CountMax(DType dtype);

  // `begin` is the memory of the entries. `one` is what an entry is set to, so that the reduction adds one to it: 1 for a sum, the
  // number of ranks where the reduction divides by it.
  StatusTrailer(char* begin, DType dtype, float one) : begin_(begin), dtype_(dtype), one_(one) {}

  void Clear(size_t entries);
  void Set(size_t entry);
  // After the reduction: how many ranks have set it. At least 1 if any has.
  int Count(size_t entry) const;

  // The entries that stand for a hash, which begin at `first`.
  static std::array<size_t, kHashEntries / 2> EntriesOf(uint32_t hash, size_t first);
  // After the reduction: whether two ranks have set different hashes.
  bool HashesDiffer(size_t first) const;

 private:
  char* At(size_t entry) const { return begin_ + entry * SizeOf(dtype_); }

  char* const begin_;
  const DType dtype_;
  const float one_;
};

}  // namespace lockstep

#endif  // REDUCER_PLAN_STATUS_TRAILER_H_
