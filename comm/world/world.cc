#include "comm/world/world.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/optional.h"
#include "base/cores.h"
#include "base/device/devices.h"
#include "base/env.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/status.h"
#include "comm/byte_objects.h"
#include "comm/engine/progress_engine.h"
#include "comm/host/channel_registry.h"
#include "comm/host/self_communicator.h"
#include "comm/host/transport_communicator.h"
#include "comm/record/failure_report.h"
#include "comm/select/selector.h"
#include "comm/topology/host.h"
#include "comm/topology/link_costs.h"
#include "comm/topology/world_shape.h"
#include "comm/world/device_backend.h"
#include "comm/world/slow_link.h"
#include "comm/world/world_security.h"
#include "comm/world/world_transport.h"
#include "kernels/cpu/variant.h"
#include "transport/control/control.h"
#include "transport/exchange/exchange.h"
#include "transport/net/interface.h"
#include "transport/net/port_range.h"
#include "transport/net/socket.h"
#include "transport/store/rendezvous.h"
#include "transport/store/store_open.h"
#include "transport/store/store_tcp_server.h"
#include "transport/tcp/socket_tuning.h"
#include "transport/tcp/tcp_transport.h"
#include "transport/transport.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

constexpr int64_t kDayMs = 24 * 3600 * 1000;

// How long a caller with a core of its own polls before it sleeps: some times what waking up costs.
constexpr std::chrono::microseconds kSpin{100};

// How long rank 0, when the set-up has failed, goes on serving the store that it serves, for others to read why.
constexpr milliseconds kParting{3000};
// How long a rank 0 that finds its store's port taken looks for the other rank 0 that may have it.
constexpr milliseconds kMeetingTime{2000};
// How long a rank that has failed looks for rank 0, to report the failure: some round trips of a second.
constexpr milliseconds kTellingTime{5000};

// A text that an option gives, or else a variable.
struct Text {
  std::string value;
  const char* from = "";  // what gave it, for errors
};

Text ReadText(const std::string& option, const char* option_name, const char* variable) {
  if (!option.empty()) return {option, option_name};
  return {GetEnv(variable).value_or(""), variable};
}

// Everything that may also come from the environment, settled.
struct Settings {
  milliseconds setup_timeout{300000};
  milliseconds timeout{1800000};
  milliseconds peer_timeout{30000};
  AlgorithmOverrides algorithms;
  int64_t chunk_bytes = 0;
  bool checked = false;
  bool deterministic = false;
  const TransportKind* transport = &DefaultTransport();
  Text interface;
  std::string host_id;
  SocketTuning tcp_tuning;
  int tcp_sockets = 1;
  std::string ofi_provider;
  std::string ofi_domain;
  size_t flight_records = 256;
  std::string device_backend;
};

absl::Status ReadMilliseconds(milliseconds option, const char* option_name, const char* variable,
                              milliseconds* setting) {
  if (option.count() < 0) return absl::InvalidArgumentError(absl::StrCat(option_name, " is negative"));
  if (option.count() > 0) {
    *setting = option;
    return absl::OkStatus();
  }
  if (variable == nullptr) return absl::OkStatus();
  LOCKSTEP_ASSIGN_OR_RETURN(const absl::optional<int64_t> value, GetEnvInt(variable, 1, kDayMs));
  if (value.has_value()) *setting = milliseconds(*value);
  return absl::OkStatus();
}

// An option of 0 is read from the environment, where 1 to `most` may stand.
absl::Status ReadCount(int option, const char* option_name, const char* variable, int most, int* setting) {
  if (option < 0 || option > most) {
    return absl::InvalidArgumentError(absl::StrCat(option_name, " is ", option, ", not 0 to ", most));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const absl::optional<int64_t> value, GetEnvInt(variable, 1, most));
  if (option == 0 && !value.has_value()) return absl::OkStatus();
  *setting = option != 0 ? option : static_cast<int>(*value);
  return absl::OkStatus();
}

absl::Status ReadFlag(bool option, const char* variable, bool* setting) {
  LOCKSTEP_ASSIGN_OR_RETURN(const absl::optional<bool> value, GetEnvBool(variable));
  *setting = option || value.value_or(false);
  return absl::OkStatus();
}

