// All-reduce of two ranks beside bare sockets that move the same bytes between the same two processes with no Lockstep code in the way.
// See --help.
//
// Two ranks' all-reduce moves the whole vector each way: at once when they swap vectors, in two halves around a ring. So its limit is a
// bare exchange of as many bytes both ways at once. For a few bytes, where nothing overlaps, nothing is faster than a message one way,
// half of a ping-pong. Each round measures all of them, and begins with another one each time: load on the machine meets all alike. A
// ratio is of one round, and the median of the rounds' ratios counts. Bare bytes go in whichever pieces are the fastest.
//
// With --cipher bare sockets also move these bytes in sealed records, which is the limit of a world that is secured. Their share of plain
// speed is what the cipher costs at least.

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "bench/limits/link.h"
#include "bench/limits/sealed_link.h"
#include "bench/ranks.h"
#include "bench/report.h"
#include "comm/communicator.h"
#include "comm/world/world.h"
#include "transport/secure/cipher.h"

ABSL_FLAG(std::string, transport, "tcp", "what Lockstep goes over: auto, shm, tcp or ofi");
ABSL_FLAG(std::vector<std::string>, congestion, std::vector<std::string>({"", "reno"}),
          "congestion controls of the bare sockets, with commas between; reno is what Lockstep uses on one host, "
          "empty: the system's default");
ABSL_FLAG(std::string, host, "127.0.0.1", "where the bare sockets connect: rank 0's IPv4 address");
ABSL_FLAG(std::vector<std::string>, sizes,
          std::vector<std::string>({"8", "1K", "8K", "64K", "256K", "1M", "4M", "25M"}),
          "of the vector, with commas between; K, M and G are powers of 1024");
ABSL_FLAG(std::string, cipher, "none", "also measure bare sockets with sealed records: none, authenticate or encrypt");
ABSL_FLAG(std::string, cipher_backend, "openssl", "what seals them: openssl or ipsec-mb");
ABSL_FLAG(std::string, record, "64K", "bytes of a sealed record");
ABSL_FLAG(int, rounds, 15, "rounds, whose median counts");
ABSL_FLAG(int64_t, round_ms, 20, "about how long one is measured in a round");
ABSL_FLAG(std::string, json, "", "also write the results to this file");

namespace lockstep::bench {
namespace {

constexpr size_t kPieces[] = {64 << 10, BareSocket::kPieceBytes, 1 << 20, BareSocket::kWhole};

struct Options {
  int ranks = 2;
  std::vector<int64_t> sizes;
  std::optional<SealOptions> seal;
  MeasureOptions measure;
};

// UNAVAILABLE: the backend is not on this machine.
absl::StatusOr<std::optional<SealOptions>> SealOptionsFromFlags() {
  SealOptions seal;
  const std::string cipher = absl::GetFlag(FLAGS_cipher), backend = absl::GetFlag(FLAGS_cipher_backend);
  if (cipher == "none") return std::nullopt;
  if (cipher != "authenticate" && cipher != "encrypt") {
    return absl::InvalidArgumentError(absl::StrCat("--cipher=", cipher, " is none, authenticate or encrypt"));
  }
  seal.mode = cipher == "encrypt" ? CipherMode::kEncrypt : CipherMode::kAuthenticate;
  if (backend != "openssl" && backend != "ipsec-mb") {
    return absl::InvalidArgumentError(absl::StrCat("--cipher_backend=", backend, " is openssl or ipsec-mb"));
  }
  seal.backend = backend == "openssl" ? CipherBackend::kOpenSsl : CipherBackend::kIpsecMb;
  LOCKSTEP_ASSIGN_OR_RETURN(const int64_t record, ParseByteCount(absl::GetFlag(FLAGS_record)));
  if (record < 1 || record > int64_t{1} << 30) {
    return absl::InvalidArgumentError(absl::StrCat("a record has 1 to ", 1 << 30, " bytes, not ", record));
  }
  seal.record_bytes = record;
  LOCKSTEP_RETURN_IF_ERROR(CipherBackendVersion(seal.backend).status());
  return seal;
}

absl::StatusOr<Options> OptionsFromFlags() {
  Options options;
  for (const std::string& text : absl::GetFlag(FLAGS_sizes)) {
    LOCKSTEP_ASSIGN_OR_RETURN(const int64_t size, ParseByteCount(text));
    if (size < 4 || size % 4 != 0) {
      return absl::InvalidArgumentError(absl::StrCat(size, " bytes are no vector of floats"));
    }
    options.sizes.push_back(size);
  }
  LOCKSTEP_ASSIGN_OR_RETURN(options.seal, SealOptionsFromFlags());
  options.measure.rounds = absl::GetFlag(FLAGS_rounds);
  options.measure.round_time = std::chrono::milliseconds(absl::GetFlag(FLAGS_round_ms));
  if (options.sizes.empty() || options.measure.rounds < 1 || options.measure.round_time.count() < 1) {
    return absl::InvalidArgumentError("there must be a size, a round, and a millisecond for it");
  }
  return options;
}

absl::StatusOr<BareSocket> ConnectBareSockets(const ProcessGroup& group, const std::string& congestion_control) {
  const std::string host = absl::GetFlag(FLAGS_host);
  if (!group.leads()) {
    LOCKSTEP_ASSIGN_OR_RETURN(const int64_t port, group.FromLeader(0));
    return BareSocket::Connect(static_cast<uint16_t>(port), congestion_control, host);
  }
  LOCKSTEP_ASSIGN_OR_RETURN(BareListener listener, BareListener::Create(congestion_control, host));
  LOCKSTEP_RETURN_IF_ERROR(group.FromLeader(listener.port()).status());
  return listener.Accept();
}

// What is compared, each as calls back to back on vectors of `bytes`.
enum Implementation { kLockstep, kBothWays, kOneWay, kSealed, kImplementations };

class Comparison {
 public:
  // `sealed`: if it is to be compared.
  Comparison(const Options& options, const ProcessGroup& group, BareSocket socket, std::optional<SealedSocket> sealed)
      : options_(options), group_(group), socket_(std::move(socket)), sealed_(std::move(sealed)) {}

