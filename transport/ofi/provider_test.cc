// The choice of a provider, with made-up infos: what providers say of themselves, as their man pages describe them (fi_efa(7),
// fi_verbs(7), fi_cxi(7), fi_shm(7)) and as Debian's fi_info lists them. And the library that they are of.

#include "transport/ofi/provider.h"

#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <signal.h>

#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/net/socket.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Code = absl::StatusCode;

SocketAddress Address(const std::string& text) { return *SocketAddress::Parse(text); }

// A list of infos as fi_getinfo gives.
class Infos {
 public:
  using Change = std::function<void(fi_info* info)>;

  Infos& Add(
      const std::string& provider, const std::string& domain, const std::string& address = "",
      const Change& change = [](fi_info*) {}) {
    Entry& entry = entries_.emplace_back();
    entry.provider = provider;
    entry.domain_name = domain;
    fi_info& info = entry.info;
    info.tx_attr = &entry.tx;
    info.rx_attr = &entry.rx;
    info.ep_attr = &entry.ep;
    info.domain_attr = &entry.domain;
    info.fabric_attr = &entry.fabric;
    info.caps = FI_MSG | FI_TAGGED | FI_RMA;
    info.addr_format = FI_FORMAT_UNSPEC;
    entry.fabric.prov_name = entry.provider.data();
    entry.domain.name = entry.domain_name.data();
    entry.ep.type = FI_EP_RDM;
    entry.ep.max_msg_size = SIZE_MAX;
    entry.ep.mem_tag_format = 0xaaaaaaaaaaaaaaaa;
    entry.domain.resource_mgmt = FI_RM_ENABLED;
    entry.domain.data_progress = FI_PROGRESS_MANUAL;
    if (!address.empty()) {
      entry.source = Address(address);
      info.addr_format = entry.source.family() == AF_INET ? FI_SOCKADDR_IN : FI_SOCKADDR_IN6;
      info.src_addr = const_cast<sockaddr*>(entry.source.get());
      info.src_addrlen = entry.source.length();
    }
    change(&info);
    if (entries_.size() > 1) entries_[entries_.size() - 2].info.next = &info;
    return *this;
  }
  const fi_info* list() const { return entries_.empty() ? nullptr : &entries_.front().info; }

 private:
  struct Entry {
    fi_info info = {};
    fi_tx_attr tx = {};
    fi_rx_attr rx = {};
    fi_ep_attr ep = {};
    fi_domain_attr domain = {};
    fi_fabric_attr fabric = {};
    std::string provider, domain_name;
    SocketAddress source;
  };
  std::deque<Entry> entries_;
};

// Addresses of the fabric's own kind, no MR_LOCAL asked of us for RDM, nothing injected beyond a few bytes.
void LikeEfa(fi_info* info) {
  info->addr_format = FI_ADDR_EFA;
  info->caps |= FI_HMEM | FI_DIRECTED_RECV | FI_SOURCE;
  info->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  info->domain_attr->threading = FI_THREAD_SAFE;
  info->tx_attr->inject_size = 0;
}
void LikeVerbs(fi_info* info) {
  info->mode = FI_CONTEXT;
  info->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  info->tx_attr->inject_size = 16320;
  info->ep_attr->max_msg_size = size_t{1} << 30;
}
void LikeCxi(fi_info* info) {
  info->addr_format = FI_ADDR_CXI;
  info->caps |= FI_HMEM;
  info->ep_attr->mem_tag_format = 0x0000aaaaaaaaaaaa;
  info->domain_attr->mr_mode = FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
}

std::string Chosen(const Infos& infos, const OfiRequest& request = {}) {
  const absl::StatusOr<OfiChoice> choice = ChooseProvider(infos.list(), nullptr, request);
  if (!choice.ok()) return std::string(choice.status().message());
  return choice->candidates.front().provider + " " + choice->candidates.front().domain;
}

OfiRequest Named(const std::string& provider) {
  OfiRequest request;
  request.provider = provider;
  return request;
}