absl::StatusOr<Settings> ReadSettings(const WorldOptions& options) {
  Settings settings;
  LOCKSTEP_RETURN_IF_ERROR(
      ReadMilliseconds(options.setup_timeout, "setup_timeout_ms", nullptr, &settings.setup_timeout));
  LOCKSTEP_RETURN_IF_ERROR(ReadMilliseconds(options.timeout, "timeout_ms", "LOCKSTEP_TIMEOUT_MS", &settings.timeout));
  LOCKSTEP_RETURN_IF_ERROR(
      ReadMilliseconds(options.peer_timeout, "peer_timeout_ms", "LOCKSTEP_PEER_TIMEOUT_MS", &settings.peer_timeout));

  // Decided elsewhere, at first use, where a value that means nothing can only be ignored.
  LOCKSTEP_RETURN_IF_ERROR(LogLevelOfEnvironment());
  LOCKSTEP_RETURN_IF_ERROR(kernels::VariantOfEnvironment());
  // Listeners read it again.
  LOCKSTEP_RETURN_IF_ERROR(PortRangeOfEnvironment().status());

  const Text algorithm = ReadText(options.algorithm, "algorithm", "LOCKSTEP_ALGORITHM");
  const absl::StatusOr<AlgorithmOverrides> overrides = ParseAlgorithmOverrides(algorithm.value);
  if (!overrides.ok()) return Annotate(overrides.status(), algorithm.from);
  settings.algorithms = *overrides;

  const Text transport = ReadText(options.transport, "transport", "LOCKSTEP_TRANSPORT");
  if (!transport.value.empty()) {
    const absl::StatusOr<const TransportKind*> kind = FindTransport(transport.value);
    if (!kind.ok()) return Annotate(kind.status(), transport.from);
    settings.transport = *kind;
  }
  if (options.chunk_bytes != 0) {
    settings.chunk_bytes = options.chunk_bytes;
  } else {
    LOCKSTEP_ASSIGN_OR_RETURN(const absl::optional<int64_t> chunk, GetEnvInt("LOCKSTEP_CHUNK_BYTES", 64, 1 << 30));
    settings.chunk_bytes = chunk.value_or(settings.transport->chunk_bytes);
  }
  if (settings.chunk_bytes < 64 || settings.chunk_bytes > (1 << 30) || settings.chunk_bytes % 64 != 0) {
    return absl::InvalidArgumentError(absl::StrCat("chunk_bytes is ", settings.chunk_bytes,
                                                   ", which is not a multiple of 64 between 64 and 1,073,741,824"));
  }
  LOCKSTEP_RETURN_IF_ERROR(ReadFlag(options.checked, "LOCKSTEP_CHECKED", &settings.checked));
  LOCKSTEP_RETURN_IF_ERROR(ReadFlag(options.deterministic, "LOCKSTEP_DETERMINISTIC", &settings.deterministic));
  for (int i = 0; i < kCollectiveCount && settings.deterministic; ++i) {
    const auto collective = static_cast<Collective>(i);
    const Algorithm named = settings.algorithms.by_collective[i];
    if (named == Algorithm::kAuto || !HasReduction(collective) || ReducesInRankOrder(collective, named)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(algorithm.from, ": ", Name(named), " of ", Name(collective),
                     " does not fold in rank order, and the communicator is deterministic"));
  }
  const Text congestion = ReadText(options.tcp_congestion_control, "tcp_congestion_control", "LOCKSTEP_TCP_CONGESTION");
  LOCKSTEP_RETURN_IF_ERROR(Annotate(CheckCongestionControl(congestion.value), congestion.from));
  settings.tcp_tuning.congestion_control = congestion.value;
  LOCKSTEP_RETURN_IF_ERROR(ReadCount(options.tcp_send_buffer_bytes, "tcp_send_buffer_bytes", "LOCKSTEP_TCP_SEND_BUFFER",
                                     1 << 30, &settings.tcp_tuning.send_buffer_bytes));
  LOCKSTEP_RETURN_IF_ERROR(ReadCount(options.tcp_receive_buffer_bytes, "tcp_receive_buffer_bytes",
                                     "LOCKSTEP_TCP_RECEIVE_BUFFER", 1 << 30,
                                     &settings.tcp_tuning.receive_buffer_bytes));
  LOCKSTEP_RETURN_IF_ERROR(ReadFlag(options.tcp_zero_copy, "LOCKSTEP_TCP_ZERO_COPY", &settings.tcp_tuning.zero_copy));
  LOCKSTEP_RETURN_IF_ERROR(
      ReadCount(options.tcp_sockets, "tcp_sockets", "LOCKSTEP_TCP_SOCKETS", kTcpSocketsMax, &settings.tcp_sockets));
  settings.ofi_provider = ReadText(options.ofi_provider, "ofi_provider", "LOCKSTEP_OFI_PROVIDER").value;
  settings.ofi_domain = ReadText(options.ofi_domain, "ofi_domain", "LOCKSTEP_OFI_DOMAIN").value;
  settings.host_id = !options.host_id.empty() ? options.host_id : HostId();
  settings.interface = ReadText(options.interface, "network_interface", "LOCKSTEP_INTERFACE");
  LOCKSTEP_ASSIGN_OR_RETURN(const absl::optional<int64_t> records, GetEnvInt("LOCKSTEP_FLIGHT_RECORDS", 16, 1 << 20));
  if (records.has_value()) settings.flight_records = *records;
  settings.device_backend =
      !options.device_backend.empty() ? options.device_backend : GetEnv("LOCKSTEP_DEVICE_BACKEND").value_or("auto");
  const bool in_order = options.nccl_ctas_max == 0 || options.nccl_ctas_min <= options.nccl_ctas_max;
  if (options.nccl_ctas_min < 0 || options.nccl_ctas_max < 0 || !in_order) {
    return absl::InvalidArgumentError(
        absl::StrCat("nccl_ctas_min is ", options.nccl_ctas_min, " and nccl_ctas_max is ", options.nccl_ctas_max));
  }
  return settings;
}

