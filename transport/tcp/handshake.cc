#include "transport/tcp/handshake.h"

#include <iterator>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"
#include "base/check.h"
#include "transport/net/little_endian.h"

namespace lockstep {
namespace {

constexpr size_t kBodyFixedBytes = 36;
constexpr uint32_t kRankMax = std::numeric_limits<int>::max();

// Why a connection was turned away, for either side. $0 is the answer's detail, $1 its version, $2 ours; of the hello $3 is the job
// id, $4 the target, $5 the source, $6 the chunk size, $7 the channel, $8 the number of sockets, $9 which of the
// two ranks wants records.
struct Texts {
  const char* connecting = "";
  const char* listening = "";  // empty: said otherwise
};
constexpr char kOtherRecords[] =
    "of ranks $5 and $4 rank $9 alone wants the messages of this connection in records, as between two hosts: does "
    "something between "
    "them change addresses, or is LOCKSTEP_SECURITY_LOCAL not the same?";
constexpr Texts kTexts[] = {
    // By verdict.
    {},  // accepted
    {"peer speaks protocol version $1, we $2"},
    {"peer cannot read our handshake"},
    {"peer belongs to another job than '$3'", "it says that it is rank $5 of another job"},
    {"peer belongs to another world of job '$3': one of us is left from an earlier one",
     "it says that it is rank $5 of another world of this job: one of us is left from an earlier one"},
    {"peer is rank $0, not rank $4", "it looks for rank $4, this is rank $0"},
    {"peer is in a world of $0 ranks and expects no connection from rank $5",
     "it says that it is rank $5, which is no peer in this world of $0"},
    {"peer's chunk size is $0 bytes, ours $6", "rank $5 has a chunk size of $6 bytes, we $0"},
    {"peer already had a connection from rank $5 on channel $7: is that rank claimed by two processes?",
     "it says that it is rank $5, as which another process is connected on channel $7 already: is that rank claimed by "
     "two processes?"},
    {kOtherRecords, kOtherRecords},
    {"peer has given up channel $7"},
    {"peer is connecting to us, and that connection did not arrive"},
    {"peer uses $0 sockets a connection, we $8", "rank $5 uses $8 sockets a connection, we $0"},
};

std::string Text(const char* Texts::*side, const Answer& answer, const Hello& hello) {
  const auto number = static_cast<uint32_t>(answer.verdict);
  if (number >= std::size(kTexts)) return "";
  return absl::Substitute(kTexts[number].*side, answer.detail, answer.version, kTcpProtocolVersion, hello.job_id,
                          hello.target.value(), hello.source.value(), hello.chunk_bytes, hello.channel, hello.sockets,
                          (hello.records ? hello.source : hello.target).value());
}

}  // namespace

std::string EncodeHello(const Hello& hello) {
  LOCKSTEP_CHECK(hello.job_id.size() <= kJobIdBytesMax) << hello.job_id.size() << " bytes of job id";
  const size_t body_bytes = kBodyFixedBytes + hello.job_id.size();
  std::string encoded;
  AppendLittleEndian(&encoded, kHelloMagic, kTcpProtocolVersion, uint16_t{0}, static_cast<uint32_t>(body_bytes),
                     hello.world_id, static_cast<uint32_t>(hello.source.value()),
                     static_cast<uint32_t>(hello.target.value()), hello.channel, hello.chunk_bytes, hello.instance,
                     hello.socket, hello.sockets, static_cast<uint16_t>(hello.job_id.size()),
                     static_cast<uint16_t>(hello.kernel_tls ? 2
                                           : hello.records  ? 1
                                                            : 0));
  return encoded + hello.job_id;
}

HelloPrefix DecodeHelloPrefix(const unsigned char* bytes) {
  HelloPrefix prefix;
  prefix.ours = LoadLittleEndian<uint32_t>(bytes) == kHelloMagic;
  prefix.version = LoadLittleEndian<uint16_t>(bytes + 4);
  prefix.body_bytes = LoadLittleEndian<uint32_t>(bytes + 8);
  return prefix;
}

bool DecodeHelloBody(absl::string_view body, Hello* hello) {
  if (body.size() < kBodyFixedBytes) return false;
  uint32_t source, target;
  uint16_t job_id_bytes, records;
  LoadLittleEndians(reinterpret_cast<const unsigned char*>(body.data()), &hello->world_id, &source, &target,
                    &hello->channel, &hello->chunk_bytes, &hello->instance, &hello->socket, &hello->sockets,
                    &job_id_bytes, &records);
  if (source > kRankMax || target > kRankMax || job_id_bytes > kJobIdBytesMax || records > 2) return false;
  if (body.size() != kBodyFixedBytes + job_id_bytes) return false;
  hello->source = Rank(static_cast<int>(source));
  hello->target = Rank(static_cast<int>(target));
  if (hello->socket >= hello->sockets) return false;
  hello->job_id = std::string(body.substr(kBodyFixedBytes));
  hello->records = records > 0;
  hello->kernel_tls = records == 2;
  return true;
}

Answer JudgeHello(const Hello& hello, const WorldIdentity& self, int sockets, bool records) {
  const auto answer = [](Verdict verdict, uint32_t detail) { return Answer{kTcpProtocolVersion, verdict, detail}; };
  if (hello.job_id != self.job_id) return answer(Verdict::kOtherJob, 0);
  if (hello.world_id != self.world_id) return answer(Verdict::kOtherWorld, 0);
  if (hello.target != self.rank) return answer(Verdict::kOtherRank, static_cast<uint32_t>(self.rank.value()));
  if (hello.source.value() >= self.size || hello.source == self.rank) {
    return answer(Verdict::kNoSuchRank, static_cast<uint32_t>(self.size));
  }
  if (hello.chunk_bytes != self.chunk_bytes) return answer(Verdict::kOtherChunkSize, self.chunk_bytes);
  if (hello.sockets != sockets) return answer(Verdict::kOtherSockets, static_cast<uint32_t>(sockets));
  if (hello.records != records) return answer(Verdict::kOtherRecords, records ? 1 : 0);
  return Answer();
}

std::string RecordContext(const Hello& hello, Rank from, bool kernel_tls) {
  std::string context = kernel_tls ? "kernel tls" : "data";
  AppendLittleEndian(&context, hello.world_id, static_cast<uint32_t>(hello.source.value()),
                     static_cast<uint32_t>(hello.target.value()), hello.channel, hello.socket,
                     static_cast<uint32_t>(from.value()));
  return context;
}

void EncodeAnswer(const Answer& answer, unsigned char* target) {
  StoreLittleEndians(target, kAnswerMagic, answer.version, static_cast<uint16_t>(answer.verdict), answer.detail,
                     static_cast<uint32_t>(answer.kernel_tls ? 1 : 0));
}

bool DecodeAnswer(const unsigned char* bytes, Answer* answer) {
  uint32_t magic, kernel_tls;
  uint16_t verdict;
  LoadLittleEndians(bytes, &magic, &answer->version, &verdict, &answer->detail, &kernel_tls);
  answer->verdict = static_cast<Verdict>(verdict);
  answer->kernel_tls = kernel_tls == 1;
  return magic == kAnswerMagic;
}

absl::Status RejectionStatus(const Answer& answer, const Hello& hello) {
  const std::string text = Text(&Texts::connecting, answer, hello);
  if (text.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("peer turned us away with verdict ", static_cast<uint32_t>(answer.verdict), ", unknown to us"));
  }
  const bool passing = answer.verdict == Verdict::kAborted || answer.verdict == Verdict::kCrossed;
  return absl::Status(passing ? absl::StatusCode::kUnavailable : absl::StatusCode::kFailedPrecondition, text);
}

std::string RefusalText(const Answer& answer, const Hello& hello) {
  const std::string text = Text(&Texts::listening, answer, hello);
  return text.empty() ? absl::StrCat("verdict ", static_cast<uint32_t>(answer.verdict)) : text;
}

}  // namespace lockstep
