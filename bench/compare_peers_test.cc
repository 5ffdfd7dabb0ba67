// Detection against programs that only pretend: scripts in a folder that is all of PATH. Nothing depends on what this
// machine has installed.

#include "bench/compare_peers.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_matchers.h"
#include "bench/compare_contender.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace bench {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

constexpr char kSources[] = "bench/peers";

class FindPeerTest : public ::testing::Test {
 protected:
  FindPeerTest() {
    folder_ = ::testing::TempDir() + "/peers-XXXXXX";
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    path_before_ = getenv("PATH") != nullptr ? getenv("PATH") : "";
    setenv("PATH", folder_.c_str(), 1);
  }
  ~FindPeerTest() override { setenv("PATH", path_before_.c_str(), 1); }

  void MakeProgram(const std::string& name, const std::string& script) {
    const std::string path = absl::StrCat(folder_, "/", name);
    std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
    ASSERT_EQ(chmod(path.c_str(), S_IRWXU), 0);
  }

  std::string folder_;
  std::string path_before_;
};

TEST_F(FindPeerTest, WithoutProgramsNothingIsInstalled) {
  for (const PeerKind kind : {PeerKind::kGloo, PeerKind::kOpenMpi, PeerKind::kMpich}) {
    EXPECT_THAT(FindPeer(kind, kSources, folder_), StatusIs(absl::StatusCode::kNotFound)) << Name(kind);
  }
}

