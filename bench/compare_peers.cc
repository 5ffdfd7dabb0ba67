#include "bench/compare_peers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/deadline.h"
#include "base/status.h"
#include "bench/compare_command.h"

namespace lockstep {
namespace bench {
namespace {

constexpr PeerKind kAll[] = {PeerKind::kGloo, PeerKind::kOpenMpi, PeerKind::kMpich, PeerKind::kPyTorch};
constexpr int64_t kCompileMs = 120'000;
constexpr int64_t kVersionMs = 60'000;  // importing torch from a cold disk takes its time

absl::Status Compile(std::vector<std::string> words) {
  return RunCommand(words, Deadline::AfterMs(kCompileMs)).status();
}

absl::StatusOr<Peer> FindGloo(const std::string& sources, const std::string& folder) {
  const std::vector<std::string> probe = {"g++", "-E", "-x", "c++", "-include", "gloo/allreduce.h", "/dev/null"};
  if (const absl::Status found = RunCommand(probe, Deadline::AfterMs(kVersionMs)).status(); !found.ok()) {
    return absl::NotFoundError("no gloo/allreduce.h");
  }
  Peer peer;
  peer.kind = PeerKind::kGloo;
  // Gloo has no version of its own.
  const absl::StatusOr<std::string> package =
      RunCommand({"dpkg-query", "-W", "-f", "${Version}", "libgloo-dev"}, Deadline::AfterMs(kVersionMs));
  peer.version = absl::StrCat("Gloo ", package.ok() ? *package : "of unknown version");
  peer.player = folder + "/gloo_player";
  LOCKSTEP_RETURN_IF_ERROR(Compile({"g++", "-std=c++17", "-O3", "-D_GNU_SOURCE", sources + "/gloo_player.cc", "-o",
                                    peer.player, "-lgloo", "-pthread"}));
  return peer;
}

absl::StatusOr<Peer> FindMpi(PeerKind kind, const std::string& sources, const std::string& folder) {
  const std::string name = Name(kind);
  // Debian gives both their own names; elsewhere plain ones are whichever is installed.
  for (const std::string& suffix : {"." + name, std::string()}) {
    const std::string launcher = "mpirun" + suffix;
    const absl::StatusOr<std::string> text = RunCommand({launcher, "--version"}, Deadline::AfterMs(kVersionMs));
    if (!text.ok()) continue;
    const absl::StatusOr<MpiVersion> version = ParseMpiVersion(*text);
    if (!version.ok() || version->kind != kind) continue;
    Peer peer;
    peer.kind = kind;
    peer.version = absl::StrCat(kind == PeerKind::kOpenMpi ? "Open MPI " : "MPICH ", version->version);
    peer.launcher = {launcher};
    peer.player = absl::StrCat(folder, "/", name, "_player");
    LOCKSTEP_RETURN_IF_ERROR(Compile(
        {"mpicc" + suffix, "-std=gnu99", "-O3", "-D_GNU_SOURCE", sources + "/mpi_player.c", "-o", peer.player}));
    return peer;
  }
  return absl::NotFoundError(absl::StrCat("neither mpirun.", name, " nor an mpirun of it"));
}

absl::StatusOr<Peer> FindPyTorch(const std::string& sources, const std::string& folder) {
  const std::string question =
      "import torch, torch.distributed as d; assert d.is_available() and d.is_gloo_available(); "
      "print(torch.__version__)";
  // The user's own Python first, then the one that the system's packages are for.
  for (const char* const python : {"python3", "/usr/bin/python3"}) {
    const absl::StatusOr<std::string> version = RunCommand({python, "-c", question}, Deadline::AfterMs(kVersionMs));
    if (!version.ok()) continue;
    Peer peer;
    peer.kind = PeerKind::kPyTorch;
    peer.version = absl::StrCat("PyTorch ", absl::StripAsciiWhitespace(*version), " over Gloo");
    peer.launcher = {python};
    peer.player = sources + "/torch_player.py";
    peer.library = folder + "/player_library.so";
    LOCKSTEP_RETURN_IF_ERROR(Compile({"cc", "-std=gnu99", "-O3", "-D_GNU_SOURCE", "-shared", "-fPIC",
                                      sources + "/player_library.c", "-o", peer.library}));
    return peer;
  }
  return absl::NotFoundError("no python3 can import torch.distributed with Gloo");
}

}  // namespace

const char* Name(PeerKind kind) {
  switch (kind) {
    case PeerKind::kGloo:
      return "gloo";
    case PeerKind::kOpenMpi:
      return "openmpi";
    case PeerKind::kMpich:
      return "mpich";
    case PeerKind::kPyTorch:
      return "pytorch";
  }
  return "";
}

absl::StatusOr<std::vector<PeerKind>> ParsePeers(absl::string_view text) {
  if (text == "none") return std::vector<PeerKind>();
  if (text == "all") return std::vector<PeerKind>(std::begin(kAll), std::end(kAll));
  std::vector<PeerKind> peers;
  for (const absl::string_view name : absl::StrSplit(text, ',')) {
    const auto found =
        std::find_if(std::begin(kAll), std::end(kAll), [&](PeerKind kind) { return name == Name(kind); });
    if (found == std::end(kAll)) {
      const auto append = [](std::string* out, PeerKind kind) { out->append(Name(kind)); };
      return absl::InvalidArgumentError(
          absl::StrCat("no peer '", name, "'; known are all, none, ", absl::StrJoin(kAll, ", ", append)));
    }
    if (std::find(peers.begin(), peers.end(), *found) == peers.end()) peers.push_back(*found);
  }
  return peers;
}

absl::StatusOr<Peer> FindPeer(PeerKind kind, const std::string& sources, const std::string& folder) {
  switch (kind) {
    case PeerKind::kGloo:
      return FindGloo(sources, folder);
    case PeerKind::kOpenMpi:
    case PeerKind::kMpich:
      return FindMpi(kind, sources, folder);
    case PeerKind::kPyTorch:
      return FindPyTorch(sources, folder);
  }
  return absl::InternalError("unknown peer");
}

std::string InstallCommand(PeerKind kind) {
  const auto apt = [](absl::string_view packages) {
    return absl::StrCat("apt-get install --no-install-recommends ", packages);
  };
  switch (kind) {
    case PeerKind::kGloo:
      return apt("g++ libgloo-dev");
    case PeerKind::kOpenMpi:
      return apt("gcc openmpi-bin libopenmpi-dev");
    case PeerKind::kMpich:
      return apt("gcc mpich libmpich-dev");
    case PeerKind::kPyTorch:
      return apt("gcc python3-torch");
  }
  return "";
}

absl::StatusOr<MpiVersion> ParseMpiVersion(absl::string_view text) {
  MpiVersion result;
  if (absl::StrContains(text, "OpenRTE") || absl::StrContains(text, "Open MPI")) {
    // "mpirun.openmpi (OpenRTE) 4.1.4", and then other lines.
    const absl::string_view line = *absl::StrSplit(text, '\n').begin();
    const size_t space = absl::StripAsciiWhitespace(line).rfind(' ');
    if (space == absl::string_view::npos) return absl::NotFoundError("an Open MPI that does not tell its version");
    result.version = std::string(absl::StripAsciiWhitespace(line).substr(space + 1));
    return result;
  }
  if (absl::StrContains(text, "HYDRA")) {
    result.kind = PeerKind::kMpich;
    for (absl::string_view line : absl::StrSplit(text, '\n')) {
      line = absl::StripAsciiWhitespace(line);
      if (!absl::ConsumePrefix(&line, "Version:")) continue;
      result.version = std::string(absl::StripAsciiWhitespace(line));
      return result;
    }
  }
  return absl::NotFoundError("neither Open MPI nor MPICH");
}

}  // namespace bench
}  // namespace lockstep