std::vector<AgreedOption> OptionsToAgreeOn(const Settings& settings, const WorldSecurity& security,
                                           const WorldTransport& transport) {
  // Named as the fields of lockstep_communicator_options are, or as the variable where there is no field.
  const auto yes_or_no = [](bool value) { return value ? "yes" : "no"; };
  const std::string algorithms = ToString(settings.algorithms);
  std::vector<AgreedOption> options = {{"transport", settings.transport->name},
                                       {"algorithm", algorithms.empty() ? "chosen by size" : algorithms},
                                       {"checked", yes_or_no(settings.checked)},
                                       {"chunk_bytes", absl::StrCat(settings.chunk_bytes)},
                                       {"deterministic", yes_or_no(settings.deterministic)},
                                       {"security", Name(security.level)},
                                       {"LOCKSTEP_SECURITY_LOCAL", yes_or_no(security.records_on_one_host)},
                                       {"tcp_sockets", absl::StrCat(settings.tcp_sockets)}};
  for (AgreedOption& option : transport.OptionsToAgreeOn()) options.push_back(std::move(option));
  return options;
}

WorldHosts HostsOf(const WorldSpec& spec) {
  // A store on loopback keeps everybody else out. Where rank 0 itself has chosen its address, it knows no more by it.
  const bool chosen_here = spec.exchange != ExchangeKind::kNone && spec.rank == Rank(0);
  const absl::StatusOr<StoreUrl> url = ParseStoreUrl(spec.store_url);
  if (spec.local_size == spec.size || (!chosen_here && url.ok() && IsOnLoopback(*url))) return WorldHosts::kOne;
  return spec.local_size > 0 ? WorldHosts::kSeveral : WorldHosts::kUnknown;
}

// The address at which the others reach this rank, before anything is connected: what the coordinator binds.
absl::StatusOr<InterfaceChoice> ChooseBindAddress(const WorldSpec& spec, const Settings& settings) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<InterfaceAddress> candidates, ListInterfaceAddresses());
  absl::StatusOr<InterfaceChoice> choice = ChooseInterface(candidates, settings.interface.value, HostsOf(spec));
  if (!choice.ok() && !settings.interface.value.empty()) return Annotate(choice.status(), settings.interface.from);
  return choice;
}