TEST(ChooseProvider, PrefersRealFabricsWhateverTheOrderOfTheList) {
  const auto all = [](bool backwards) {
    Infos infos;
    const std::function<void()> adds[] = {
        [&] { infos.Add("tcp;ofi_rxm", "eth0", "10.0.0.1:0"); },
        [&] { infos.Add("net;ofi_rxm", "eth0", "10.0.0.1:0"); },
        [&] { infos.Add("efa", "rdmap0s6-rdm", "", LikeEfa); },
        [&] { infos.Add("verbs;ofi_rxm", "mlx5_0", "10.0.0.2:0", LikeVerbs); },
        [&] { infos.Add("cxi", "cxi0", "", LikeCxi); },
    };
    for (int i = 0; i < 5; ++i) adds[backwards ? 4 - i : i]();
    return Chosen(infos);
  };
  EXPECT_EQ(all(false), "cxi cxi0");
  EXPECT_EQ(all(true), "cxi cxi0");
  EXPECT_EQ(Chosen(Infos().Add("tcp;ofi_rxm", "eth0").Add("verbs;ofi_rxm", "mlx5_0", "", LikeVerbs)),
            "verbs;ofi_rxm mlx5_0");
  EXPECT_EQ(Chosen(Infos().Add("net;ofi_rxm", "eth0").Add("tcp;ofi_rxm", "eth0")), "tcp;ofi_rxm eth0");
  EXPECT_EQ(Chosen(Infos().Add("tcp;ofi_rxm", "eth0").Add("tcp", "eth0")), "tcp eth0") << "datagrams of its own";
  EXPECT_EQ(Chosen(Infos().Add("brandnew", "x0").Add("net;ofi_rxm", "eth0")), "net;ofi_rxm eth0");
  EXPECT_EQ(Chosen(Infos().Add("brandnew", "x0").Add("shm", "shm")), "brandnew x0") << "newer than our list";
}

TEST(ChooseProvider, SomeMustBeNamed) {
  for (const char* name : {"shm", "sm2", "sockets", "net", "udp;ofi_rxd", "tcp;ofi_rxm;ofi_hook_perf", "ofi_mrail"}) {
    Infos infos;
    infos.Add(name, "lo", "127.0.0.1:0");
    EXPECT_THAT(Chosen(infos), HasSubstr("must be asked for by name")) << name;
    EXPECT_EQ(Chosen(infos, Named(name)), std::string(name) + " lo");
  }
}

TEST(ChooseProvider, ANameIsThatProviderOrWhatIsLayeredOverIt) {
  Infos both;
  both.Add("tcp;ofi_rxm", "eth0").Add("tcp", "eth0").Add("net;ofi_rxm", "eth0");
  EXPECT_EQ(Chosen(both, Named("tcp")), "tcp eth0");
  EXPECT_EQ(Chosen(both, Named("tcp;ofi_rxm")), "tcp;ofi_rxm eth0");
  EXPECT_EQ(Chosen(Infos().Add("net;ofi_rxm", "eth0").Add("tcp;ofi_rxm", "eth0"), Named("tcp")), "tcp;ofi_rxm eth0");
  EXPECT_THAT(Chosen(both, Named("efa")), AllOf(HasSubstr("no provider of libfabric will do"),
                                                HasSubstr("tcp eth0: is not the provider that was asked for (efa)")));
  EXPECT_THAT(Chosen(both, Named("tc")), HasSubstr("no provider"));
}

