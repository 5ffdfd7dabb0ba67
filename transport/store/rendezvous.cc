#include "transport/store/rendezvous.h"

#include <cstdint>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/clipped.h"
#include "base/env.h"
#include "base/status.h"

namespace lockstep {
namespace {

constexpr size_t kJobIdBytesMax = 256;

struct Family {
  const char* name;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;  // null: has none
};

constexpr Family kOurs = {"LOCKSTEP_*", "LOCKSTEP_RANK", "LOCKSTEP_WORLD_SIZE", "LOCKSTEP_LOCAL_RANK",
                          "LOCKSTEP_LOCAL_WORLD_SIZE"};
constexpr Family kTorchrun = {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Family kFamilies[] = {
    kOurs,
    kTorchrun,
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", nullptr},
};

// A number and how to speak of it: "RANK=3", "option rank=3".
struct Setting {
  absl::optional<int64_t> value;
  std::string text;
};

class Determination {
 public:
  Determination(const RendezvousOptions& options, const Environment& environment)
      : options_(options), environment_(environment) {}

  absl::StatusOr<WorldSpec> Run() {
    for (const std::string& name : environment_.unknown_names) {
      world_.notes.push_back(absl::StrCat("unknown variable ", name, ": a typing error?"));
    }
    LOCKSTEP_ASSIGN_OR_RETURN(bool found, TakeOptions());
    for (const Family& family : kFamilies) {
      if (found) break;
      LOCKSTEP_ASSIGN_OR_RETURN(found, TakeFamily(family));
    }
    if (!found) {
      const std::vector<const char*> ours = {kOurs.rank, kOurs.size, "LOCKSTEP_STORE"};
      if (Lookup("LOCKSTEP_STORE").has_value()) return absl::InvalidArgumentError(SetAndMissing(ours));
      if (!options_.store_url.empty()) {
        return absl::InvalidArgumentError(
            "option store_url is set, but neither rank nor size, by option or environment");
      }
      world_.source = "single process";
    }
    // Options may name the local rank whoever says the rank.
    if (options_.local_rank.has_value() || options_.local_size.has_value()) {
      LOCKSTEP_RETURN_IF_ERROR(
          TakeLocal(Option("local_rank", options_.local_rank), Option("local_size", options_.local_size)));
    }
    LOCKSTEP_RETURN_IF_ERROR(TakeJobId());
    LOCKSTEP_RETURN_IF_ERROR(TakeStore());
    return std::move(world_);
  }

 private:
  absl::optional<std::string> Lookup(const char* name) const {
    absl::optional<std::string> value = environment_.lookup(name);
    if (value.has_value() && value->empty()) return absl::nullopt;
    return value;
  }

  absl::StatusOr<Setting> Number(const char* variable) const {
    Setting setting;
    if (variable == nullptr) return setting;
    const absl::optional<std::string> text = Lookup(variable);
    if (!text.has_value()) return setting;
    setting.text = absl::StrCat(variable, "=", Clipped(*text));
    int64_t value = 0;
    if (!ParseInteger(*text, &value)) {
      return absl::InvalidArgumentError(absl::StrCat(setting.text, ": takes a number"));
    }
    setting.value = value;
    return setting;
  }

  static Setting Option(const char* name, absl::optional<int> value) {
    Setting setting;
    if (!value.has_value()) return setting;
    setting.value = *value;
    setting.text = absl::StrCat("option ", name, "=", *value);
    return setting;
  }

  // "LOCKSTEP_RANK=3 is set; LOCKSTEP_WORLD_SIZE is missing".
  std::string SetAndMissing(const std::vector<const char*>& variables) const {
    std::vector<std::string> set;
    std::vector<std::string> missing;
    for (const char* const variable : variables) {
      if (const absl::optional<std::string> value = Lookup(variable)) {
        set.push_back(absl::StrCat(variable, "=", Clipped(*value)));
      } else {
        missing.push_back(variable);
      }
    }
    return absl::StrCat(absl::StrJoin(set, ", "), set.size() == 1 ? " is set, " : " are set, ",
                        absl::StrJoin(missing, ", "), missing.size() == 1 ? " is missing" : " are missing");
  }

  // True when the family says rank and size, as TakeFamily.
  absl::StatusOr<bool> TakeOptions() {
    if (!options_.rank.has_value() && !options_.size.has_value()) return false;
    if (!options_.rank.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("option size=", *options_.size, " is set, option rank is missing"));
    }
    if (!options_.size.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("option rank=", *options_.rank, " is set, option size is missing"));
    }
    LOCKSTEP_RETURN_IF_ERROR(TakeRankAndSize(Option("rank", options_.rank), Option("size", options_.size)));
    if (!options_.local_rank.has_value() && !options_.local_size.has_value()) {
      LOCKSTEP_RETURN_IF_ERROR(TakeLocalOf(kOurs));
    }
    world_.source = "options";
    return true;
  }