void Log(const WorldSpec& spec, const InterfaceChoice& interface) {
  LOCKSTEP_LOG(kInfo) << "rank " << spec.rank << " uses " << interface.chosen.name << " "
                      << interface.chosen.address.HostString();
  for (const std::string& rejected : interface.rejected) LOCKSTEP_LOG(kDebug) << "not " << rejected;
}

// Where rank 0 serves a store whose address the launcher's exchange takes to the others.
absl::StatusOr<SocketAddress> AddressOfStore(const WorldSpec& spec, const absl::StatusOr<Settings>& settings) {
  LOCKSTEP_RETURN_IF_ERROR(settings.status());
  LOCKSTEP_ASSIGN_OR_RETURN(const InterfaceChoice choice, ChooseBindAddress(spec, *settings));
  if (choice.chosen.address.loopback() && HostsOf(spec) == WorldHosts::kSeveral) {
    return absl::FailedPreconditionError(absl::StrCat(settings->interface.from, "=", settings->interface.value,
                                                      " chooses loopback, and there are ranks on other hosts"));
  }
  return choice.chosen.address;
}

// Where rank 0 has taken loopback though there may be other hosts: what else it found.
std::string WhyLoopback(const WorldSpec& spec, const Settings& settings, const InterfaceChoice& interface) {
  const bool last_resort = HostsOf(spec) == WorldHosts::kUnknown && settings.interface.value.empty();
  if (spec.rank != Rank(0) || !interface.chosen.address.loopback() || !last_resort) return "";
  return absl::StrCat(
      "rank 0 found no interface but loopback",
      interface.rejected.empty() ? "" : absl::StrCat(" (", absl::StrJoin(interface.rejected, "; "), ")"));
}

ControlOptions ControlOptionsOf(const WorldSpec& spec, const Credentials& credentials, int attempt) {
  ControlOptions control;
  control.rank = spec.rank;
  control.size = spec.size;
  control.job_id = spec.job_id;
  control.attempt = attempt;
  control.credentials = credentials;
  return control;
}

WorldTransport::Options TransportOptions(const WorldSpec& spec, const Settings& settings, const WorldSecurity& security,
                                         const ControlChannel& control, const SocketAddress& address) {
  const WorldIdentity self = {spec.rank, spec.size, spec.job_id, control.world_id(),
                              static_cast<uint32_t>(settings.chunk_bytes)};
  WorldTransport::Options options;
  options.kind = settings.transport;
  static_cast<WorldIdentity&>(options.tcp) = self;
  options.tcp.bind_address = address;
  options.tcp.tuning = settings.tcp_tuning;
  options.tcp.sockets = settings.tcp_sockets;
  static_cast<WorldIdentity&>(options.shm) = self;
  static_cast<WorldIdentity&>(options.wide) = self;
  options.wide.bind_address = address.WithPort(0).ToString();
  options.wide.provider = settings.ofi_provider;
  options.wide.domain = settings.ofi_domain;
  options.tcp.credentials = options.shm.credentials = options.wide.credentials = control.world_credentials();
  options.tcp.records_on_one_host = security.records_on_one_host;
  return options;
}

std::string Describe(const WorldSpec& spec, const Settings& settings, const std::string& security, const Store& store,
                     const std::vector<Member>& members, const WorldTransport& transport) {
  std::string text = absl::StrCat(
      "rank ", spec.rank.value(), " of ", spec.size, " (from ", spec.source, "), job '", spec.job_id, "', met at ",
      store.Describe(),
      "\nalgorithms: ", settings.algorithms == AlgorithmOverrides() ? "chosen by size" : ToString(settings.algorithms),
      "; chunks of ", settings.chunk_bytes, " B\n", security, "\n");
  for (const Member& member : members) {
    absl::StrAppend(&text, lockstep::Describe(member), " over ",
                    member.rank == spec.rank ? "nothing: it is this rank" : transport.DescribeRoute(member), "\n");
  }
  return text + transport.DescribeChoice();
}

}  // namespace

