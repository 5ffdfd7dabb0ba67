#include "comm/record/signature.h"

#include <vector>

#include "base/rank.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "comm/schedule/schedule.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/transport.h"

namespace lockstep {
namespace {

Signature Example() {
  Signature signature;
  signature.sequence = 17;
  signature.count = 6553600;
  signature.collective = Collective::kReduce;
  signature.algorithm = Algorithm::kBinomial;
  signature.dtype = DType::kBF16;
  signature.op = ReduceOp::kMax;
  signature.root = Rank(3);
  return signature;
}

// The example, and one that differs from it in each field, to both ends of the field's range.
std::vector<Signature> Variants() {
  std::vector<Signature> variants = {Example()};
  const auto add = [&](auto change) {
    Signature signature = Example();
    change(&signature);
    variants.push_back(signature);
  };
  add([](Signature* s) { s->sequence = 0; });
  add([](Signature* s) { s->sequence = UINT64_MAX; });
  add([](Signature* s) { s->count = 0; });
  add([](Signature* s) { s->count = UINT64_MAX; });
  add([](Signature* s) { s->collective = Collective::kBarrier; });
  add([](Signature* s) { s->algorithm = Algorithm::kRing; });
  add([](Signature* s) { s->dtype = DType::kComplex128; });
  add([](Signature* s) { s->op = ReduceOp::kXor; });
  add([](Signature* s) { s->root = Rank(0); });
  add([](Signature* s) { s->root = Rank(-1); });
  add([](Signature* s) { s->root = Rank(INT32_MAX); });
  add([](Signature* s) { s->check = true; });
  add([](Signature* s) { s->pair_counts = true; });
  add([](Signature* s) { s->counts_hash = 1; });
  add([](Signature* s) { s->counts_hash = UINT32_MAX; });
  add([](Signature* s) { s->history = 1; });
  add([](Signature* s) { s->history = (1 << 24) - 1; });
  return variants;
}

TEST(History, TellsWhatWasCalledButNotHow) {
  History one, other;
  EXPECT_EQ(one.bits(), other.bits());
  one.Add(Example());
  other.Add(Example());
  EXPECT_EQ(one.bits(), other.bits());
  for (const Signature& signature : Variants()) {
    // What distinguishes calls of one kind, by the number and by the bits themselves, is not part of it.
    Signature call = signature;
    call.sequence = Example().sequence;
    call.check = call.pair_counts = false;
    call.history = 0;
    History different, after;
    different.Add(call);
    after.Add(Example());
    EXPECT_EQ(different.bits() == after.bits(), call == Example()) << ToString(call);
    EXPECT_LT(different.bits(), 1U << 24);
    // It is not forgotten.
    different.Add(Example());
    after.Add(Example());
    EXPECT_EQ(different.bits() == after.bits(), call == Example()) << ToString(call);
  }
  // Nor is the order.
  Signature barrier;
  History before, behind;
  before.Add(barrier);
  before.Add(Example());
  behind.Add(Example());
  behind.Add(barrier);
  EXPECT_NE(before.bits(), behind.bits());
}

TEST(Signature, SurvivesItsEnvelope) {
  for (const Signature& signature : Variants()) {
    EXPECT_TRUE(DecodeSignature(Encode(signature)) == signature) << ToString(signature);
  }
}

// docs/wire_formats.md, "Collective signature".
TEST(Signature, HasTheLayoutOfTheWireFormat) {
  Signature signature = Example();
  signature.sequence = 0x0807060504030201;
  signature.count = 0x1817161514131211;
  signature.root = Rank(0x24232221);
  signature.check = true;
  signature.pair_counts = true;
  signature.counts_hash = 0x34333231;
  EXPECT_THAT(Encode(signature), ::testing::ElementsAre(0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x11, 0x12,
                                                        0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x21, 0x22, 0x23, 0x24, 2,
                                                        3, 8, 5, 3, 0, 0, 0, 0x31, 0x32, 0x33, 0x34));
}

TEST(Signature, ReadsAsTheCallThatWasMade) {
  Signature signature = Example();
  EXPECT_EQ(ToString(signature), "reduce #17 (6553600 bf16 max, root 3, binomial)");
  signature.collective = Collective::kAllReduce;
  signature.algorithm = Algorithm::kRing;
  EXPECT_EQ(ToString(signature), "all_reduce #17 (6553600 bf16 max, ring)");
  signature.collective = Collective::kAllGather;
  EXPECT_EQ(ToString(signature), "all_gather #17 (6553600 bf16, ring)");
  signature.counts_hash = 0xabc;
  EXPECT_EQ(ToString(signature), "all_gather #17 (6553600 bf16 in blocks of counts 00000abc, ring)");
  signature.counts_hash = 0;
  signature.collective = Collective::kBarrier;
  EXPECT_EQ(ToString(signature), "barrier #17");
  signature.collective = Collective::kAllToAll;
  signature.algorithm = Algorithm::kPairwise;
  signature.pair_counts = true;
  signature.count = 0;
  EXPECT_EQ(ToString(signature), "all_to_all #17 (bf16 with counts of each pair, pairwise)");
}

TEST(Signature, CountsThatDifferHashDifferently) {
  const std::vector<int64_t> counts = {3, 0, 5};
  EXPECT_EQ(HashOfCounts(counts), HashOfCounts({3, 0, 5}));
  EXPECT_NE(HashOfCounts(counts), HashOfCounts({3, 5, 0}));
  EXPECT_NE(HashOfCounts(counts), HashOfCounts({3, 0}));
  EXPECT_NE(HashOfCounts(counts), HashOfCounts({3, 0, int64_t{5} << 32}));
  EXPECT_NE(HashOfCounts({}), 0);
}

TEST(Signature, AnyBytesHaveAText) {
  Envelope envelope;
  envelope.fill(0xff);
  EXPECT_THAT(ToString(DecodeSignature(envelope)), ::testing::HasSubstr("#18446744073709551615"));
}

}  // namespace
}  // namespace lockstep
