#include "transport/ofi/wire.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "transport/net/little_endian.h"

namespace lockstep {
namespace {

constexpr size_t kHandshakeBytes = 48;

}  // namespace

void EncodeOfiNotice(const OfiNotice& notice, unsigned char* target) {
  StoreLittleEndian<uint32_t>(notice.token, target);
  StoreLittleEndian<uint32_t>(notice.source, target + 4);
  StoreLittleEndian<uint32_t>(notice.number, target + 8);
  StoreLittleEndian<uint32_t>(notice.expected, target + 12);
  std::copy(notice.envelope.begin(), notice.envelope.end(), target + 16);
}

OfiNotice DecodeOfiNotice(const unsigned char* source) {
  OfiNotice notice;
  notice.token = LoadLittleEndian<uint32_t>(source);
  notice.source = LoadLittleEndian<uint32_t>(source + 4);
  notice.number = LoadLittleEndian<uint32_t>(source + 8);
  notice.expected = LoadLittleEndian<uint32_t>(source + 12);
  std::copy(source + 16, source + kOfiNoticeBytes, notice.envelope.begin());
  return notice;
}

void EncodeOfiGrant(const OfiGrant& grant, unsigned char* target) {
  StoreLittleEndian<uint64_t>(grant.bytes, target);
  StoreLittleEndian<uint64_t>(grant.piece, target + 8);
  StoreLittleEndian<uint32_t>(grant.piece_bytes, target + 16);
  StoreLittleEndian<uint32_t>(grant.pieces, target + 20);
}

OfiGrant DecodeOfiGrant(const unsigned char* source) {
  OfiGrant grant;
  grant.bytes = LoadLittleEndian<uint64_t>(source);
  grant.piece = LoadLittleEndian<uint64_t>(source + 8);
  grant.piece_bytes = LoadLittleEndian<uint32_t>(source + 16);
  grant.pieces = LoadLittleEndian<uint32_t>(source + 20);
  return grant;
}

void EncodeOfiRefusal(const OfiRefusal& refusal, unsigned char* target) {
  StoreLittleEndian<uint32_t>(static_cast<uint32_t>(refusal.verdict), target);
  StoreLittleEndian<uint64_t>(refusal.detail, target + 4);
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
  handshake->version = reader.Take<uint32_t>();
  handshake->token = reader.Take<uint32_t>();
  if (handshake->version != kOfiProtocolVersion) return true;
  handshake->world_size = reader.Take<uint32_t>();
  handshake->target = reader.Take<uint32_t>();
  handshake->chunk_bytes = reader.Take<uint32_t>();
  handshake->world_id = reader.Take<uint64_t>();
  const uint64_t job_id_bytes = reader.Take<uint32_t>();
  const uint64_t provider_bytes = reader.Take<uint32_t>();
  const uint64_t address_bytes = reader.Take<uint32_t>();
  const absl::string_view rest = bytes.substr(kHandshakeBytes);
  if (job_id_bytes + provider_bytes + address_bytes != rest.size()) return false;
  handshake->job_id = std::string(rest.substr(0, job_id_bytes));
  handshake->provider = std::string(rest.substr(job_id_bytes, provider_bytes));
  handshake->address = std::string(rest.substr(job_id_bytes + provider_bytes));
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
  const auto because = [](auto... what) { return absl::FailedPreconditionError(absl::StrCat(what...)); };
  switch (refusal.verdict) {
    case OfiVerdict::kOtherVersion:
      return because("it speaks version ", refusal.detail, " of the protocol, this rank ", own.version);
    case OfiVerdict::kOtherJob:
      return because("it belongs to another job than '", own.job_id, "'");
    case OfiVerdict::kOtherWorld:
      return because("it belongs to another world of job '", own.job_id, "'");
    case OfiVerdict::kOtherRank:
      return because("it is rank ", refusal.detail, ", not ", own.target);
    case OfiVerdict::kOtherWorldSize:
      return because("its world has ", refusal.detail, " ranks, not ", own.world_size);
    case OfiVerdict::kOtherChunkSize:
      return because("it cuts messages into ", refusal.detail, " bytes, this rank into ", own.chunk_bytes);
    case OfiVerdict::kOtherProvider:
      return because("it uses another provider than ", own.provider);
    case OfiVerdict::kDuplicate:
      return because("another process has this rank already: is it claimed by two processes?");
    case OfiVerdict::kNoSuchRank:
      return because("it is in a world of ", refusal.detail, " ranks and expects no handshake from this one");
    case OfiVerdict::kGone:
      return because("it has lost this rank, or given it up");
    case OfiVerdict::kAccepted:
      break;
  }
  return because("it refused for a reason that this rank does not know (", static_cast<uint32_t>(refusal.verdict), ")");
}

}  // namespace lockstep