// In the order in which they are made. A world of one has communicators alone.
struct World::Parts {
  absl::Status Create(const WorldOptions& options, const absl::StatusOr<Settings>& settings,
                      const absl::StatusOr<WorldSecurity>& security);
  // `server` is the store's where this rank serves it, else null. An error is told to all other ranks, as far as they can be
  // reached; so is that of the settings, which is then returned.
  absl::Status Connect(const WorldSpec& spec, const absl::StatusOr<Settings>& settings, const WorldSecurity& security,
                       const Credentials& credentials, int attempt, Store* store, TcpStoreServer* server);

  // All that needs control_.
  absl::Status ConnectThrough(const WorldSpec& spec, const Settings& settings, const WorldSecurity& security,
                              const std::string& secret_source, const InterfaceChoice& interface, const Store& store,
                              Deadline deadline);

  // Takes what the control thread says to the communicators, which come and go.
  ChannelRegistry registry_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<ProgressEngine> engine_;
  std::unique_ptr<ControlChannel> control_;
  std::unique_ptr<TransportCommunicator> communicator_;
  std::shared_ptr<const std::vector<int>> launched_as_;  // see PlaceInWorld
  std::unique_ptr<Communicator> on_device_;              // over communicator_; null where no device is named
};

World::World() : parts_(std::make_unique<Parts>()) {}

World::~World() {
  parts_->on_device_.reset();
  Close();
  parts_->communicator_.reset();
  parts_->engine_.reset();
  parts_->transport_.reset();
}

Communicator* World::communicator() {
  return parts_->on_device_ != nullptr ? parts_->on_device_.get() : parts_->communicator_.get();
}

void World::CloseCommunicator() {
  MutexLock lock(&mu_);
  parts_->on_device_.reset();
  parts_->communicator_.reset();
}

void World::Close() {
  MutexLock lock(&mu_);
  Parts& own = *parts_;
  if (own.on_device_ != nullptr) own.on_device_->Leave();
  // After this nobody calls back, so the rest may end.
  if (own.control_ != nullptr) own.control_->Leave();
  if (own.communicator_ != nullptr) own.communicator_->Leave();
  // What is left are parts that objects of ours have made for themselves.
  own.registry_.OnFailure({kAllChannels, absl::CancelledError("the communicator was destroyed")});
  if (own.engine_ == nullptr) return;
  own.engine_->Stop();
  MutexLock engine_lock(own.engine_->mutex());
  (void)own.transport_->Close(Deadline::Now());
}

absl::Status World::Parts::Connect(const WorldSpec& spec, const absl::StatusOr<Settings>& read,
                                   const WorldSecurity& security, const Credentials& credentials, int attempt,
                                   Store* store, TcpStoreServer* server) {
  const Settings settings = read.value_or(Settings());
  const Deadline deadline = Deadline::After(settings.setup_timeout);
  ControlOptions control = ControlOptionsOf(spec, credentials, attempt);
  control.host_id = settings.host_id;
  control.rank_zero_serves = !spec.store_served && absl::StartsWith(spec.store_url, "tcp://");
  if (server != nullptr) {
    control.hindrance = [server] { return server->status(); };
    control.why_missing = [server] { return server->turned_away(); };
    control.parting = kParting;
  }
  control.peer_timeout = settings.peer_timeout;
  control.on_failure = [this](const Failure& failure) { registry_.OnFailure(failure); };
  control.progress = [this] { return registry_.progress(); };
  control.called = [this](ChannelId channel, uint64_t sequence) { return registry_.CalledAs(channel, sequence); };

  const absl::StatusOr<InterfaceChoice> interface =
      read.ok() ? ChooseBindAddress(spec, settings) : absl::StatusOr<InterfaceChoice>(read.status());
  control.only_leaves = !interface.ok();
  if (interface.ok()) {
    Log(spec, *interface);
    control.coordinator_bind_address = interface->chosen.address.WithPort(0);
    control.why_loopback = WhyLoopback(spec, settings, *interface);
    if (!control.why_loopback.empty()) LOCKSTEP_LOG(kWarning) << control.why_loopback << ": no other host can reach it";
    if (security.level == SecurityLevel::kNone && spec.rank == Rank(0)) {
      LOCKSTEP_LOG(kWarning) << "security is none: whoever reaches a port of this job at "
                             << interface->chosen.address.HostString()
                             << " can read its data, change it and end the job (docs/security.md)";
    }
  } else if (spec.rank == Rank(0)) {
    ControlChannel::Refuse(control, store, interface.status(), deadline);
    return interface.status();
  }
  // Who cannot go on goes to the coordinator all the same, if it is there, to say why.
  absl::StatusOr<std::unique_ptr<ControlChannel>> created =
      ControlChannel::Create(std::move(control), store,
                             interface.ok() ? deadline : Deadline::Earlier(deadline, Deadline::After(kTellingTime)));
  absl::Status status = interface.ok() ? created.status() : interface.status();
  if (!created.ok()) return status;
  control_ = *std::move(created);
  const std::string source = credentials.secret != nullptr ? credentials.source : store->Describe();
  if (status.ok()) status = ConnectThrough(spec, settings, security, source, *interface, *store, deadline);
  if (!status.ok()) control_->LeaveBecause(status);
  return status;
}