TEST(ChooseProvider, SaysOfEachAttributeThatDoesNotFit) {
  struct Case {
    const char* reason;
    Infos::Change change;
  };
  for (const Case& c : {
           Case{"has no reliable datagrams", [](fi_info* info) { info->ep_attr->type = FI_EP_MSG; }},
           Case{"has no tagged messages", [](fi_info* info) { info->caps = FI_MSG | FI_RMA; }},
           Case{"requires modes that we do not have (0x200000000000000)",
                [](fi_info* info) { info->mode = FI_CONTEXT | FI_ASYNC_IOV; }},
           Case{"requires modes", [](fi_info* info) { info->tx_attr->mode = FI_MSG_PREFIX; }},
           Case{"requires modes", [](fi_info* info) { info->rx_attr->mode = FI_RX_CQ_DATA; }},
           Case{"requires memory registration that we do not have (0x80)",
                [](fi_info* info) { info->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_MMU_NOTIFY; }},
           Case{"requires memory registration",
                [](fi_info* info) { info->domain_attr->mr_mode = FI_MR_RAW | FI_MR_VIRT_ADDR; }},
           Case{"has tags of 32 bits, fewer than 48",
                [](fi_info* info) { info->ep_attr->mem_tag_format = 0xffffffff; }},
           Case{"has messages of up to 4096 bytes, fewer than 8192",
                [](fi_info* info) { info->ep_attr->max_msg_size = 4096; }},
           Case{"wants a prefix", [](fi_info* info) { info->ep_attr->msg_prefix_size = 8; }},
           Case{"drops messages when its queues are full",
                [](fi_info* info) { info->domain_attr->resource_mgmt = FI_RM_DISABLED; }},
           Case{"does not say what it can do", [](fi_info* info) { info->ep_attr = nullptr; }},
       }) {
    Infos infos;
    infos.Add("psm3", "psm3_0", "", c.change).Add("net;ofi_rxm", "eth0");
    const absl::StatusOr<OfiChoice> choice = ChooseProvider(infos.list(), nullptr, {});
    ASSERT_THAT(choice, IsOk()) << c.reason;
    EXPECT_EQ(choice->candidates[0].provider, "net;ofi_rxm");
    EXPECT_THAT(choice->candidates[1].rejected, HasSubstr(c.reason));
    infos = Infos();
    infos.Add("psm3", "psm3_0", "", c.change);
    EXPECT_THAT(ChooseProvider(infos.list(), nullptr, {}).status(),
                StatusIs(Code::kNotFound, HasSubstr(std::string("psm3 psm3_0: ") + c.reason)));
  }
}

TEST(ChooseProvider, RxmOverTcpIsNotTakenFromTheReleaseOnThatCrashesInIt) {
  const auto of_release = [](int major) {
    return [major](fi_info* info) { info->fabric_attr->prov_version = FI_VERSION(major, 0); };
  };
  EXPECT_EQ(Chosen(Infos().Add("tcp;ofi_rxm", "eth0", "", of_release(117))), "tcp;ofi_rxm eth0");
  EXPECT_EQ(Chosen(Infos().Add("verbs;ofi_rxm", "mlx5_0", "", of_release(201))), "verbs;ofi_rxm mlx5_0");
  Infos infos;
  infos.Add("tcp;ofi_rxm", "eth0", "", of_release(201)).Add("tcp", "eth0", "", of_release(201));
  EXPECT_EQ(Chosen(infos, Named("tcp")), "tcp eth0");
  EXPECT_THAT(Chosen(infos, Named("tcp;ofi_rxm")),
              HasSubstr("tcp;ofi_rxm eth0: crashes from libfabric 2.0 on, whose tcp has reliable datagrams itself"));
}

TEST(ChooseProvider, TakesEveryModeThatWeServe) {
  Infos infos;
  infos.Add("verbs;ofi_rxm", "mlx5_0", "", [](fi_info* info) {
    info->mode = FI_CONTEXT | FI_CONTEXT2;
    info->domain_attr->mr_mode = kOfiMrModes;
    info->ep_attr->mem_tag_format = uint64_t{1} << 47;
    info->ep_attr->max_msg_size = kOfiMessageBytesMin;
    info->tx_attr->inject_size = 0;
    info->domain_attr->data_progress = FI_PROGRESS_AUTO;
  });
  EXPECT_EQ(Chosen(infos), "verbs;ofi_rxm mlx5_0");
}

TEST(ChooseProvider, TheInterfaceIsPinnedByItsAddress) {
  Infos infos;
  infos.Add("tcp;ofi_rxm", "docker0", "172.17.0.1:0")
      .Add("tcp;ofi_rxm", "eth0", "[fe80::1]:0")
      .Add("tcp;ofi_rxm", "eth0", "10.0.0.7:0")
      .Add("tcp;ofi_rxm", "lo", "127.0.0.1:0");
  OfiRequest request;
  for (const char* address : {"172.17.0.1:0", "10.0.0.7:4411", "127.0.0.1:0", "[fe80::1]:0"}) {
    request.address = Address(address);
    const absl::StatusOr<OfiChoice> choice = ChooseProvider(infos.list(), nullptr, request);
    ASSERT_THAT(choice, IsOk()) << address;
    EXPECT_EQ(choice->candidates[0].address, request.address.HostString());
    EXPECT_THAT(choice->candidates[1].rejected, HasSubstr("is not at " + request.address.HostString()));
  }
  request.address = Address("10.9.9.9:0");
  EXPECT_THAT(Chosen(infos, request), AllOf(HasSubstr("no provider"), HasSubstr("is not at 10.9.9.9")));
  // A fabric whose addresses are its own kind has its own interfaces.
  infos.Add("efa", "rdmap0s6-rdm", "", LikeEfa);
  EXPECT_EQ(Chosen(infos, request), "efa rdmap0s6-rdm");
}