  absl::StatusOr<bool> TakeFamily(const Family& family) {
    const bool ours = &family == kFamilies;  // the first
    const bool has_rank = Lookup(family.rank).has_value();
    const bool has_size = Lookup(family.size).has_value();
    std::vector<const char*> variables = {family.rank, family.size};
    for (const char* const optional : {kOurs.local_rank, kOurs.local_size}) {
      if (ours && Lookup(optional).has_value()) variables.push_back(optional);
    }
    if (!has_rank && !has_size && variables.size() == 2) return false;
    if (!has_rank || !has_size) {
      if (ours) return absl::InvalidArgumentError(SetAndMissing(variables));
      world_.notes.push_back(absl::StrCat(family.name, " skipped: ", SetAndMissing(variables)));
      return false;
    }
    LOCKSTEP_ASSIGN_OR_RETURN(const Setting rank, Number(family.rank));
    LOCKSTEP_ASSIGN_OR_RETURN(const Setting size, Number(family.size));
    LOCKSTEP_RETURN_IF_ERROR(TakeRankAndSize(rank, size));
    if (const absl::Status local = TakeLocalOf(family); !local.ok()) {
      if (ours) return local;
      // Somebody else's extra: not worth failing for.
      world_.notes.push_back(absl::StrCat(family.name, ": local rank ignored: ", local.message()));
    }
    world_.source = family.name;
    return true;
  }

  absl::Status TakeRankAndSize(const Setting& rank, const Setting& size) {
    if (*size.value < 1 || *size.value > std::numeric_limits<int>::max()) {
      return absl::InvalidArgumentError(absl::StrCat(size.text, ": a world has 1 rank or more"));
    }
    if (*rank.value < 0 || *rank.value >= *size.value) {
      return absl::InvalidArgumentError(
          absl::StrCat(rank.text, ": a rank is from 0 to ", *size.value - 1, " with ", size.text));
    }
    world_.rank = Rank(static_cast<int>(*rank.value));
    world_.size = static_cast<int>(*size.value);
    return absl::OkStatus();
  }

  absl::Status TakeLocalOf(const Family& family) {
    LOCKSTEP_ASSIGN_OR_RETURN(const Setting rank, Number(family.local_rank));
    LOCKSTEP_ASSIGN_OR_RETURN(const Setting size, Number(family.local_size));
    return TakeLocal(rank, size);
  }

  absl::Status TakeLocal(const Setting& rank, const Setting& size) {
    if (size.value.has_value() && (*size.value < 1 || *size.value > world_.size)) {
      return absl::InvalidArgumentError(
          absl::StrCat(size.text, ": a host has from 1 to ", world_.size, " of the world's ranks"));
    }
    const int64_t bound = size.value.has_value() ? *size.value : world_.size;
    if (rank.value.has_value() && (*rank.value < 0 || *rank.value >= bound)) {
      return absl::InvalidArgumentError(absl::StrCat(rank.text, ": a local rank is from 0 to ", bound - 1,
                                                     size.value.has_value() ? absl::StrCat(" with ", size.text) : ""));
    }
    world_.local_rank = rank.value.has_value() ? static_cast<int>(*rank.value) : -1;
    world_.local_size = size.value.has_value() ? static_cast<int>(*size.value) : -1;
    return absl::OkStatus();
  }

  absl::Status TakeJobId() {
    const absl::optional<std::string> variable = Lookup("LOCKSTEP_JOB_ID");
    world_.job_id = !options_.job_id.empty() ? options_.job_id : variable.value_or("");
    if (world_.job_id.size() <= kJobIdBytesMax) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(options_.job_id.empty() ? "LOCKSTEP_JOB_ID" : "option job_id",
                                                   ": has ", world_.job_id.size(), " bytes, at most ", kJobIdBytesMax,
                                                   " are allowed"));
  }