namespace {

// As lockstep-run set it; -1 if it did not start this process.
int RankInJob() {
  int rank = -1;
  const absl::optional<std::string> text = GetEnv("LOCKSTEP_RANK");
  return text.has_value() && absl::SimpleAtoi(*text, &rank) && rank >= 0 ? rank : -1;
}

}  // namespace

absl::Status World::Parts::ConnectThrough(const WorldSpec& spec, const Settings& settings,
                                          const WorldSecurity& security, const std::string& secret_source,
                                          const InterfaceChoice& interface, const Store& store, Deadline deadline) {
  if (settings.transport->create_wide != nullptr) {
    LOCKSTEP_RETURN_IF_ERROR(CheckProtected(security, Unprotected::kOfi));
    const std::string notice = UnprotectedText(security, Unprotected::kOfi);
    if (spec.rank == Rank(0) && !notice.empty()) LOCKSTEP_LOG(kInfo) << notice;
  }
  // Where no interface was asked for, the one by which rank 0 is reached is known to work.
  const SocketAddress address =
      settings.interface.value.empty() ? control_->local_address().WithPort(0) : interface.chosen.address.WithPort(0);
  LOCKSTEP_ASSIGN_OR_RETURN(WorldTransport transport,
                            WorldTransport::Listen(TransportOptions(spec, settings, security, *control_, address)));

  Member self;
  self.rank = spec.rank;
  self.host = HostName();
  self.host_id = settings.host_id;
  self.pid = getpid();
  self.launched_as = RankInJob();
  self.cores = CoresOfThisThread();
  transport.Announce(&self);
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<Member> members,
                            control_->Join(self, OptionsToAgreeOn(settings, security, transport), deadline));
  LOCKSTEP_RETURN_IF_ERROR(WarnOfSlowLink(
      members, spec.rank, address, /*chosen_by_user=*/!settings.interface.value.empty(), control_.get(), deadline));
  LOCKSTEP_RETURN_IF_ERROR(transport.Connect(control_.get(), members, deadline));
  LOCKSTEP_ASSIGN_OR_RETURN(const bool share_memory, transport.AllShareMemory(control_.get(), members, deadline));
  const std::string description =
      Describe(spec, settings, Describe(security, secret_source, settings.transport->create_wide != nullptr), store,
               members, transport);
  ShmTransport* const shared_memory = share_memory ? transport.shared_memory() : nullptr;
  const bool on_one_host = share_memory && transport.local_peers().size() + 1 == members.size();
  LOCKSTEP_ASSIGN_OR_RETURN(transport_, transport.Take());
  // Rank 0 has control connections to all.
  if (on_one_host) shared_memory->Settled(/*parks=*/spec.rank == Rank(0));

  const double ranks_per_core = RanksPerCore(members, self.host_id);
  const bool cores_to_spare = ranks_per_core > 0 && ranks_per_core <= 1;
  engine_ =
      std::make_unique<ProgressEngine>(transport_.get(), cores_to_spare ? kSpin : std::chrono::microseconds::zero());
  TransportCommunicatorOptions options;
  options.channel = ChannelRegistry::kWorldChannel;
  options.registry = &registry_;
  options.chunk_bytes = settings.chunk_bytes;
  options.algorithms = settings.algorithms;
  options.checked = settings.checked;
  options.deterministic = settings.deterministic;
  options.timeout = settings.timeout;
  options.flight_records = settings.flight_records;
  auto launched_as = std::make_shared<std::vector<int>>();
  for (const Member& member : members) launched_as->push_back(static_cast<int>(member.launched_as));
  options.launched_as = launched_as_ = std::move(launched_as);
  const LinkCosts& without_memory = settings.transport->on_one_host;
  options.shape = ShapeOf(members, share_memory ? kSharedMemory : without_memory);
  options.description = description;
  options.shared_memory = shared_memory;
  communicator_ = std::make_unique<TransportCommunicator>(engine_.get(), control_.get(), std::move(options));
  LOCKSTEP_RETURN_IF_ERROR(
      communicator_->ShareMemory(ChannelRegistry::MemoryOf(Rank(0), ChannelRegistry::kWorldMemory), deadline));
  for (int i = 0; i < kCollectiveCount && spec.rank == Rank(0) && !communicator_->SharesMemory(); ++i) {
    const Algorithm named = settings.algorithms.by_collective[i];
    if (!UsesSharedMemory(named)) continue;
    LOCKSTEP_LOG(kWarning) << Name(named) << " was asked for, and these ranks do not all share memory: "
                           << Name(static_cast<Collective>(i)) << " goes by another algorithm";
  }
  return absl::OkStatus();
}

