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
#include "transport/exchange/mpi_presence.h"
#include "transport/store/slurm.h"

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
// Rank and size are of nodes, and multiplied.
constexpr Family kKubeflow = {"Kubeflow", "PET_NODE_RANK", "PET_NNODES", "LOCAL_RANK", "PET_NPROC_PER_NODE"};
constexpr Family kOpenMpi = {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                             "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Family kPmi = {"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};
constexpr Family kSlurm = {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", nullptr};

constexpr char kPmix[] = "PMIx";
constexpr char kPmixSpace[] = "PMIX_NAMESPACE";
constexpr char kPmixRank[] = "PMIX_RANK";

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
    for (const Family* const family : {&kOurs, &kTorchrun, &kOpenMpi, &kPmi, &kKubeflow}) {
      if (found) break;
      LOCKSTEP_ASSIGN_OR_RETURN(found, TakeFamily(*family));
    }
    if (!found && Lookup(kPmixSpace).has_value() != Lookup(kPmixRank).has_value()) {
      world_.notes.push_back(absl::StrCat("PMIx skipped: ", SetAndMissing({kPmixSpace, kPmixRank})));
    }
    if (!found && HasPmix() && SlurmSpeaksForPmix()) {
      LOCKSTEP_ASSIGN_OR_RETURN(found, TakeFamily(kSlurm));
    }
    // Before Slurm, whose variables a PMIx launcher inside a job passes on to processes that they do not fit.
    absl::Status pmix;
    if (!found && HasPmix()) {
      pmix = TakePmix();
      if (!pmix.ok() && !absl::IsNotFound(pmix)) return pmix;
      found = pmix.ok();
    }
    if (!found) {
      LOCKSTEP_ASSIGN_OR_RETURN(found, TakeFamily(kSlurm));
      LOCKSTEP_RETURN_IF_ERROR(found ? absl::OkStatus() : pmix);
      if (!pmix.ok()) world_.notes.push_back(absl::StrCat("PMIx skipped: ", pmix.message()));
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
          TakeLocal(Option("local_rank", options_.local_rank), Option("local_world_size", options_.local_size)));
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
          absl::StrCat("option world_size=", *options_.size, " is set, option rank is missing"));
    }
    if (!options_.size.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("option rank=", *options_.rank, " is set, option world_size is missing"));
    }
    LOCKSTEP_RETURN_IF_ERROR(TakeRankAndSize(Option("rank", options_.rank), Option("world_size", options_.size)));
    if (!options_.local_rank.has_value() && !options_.local_size.has_value()) {
      LOCKSTEP_RETURN_IF_ERROR(TakeLocalOfJob());
    }
    world_.source = "options";
    return true;
  }

  // For a rank and a size from the options. Our variables describe the launcher's job. They fit this world if it is the whole job. A world
  // of some of the job's processes is on one host if the job is. Otherwise its hosts are unknown.
  absl::Status TakeLocalOfJob() {
    LOCKSTEP_ASSIGN_OR_RETURN(const Setting rank, Number(kOurs.rank));
    LOCKSTEP_ASSIGN_OR_RETURN(const Setting size, Number(kOurs.size));
    if (!rank.value.has_value() || !size.value.has_value()) return TakeLocalOf(kOurs);
    if (*rank.value == world_.rank.value() && *size.value == world_.size) return TakeLocalOf(kOurs);
    LOCKSTEP_ASSIGN_OR_RETURN(const Setting local_size, Number(kOurs.local_size));
    if (local_size.value == size.value && world_.size <= *size.value) world_.local_size = world_.size;
    return absl::OkStatus();
  }

  absl::StatusOr<bool> TakeFamily(const Family& family) {
    const bool ours = &family == &kOurs;
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
    LOCKSTEP_ASSIGN_OR_RETURN(Setting rank, Number(family.rank));
    LOCKSTEP_ASSIGN_OR_RETURN(Setting size, Number(family.size));
    if (&family == &kKubeflow) LOCKSTEP_RETURN_IF_ERROR(MultiplyByProcesses(&rank, &size));
    LOCKSTEP_RETURN_IF_ERROR(TakeRankAndSize(rank, size));
    if (const absl::Status local = TakeLocalOf(family); !local.ok()) {
      if (ours) return local;
      NoteLocal(family.name, local);
    }
    world_.source = family.name;
    return true;
  }

  // Somebody else's extra: not worth failing for.
  void NoteLocal(absl::string_view source, const absl::Status& local) {
    world_.notes.push_back(absl::StrCat(source, ": local rank ignored: ", local.message()));
  }

  // From nodes to ranks.
  absl::Status MultiplyByProcesses(Setting* rank, Setting* size) const {
    constexpr absl::string_view kRemedy =
        "start the program with torchrun, which reads PET_*; for a process on its own set LOCKSTEP_RANK=0 and "
        "LOCKSTEP_WORLD_SIZE=1";
    const absl::StatusOr<Setting> processes = Number(kKubeflow.local_size);
    if (!processes.ok()) return absl::InvalidArgumentError(absl::StrCat(processes.status().message(), ": ", kRemedy));
    const int64_t count = processes->value.value_or(1);
    LOCKSTEP_ASSIGN_OR_RETURN(const Setting local, Number(kKubeflow.local_rank));
    if (count != 1 && !local.value.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(processes->text, " is set, LOCAL_RANK is missing: ", kRemedy));
    }
    constexpr int64_t kMax = std::numeric_limits<int>::max();
    if (count < 1 || count > kMax || *size->value < 1 || *size->value > kMax || *rank->value < 0 ||
        *rank->value >= *size->value || local.value.value_or(0) < 0 || local.value.value_or(0) >= count) {
      return absl::InvalidArgumentError(absl::StrCat(
          absl::StrJoin({rank->text, size->text, processes->text, local.text}, " "), " do not fit together"));
    }
    rank->value = *rank->value * count + local.value.value_or(0);
    size->value = *size->value * count;
    return absl::OkStatus();
  }

  bool HasPmix() const {
    return Lookup(kPmixSpace).has_value() && Lookup(kPmixRank).has_value() && environment_.pmix_job != nullptr;
  }

  // Whether PMIx need not be asked: it is that of srun (--mpi=pmix), so Slurm's variables say the same, and ranks do not meet by it.
  bool SlurmSpeaksForPmix() const {
    const bool has_store = options_.has_store || !options_.store_url.empty() || Lookup("LOCKSTEP_STORE").has_value();
    return absl::StartsWith(*Lookup(kPmixSpace), "slurm.pmix.") && (has_store || Lookup(kSlurm.size) == "1");
  }

  absl::Status TakePmix() {
    const absl::StatusOr<PmixJob> job = environment_.pmix_job();
    if (!job.ok()) {
      return Reworded(job.status(),
                      absl::StrCat("PMIX_RANK=", Clipped(*Lookup(kPmixRank)), " is set: ", job.status().message(),
                                   "; set LOCKSTEP_RANK, LOCKSTEP_WORLD_SIZE and LOCKSTEP_STORE to do without PMIx"));
    }
    if (job->rank < 0 || job->size < 1) return absl::UnavailableError("PMIx does not say rank and size");
    const auto setting = [](absl::string_view name, int value) {
      return Setting{value < 0 ? absl::nullopt : absl::make_optional<int64_t>(value),
                     absl::StrCat("PMIx's ", name, "=", value)};
    };
    LOCKSTEP_RETURN_IF_ERROR(TakeRankAndSize(setting("rank", job->rank), setting("size", job->size)));
    const absl::Status local =
        TakeLocal(setting("local rank", job->local_rank), setting("local size", job->local_size));
    if (!local.ok()) NoteLocal(kPmix, local);
    world_.source = kPmix;
    return absl::OkStatus();
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
    const bool slurm = &family == &kSlurm || (&family == &kPmi && SlurmServesPmi());
    LOCKSTEP_ASSIGN_OR_RETURN(const Setting rank, Number(slurm ? kSlurm.local_rank : family.local_rank));
    LOCKSTEP_ASSIGN_OR_RETURN(const Setting size, slurm ? SlurmLocalSize() : Number(family.local_size));
    return TakeLocal(rank, size);
  }

  // Whether PMI_FD leads to srun --mpi=pmi2. Hydra inside of a Slurm job may pass on Slurm's variables, beside its own.
  bool SlurmServesPmi() const {
    return Lookup("PMI_JOBID").has_value() && Lookup("SLURM_STEP_ID").has_value() &&
           !Lookup(kPmi.local_rank).has_value();
  }

  absl::StatusOr<Setting> SlurmLocalSize() const {
    Setting size;
    const absl::optional<std::string> tasks = Lookup("SLURM_STEP_TASKS_PER_NODE");
    LOCKSTEP_ASSIGN_OR_RETURN(const Setting node, Number("SLURM_NODEID"));
    if (!tasks.has_value() || !node.value.has_value()) return size;
    const absl::StatusOr<int> count = SlurmTasksOnNode(*tasks, *node.value);
    if (!count.ok()) return Annotate(count.status(), "SLURM_STEP_TASKS_PER_NODE");
    size.value = *count;
    size.text = absl::StrCat("SLURM_STEP_TASKS_PER_NODE=", Clipped(*tasks));
    return size;
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
    if (!options_.job_id.empty()) {
      world_.job_id = options_.job_id;
      world_.job_source = "option job_id";
    } else if (const absl::optional<std::string> variable = Lookup("LOCKSTEP_JOB_ID")) {
      world_.job_id = *variable;
      world_.job_source = "LOCKSTEP_JOB_ID";
    } else {
      TakeJobIdOfLauncher();
      world_.job_id = world_.job_id.substr(0, kJobIdBytesMax);
    }
    if (world_.job_id.size() <= kJobIdBytesMax) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(world_.job_source, ": has ", world_.job_id.size(),
                                                   " bytes, at most ", kJobIdBytesMax, " are allowed"));
  }

  void TakeJobIdOfLauncher() {
    std::vector<const char*> names;
    if (world_.source == kTorchrun.name && Lookup("TORCHELASTIC_RUN_ID").has_value()) {
      names = {"TORCHELASTIC_RUN_ID"};
      // Each node's agent counts its own restarts, so that nodes differ.
      if (Lookup("GROUP_WORLD_SIZE") == "1") names.push_back("TORCHELASTIC_RESTART_COUNT");
    }
    if (world_.source == kSlurm.name || (world_.source == kPmi.name && SlurmServesPmi())) {
      names = {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"};
    }
    std::vector<std::string> values;
    std::vector<const char*> set;
    for (const char* const name : names) {
      if (const absl::optional<std::string> value = Lookup(name)) {
        values.push_back(*value);
        set.push_back(name);
      }
    }
    world_.job_id = absl::StrJoin(values, ".");
    world_.job_source = absl::StrJoin(set, ", ");
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
    if (world_.source == kTorchrun.name) return TakeMasterStore(kTorchrun, "MASTER_ADDR", "MASTER_PORT");
    if (world_.source == kKubeflow.name) return TakeMasterStore(kKubeflow, "PET_MASTER_ADDR", "PET_MASTER_PORT");
    if (world_.source == kPmix) world_.exchange = ExchangeKind::kPmix;
    if (world_.source == kOpenMpi.name) {
      if (Lookup(kPmixSpace).has_value() && Lookup(kPmixRank) == absl::StrCat(world_.rank.value())) {
        world_.exchange = ExchangeKind::kPmix;
      } else {
        return NowhereToMeet(" (PMIX_NAMESPACE and PMIX_RANK do not name this rank)");
      }
    }
    if (world_.source == kPmi.name) {
      if (SlurmServesPmi() && environment_.has_mpi) return TakeSlurmStore();
      if (!Lookup("PMI_FD").has_value()) return NowhereToMeet(" (PMI_FD is not set)");
      world_.exchange = SlurmServesPmi() ? ExchangeKind::kPmi2 : ExchangeKind::kPmi1;
    }
    if (world_.source == kSlurm.name) return TakeSlurmStore();
    return world_.exchange == ExchangeKind::kNone ? NowhereToMeet("") : absl::OkStatus();
  }

  absl::Status NowhereToMeet(absl::string_view why) const {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", world_.rank.value(), " of ", world_.size, " (by ", world_.source,
                     ") does not know where the ranks meet", why, ": ", kSetStore,
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

  absl::Status TakeMasterStore(const Family& family, const char* host_name, const char* port_name) {
    const absl::optional<std::string> host = Lookup(host_name);
    LOCKSTEP_ASSIGN_OR_RETURN(const Setting port, Number(port_name));
    if (!host.has_value() || !port.value.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat(family.rank, " and ", family.size, " are set, ", host.has_value() ? port_name : host_name,
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
                        absl::StrCat(host_name, " and ", port_name, " ", above ? "+ " : "- ", kTorchrunPortOffset));
  }

  absl::Status TakeSlurmStore() {
    constexpr absl::string_view kSrunStartsRanks = "srun starts ranks, sbatch and salloc one process";
    constexpr const char* kNames[] = {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_NODELIST"};
    for (const char* const name : kNames) {
      if (!Lookup(name).has_value()) {
        return NowhereToMeet(absl::StrCat(" (", name, " is not set: ", kSrunStartsRanks, ")"));
      }
    }
    LOCKSTEP_ASSIGN_OR_RETURN(const Setting job, Number(kNames[0]));
    LOCKSTEP_ASSIGN_OR_RETURN(const Setting step, Number(kNames[1]));
    if (*step.value >= kSlurmReservedSteps) {
      return NowhereToMeet(absl::StrCat(" (", step.text, " is no step of ranks: ", kSrunStartsRanks, ")"));
    }
    const absl::optional<std::string> node = Lookup("SLURM_NODEID");
    if (world_.rank == Rank(0) && node.value_or("0") != "0") {
      return NowhereToMeet(
          absl::StrCat(" (rank 0 is on node ", Clipped(*node), ", not on the first of SLURM_STEP_NODELIST)"));
    }
    HostPort server;
    const absl::StatusOr<std::string> host = FirstSlurmHost(*Lookup(kNames[2]));
    if (!host.ok()) return Annotate(host.status(), kNames[2]);
    server.host = *host;
    server.port = SlurmPort(*job.value, *step.value);
    return TakeStoreUrl(absl::StrCat("tcp://", HostPortText(server)), absl::StrJoin(kNames, ", "));
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

bool IsOnLoopback(const StoreUrl& url) {
  if (url.scheme != StoreUrl::kTcp) return false;
  const absl::StatusOr<SocketAddress> address = SocketAddress::Parse(HostPortText(url.server));
  return url.server.host == "localhost" || (address.ok() && address->loopback());
}

Environment Environment::OfThisProcess(Deadline deadline) {
  Environment environment;
  environment.lookup = GetEnv;
  environment.unknown_names = UnknownEnvironmentVariables();
  environment.has_mpi = MpiOfThisProcess() != MpiPresence::kAbsent;
  environment.pmix_job = [deadline] { return AskPmixForJob(deadline); };
  return environment;
}

absl::StatusOr<WorldSpec> DetermineWorld(const RendezvousOptions& options, const Environment& environment) {
  return Determination(options, environment).Run();
}

std::string Explain(const WorldSpec& world) {
  std::string text = absl::StrCat("rank ", world.rank.value(), " of ", world.size, " from ");
  if (world.source == "options") {
    text += "the options";
  } else if (world.source == kOurs.name) {
    text += "LOCKSTEP_RANK and LOCKSTEP_WORLD_SIZE";
  } else {
    absl::StrAppend(&text, world.source, world.source == kPmix ? "" : "'s variables");
  }
  if (world.exchange != ExchangeKind::kNone) {
    absl::StrAppend(&text, "; the ranks meet over ", Name(world.exchange), " at ", world.store_url);
  } else if (world.store_url.empty()) {
    text += "; the ranks meet in the caller's store";
  } else {
    absl::StrAppend(&text, "; the ranks meet at ", world.store_url, " (", world.store_source, ")");
  }
  if (!world.job_id.empty()) absl::StrAppend(&text, "; job '", world.job_id, "' (", world.job_source, ")");
  return text;
}

}  // namespace lockstep
