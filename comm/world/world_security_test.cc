// How a world gets its secret, and what keeps ranks with another secret or level out.

#include "comm/world/world_security.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log_testing.h"
#include "base/status_matchers.h"
#include "comm/world/world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ranks.h"
#include "tests/worlds.h"
#include "transport/net/interface.h"
#include "transport/net/socket.h"
#include "transport/store/store_memory.h"

namespace lockstep {
namespace {

using ::lockstep::testing::RunRanks;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using Code = absl::StatusCode;

constexpr const char* kVariables[] = {"LOCKSTEP_SECRET_FILE", "LOCKSTEP_SECURITY", "LOCKSTEP_SECURITY_LOCAL",
                                      "LOCKSTEP_SECURITY_UNPROTECTED"};

class WorldSecurityTest : public ::testing::Test {
 protected:
  WorldSecurityTest() {
    for (const char* name : kVariables) {
      if (const char* const value = getenv(name); value != nullptr) before_[name] = value;
      unsetenv(name);
    }
  }
  ~WorldSecurityTest() override {
    for (const char* name : kVariables) {
      unsetenv(name);
      if (before_.count(name) != 0) setenv(name, before_[name].c_str(), 1);
    }
  }

  // A file with a secret made of one hex digit.
  static std::string SecretFile(char digit, mode_t mode = 0600) {
    const std::string path = absl::StrCat(::testing::TempDir(), "/secret", getpid(), std::string(1, digit));
    (void)unlink(path.c_str());
    std::ofstream(path) << std::string(64, digit);
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    return path;
  }

  // Two ranks that meet at a store of theirs over TCP, which rank 0 serves.
  static std::vector<WorldOrError> Meet(const std::function<void(int, WorldOptions*)>& change) {
    // Free a moment ago.
    const auto free_address = [] {
      const UniqueFd taken = Listen(SocketAddress::Parse("127.0.0.1:0").value()).value();
      return LocalAddress(taken.get())->ToString();
    };
    const std::string url = absl::StrCat("tcp://", free_address());
    return CreateWorlds(nullptr, 2, [&](int rank, WorldOptions* options) {
      options->store_url = url;
      change(rank, options);
    });
  }

  static void ExpectWork(const std::vector<WorldOrError>& worlds) {
    for (const WorldOrError& world : worlds) LOCKSTEP_ASSERT_OK(world);
    RunRanks(static_cast<int>(worlds.size()), [&](int rank) {
      std::vector<float> data(100'000, 1.0f);
      CollectiveRequest request =
          MakeRequest(Collective::kAllReduce, DType::kF32, data.size(), data.data(), data.data());
      LOCKSTEP_EXPECT_OK((*worlds[rank])->communicator()->Run(request));
      EXPECT_THAT(data, Each(static_cast<float>(worlds.size())));
    });
  }

 private:
  std::map<std::string, std::string> before_;
};

TEST_F(WorldSecurityTest, OptionsComeBeforeTheEnvironment) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(WorldSecurity security, ReadSecurity(WorldOptions()));
  EXPECT_EQ(security.level, SecurityLevel::kAuthenticate);
  EXPECT_EQ(security.secret_file, "");
  EXPECT_FALSE(security.records_on_one_host || security.unprotected_ofi || security.unprotected_nccl);

  setenv("LOCKSTEP_SECURITY", "none", 1);
  setenv("LOCKSTEP_SECRET_FILE", "/a", 1);
  setenv("LOCKSTEP_SECURITY_LOCAL", "yes", 1);
  setenv("LOCKSTEP_SECURITY_UNPROTECTED", "nccl,ofi", 1);
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(security, ReadSecurity(WorldOptions()));
  EXPECT_EQ(security.level, SecurityLevel::kNone);
  EXPECT_EQ(security.secret_file, "/a");
  EXPECT_TRUE(security.records_on_one_host && security.unprotected_ofi && security.unprotected_nccl);