TEST(ChooseProvider, ADomainIsPinnedByItsName) {
  Infos infos;
  infos.Add("efa", "rdmap0s6-rdm", "", LikeEfa)
      .Add("efa", "rdmap16s27-rdm", "", LikeEfa)
      .Add("tcp;ofi_rxm", "eth0", "10.0.0.7:0");
  OfiRequest request;
  request.address = Address("10.0.0.7:0");
  EXPECT_EQ(Chosen(infos, request), "efa rdmap0s6-rdm");
  request.domain = "rdmap16s27-rdm";
  EXPECT_EQ(Chosen(infos, request), "efa rdmap16s27-rdm");
  request.domain = "eth0";
  EXPECT_EQ(Chosen(infos, request), "tcp;ofi_rxm eth0");
  // By its whole name, and at the rank's address where it has such.
  request.domain = "rdmap16";
  EXPECT_THAT(Chosen(infos, request),
              AllOf(HasSubstr("no provider"), HasSubstr("is not the domain that was asked for (rdmap16)")));
  request.domain = "eth0";
  request.address = Address("10.9.9.9:0");
  EXPECT_THAT(Chosen(infos, request), HasSubstr("is not at 10.9.9.9"));
}

TEST(ChooseProvider, ListsEachPlaceOnceAndThoseThatDidNotAnswer) {
  Infos fitting, all;
  fitting.Add("tcp;ofi_rxm", "eth0", "10.0.0.7:0")
      .Add("tcp;ofi_rxm", "eth0", "10.0.0.7:0")
      .Add("tcp;ofi_rxm", "lo", "127.0.0.1:0")
      .Add("net;ofi_rxm", "eth0", "10.0.0.7:0")
      .Add("net;ofi_rxm", "lo", "127.0.0.1:0");
  const auto msg = [](fi_info* info) { info->ep_attr->type = FI_EP_MSG; };
  all.Add("tcp;ofi_rxm", "eth0", "10.0.0.7:0").Add("tcp", "eth0", "10.0.0.7:0", msg).Add("psm3", "psm3_0");
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const OfiChoice choice, ChooseProvider(fitting.list(), all.list(), {}));
  EXPECT_EQ(choice.chosen, fitting.list());
  EXPECT_EQ(Describe(choice.candidates),
            "tcp;ofi_rxm eth0 10.0.0.7: chosen\n"
            "tcp;ofi_rxm lo 127.0.0.1: comes after tcp;ofi_rxm eth0 10.0.0.7\n"
            "net;ofi_rxm eth0 10.0.0.7, lo 127.0.0.1: is less preferred than tcp;ofi_rxm eth0 10.0.0.7\n"
            "tcp eth0 10.0.0.7: has no reliable datagrams\n"
            "psm3 psm3_0: does not offer what we ask for together");
}

TEST(ChooseProvider, NothingIsNothing) {
  EXPECT_THAT(ChooseProvider(nullptr, nullptr, {}).status(), StatusIs(Code::kNotFound, HasSubstr("there is none")));
}