  absl::Status TakeStore() {
    if (!options_.store_url.empty()) return TakeStoreUrl(options_.store_url, "option store_url");
    if (options_.has_store) return absl::OkStatus();
    if (const absl::optional<std::string> url = Lookup("LOCKSTEP_STORE")) {
      if (const absl::optional<std::string> served = Lookup("LOCKSTEP_STORE_SERVED")) {
        if (!absl::SimpleAtob(*served, &world_.store_served)) {
          return absl::InvalidArgumentError(absl::StrCat("LOCKSTEP_STORE_SERVED=", Clipped(*served), ": takes 0 or 1"));
        }
      }
      return TakeStoreUrl(*url, "LOCKSTEP_STORE");
    }
    if (world_.size == 1) return absl::OkStatus();
    if (world_.source == kTorchrun.name) return TakeTorchrunStore();
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", world_.rank.value(), " of ", world_.size, " (by ", world_.source,
                     ") does not know where the ranks meet: set LOCKSTEP_STORE=tcp://host-of-rank-0:port or "
                     "file:///path on all ranks",
                     world_.source == kOurs.name || world_.source == "options"
                         ? ""
                         : "; for a process on its own set LOCKSTEP_RANK=0 and LOCKSTEP_WORLD_SIZE=1"));
  }

  absl::Status TakeStoreUrl(const std::string& url, const std::string& source) {
    const absl::StatusOr<StoreUrl> parsed = ParseStoreUrl(url);
    if (!parsed.ok()) return Annotate(parsed.status(), source);
    world_.store_url = url;
    world_.store_source = source;
    return absl::OkStatus();
  }

  absl::Status TakeTorchrunStore() {
    const absl::optional<std::string> host = Lookup("MASTER_ADDR");
    LOCKSTEP_ASSIGN_OR_RETURN(const Setting port, Number("MASTER_PORT"));
    if (!host.has_value() || !port.value.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("RANK and WORLD_SIZE are set, ", host.has_value() ? "MASTER_PORT" : "MASTER_ADDR",
                       " is missing: set it, or LOCKSTEP_STORE=tcp://host-of-rank-0:port, on all ranks"));
    }
    if (*port.value < 1 || *port.value > 65535) {
      return absl::InvalidArgumentError(absl::StrCat(port.text, ": a port is from 1 to 65535"));
    }
    const bool above = *port.value + kTorchrunPortOffset <= 65535;
    HostPort server;
    server.host = *host;
    server.port = static_cast<uint16_t>(above ? *port.value + kTorchrunPortOffset : *port.value - kTorchrunPortOffset);
    return TakeStoreUrl(absl::StrCat("tcp://", HostPortText(server)),
                        absl::StrCat("MASTER_ADDR and MASTER_PORT ", above ? "+ " : "- ", kTorchrunPortOffset));
  }

  const RendezvousOptions& options_;
  const Environment& environment_;
  WorldSpec world_;
};

}  // namespace

absl::StatusOr<StoreUrl> ParseStoreUrl(absl::string_view url) {
  const auto wrong = [url](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("store URL '", Clipped(url), "': ", what));
  };
  StoreUrl result;
  absl::string_view rest = url;
  if (absl::ConsumePrefix(&rest, "tcp://")) {
    const absl::StatusOr<HostPort> server = ParseHostPort(rest);
    if (!server.ok()) return Annotate(server.status(), absl::StrCat("store URL '", Clipped(url), "'"));
    if (server->port == 0) return wrong("port 0 is nothing that other ranks could connect to");
    result.scheme = StoreUrl::kTcp;
    result.server = *server;
    return result;
  }
  if (absl::ConsumePrefix(&rest, "file://")) {
    if (!absl::StartsWith(rest, "/")) return wrong("takes an absolute path, as in file:///path");
    if (absl::EndsWith(rest, "/")) return wrong("names a folder, not a file");
    if (absl::StrContains(rest, absl::string_view("\0", 1))) return wrong("the path contains a NUL byte");
    result.scheme = StoreUrl::kFile;
    result.path = std::string(rest);
    return result;
  }
  return wrong("expected tcp://host:port or file:///path");
}

Environment Environment::OfThisProcess() {
  Environment environment;
  environment.lookup = GetEnv;
  environment.unknown_names = UnknownEnvironmentVariables();
  return environment;
}

absl::StatusOr<WorldSpec> DetermineWorld(const RendezvousOptions& options, const Environment& environment) {
  return Determination(options, environment).Run();
}

}  // namespace lockstep