  absl::StatusOr<Json> Compare(int64_t bytes) {
    out_.resize(bytes / sizeof(float));
    in_.resize(out_.size());
    LOCKSTEP_ASSIGN_OR_RETURN(const size_t piece, FindPiece());
    const int implementations = sealed_.has_value() ? kImplementations : kSealed;
    std::array<int64_t, kImplementations> iterations = {};
    for (int i = 0; i < implementations; ++i) {
      LOCKSTEP_ASSIGN_OR_RETURN(iterations[i], WarmUp(group_, options_.measure, CallsOf(i)));
    }
    std::array<std::vector<double>, kImplementations> us, ratios;
    std::vector<double> shares;  // of plain speed that sealed records leave
    for (int round = 0; round < options_.measure.rounds; ++round) {
      for (int turn = 0; turn < implementations; ++turn) {
        const int i = (turn + round) % implementations;
        LOCKSTEP_ASSIGN_OR_RETURN(const double seconds, TimeRound(group_, iterations[i], CallsOf(i)));
        us[i].push_back(seconds * 1e6);
      }
      for (const int limit : {kBothWays, kOneWay}) ratios[limit].push_back(us[kLockstep].back() / us[limit].back());
      if (sealed_.has_value()) {
        ratios[kSealed].push_back(us[kLockstep].back() / us[kSealed].back());
        shares.push_back(us[kBothWays].back() / us[kSealed].back());
      }
    }
    const double both_ways = Median(us[kBothWays]);
    Json row{{"bytes", bytes},
             {"lockstep_us", Median(us[kLockstep])},
             {"both_ways_us", both_ways},
             {"both_ways_ratio", ToJson(QuartilesOf(ratios[kBothWays]))},
             {"one_way_us", Median(us[kOneWay])},
             {"one_way_ratio", ToJson(QuartilesOf(ratios[kOneWay]))},
             {"each_way_gbps", static_cast<double>(bytes) / both_ways / 1e3},
             {"piece_bytes", piece == BareSocket::kWhole ? Json() : Json(piece)}};
    if (sealed_.has_value()) {
      row["sealed_us"] = Median(us[kSealed]);
      row["sealed_share"] = ToJson(QuartilesOf(shares));
      row["sealed_ratio"] = ToJson(QuartilesOf(ratios[kSealed]));
    }
    return row;
  }

 private:
  // Sets and returns the size of pieces in which bytes go fastest both ways. Small ones go as a whole.
  absl::StatusOr<size_t> FindPiece() {
    size_t best = BareSocket::kWhole;
    double best_seconds = 0;
    for (const size_t piece : kPieces) {
      if (piece != BareSocket::kWhole && out_.size() * sizeof(float) <= piece) continue;
      socket_.set_piece_bytes(piece);
      LOCKSTEP_ASSIGN_OR_RETURN(const int64_t iterations, WarmUp(group_, options_.measure, CallsOf(kBothWays)));
      LOCKSTEP_ASSIGN_OR_RETURN(const double seconds, TimeRound(group_, iterations, CallsOf(kBothWays)));
      if (best_seconds == 0 || seconds < best_seconds) {
        best = piece;
        best_seconds = seconds;
      }
    }
    socket_.set_piece_bytes(best);
    return best;
  }

  std::function<absl::Status(int64_t)> CallsOf(int implementation) {
    return [this, implementation](int64_t calls) {
      for (int64_t i = 0; i < calls; ++i) LOCKSTEP_RETURN_IF_ERROR(Call(implementation, i));
      return absl::OkStatus();
    };
  }

