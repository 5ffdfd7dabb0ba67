#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/compare_peers.h"

namespace lockstep {
namespace bench {
namespace {

using Environment = std::vector<std::pair<std::string, std::string>>;

// MPI allocates a temporary in every call. Above glibc's 32 MiB it is mapped, faulted in and unmapped each time, unless
// malloc is told to keep it.
Environment MallocSettings() {
  return {{"MALLOC_MMAP_THRESHOLD_", "4000000000"}, {"MALLOC_TRIM_THRESHOLD_", "8000000000"}};
}

Contender Base(const Peer& peer, const std::string& name, const std::string& how) {
  Contender contender;
  contender.name = name;
  contender.kind = ContenderKind::kPeer;
  contender.about = absl::StrCat(peer.version, how.empty() ? "" : ", ", how);
  contender.command = peer.launcher;
  return contender;
}

Contender OpenMpi(const Peer& peer, const PeerSettings& settings, const std::string& name, const std::string& how,
                  const std::vector<std::string>& parameters) {
  Contender contender = Base(peer, name, how);
  contender.process_per_rank = false;
  if (settings.as_root) contender.command.push_back("--allow-run-as-root");
  // Ranks pin themselves, like everybody's.
  const std::vector<std::string> words = {"--oversubscribe", "--bind-to", "none", "-n", absl::StrCat(settings.ranks),
                                          "--mca",           "pml",       "ob1"};
  contender.command.insert(contender.command.end(), words.begin(), words.end());
  for (size_t i = 0; i + 1 < parameters.size(); i += 2) {
    contender.command.insert(contender.command.end(), {"--mca", parameters[i], parameters[i + 1]});
  }
  contender.command.push_back(peer.player);
  return contender;
}

Contender Mpich(const Peer& peer, const PeerSettings& settings, const std::string& name, const std::string& how,
                const Environment& environment) {
  Contender contender = Base(peer, name, how);
  contender.process_per_rank = false;
  const std::vector<std::string> words = {"-bind-to", "none", "-n", absl::StrCat(settings.ranks), peer.player};
  contender.command.insert(contender.command.end(), words.begin(), words.end());
  contender.environment = environment;
  return contender;
}

Contender Gloo(const Peer& peer, const std::string& name, const std::string& how, const std::string& algorithm) {
  Contender contender = Base(peer, name, how);
  contender.command.push_back(peer.player);
  contender.options = {algorithm};
  return contender;
}

std::vector<Contender> MpiContenders(const Peer& peer, const PeerSettings& settings) {
  const bool shared = settings.transport == "shm";
  if (peer.kind == PeerKind::kOpenMpi) {
    if (!shared) {
      return {OpenMpi(peer, settings, "openmpi", "btl tcp on lo", {"btl", "self,tcp", "btl_tcp_if_include", "lo"})};
    }
    return {OpenMpi(peer, settings, "openmpi copy", "btl vader, single-copy none",
                    {"btl", "self,vader", "btl_vader_single_copy_mechanism", "none"}),
            OpenMpi(peer, settings, "openmpi cma", "btl vader, single-copy cma",
                    {"btl", "self,vader", "btl_vader_single_copy_mechanism", "cma"})};
  }
  // Its own shared memory carries a host's ranks, unless it is told that nobody is near.
  if (!shared) {
    return {Mpich(peer, settings, "mpich", "through UCX tcp on lo",
                  {{"MPIR_CVAR_NOLOCAL", "1"}, {"UCX_TLS", "tcp,self"}, {"UCX_NET_DEVICES", "lo"}})};
  }
  return {Mpich(peer, settings, "mpich", "ch4's own shared memory", {}),
          Mpich(peer, settings, "mpich ucx", "everything through UCX's shared memory",
                {{"MPIR_CVAR_NOLOCAL", "1"}, {"UCX_TLS", "posix,sysv,cma,self"}})};
}

}  // namespace

std::vector<Contender> PeerContenders(const Peer& peer, const PeerSettings& settings) {
  switch (peer.kind) {
    case PeerKind::kGloo:
      return {Gloo(peer, "gloo ring", "ring", "ring"), Gloo(peer, "gloo hd", "halving-doubling", "hd"),
              Gloo(peer, "gloo hd busy", "halving-doubling, synchronous and busy-polling", "hd_busy")};
    case PeerKind::kPyTorch: {
      Contender contender = Base(peer, "pytorch", "torch.distributed.all_reduce, one thread");
      contender.command.push_back(peer.player);
      contender.options = {peer.library};
      return {contender};
    }
    case PeerKind::kOpenMpi:
    case PeerKind::kMpich:
      break;
  }
  std::vector<Contender> contenders = MpiContenders(peer, settings);
  if (!settings.mpi_malloc) return contenders;
  const size_t plain = contenders.size();
  for (size_t i = 0; i < plain; ++i) {
    Contender contender = contenders[i];
    absl::StrAppend(&contender.name, " m");
    absl::StrAppend(&contender.about, ", MALLOC_MMAP_THRESHOLD_=4000000000 MALLOC_TRIM_THRESHOLD_=8000000000");
    for (const auto& variable : MallocSettings()) contender.environment.push_back(variable);
    contenders.push_back(std::move(contender));
  }
  return contenders;
}

}  // namespace bench
}  // namespace lockstep
