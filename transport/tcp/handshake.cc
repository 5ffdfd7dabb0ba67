#include "transport/tcp/handshake.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "transport/net/little_endian.h"

namespace lockstep {
namespace {

constexpr size_t kBodyFixedBytes = 36;
constexpr uint32_t kRankMax = std::numeric_limits<int>::max();

}  // namespace

std::string EncodeHello(const Hello& hello) {
  LOCKSTEP_CHECK(hello.job_id.size() <= kJobIdBytesMax) << hello.job_id.size() << " bytes of job id";
  LOCKSTEP_CHECK(hello.authentication.size() <= kHelloBodyBytesMax - kBodyFixedBytes - kJobIdBytesMax);
  const size_t body_bytes = kBodyFixedBytes + hello.job_id.size() + hello.authentication.size();
  std::string encoded;
  AppendLittleEndian(&encoded, kHelloMagic, kTcpProtocolVersion, uint16_t{0}, static_cast<uint32_t>(body_bytes),
                     hello.world_id, static_cast<uint32_t>(hello.source.value()),
                     static_cast<uint32_t>(hello.target.value()), hello.channel, hello.chunk_bytes, hello.instance,
                     hello.socket, hello.sockets, static_cast<uint16_t>(hello.job_id.size()),
                     static_cast<uint16_t>(hello.authentication.size()));
  absl::StrAppend(&encoded, hello.job_id, hello.authentication);
  return encoded;
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
  const unsigned char* const bytes = reinterpret_cast<const unsigned char*>(body.data());
  const uint32_t source = LoadLittleEndian<uint32_t>(bytes + 8);
  const uint32_t target = LoadLittleEndian<uint32_t>(bytes + 12);
  const size_t job_id_bytes = LoadLittleEndian<uint16_t>(bytes + 32);
  const size_t authentication_bytes = LoadLittleEndian<uint16_t>(bytes + 34);
  if (source > kRankMax || target > kRankMax || job_id_bytes > kJobIdBytesMax) return false;
  if (body.size() != kBodyFixedBytes + job_id_bytes + authentication_bytes) return false;
  hello->world_id = LoadLittleEndian<uint64_t>(bytes);
  hello->source = Rank(static_cast<int>(source));
  hello->target = Rank(static_cast<int>(target));
  hello->channel = LoadLittleEndian<uint32_t>(bytes + 16);
  hello->chunk_bytes = LoadLittleEndian<uint32_t>(bytes + 20);
  hello->instance = LoadLittleEndian<uint32_t>(bytes + 24);
  hello->socket = LoadLittleEndian<uint16_t>(bytes + 28);
  hello->sockets = LoadLittleEndian<uint16_t>(bytes + 30);
  if (hello->socket >= hello->sockets) return false;
  hello->job_id = std::string(body.substr(kBodyFixedBytes, job_id_bytes));
  hello->authentication = std::string(body.substr(kBodyFixedBytes + job_id_bytes));
  return true;
}

Answer JudgeHello(const Hello& hello, const HandshakeExpectation& expected) {
  const auto answer = [](Verdict verdict, uint32_t detail) { return Answer{kTcpProtocolVersion, verdict, detail}; };
  if (!hello.authentication.empty()) return answer(Verdict::kNotAuthenticated, 0);
  if (hello.job_id != expected.job_id) return answer(Verdict::kOtherJob, 0);
  if (hello.world_id != expected.world_id) return answer(Verdict::kOtherWorld, 0);
  if (hello.target != expected.rank) return answer(Verdict::kOtherRank, static_cast<uint32_t>(expected.rank.value()));
  if (hello.source.value() >= expected.size || hello.source == expected.rank) {
    return answer(Verdict::kNoSuchRank, static_cast<uint32_t>(expected.size));
  }
  if (hello.chunk_bytes != expected.chunk_bytes) return answer(Verdict::kOtherChunkSize, expected.chunk_bytes);
  if (hello.sockets != expected.sockets) return answer(Verdict::kOtherSockets, expected.sockets);
  return Answer();
}

void EncodeAnswer(const Answer& answer, unsigned char* target) {
  StoreLittleEndian<uint32_t>(kAnswerMagic, target);
  StoreLittleEndian<uint16_t>(answer.version, target + 4);
  StoreLittleEndian<uint16_t>(static_cast<uint16_t>(answer.verdict), target + 6);
  StoreLittleEndian<uint32_t>(answer.detail, target + 8);
  StoreLittleEndian<uint32_t>(0, target + 12);
}

bool DecodeAnswer(const unsigned char* bytes, Answer* answer) {
  if (LoadLittleEndian<uint32_t>(bytes) != kAnswerMagic) return false;
  answer->version = LoadLittleEndian<uint16_t>(bytes + 4);
  answer->verdict = static_cast<Verdict>(LoadLittleEndian<uint16_t>(bytes + 6));
  answer->detail = LoadLittleEndian<uint32_t>(bytes + 8);
  return true;
}

absl::Status RejectionStatus(const Answer& answer, const Hello& hello) {
  const int target = hello.target.value();
  switch (answer.verdict) {
    case Verdict::kAccepted:
      break;  // no rejection: our own mistake
    case Verdict::kOtherVersion:
      return absl::FailedPreconditionError(
          absl::StrCat("peer speaks protocol version ", answer.version, ", we ", kTcpProtocolVersion));
    case Verdict::kMalformed:
      return absl::FailedPreconditionError("peer cannot read our handshake");
    case Verdict::kOtherJob:
      return absl::FailedPreconditionError(absl::StrCat("peer belongs to another job than '", hello.job_id, "'"));
    case Verdict::kOtherWorld:
      return absl::FailedPreconditionError(absl::StrCat("peer belongs to another world of job '", hello.job_id,
                                                        "': one of us is left from an earlier one"));
    case Verdict::kOtherRank:
      return absl::FailedPreconditionError(absl::StrCat("peer is rank ", answer.detail, ", not rank ", target));
    case Verdict::kNoSuchRank:
      return absl::FailedPreconditionError(absl::StrCat("peer is in a world of ", answer.detail,
                                                        " ranks and expects no connection from rank ",
                                                        hello.source.value()));
    case Verdict::kOtherChunkSize:
      return absl::FailedPreconditionError(
          absl::StrCat("peer's chunk size is ", answer.detail, " bytes, ours ", hello.chunk_bytes));
    case Verdict::kDuplicate:
      return absl::FailedPreconditionError(absl::StrCat("peer already had a connection from rank ",
                                                        hello.source.value(), " on channel ", hello.channel,
                                                        ": is that rank claimed by two processes?"));
    case Verdict::kNotAuthenticated:
      return absl::FailedPreconditionError("peer does not accept our authentication");
    case Verdict::kAborted:
      return absl::UnavailableError(absl::StrCat("peer has given up channel ", hello.channel));
    case Verdict::kOtherSockets:
      return absl::FailedPreconditionError(
          absl::StrCat("peer uses ", answer.detail, " sockets a connection, we ", hello.sockets));
    case Verdict::kCrossed:
      return absl::UnavailableError("peer is connecting to us, and that connection did not arrive");
  }
  return absl::FailedPreconditionError(
      absl::StrCat("peer turned us away with verdict ", static_cast<uint32_t>(answer.verdict), ", unknown to us"));
}

std::string RefusalText(const Answer& answer, const Hello& hello) {
  const int source = hello.source.value();
  switch (answer.verdict) {
    case Verdict::kOtherJob:
      return absl::StrCat("it says that it is rank ", source, " of another job");
    case Verdict::kOtherWorld:
      return absl::StrCat("it says that it is rank ", source,
                          " of another world of this job: one of us is left from an earlier one");
    case Verdict::kOtherRank:
      return absl::StrCat("it looks for rank ", hello.target.value(), ", this is rank ", answer.detail);
    case Verdict::kNoSuchRank:
      return absl::StrCat("it says that it is rank ", source, ", which is no peer in this world of ", answer.detail);
    case Verdict::kOtherChunkSize:
      return absl::StrCat("rank ", source, " has a chunk size of ", hello.chunk_bytes, " bytes, we ", answer.detail);
    case Verdict::kOtherSockets:
      return absl::StrCat("rank ", source, " uses ", hello.sockets, " sockets a connection, we ", answer.detail);
    case Verdict::kDuplicate:
      return absl::StrCat("it says that it is rank ", source, ", as which another process is connected on channel ",
                          hello.channel, " already: is that rank claimed by two processes?");
    case Verdict::kNotAuthenticated:
      return absl::StrCat("it says that it is rank ", source, ", with an authentication that we do not know");
    default:
      return absl::StrCat("verdict ", static_cast<uint32_t>(answer.verdict));
  }
}

}  // namespace lockstep