  absl::Status Call(int implementation, int64_t number) {
    const size_t bytes = out_.size() * sizeof(float);
    if (implementation == kSealed) return sealed_->Exchange(out_.data(), bytes, in_.data(), bytes);
    if (implementation == kBothWays) return socket_.Exchange(out_.data(), bytes, in_.data(), bytes);
    if (implementation == kOneWay) {
      // There and back are two calls.
      const bool sends = group_.leads() == (number % 2 == 0);
      return sends ? socket_.Send(out_.data(), bytes) : socket_.Receive(in_.data(), bytes);
    }
    CollectiveRequest request;
    request.collective = Collective::kAllReduce;
    request.dtype = DType::kF32;
    request.op = ReduceOp::kSum;
    request.count = out_.size();
    request.input = request.output = out_.data();
    return group_.communicator()->Run(request);
  }

  const Options& options_;
  const ProcessGroup& group_;
  BareSocket socket_;
  std::optional<SealedSocket> sealed_;
  std::vector<float> out_;
  std::vector<float> in_;
};

absl::Status RunRank(const Options& options) {
  WorldOptions world_options;
  world_options.transport = absl::GetFlag(FLAGS_transport);
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<World> world, JoinWorld(world_options, options.ranks, /*pin=*/true));
  const ProcessGroup group(world->communicator());
  Report report(group.leads() ? stdout : nullptr);
  report.AddFacts(MachineFacts());
  report.AddFacts({{"transport", group.Routes()}});
  std::vector<std::string> controls = absl::GetFlag(FLAGS_congestion);
  if (controls.empty()) controls = {""};
  for (const std::string& control : controls) {
    const std::string name =
        absl::StrCat("bare sockets, congestion control ", control.empty() ? "as the system's" : control);
    LOCKSTEP_ASSIGN_OR_RETURN(BareSocket socket, ConnectBareSockets(group, control));
    std::optional<SealedSocket> sealed;
    std::string sealed_as;
    Columns columns = {{12, "size", "(B)", "/bytes"},
                       {12, "lockstep", "(us)", "/lockstep_us", Column::kSevenPlaces},
                       {12, "both ways", "(us)", "/both_ways_us", Column::kSevenPlaces},
                       {7, "ratio", "", "/both_ways_ratio/median"},
                       {13, "quartiles", "", "/both_ways_ratio"},
                       {12, "one way", "(us)", "/one_way_us", Column::kSevenPlaces},
                       {7, "ratio", "", "/one_way_ratio/median"},
                       {13, "quartiles", "", "/one_way_ratio"},
                       {12, "each way", "(GB/s)", "/each_way_gbps", 3},
                       {10, "in pieces", "(B)", "/piece_bytes"}};
    if (options.seal.has_value()) {
      LOCKSTEP_ASSIGN_OR_RETURN(BareSocket carrier, ConnectBareSockets(group, control));
      LOCKSTEP_ASSIGN_OR_RETURN(sealed, SealedSocket::Create(std::move(carrier), group.leads() ? 0 : 1, *options.seal));
      LOCKSTEP_ASSIGN_OR_RETURN(const std::string version, CipherBackendVersion(options.seal->backend));
      sealed_as = absl::StrCat("# sealed: both ways, ", absl::GetFlag(FLAGS_cipher), ", records of ",
                               options.seal->record_bytes, " bytes, by ", version,
                               "; share: of the speed of both ways; ratio: of lockstep to sealed\n");
      columns.insert(columns.end(), {{12, "sealed", "(us)", "/sealed_us", Column::kSevenPlaces},
                                     {7, "share", "", "/sealed_share/median"},
                                     {13, "quartiles", "", "/sealed_share"},
                                     {7, "ratio", "", "/sealed_ratio/median"},
                                     {13, "quartiles", "", "/sealed_ratio"}});
    }
    report.Begin(
        absl::StrCat("#\n# all_reduce in place beside ", name,
                     ", that move the same bytes: both ways at once, and one way (half a ping-pong)\n", sealed_as),
        std::move(columns));
    Comparison comparison(options, group, std::move(socket), std::move(sealed));
    for (const int64_t bytes : options.sizes) {
      LOCKSTEP_ASSIGN_OR_RETURN(Json row, comparison.Compare(bytes));
      row["name"] = name;
      report.AddRow(std::move(row));
    }
  }
  return report.Write(absl::GetFlag(FLAGS_json));
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  return lockstep::bench::RunBench(
      argc, argv,
      "times all-reduce between two ranks that it starts on this machine, beside bare sockets between the same two",
      &lockstep::bench::OptionsFromFlags, &lockstep::bench::RunRank);
}
