// Other libraries that do all-reduce, where they are installed: found, their players compiled, and the settings under
// which they are compared. Nothing of them is needed to build or to run without them.

#ifndef BENCH_COMPARE_PEERS_H_
#define BENCH_COMPARE_PEERS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "bench/compare_contender.h"

namespace lockstep {
namespace bench {

enum class PeerKind { kGloo, kOpenMpi, kMpich, kPyTorch };

// "all", "none", or names with commas between: gloo, openmpi, mpich, pytorch. INVALID_ARGUMENT lists the known ones.
absl::StatusOr<std::vector<PeerKind>> ParsePeers(absl::string_view text);
const char* Name(PeerKind kind);

// An installed peer, ready to be started.
struct Peer {
  PeerKind kind = PeerKind::kGloo;
  std::string version;                // "Open MPI 4.1.4"
  std::vector<std::string> launcher;  // what starts the player: mpirun, python3; or nothing
  std::string player;                 // the program, or the script
  std::string library;                // of PyTorch's player
};

// Looks for a peer and compiles its player from the sources in `sources` (bench/peers) into `folder`. NOT_FOUND when it
// is not installed; other errors, with the compiler's words, when it is and does not work. Takes seconds.
absl::StatusOr<Peer> FindPeer(PeerKind kind, const std::string& sources, const std::string& folder);

// What to type to get it, on Debian and Ubuntu.
std::string InstallCommand(PeerKind kind);

struct PeerSettings {
  std::string transport;  // "shm" or "tcp"
  int ranks = 2;
  bool as_root = false;     // Open MPI refuses root unless told otherwise
  bool mpi_malloc = false;  // MPI also under the malloc settings that spare it page faults (see MallocSettings)
};

// The contenders that a peer makes: one for each of its settings that is worth a column. Gloo and PyTorch know TCP
// alone, and are what their users have on one host too, so they take part over shared memory as well.
std::vector<Contender> PeerContenders(const Peer& peer, const PeerSettings& settings);

struct MpiVersion {
  PeerKind kind = PeerKind::kOpenMpi;
  std::string version;
};
// From what `mpirun --version` prints; NOT_FOUND for another MPI.
absl::StatusOr<MpiVersion> ParseMpiVersion(absl::string_view text);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_COMPARE_PEERS_H_
