// Envelopes of collectives: the signature that every message carries.

#include <algorithm>
#include <cstring>

#include "comm/record/signature.h"
#include "tests/fuzz/fuzz.h"

namespace lockstep::fuzz {

std::vector<std::string> Seeds() {
  Signature signature;
  signature.sequence = 17;
  signature.count = 6553600;
  signature.collective = Collective::kAllReduce;
  signature.algorithm = Algorithm::kRing;
  signature.dtype = DType::kF32;
  signature.history = 0xabcdef;
  Signature counts = signature;
  counts.collective = Collective::kAllGather;
  counts.counts_hash = HashOfCounts({1, 2, 3});
  std::vector<std::string> seeds;
  for (const Signature& each : {signature, counts, Signature()}) {
    const Envelope envelope = Encode(each);
    seeds.emplace_back(envelope.begin(), envelope.end());
  }
  return seeds;
}

}  // namespace lockstep::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;  // NOLINT: nothing else is here
  Envelope envelope = {};
  std::copy_n(data, std::min(size, envelope.size()), envelope.begin());
  const Signature signature = DecodeSignature(envelope);
  LOCKSTEP_CHECK(!ToString(signature).empty());
  LOCKSTEP_CHECK(DecodeSignature(Encode(signature)) == signature);
  History history;
  history.Add(signature);
  const Envelope ours = Encode(Signature());
  const absl::Status compared = CompareSignatures({ours, envelope});
  fuzz::CheckCode(compared, {absl::StatusCode::kFailedPrecondition});
  LOCKSTEP_CHECK(compared.ok() == (envelope == ours));
  return 0;
}
