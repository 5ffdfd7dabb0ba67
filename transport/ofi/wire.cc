#include "transport/ofi/wire.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"
#include "transport/net/little_endian.h"

namespace lockstep {
namespace {

constexpr size_t kHelloBytes = 12;
constexpr size_t kHandshakeBytes = 40;
constexpr size_t kAnswerBytes = kOfiRefusalBytes + sizeof(uint64_t);

}  // namespace

void EncodeOfiNotice(const OfiNotice& notice, unsigned char* target) {
  target = StoreLittleEndians(target, notice.token, notice.number, notice.expected);
  std::copy(notice.envelope.begin(), notice.envelope.end(), target);
}

OfiNotice DecodeOfiNotice(const unsigned char* source) {
  OfiNotice notice;
  source = LoadLittleEndians(source, &notice.token, &notice.number, &notice.expected);
  std::copy_n(source, notice.envelope.size(), notice.envelope.begin());
  return notice;
}

void EncodeOfiGrant(const OfiGrant& grant, unsigned char* target) {
  StoreLittleEndians(target, grant.bytes, grant.piece, grant.piece_bytes, grant.pieces);
}

OfiGrant DecodeOfiGrant(const unsigned char* source) {
  OfiGrant grant;
  LoadLittleEndians(source, &grant.bytes, &grant.piece, &grant.piece_bytes, &grant.pieces);
  return grant;
}

void EncodeOfiRefusal(const OfiRefusal& refusal, unsigned char* target) {
  StoreLittleEndians(target, static_cast<uint32_t>(refusal.verdict), refusal.detail);
}

OfiRefusal DecodeOfiRefusal(const unsigned char* source) {
  return {static_cast<OfiVerdict>(LoadLittleEndian<uint32_t>(source)), LoadLittleEndian<uint64_t>(source + 4)};
}

std::string EncodeOfiHello(const OfiHello& hello) {
  std::string bytes;
  AppendLittleEndian(&bytes, kOfiMagic, hello.version, static_cast<uint32_t>(hello.address.size()));
  absl::StrAppend(&bytes, hello.address, hello.flight);
  return bytes;
}

bool DecodeOfiHello(absl::string_view bytes, OfiHello* hello) {
  LittleEndianReader reader(bytes);
  if (bytes.size() < kHelloBytes || reader.Take<uint32_t>() != kOfiMagic) return false;
  hello->version = reader.Take<uint32_t>();
  const auto third = reader.Take<uint32_t>();
  if (hello->version == 1) hello->old_token = third;
  if (hello->version != kOfiProtocolVersion) return true;
  const absl::string_view rest = reader.left();
  if (third > rest.size() || third > kOfiAddressBytesMax) return false;
  hello->address = std::string(rest.substr(0, third));
  hello->flight = std::string(rest.substr(third));
  return true;
}

std::string EncodeOfiHandshake(const OfiHandshake& handshake) {
  std::string bytes;
  AppendLittleEndian(&bytes, handshake.token, handshake.world_id, handshake.source, handshake.world_size,
                     handshake.target, handshake.chunk_bytes, static_cast<uint32_t>(handshake.job_id.size()),
                     static_cast<uint32_t>(handshake.provider.size()));
  absl::StrAppend(&bytes, handshake.job_id, handshake.provider);
  return bytes;
}

bool DecodeOfiHandshake(absl::string_view bytes, OfiHandshake* handshake) {
  if (bytes.size() < kHandshakeBytes) return false;
  LittleEndianReader reader(bytes);
  uint32_t job_id_bytes, provider_bytes;
  reader.TakeAll(&handshake->token, &handshake->world_id, &handshake->source, &handshake->world_size,
                 &handshake->target, &handshake->chunk_bytes, &job_id_bytes, &provider_bytes);
  const absl::string_view rest = reader.left();
  if (uint64_t{job_id_bytes} + provider_bytes != rest.size()) return false;
  handshake->job_id = std::string(rest.substr(0, job_id_bytes));
  handshake->provider = std::string(rest.substr(job_id_bytes));
  return true;
}

std::string EncodeOfiAnswer(const OfiAnswer& answer) {
  std::string bytes;
  AppendLittleEndian(&bytes, static_cast<uint32_t>(answer.refusal.verdict), answer.refusal.detail, answer.token);
  return bytes;
}

bool DecodeOfiAnswer(absl::string_view bytes, OfiAnswer* answer) {
  if (bytes.size() != kAnswerBytes) return false;
  LittleEndianReader reader(bytes);
  answer->refusal.verdict = static_cast<OfiVerdict>(reader.Take<uint32_t>());
  reader.TakeAll(&answer->refusal.detail, &answer->token);
  return true;
}

OfiRefusal CheckOfiHandshake(const OfiHandshake& handshake, uint32_t source, const OfiHandshake& own) {
  if (handshake.job_id != own.job_id) return {OfiVerdict::kOtherJob, 0};
  if (handshake.world_id != own.world_id) return {OfiVerdict::kOtherWorld, 0};
  if (handshake.world_size != own.world_size) return {OfiVerdict::kOtherWorldSize, own.world_size};
  if (handshake.target != own.source) return {OfiVerdict::kOtherRank, own.source};
  if (handshake.source != source || source == own.source || source >= own.world_size) {
    return {OfiVerdict::kNoSuchRank, own.world_size};
  }
  if (handshake.chunk_bytes != own.chunk_bytes) return {OfiVerdict::kOtherChunkSize, own.chunk_bytes};
  if (handshake.provider != own.provider) return {OfiVerdict::kOtherProvider, 0};
  return {};
}

absl::Status OfiRefusalStatus(const OfiRefusal& refusal, const OfiHandshake& own) {
  // By verdict. $0 is the refusal's detail, the others are what this rank has.
  static constexpr const char* kTexts[] = {
      nullptr,
      "it speaks version $0 of the protocol, this rank $1",
      "it belongs to another job than '$2'",
      "it belongs to another world of job '$2'",
      "it is rank $0, not $3",
      "its world has $0 ranks, not $4",
      "it cuts messages into $0 bytes, this rank into $5",
      "it uses another provider than $6",
      "another process has this rank already: is it claimed by two processes?",
      "it is in a world of $0 ranks and expects no handshake from this one",
      "it has lost this rank, or given it up",
  };
  const auto number = static_cast<uint32_t>(refusal.verdict);
  if (number == 0 || number >= std::size(kTexts)) {
    return absl::FailedPreconditionError(
        absl::StrCat("it refused for a reason that this rank does not know (", number, ")"));
  }
  return absl::FailedPreconditionError(absl::Substitute(kTexts[number], refusal.detail, kOfiProtocolVersion, own.job_id,
                                                        own.target, own.world_size, own.chunk_bytes, own.provider));
}

std::string DecodeOfiName(absl::string_view hex) {
  if (hex.size() % 2 != 0 || !std::all_of(hex.begin(), hex.end(), absl::ascii_isxdigit)) return "";
  std::string name(hex.size() / 2, '\0');
  for (size_t i = 0; i < name.size(); ++i) {
    uint32_t byte = 0;
    (void)absl::SimpleHexAtoi(hex.substr(2 * i, 2), &byte);
    name[i] = static_cast<char>(byte);
  }
  return name;
}

}  // namespace lockstep