namespace {

// Which set-up of a job this is for a rank in this process: 0, and one more after each that failed until one succeeds. Ranks that
// do the same count alike, and tell by it a failure of the set-up before this from one of this. What ended at a deadline does not
// count: another rank may not have begun it.
class Attempts {
 public:
  static Attempts& OfThisProcess() {
    static Attempts* const attempts = new Attempts;
    return *attempts;
  }

  int Of(const std::string& setup) {
    MutexLock lock(&mu_);
    const auto found = failed_.find(setup);
    return found == failed_.end() ? 0 : found->second;
  }

  void Ended(const std::string& setup, const absl::Status& status) {
    MutexLock lock(&mu_);
    if (status.ok()) failed_.erase(setup);
    if (!status.ok() && !absl::IsDeadlineExceeded(status)) ++failed_[setup];
  }

 private:
  Mutex mu_;
  std::map<std::string, int> failed_ ABSL_GUARDED_BY(mu_);
};

// For a rank 0 whose store's port is taken: if another rank 0 of this job has it, fails the set-up of both.
absl::Status MeetOther(WorldSpec spec, Credentials credentials, int attempt) {
  spec.store_served = true;
  const Deadline deadline = Deadline::After(kMeetingTime);
  LOCKSTEP_ASSIGN_OR_RETURN(const OpenedStore opened, OpenStore(spec, &credentials, deadline));
  return ControlChannel::MeetOther(ControlOptionsOf(spec, credentials, attempt), opened.store.get(), deadline);
}

}  // namespace