// What this machine has, if it has any: the choice is one that endpoints can be made of.
TEST(FindProvider, FindsOneAtTheLoopback) {
  const auto api = Ofi();
  if (!api.ok()) GTEST_SKIP() << api.status();
  OfiRequest request;
  request.provider = "tcp;ofi_rxm";
  request.address = Address("127.0.0.1:0");
  const absl::StatusOr<OfiProvider> provider = FindProvider(**api, request);
  if (absl::IsNotFound(provider.status())) GTEST_SKIP() << provider.status();
  ASSERT_THAT(provider, IsOk());
  EXPECT_STREQ(provider->info->fabric_attr->prov_name, "tcp;ofi_rxm");
  EXPECT_EQ(SourceOf(*provider->info).HostString(), "127.0.0.1");
  EXPECT_EQ(provider->candidates.front().rejected, "");
  EXPECT_EQ(provider->info->next, nullptr);
  request.provider = "nobody's";
  EXPECT_THAT(
      FindProvider(**api, request).status(),
      StatusIs(Code::kNotFound, AllOf(HasSubstr("nobody's"), HasSubstr("tcp;ofi_rxm"), Not(HasSubstr("chosen")))));
}

TEST(OfiLibrary, IsLoadedWhereItIs) {
  const auto api = LoadOfiLibrary("libfabric.so.1");
  if (absl::IsUnavailable(api.status())) GTEST_SKIP() << api.status();
  ASSERT_THAT(api, IsOk());
  EXPECT_GE(api->version(), kOfiVersion);
}

TEST(OfiLibrary, SaysWhatWasTriedWhereItIsNot) {
  EXPECT_THAT(LoadOfiLibrary("/nowhere/libfabric.so.1").status(),
              StatusIs(Code::kUnavailable, AllOf(HasSubstr("no usable libfabric"), HasSubstr("LOCKSTEP_OFI_LIBRARY"),
                                                 HasSubstr("/nowhere/libfabric.so.1: cannot open"))));
}

TEST(OfiLibrary, AnotherLibraryIsNone) {
  EXPECT_THAT(LoadOfiLibrary("libm.so.6").status(),
              StatusIs(Code::kUnavailable, HasSubstr("libm.so.6: has no fi_getinfo")));
}

// In a process of its own, where no library is loaded yet: first wherever the variable leads, then the system's, which stays.
TEST(OfiLibraryDeathTest, TheVariableNamesIt) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        setenv("LOCKSTEP_OFI_LIBRARY", "/nowhere/at_all.so", /*overwrite=*/1);
        std::cerr << Ofi().status();
        unsetenv("LOCKSTEP_OFI_LIBRARY");
        const auto api = Ofi();
        std::_Exit(api.ok() ? *Ofi() != *api : !absl::IsUnavailable(api.status()));
      },
      testing::ExitedWithCode(0), "UNAVAILABLE: .*/nowhere/at_all.so");
}

// In a process where it is not loaded yet.
TEST(OfiLibraryDeathTest, LeavesTheHandlersOfSignalsAlone) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        signal(SIGINT, SIG_IGN);
        const auto handlers = [] {
          std::vector<void (*)(int)> all;
          struct sigaction one = {};
          for (const int number : {SIGINT, SIGTERM, SIGSEGV, SIGABRT}) {
            sigaction(number, nullptr, &one);
            all.push_back(one.sa_handler);
          }
          return all;
        };
        const auto before = handlers();
        const bool loaded = Ofi().ok();
        std::_Exit(handlers() == before ? 0 : loaded ? 1 : 2);
      },
      testing::ExitedWithCode(0), "");
}

TEST(OfiLibrary, ErrorsTellWhatToDo) {
  OfiApi api;
  api.strerror = [](int error) { return error == FI_ECONNRESET ? "it broke" : "it failed"; };
  EXPECT_THAT(OfiStatus(api, -FI_ECONNRESET, "a call"), StatusIs(Code::kUnavailable, "a call: it broke (104)"));
  EXPECT_THAT(OfiStatus(api, FI_ENOMEM, "a call"), StatusIs(Code::kResourceExhausted, HasSubstr("it failed")));
  EXPECT_THAT(OfiStatus(api, -FI_ENOSYS, "a call"), StatusIs(Code::kUnimplemented, HasSubstr("a call")));
  EXPECT_THAT(OfiStatus(api, -FI_ECANCELED, "a call"), StatusIs(Code::kCancelled, HasSubstr("a call")));
  EXPECT_THAT(OfiStatus(api, -FI_EINVAL, "a call"), StatusIs(Code::kInternal, HasSubstr("a call")));
}

}  // namespace
}  // namespace lockstep