TEST_F(FindPeerTest, EachMpiIsFoundUnderItsDebianName) {
  MakeProgram("mpirun.openmpi", "echo 'mpirun.openmpi (OpenRTE) 4.1.4'");
  MakeProgram("mpicc.openmpi", "exit 0");
  const absl::StatusOr<Peer> peer = FindPeer(PeerKind::kOpenMpi, kSources, folder_);
  ASSERT_THAT(peer, IsOk());
  EXPECT_EQ(peer->version, "Open MPI 4.1.4");
  EXPECT_THAT(peer->launcher, ElementsAre("mpirun.openmpi"));
  EXPECT_EQ(peer->player, folder_ + "/openmpi_player");
  EXPECT_THAT(FindPeer(PeerKind::kMpich, kSources, folder_), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(FindPeerTest, APlainMpirunIsAskedWhichItIs) {
  MakeProgram("mpirun", "printf 'HYDRA build details:\\n    Version:            4.0.2\\n'");
  MakeProgram("mpicc", "exit 0");
  const absl::StatusOr<Peer> peer = FindPeer(PeerKind::kMpich, kSources, folder_);
  ASSERT_THAT(peer, IsOk());
  EXPECT_EQ(peer->version, "MPICH 4.0.2");
  EXPECT_THAT(peer->launcher, ElementsAre("mpirun"));
  EXPECT_THAT(FindPeer(PeerKind::kOpenMpi, kSources, folder_), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(FindPeerTest, ACompilerThatFailsIsNotTheSameAsNotInstalled) {
  MakeProgram("mpirun", "echo 'mpirun (Open MPI) 5.0.1'");
  MakeProgram("mpicc", "echo 'no mpi.h' >&2; exit 3");
  EXPECT_THAT(FindPeer(PeerKind::kOpenMpi, kSources, folder_),
              StatusIs(absl::StatusCode::kUnknown, HasSubstr("exited with status 3: no mpi.h")));
  // Nor is one that is not there.
  MakeProgram("mpirun.mpich", "printf 'HYDRA build details:\\n    Version: 4.0.2\\n'");
  EXPECT_THAT(FindPeer(PeerKind::kMpich, kSources, folder_),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("mpicc.mpich")));
}

TEST_F(FindPeerTest, GlooIsFoundByItsHeader) {
  MakeProgram("g++", "exit 0");
  const absl::StatusOr<Peer> peer = FindPeer(PeerKind::kGloo, kSources, folder_);
  ASSERT_THAT(peer, IsOk());
  EXPECT_EQ(peer->version, "Gloo of unknown version");  // no dpkg-query here
  EXPECT_THAT(peer->launcher, IsEmpty());
}

TEST_F(FindPeerTest, PyTorchIsThereWhenPythonCanImportIt) {
  MakeProgram("python3", "echo 1.13.1");
  MakeProgram("cc", "exit 0");
  const absl::StatusOr<Peer> peer = FindPeer(PeerKind::kPyTorch, kSources, folder_);
  ASSERT_THAT(peer, IsOk());
  EXPECT_EQ(peer->version, "PyTorch 1.13.1 over Gloo");
  EXPECT_EQ(peer->player, "bench/peers/torch_player.py");
}

TEST(ParseMpiVersion, KnowsBoth) {
  const absl::StatusOr<MpiVersion> open = ParseMpiVersion("mpirun (Open MPI) 5.0.1\n\nReport bugs to ...\n");
  ASSERT_THAT(open, IsOk());
  EXPECT_EQ(open->kind, PeerKind::kOpenMpi);
  EXPECT_EQ(open->version, "5.0.1");
  const absl::StatusOr<MpiVersion> mpich = ParseMpiVersion("HYDRA build details:\n    Version:        4.0.2\n");
  ASSERT_THAT(mpich, IsOk());
  EXPECT_EQ(mpich->kind, PeerKind::kMpich);
  EXPECT_EQ(mpich->version, "4.0.2");
  for (const char* text : {"", "Intel(R) MPI Library 2021", "HYDRA", "OpenRTE"}) {
    EXPECT_THAT(ParseMpiVersion(text), StatusIs(absl::StatusCode::kNotFound)) << text;
  }
}

TEST(ParsePeers, KnowsNamesAllAndNone) {
  EXPECT_THAT(ParsePeers("none"), IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(ParsePeers("all"), IsOkAndHolds(SizeIs(4)));
  EXPECT_THAT(ParsePeers("mpich,gloo,mpich"), IsOkAndHolds(ElementsAre(PeerKind::kMpich, PeerKind::kGloo)));
  EXPECT_THAT(ParsePeers("gloo,nccl"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'nccl'; known are all, none, gloo, openmpi")));
  EXPECT_THAT(ParsePeers(""), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no peer ''")));
}

TEST(InstallCommand, NamesPackages) {
  EXPECT_THAT(InstallCommand(PeerKind::kGloo), HasSubstr("apt-get install --no-install-recommends g++ libgloo-dev"));
  EXPECT_THAT(InstallCommand(PeerKind::kPyTorch), HasSubstr("python3-torch"));
}

Peer Mpi(PeerKind kind) {
  Peer peer;
  peer.kind = kind;
  peer.version = "MPI 1";
  peer.launcher = {"mpirun"};
  peer.player = "/player";
  return peer;
}

std::string Command(const Contender& contender) { return absl::StrJoin(contender.command, " "); }

TEST(PeerContenders, OpenMpiTakesTheTransportThatIsAskedFor) {
  PeerSettings settings;
  settings.transport = "tcp";
  settings.ranks = 4;
  const std::vector<Contender> tcp = PeerContenders(Mpi(PeerKind::kOpenMpi), settings);
  ASSERT_THAT(tcp, SizeIs(1));
  EXPECT_EQ(Command(tcp[0]),
            "mpirun --oversubscribe --bind-to none -n 4 --mca pml ob1 --mca btl self,tcp --mca btl_tcp_if_include lo "
            "/player");
  EXPECT_FALSE(tcp[0].process_per_rank);
  settings.transport = "shm";
  settings.as_root = true;
  const std::vector<Contender> shm = PeerContenders(Mpi(PeerKind::kOpenMpi), settings);
  ASSERT_THAT(shm, SizeIs(2));
  EXPECT_THAT(Command(shm[0]), HasSubstr("--allow-run-as-root"));
  EXPECT_THAT(Command(shm[0]), HasSubstr("--mca btl self,vader --mca btl_vader_single_copy_mechanism none"));
  EXPECT_THAT(Command(shm[1]), HasSubstr("--mca btl_vader_single_copy_mechanism cma"));
}

TEST(PeerContenders, MallocSettingsMakeMoreRowsOfMpiAlone) {
  PeerSettings settings;
  settings.transport = "shm";
  settings.mpi_malloc = true;
  const std::vector<Contender> mpich = PeerContenders(Mpi(PeerKind::kMpich), settings);
  ASSERT_THAT(mpich, SizeIs(4));
  EXPECT_THAT(mpich[0].environment, IsEmpty());
  EXPECT_EQ(mpich[2].name, mpich[0].name + " m");
  EXPECT_THAT(mpich[2].environment, Contains(Pair("MALLOC_MMAP_THRESHOLD_", "4000000000")));
  Peer gloo;
  EXPECT_THAT(PeerContenders(gloo, settings), SizeIs(3));
}

TEST(PeerContenders, NamesFitTheTableAndDiffer) {
  PeerSettings settings;
  settings.mpi_malloc = true;
  for (const char* transport : {"shm", "tcp"}) {
    settings.transport = transport;
    std::vector<std::string> names;
    for (const PeerKind kind : {PeerKind::kGloo, PeerKind::kOpenMpi, PeerKind::kMpich, PeerKind::kPyTorch}) {
      for (const Contender& contender : PeerContenders(Mpi(kind), settings)) names.push_back(contender.name);
    }
    std::sort(names.begin(), names.end());
    EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
    for (const std::string& name : names) EXPECT_LE(name.size(), 14) << name;
  }
}

}  // namespace
}  // namespace bench
}  // namespace lockstep