  WorldOptions options;
  options.security = "encrypt";
  options.secret_file = "/b";
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(security, ReadSecurity(options));
  EXPECT_EQ(security.level, SecurityLevel::kEncrypt);
  EXPECT_EQ(security.secret_file, "/b");
  EXPECT_EQ(security.secret_file_from, "secret_file");
}

TEST_F(WorldSecurityTest, WrongValuesAreNamed) {
  WorldOptions options;
  options.security = "tls";
  EXPECT_THAT(ReadSecurity(options).status(),
              StatusIs(Code::kInvalidArgument, "security is 'tls', not none, authenticate, encrypt"));
  setenv("LOCKSTEP_SECURITY_UNPROTECTED", "ofi,rdma", 1);
  EXPECT_THAT(ReadSecurity(WorldOptions()).status(),
              StatusIs(Code::kInvalidArgument, AllOf(HasSubstr("ofi,rdma"), HasSubstr("takes ofi, nccl"))));
  unsetenv("LOCKSTEP_SECURITY_UNPROTECTED");
  setenv("LOCKSTEP_SECURITY", "1", 1);
  EXPECT_THAT(World::Create(WorldOptions()).status(),
              StatusIs(Code::kInvalidArgument, AllOf(HasSubstr("LOCKSTEP_SECURITY"), HasSubstr("authenticate"))));
}

TEST_F(WorldSecurityTest, AFileThatOthersMayReadIsRefused) {
  const std::string path = SecretFile('a', 0644);
  const std::vector<WorldOrError> worlds = Meet([&](int, WorldOptions* options) { options->secret_file = path; });
  for (const WorldOrError& world : worlds) {
    EXPECT_THAT(world.status(), StatusIs(Code::kPermissionDenied, AllOf(HasSubstr("secret_file"), HasSubstr(path),
                                                                        HasSubstr("0644"), Not(HasSubstr("aaaa")))));
  }
}

TEST_F(WorldSecurityTest, EachLevelWorks) {
  for (const char* level : {"none", "authenticate", "encrypt"}) {
    for (const char* transport : {"auto", "tcp"}) {
      for (const bool with_file : {false, true}) {
        SCOPED_TRACE(absl::StrCat(level, " ", transport, " ", with_file));
        const std::vector<WorldOrError> worlds = Meet([&](int, WorldOptions* options) {
          options->security = level;
          options->transport = transport;
          if (with_file) options->secret_file = SecretFile('a');
        });
        ExpectWork(worlds);
        EXPECT_THAT((*worlds[0])->communicator()->Describe(), HasSubstr(absl::StrCat("security: ", level)));
      }
    }
  }
}

TEST_F(WorldSecurityTest, RecordsInsideAHostByRequest) {
  setenv("LOCKSTEP_SECURITY_LOCAL", "1", 1);
  const std::vector<WorldOrError> worlds = Meet([](int, WorldOptions* options) { options->transport = "tcp"; });
  ExpectWork(worlds);
  for (const WorldOrError& world : worlds) {
    EXPECT_THAT((*world)->communicator()->Describe(),
                HasSubstr("data is tagged between hosts, and inside a host over TCP"));
  }
}

TEST_F(WorldSecurityTest, AStoreOfTheCallersCarriesASecret) {
  LogLines log;
  MemoryStore store;
  ExpectWork(CreateWorlds(&store, 3));
  for (const std::string& line : log.lines()) EXPECT_THAT(line, Not(HasSubstr("turned away")));
}

TEST_F(WorldSecurityTest, AnotherSecretIsNotAdmitted) {
  const std::vector<WorldOrError> worlds = Meet([](int rank, WorldOptions* options) {
    options->setup_timeout = std::chrono::milliseconds(4000);
    options->secret_file = SecretFile(rank == 0 ? 'a' : 'b');
  });
  EXPECT_THAT(worlds[1].status(), StatusIs(Code::kPermissionDenied,
                                           AllOf(HasSubstr("does not have the secret"), HasSubstr("secret_file="))));
  EXPECT_THAT(worlds[0].status(), StatusIs(Code::kDeadlineExceeded, HasSubstr("rank 1")));
}

TEST_F(WorldSecurityTest, LevelsHaveToAgree) {
  const auto levels = [](const char* of_rank_0, const char* of_rank_1) {
    return Meet([=](int rank, WorldOptions* options) {
      options->setup_timeout = std::chrono::milliseconds(4000);
      options->security = rank == 0 ? of_rank_0 : of_rank_1;
    });
  };
  for (const WorldOrError& world : levels("authenticate", "encrypt")) {
    EXPECT_THAT(world.status(),
                StatusIs(Code::kFailedPrecondition, HasSubstr("security: authenticate on rank 0, encrypt on rank 1")));
  }
  const std::vector<WorldOrError> worlds = levels("authenticate", "none");
  EXPECT_THAT(worlds[1].status(),
              StatusIs(Code::kPermissionDenied,
                       AllOf(HasSubstr("authenticate or encrypt, not none"), HasSubstr("LOCKSTEP_SECURITY"))));
}

// Where ranks meet in a store that both reach, all of them are told.
TEST_F(WorldSecurityTest, LevelsHaveToAgreeInAStoreOfTheCallersToo) {
  MemoryStore store;
  const std::vector<WorldOrError> worlds = CreateWorlds(&store, 2, [](int rank, WorldOptions* options) {
    options->setup_timeout = std::chrono::milliseconds(4000);
    options->security = rank == 0 ? "authenticate" : "none";
  });
  EXPECT_THAT(worlds[1].status(), StatusIs(Code::kPermissionDenied, HasSubstr("authenticate or encrypt, not none")));
  EXPECT_FALSE(worlds[0].ok());
}

TEST_F(WorldSecurityTest, SeveralHostsNeedASecret) {
  // Neither rank is on loopback, and each is alone on its host.
  const absl::StatusOr<std::vector<InterfaceAddress>> machine = ListInterfaceAddresses();
  LOCKSTEP_ASSERT_OK(machine);
  std::string host;
  for (const InterfaceAddress& interface : *machine) {
    if (!interface.address.loopback() && interface.address.family() == AF_INET) host = interface.address.HostString();
  }
  if (host.empty()) GTEST_SKIP() << "this machine has loopback alone";
  const auto meet = [&](const std::string& secret_file) {
    return Meet([&](int rank, WorldOptions* options) {
      options->store_url = absl::StrCat("tcp://", host, options->store_url.substr(options->store_url.rfind(':')));
      options->local_size = 1;
      options->local_rank = 0;
      options->host_id = absl::StrCat("host", rank);
      options->secret_file = secret_file;
    });
  };
  for (const WorldOrError& world : meet("")) {
    EXPECT_THAT(world.status(), StatusIs(Code::kFailedPrecondition, AllOf(HasSubstr("LOCKSTEP_SECRET_FILE"),
                                                                          HasSubstr("LOCKSTEP_SECURITY=none"))));
  }
  ExpectWork(meet(SecretFile('c')));
}

TEST_F(WorldSecurityTest, NoneIsWarnedOfOnce) {
  LogLines log;
  ExpectWork(Meet([](int, WorldOptions* options) { options->security = "none"; }));
  int warnings = 0;
  for (const std::string& line : log.lines()) warnings += line.find("security is none") != std::string::npos;
  EXPECT_EQ(warnings, 1);
}

TEST_F(WorldSecurityTest, AnEncryptedWorldGoesOverLibfabricOnlyIfAllowed) {
  const auto over_ofi = [] {
    return Meet([](int, WorldOptions* options) {
      options->security = "encrypt";
      options->transport = "ofi";
    });
  };
  for (const WorldOrError& world : over_ofi()) {
    EXPECT_THAT(world.status(),
                StatusIs(Code::kFailedPrecondition,
                         AllOf(HasSubstr("security is encrypt"), HasSubstr("LOCKSTEP_SECURITY_UNPROTECTED=ofi"))));
  }
  setenv("LOCKSTEP_SECURITY_UNPROTECTED", "ofi", 1);
  const std::vector<WorldOrError> worlds = over_ofi();
  if (absl::IsUnavailable(worlds[0].status())) GTEST_SKIP() << worlds[0].status();
  ExpectWork(worlds);
}

TEST_F(WorldSecurityTest, EncryptionDoesNotGoUnprotectedUnlessAllowed) {
  WorldSecurity security;
  security.level = SecurityLevel::kEncrypt;
  EXPECT_THAT(CheckProtected(security, Unprotected::kOfi),
              StatusIs(Code::kFailedPrecondition, HasSubstr("LOCKSTEP_SECURITY_UNPROTECTED=ofi")));
  security.unprotected_nccl = true;
  EXPECT_THAT(CheckProtected(security, Unprotected::kOfi), StatusIs(Code::kFailedPrecondition));
  LOCKSTEP_EXPECT_OK(CheckProtected(security, Unprotected::kNccl));
  security.unprotected_ofi = true;
  LOCKSTEP_EXPECT_OK(CheckProtected(security, Unprotected::kOfi));
  security.level = SecurityLevel::kAuthenticate;
  security.unprotected_ofi = false;
  LOCKSTEP_EXPECT_OK(CheckProtected(security, Unprotected::kOfi));
}

}  // namespace
}  // namespace lockstep
