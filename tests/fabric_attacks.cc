#include "tests/fabric_attacks.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "transport/net/little_endian.h"
#include "transport/ofi/provider.h"
#include "transport/ofi/wire.h"

namespace lockstep {

absl::StatusOr<std::unique_ptr<FabricAttacks>> FabricAttacks::Begin(const SocketAddress& rank,
                                                                    const AttackKnowledge& knowledge, uint32_t seed) {
  LOCKSTEP_ASSIGN_OR_RETURN(const OfiApi* const api, Ofi());
  std::unique_ptr<FabricAttacks> attacks(new FabricAttacks(api, rank));
  attacks->Post(knowledge, seed);
  return attacks;
}

FabricAttacks::FabricAttacks(const OfiApi* api, const SocketAddress& rank)
    : rank_(absl::StrCat("tcp ", absl::BytesToHexString({reinterpret_cast<const char*>(rank.get()), rank.length()}))),
      outsider_(api, "tcp") {}

void FabricAttacks::Post(const AttackKnowledge& knowledge, uint32_t seed) {
  AttackWriter writer(knowledge, seed);
  for (size_t i = 0; i < kAttacks; ++i) {
    const auto attack = static_cast<Attack>(i);
    if (!writer.Applies(attack, Purpose::kFabric)) continue;
    AttackBytes attack_bytes = writer.Write(attack, Purpose::kFabric);
    OfiHello hello;
    hello.address = outsider_.name();
    // As much of it as a notice holds. Slow bytes: half a handshake.
    const size_t most = attack_bytes.slowly ? attack_bytes.bytes.size() / 2 : kOfiEagerBytesMax - 100;
    hello.flight = attack_bytes.bytes.substr(0, most);
    const uint64_t exchange = (uint64_t{seed} << 32) + i + 1;
    Send(OfiKind::kHello, exchange, EncodeOfiHello(hello));
    if (attack != Attack::kSilence && attack_bytes.channel == nullptr) {
      Send(OfiKind::kConfirm, exchange, writer.Write(Attack::kRandomBytes, Purpose::kFabric).bytes);
    }
    exchanges_[exchange] = {attack, std::move(attack_bytes.channel)};
  }
  for (int kind = 0; kind <= static_cast<int>(OfiKind::kAnswer) + 1; ++kind) {
    outsider_.Say(rank_, OfiNoticeTag(static_cast<OfiKind>(kind), 7),
                  writer.Write(Attack::kRandomBytes, Purpose::kFabric).bytes);
  }
}

void FabricAttacks::Send(OfiKind kind, uint64_t exchange, const std::string& payload) {
  OfiNotice notice;
  notice.token = exchange;
  notice.number = 1;
  outsider_.Say(rank_, kind, notice, payload);
}

bool FabricAttacks::Poll() {
  for (; heard_ < outsider_.heard().size(); ++heard_) {
    const OfiOutsider::Heard heard = outsider_.heard()[heard_];
    heard_bytes_ += static_cast<int64_t>(heard.payload.size());
    const auto found = exchanges_.find(heard.notice.token);
    if (found == exchanges_.end()) continue;
    Exchange& exchange = found->second;
    bool admitted = heard.kind == OfiKind::kAnswer;
    if (heard.kind == OfiKind::kWelcome && exchange.channel != nullptr) {
      std::string plain, confirm;
      (void)exchange.channel->Receive(heard.payload, &plain, &confirm);
      admitted = exchange.channel->ready();
      Send(OfiKind::kConfirm, heard.notice.token, confirm);
      exchange.channel = nullptr;
    }
    if (admitted) admitted_.push_back(absl::StrCat("fabric admitted ", Name(exchange.attack)));
  }
  return outsider_.said_all();
}

void FabricAttacks::AddTo(const std::string& phase, AttackResults* results) const {
  for (const auto& [token, exchange] : exchanges_) {
    ++results->cases[{phase, "fabric", exchange.attack}].connections;
    ++results->connections;
  }
  results->heard_bytes += heard_bytes_;
  results->admitted.insert(results->admitted.end(), admitted_.begin(), admitted_.end());
}

std::vector<std::string> FabricFlightsIn(absl::string_view stream) {
  std::string magic;
  AppendLittleEndian(&magic, kOfiMagic, kOfiProtocolVersion);
  std::vector<std::string> flights;
  for (size_t at = stream.find(magic); at != absl::string_view::npos; at = stream.find(magic, at + 1)) {
    OfiHello hello;
    // What follows it in the stream is cut off: a flight is a preamble and one TLS record.
    if (!DecodeOfiHello(stream.substr(at), &hello) || hello.flight.size() < kPreambleBytes + 5) continue;
    const auto byte = [&](size_t i) { return size_t{static_cast<unsigned char>(hello.flight[kPreambleBytes + i])}; };
    flights.push_back(hello.flight.substr(0, kPreambleBytes + 5 + 256 * byte(3) + byte(4)));
  }
  return flights;
}

}  // namespace lockstep