absl::Status World::Parts::Create(const WorldOptions& options, const absl::StatusOr<Settings>& settings,
                                  const absl::StatusOr<WorldSecurity>& security) {
  RendezvousOptions rendezvous;
  if (options.size != 0) {
    rendezvous.size = options.size;
    rendezvous.rank = options.rank;
  }
  if (options.local_size != 0) {
    rendezvous.local_size = options.local_size;
    rendezvous.local_rank = options.local_rank;
  }
  rendezvous.store_url = options.store_url;
  rendezvous.has_store = options.store != nullptr;
  rendezvous.job_id = options.job_id;
  const Deadline deadline = Deadline::After(settings.ok() ? settings->setup_timeout : kTellingTime);
  const absl::StatusOr<WorldSpec> determined = DetermineWorld(rendezvous, Environment::OfThisProcess(deadline));
  const bool alone = !determined.ok() || determined->size == 1;
  if (!settings.ok() && alone) return settings.status();
  LOCKSTEP_RETURN_IF_ERROR(determined.status());
  WorldSpec spec = *determined;
  if (settings.ok()) spec.answer_time = settings->peer_timeout;
  for (const std::string& note : spec.notes) LOCKSTEP_LOG(kWarning) << note;
  // Without a secret there is no way to tell the others why.
  LOCKSTEP_RETURN_IF_ERROR(security.status());
  if (alone) {
    communicator_ = std::make_unique<SelfCommunicator>(settings->flight_records, settings->timeout);
    return absl::OkStatus();
  }
  LOCKSTEP_ASSIGN_OR_RETURN(Credentials credentials, ReadCredentials(*security));
  const Credentials job_credentials = credentials;

  // Of an exchange every store is new, and so is every attempt.
  const bool by_exchange = spec.exchange != ExchangeKind::kNone;
  const std::string setup = absl::StrCat(absl::Hex(reinterpret_cast<uintptr_t>(options.store)), " ", spec.store_url,
                                         " ", spec.rank.value(), " ", spec.job_id);
  const int attempt = by_exchange ? 0 : Attempts::OfThisProcess().Of(setup);
  if (!by_exchange) LOCKSTEP_LOG(kInfo) << Explain(spec);
  TakeBackFromLauncher();
  const absl::Status status = [&] {
    if (options.store != nullptr) {
      return Connect(spec, settings, *security, credentials, attempt, options.store, nullptr);
    }
    // Once all have joined nobody needs the store any more, so it goes with this scope and another world may use its address.
    const absl::StatusOr<OpenedStore> opened =
        by_exchange ? OpenStoreByExchange(&spec, &credentials, AddressOfStore(spec, settings), deadline)
                    : OpenStore(spec, &credentials, deadline);
    if (absl::IsAlreadyExists(opened.status()) && settings.ok() && !by_exchange) {
      const absl::Status met = MeetOther(spec, job_credentials, attempt);
      if (absl::IsAlreadyExists(met)) return met;
    }
    if (!opened.ok()) return settings.ok() ? opened.status() : settings.status();
    if (by_exchange) LOCKSTEP_LOG(kInfo) << Explain(spec);
    return Connect(spec, settings, *security, credentials, attempt, opened->store.get(), opened->server.get());
  }();
  if (!status.ok()) TellLauncher({spec.rank, spec.size}, status);
  if (by_exchange) return status;
  Attempts::OfThisProcess().Ended(setup, status);
  return status;
}

absl::StatusOr<std::unique_ptr<World>> World::Create(const WorldOptions& options) {
  const absl::StatusOr<Settings> read = ReadSettings(options);
  auto world = std::unique_ptr<World>(new World());
  const absl::StatusOr<WorldSecurity> security = ReadSecurity(options);
  LOCKSTEP_RETURN_IF_ERROR(world->parts_->Create(options, read, security));
  const Settings& settings = *read;  // or there were no world
  if (options.device.kind == DeviceKind::kHost) return world;
  DeviceBackendOptions device;
  device.backend = settings.device_backend;
  device.nccl_is_protected = CheckProtected(*security, Unprotected::kNccl);
  device.nccl_notice = UnprotectedText(*security, Unprotected::kNccl);
  device.check_pointers = settings.checked;
  device.nccl.nccl.ctas_min = options.nccl_ctas_min;
  device.nccl.nccl.ctas_max = options.nccl_ctas_max;
  device.nccl.nccl.split_share = options.nccl_split_share;
  device.nccl.deterministic = settings.deterministic;
  device.nccl.checked = settings.checked;
  device.nccl.setup_timeout = settings.setup_timeout;
  device.nccl.timeout = device.staged.timeout = settings.timeout;
  device.nccl.flight_records = device.staged.flight_records = settings.flight_records;
  device.nccl.launched_as = world->parts_->launched_as_;
  Communicator* const host = world->communicator();
  const absl::StatusOr<Device*> found = FindDevice(options.device);
  LOCKSTEP_RETURN_IF_ERROR(AgreeThatAllCan(host, found.status()));
  LOCKSTEP_ASSIGN_OR_RETURN(world->parts_->on_device_, MakeDeviceCommunicator(host, *found, device));
  return world;
}

}  // namespace lockstep
