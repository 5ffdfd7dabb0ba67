// The handshake of the TCP transport: what a listening rank reads of anybody, and a connecting rank of whoever answers.

#include <cstring>

#include "tests/fuzz/fuzz.h"
#include "transport/tcp/handshake.h"

namespace lockstep {
namespace {

constexpr int kSockets = 2;

WorldIdentity Self() { return {Rank(1), 3, "job", 0x1122334455667788, 65536}; }

Hello OurHello() {
  const WorldIdentity self = Self();
  return {self.job_id,      self.world_id,   Rank(2),      self.rank, /*channel=*/7,
          self.chunk_bytes, /*instance=*/99, /*socket=*/0, kSockets};
}

void CheckAnswer(const Answer& answer, const Hello& hello) {
  if (answer.verdict != Verdict::kAccepted) {
    const absl::Status status = RejectionStatus(answer, hello);
    LOCKSTEP_CHECK(!status.ok());
    fuzz::CheckCode(status, {absl::StatusCode::kFailedPrecondition, absl::StatusCode::kUnavailable});
  }
  LOCKSTEP_CHECK(!RefusalText(answer, hello).empty());
  unsigned char bytes[kAnswerBytes];
  EncodeAnswer(answer, bytes);
  Answer again;
  LOCKSTEP_CHECK(DecodeAnswer(bytes, &again) && again.version == answer.version && again.verdict == answer.verdict &&
                 again.detail == answer.detail && again.kernel_tls == answer.kernel_tls);
}

void ReadHello(absl::string_view input) {
  if (input.size() < kHelloPrefixBytes) return;
  const HelloPrefix prefix = DecodeHelloPrefix(reinterpret_cast<const unsigned char*>(input.data()));
  const absl::string_view body = input.substr(kHelloPrefixBytes);
  Hello hello;
  // As the acceptor, which reads no longer bodies.
  if (!prefix.ours || body.size() > kHelloBodyBytesMax || !DecodeHelloBody(body, &hello)) return;
  LOCKSTEP_CHECK(hello.job_id.size() <= kJobIdBytesMax && hello.socket < hello.sockets);
  LOCKSTEP_CHECK(hello.source.value() >= 0 && hello.target.value() >= 0);
  LOCKSTEP_CHECK(EncodeHello(hello).substr(kHelloPrefixBytes) == body) << "not what was decoded";
  LOCKSTEP_CHECK(hello.records || !hello.kernel_tls);
  for (const bool records : {false, true}) {
    const Answer answer = JudgeHello(hello, Self(), kSockets, records);
    if (answer.verdict == Verdict::kAccepted) {
      const Hello ours = OurHello();
      LOCKSTEP_CHECK(hello.job_id == ours.job_id && hello.world_id == ours.world_id && hello.target == ours.target &&
                     hello.chunk_bytes == ours.chunk_bytes && hello.sockets == kSockets && hello.records == records);
      LOCKSTEP_CHECK(hello.source.value() < Self().size && hello.source != Self().rank);
    }
    CheckAnswer(answer, hello);
  }
}

void ReadAnswer(absl::string_view input) {
  Answer answer;
  if (input.size() < kAnswerBytes) return;
  if (DecodeAnswer(reinterpret_cast<const unsigned char*>(input.data()), &answer)) CheckAnswer(answer, OurHello());
}

}  // namespace

std::vector<std::string> fuzz::Seeds() {
  std::vector<std::string> seeds = {EncodeHello(OurHello())};
  Hello other = OurHello();
  other.job_id = "";
  other.socket = 1;
  other.records = true;
  seeds.push_back(EncodeHello(other));
  // Hellos that do not fit in one field each.
  std::vector<Hello> others(5, OurHello());
  others[0].world_id ^= 1;
  others[1].target = Rank(2);
  others[2].source = Rank(3);
  others[3].chunk_bytes = 4096;
  others[4].sockets = kSockets + 1;
  for (const Hello& one : others) seeds.push_back(EncodeHello(one));
  Hello in_records = OurHello();
  for (const bool kernel_tls : {false, true}) {
    in_records.records = true;
    in_records.kernel_tls = kernel_tls;
    seeds.push_back(EncodeHello(in_records));
  }
  for (const Verdict verdict :
       {Verdict::kAccepted, Verdict::kOtherVersion, Verdict::kAborted, Verdict::kOtherSockets}) {
    unsigned char bytes[kAnswerBytes];
    EncodeAnswer({kTcpProtocolVersion, verdict, 3, verdict == Verdict::kAccepted}, bytes);
    seeds.emplace_back(reinterpret_cast<const char*>(bytes), kAnswerBytes);
  }
  return seeds;
}

}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view input(reinterpret_cast<const char*>(data), size);
  const lockstep::fuzz::Allocations allocations;
  lockstep::ReadHello(input);
  lockstep::ReadAnswer(input);
  LOCKSTEP_CHECK(allocations.bytes() <= 64 * size + 16384) << allocations.bytes() << " bytes allocated for " << size;
  return 0;
}
