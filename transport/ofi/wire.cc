#include "transport/ofi/wire.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"
#include "transport/net/little_endian.h"

namespace lockstep {
namespace {

constexpr size_t kHandshakeBytes = 48;

}  // namespace

void EncodeOfiNotice(const OfiNotice& notice, unsigned char* target) {
  target = StoreLittleEndians(target, notice.token, notice.source, notice.number, notice.expected);
  std::copy(notice.envelope.begin(), notice.envelope.end(), target);
}

OfiNotice DecodeOfiNotice(const unsigned char* source) {
  OfiNotice notice;
  source = LoadLittleEndians(source, &notice.token, &notice.source, &notice.number, &notice.expected);
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

std::string EncodeOfiHandshake(const OfiHandshake& handshake) {
  std::string bytes;
  AppendLittleEndian(&bytes, kOfiMagic, handshake.version, handshake.token, handshake.world_size, handshake.target,
                     handshake.chunk_bytes, handshake.world_id, static_cast<uint32_t>(handshake.job_id.size()),
                     static_cast<uint32_t>(handshake.provider.size()), static_cast<uint32_t>(handshake.address.size()),
                     uint32_t{0});
  absl::StrAppend(&bytes, handshake.job_id, handshake.provider, handshake.address);
  return bytes;
}

bool DecodeOfiHandshake(absl::string_view bytes, OfiHandshake* handshake) {
  LittleEndianReader reader(bytes);
  if (bytes.size() < kHandshakeBytes || reader.Take<uint32_t>() != kOfiMagic) return false;
  reader.TakeAll(&handshake->version, &handshake->token);
  if (handshake->version != kOfiProtocolVersion) return true;
  uint32_t job_id_bytes, provider_bytes, address_bytes;
  reader.TakeAll(&handshake->world_size, &handshake->target, &handshake->chunk_bytes, &handshake->world_id,
                 &job_id_bytes, &provider_bytes, &address_bytes);
  const absl::string_view rest = bytes.substr(kHandshakeBytes);
  if (uint64_t{job_id_bytes} + provider_bytes + address_bytes != rest.size()) return false;
  handshake->job_id = std::string(rest.substr(0, job_id_bytes));
  handshake->provider = std::string(rest.substr(job_id_bytes, provider_bytes));
  handshake->address = std::string(rest.substr(size_t{job_id_bytes} + provider_bytes));
  return true;
}

OfiRefusal CheckOfiHandshake(const OfiHandshake& handshake, uint32_t source, const OfiHandshake& own, Rank rank) {
  const uint32_t self = static_cast<uint32_t>(rank.value());
  if (handshake.version != own.version) return {OfiVerdict::kOtherVersion, own.version};
  if (handshake.job_id != own.job_id) return {OfiVerdict::kOtherJob, 0};
  if (handshake.world_id != own.world_id) return {OfiVerdict::kOtherWorld, 0};
  if (handshake.world_size != own.world_size) return {OfiVerdict::kOtherWorldSize, own.world_size};
  if (handshake.target != self) return {OfiVerdict::kOtherRank, self};
  if (source == self || source >= own.world_size) return {OfiVerdict::kNoSuchRank, own.world_size};
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
  return absl::FailedPreconditionError(absl::Substitute(kTexts[number], refusal.detail, own.version, own.job_id,
                                                        own.target, own.world_size, own.chunk_bytes, own.provider));
}

}  // namespace lockstep
