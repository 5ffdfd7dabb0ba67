#include "transport/ofi/provider.h"

#include <dlfcn.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <signal.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "base/mutex.h"
#include "base/status.h"

namespace lockstep {
namespace {

// In order of preference. A provider that is not here comes after these: it may be newer than this list.
constexpr const char* kPreferred[] = {"cxi",  "efa", "verbs;ofi_rxm", "psm3",       "opx",
                                      "psm2", "tcp", "tcp;ofi_rxm",   "net;ofi_rxm"};
// Only when they are named, and why.
struct NamedOnly {
  const char* provider;
  const char* why;
};
constexpr NamedOnly kNamedOnly[] = {
    {"shm", "reaches ranks of this host alone"},
    {"sm2", "reaches ranks of this host alone"},
    {"sockets", "takes milliseconds a message"},
    {"net", "never lets a waiting rank sleep"},
    {"udp;ofi_rxd", "is no faster than what runs over TCP and much slower for long messages"},
};

absl::string_view NameOr(const char* name) { return name == nullptr ? "(no name)" : name; }

absl::string_view NameOf(const fi_info& info) {
  return NameOr(info.fabric_attr == nullptr ? nullptr : info.fabric_attr->prov_name);
}

int TagBits(uint64_t format) {
  int bits = 0;
  for (; format != 0; format >>= 1) ++bits;
  return bits;
}

// rxm over tcp from libfabric 2.0 on (docs/libfabric.md). Providers of libfabric give its release as their major version: 201 is 2.1.
bool CrashesInUse(const fi_info& info) {
  return absl::StartsWith(NameOf(info), "tcp;ofi_rxm") && FI_MAJOR(info.fabric_attr->prov_version) >= 200;
}

// Why we cannot use it; empty when we can.
std::string Unfit(const fi_info& info) {
  if (info.ep_attr == nullptr || info.domain_attr == nullptr || info.tx_attr == nullptr || info.rx_attr == nullptr) {
    return "does not say what it can do";
  }
  if (CrashesInUse(info)) return "crashes from libfabric 2.0 on, whose tcp has reliable datagrams itself";
  if (info.ep_attr->type != FI_EP_RDM) return "has no reliable datagrams";
  if ((info.caps & FI_TAGGED) == 0) return "has no tagged messages";
  if (const uint64_t modes = (info.mode | info.tx_attr->mode | info.rx_attr->mode) & ~kOfiModes; modes != 0) {
    return absl::StrCat("requires modes that we do not have (0x", absl::Hex(modes), ")");
  }
  if (const int modes = info.domain_attr->mr_mode & ~kOfiMrModes; modes != 0) {
    return absl::StrCat("requires memory registration that we do not have (0x", absl::Hex(modes), ")");
  }
  if (const int bits = TagBits(info.ep_attr->mem_tag_format); bits < kOfiTagBits) {
    return absl::StrCat("has tags of ", bits, " bits, fewer than ", kOfiTagBits);
  }
  if (info.ep_attr->max_msg_size < kOfiMessageBytesMin) {
    return absl::StrCat("has messages of up to ", info.ep_attr->max_msg_size, " bytes, fewer than ",
                        kOfiMessageBytesMin);
  }
  if (info.ep_attr->msg_prefix_size != 0) return "wants a prefix in front of every message";
  if (info.domain_attr->resource_mgmt == FI_RM_DISABLED) return "drops messages when its queues are full";
  return "";
}

std::string Refusal(const fi_info& info, const OfiRequest& request, bool exactly) {
  const absl::string_view name = NameOf(info);
  const bool named = exactly ? name == request.provider : absl::StartsWith(name, absl::StrCat(request.provider, ";"));
  if (!request.provider.empty() && !named) {
    return absl::StrCat("is not the provider that was asked for (", request.provider, ")");
  }
  if (std::string reason = Unfit(info); !reason.empty()) return reason;
  if (request.provider.empty()) {
    for (const NamedOnly& one : kNamedOnly) {
      if (name == one.provider) return absl::StrCat("must be asked for by name: it ", one.why);
    }
    if (absl::StrContains(name, "ofi_mrail") || absl::StrContains(name, "ofi_hook")) {
      return "must be asked for by name: it is a layer over others";
    }
  }
  if (!request.domain.empty() && NameOr(info.domain_attr->name) != request.domain) {
    return absl::StrCat("is not the domain that was asked for (", request.domain, ")");
  }
  const SocketAddress source = SourceOf(info);
  // The same host, whatever the port.
  if (request.address.length() != 0 && source.length() != 0 && source.WithPort(0) != request.address.WithPort(0)) {
    return absl::StrCat("is not at ", request.address.HostString());
  }
  return "";
}

int Preference(const fi_info& info) {
  const auto found = std::find(std::begin(kPreferred), std::end(kPreferred), NameOf(info));
  return static_cast<int>(found - std::begin(kPreferred));
}

std::string NameWithPlace(const OfiCandidate& candidate) {
  return absl::StrCat(candidate.provider, " ", candidate.domain, candidate.address.empty() ? "" : " ",
                      candidate.address);
}

// Unless it is there already: fi_getinfo lists a place once for each set of capabilities.
void AddOnce(const fi_info& info, std::string rejected, std::vector<OfiCandidate>* candidates) {
  OfiCandidate candidate;
  candidate.provider = std::string(NameOf(info));
  candidate.domain = std::string(NameOr(info.domain_attr == nullptr ? nullptr : info.domain_attr->name));
  if (const SocketAddress source = SourceOf(info); source.length() != 0) candidate.address = source.HostString();
  candidate.rejected = std::move(rejected);
  const bool there = std::any_of(candidates->begin(), candidates->end(), [&](const OfiCandidate& other) {
    return NameWithPlace(other) == NameWithPlace(candidate);
  });
  if (!there) candidates->push_back(std::move(candidate));
}

OfiInfo Hints(const OfiApi& api, uint64_t order) {
  OfiInfo hints(api.dupinfo(nullptr), {&api});
  if (hints == nullptr) return hints;
  hints->caps = FI_TAGGED;
  hints->mode = kOfiModes;
  hints->ep_attr->type = FI_EP_RDM;
  // One thread at a time calls into a domain: whoever holds the transport.
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->domain_attr->mr_mode = kOfiMrModes;
  hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
  hints->tx_attr->msg_order = order;
  hints->rx_attr->msg_order = order;
  return hints;
}

absl::StatusCode CodeOf(int error) {
  switch (error) {
    case FI_ECONNREFUSED:
    case FI_ECONNRESET:
    case FI_ECONNABORTED:
    case FI_ENOTCONN:
    case FI_ESHUTDOWN:
    case FI_EHOSTUNREACH:
    case FI_ENETUNREACH:
    case FI_ENETDOWN:
    case FI_EHOSTDOWN:
    case FI_ETIMEDOUT:
    case FI_EIO:
    case FI_ENODATA:
      return absl::StatusCode::kUnavailable;
    case FI_ENOMEM:
    case FI_EMFILE:
    case FI_ENOSPC:
    case FI_ENOBUFS:
      return absl::StatusCode::kResourceExhausted;
    case FI_EADDRINUSE:
      return absl::StatusCode::kAlreadyExists;
    case FI_ENOSYS:
    case FI_EOPNOTSUPP:
      return absl::StatusCode::kUnimplemented;
    case FI_ECANCELED:
      return absl::StatusCode::kCancelled;
    default:
      return absl::StatusCode::kInternal;
  }
}

// dlopen, after which the process handles signals as before. Debian 12's libfabric brings libinfinipath, whose constructor takes the
// signals of crashes, SIGINT and SIGTERM: then Ctrl-C is no KeyboardInterrupt, and ending a process crashes it.
void* Open(const std::string& file) {
  struct sigaction before[32];
  for (int signal = 1; signal < 32; ++signal) sigaction(signal, nullptr, &before[signal]);
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  for (int signal = 1; signal < 32; ++signal) sigaction(signal, &before[signal], nullptr);
  return library;
}

}  // namespace

absl::StatusOr<OfiApi> LoadOfiLibrary(const std::string& file) {
  const auto unavailable = [&](absl::string_view why) {
    return absl::UnavailableError(
        absl::StrCat("no usable libfabric (LOCKSTEP_OFI_LIBRARY may name one): ", file, ": ", why));
  };
  void* const library = Open(file);
  if (library == nullptr) {
    const char* const error = dlerror();
    return unavailable(error != nullptr ? error : "dlopen failed");
  }
  OfiApi api;
  std::string why;
  const auto need = [&](const char* name, auto* function) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library, name));
    if (*function == nullptr && why.empty()) why = absl::StrCat("has no ", name);
  };
  need("fi_getinfo", &api.getinfo);
  need("fi_freeinfo", &api.freeinfo);
  need("fi_dupinfo", &api.dupinfo);
  need("fi_fabric", &api.fabric);
  need("fi_version", &api.version);
  need("fi_strerror", &api.strerror);
  if (why.empty() && api.version() < kOfiVersion) {
    why = absl::StrCat(FI_MAJOR(api.version()), ".", FI_MINOR(api.version()), " is too old: ", FI_MAJOR(kOfiVersion),
                       ".", FI_MINOR(kOfiVersion), " is the oldest supported");
  }
  if (why.empty()) return api;
  dlclose(library);
  return unavailable(why);
}

absl::StatusOr<const OfiApi*> Ofi() {
  static Mutex* const mu = new Mutex();
  static const OfiApi* api = nullptr;
  MutexLock lock(mu);
  if (api == nullptr) {
    LOCKSTEP_ASSIGN_OR_RETURN(const OfiApi loaded,
                              LoadOfiLibrary(GetEnv("LOCKSTEP_OFI_LIBRARY").value_or("libfabric.so.1")));
    api = new OfiApi(loaded);
  }
  return api;
}

absl::Status OfiStatus(const OfiApi& api, int64_t result, absl::string_view attempt) {
  const int error = static_cast<int>(result < 0 ? -result : result);
  return absl::Status(CodeOf(error), absl::StrCat(attempt, ": ", api.strerror(error), " (", error, ")"));
}

SocketAddress SourceOf(const fi_info& info) {
  const bool ip =
      info.addr_format == FI_SOCKADDR || info.addr_format == FI_SOCKADDR_IN || info.addr_format == FI_SOCKADDR_IN6;
  if (!ip || info.src_addr == nullptr) return SocketAddress();
  return SocketAddress::From(static_cast<const sockaddr*>(info.src_addr), static_cast<socklen_t>(info.src_addrlen));
}

std::string Describe(const std::vector<OfiCandidate>& candidates) {
  std::vector<std::pair<std::pair<std::string, std::string>, std::string>> lines;  // (provider, reason), places
  for (const OfiCandidate& candidate : candidates) {
    const std::pair<std::string, std::string> key(candidate.provider, candidate.rejected);
    const auto same = [&](const auto& line) { return line.first == key; };
    auto line = std::find_if(lines.begin(), lines.end(), same);
    if (line == lines.end()) line = lines.insert(lines.end(), {key, ""});
    absl::StrAppend(&line->second, line->second.empty() ? " " : ", ", candidate.domain,
                    candidate.address.empty() ? "" : " ", candidate.address);
  }
  std::string text;
  for (const auto& line : lines) {
    absl::StrAppend(&text, text.empty() ? "" : "\n", line.first.first, line.second, ": ",
                    line.first.second.empty() ? "chosen" : line.first.second);
  }
  return text;
}

absl::StatusOr<OfiChoice> ChooseProvider(const fi_info* fitting, const fi_info* all, const OfiRequest& request) {
  bool exactly = false;
  for (const fi_info* info = fitting; info != nullptr; info = info->next) exactly |= NameOf(*info) == request.provider;
  OfiChoice choice;
  for (const fi_info* info = fitting; info != nullptr; info = info->next) {
    if (!Refusal(*info, request, exactly).empty()) continue;
    if (choice.chosen == nullptr || Preference(*info) < Preference(*choice.chosen)) choice.chosen = info;
  }
  if (choice.chosen != nullptr) AddOnce(*choice.chosen, "", &choice.candidates);
  for (const fi_info* info = fitting; info != nullptr; info = info->next) {
    std::string reason = Refusal(*info, request, exactly);
    if (reason.empty()) {
      reason =
          absl::StrCat(Preference(*info) == Preference(*choice.chosen) ? "comes after " : "is less preferred than ",
                       NameWithPlace(choice.candidates.front()));
    }
    AddOnce(*info, std::move(reason), &choice.candidates);
  }
  for (const fi_info* info = all; info != nullptr; info = info->next) {
    std::string reason = Refusal(*info, request, exactly);
    if (reason.empty()) reason = "does not offer what we ask for together";
    AddOnce(*info, std::move(reason), &choice.candidates);
  }
  if (choice.chosen != nullptr) return choice;
  return absl::NotFoundError(absl::StrCat("no provider of libfabric will do",
                                          choice.candidates.empty() ? ": there is none" : ":\n",
                                          Describe(choice.candidates)));
}

absl::StatusOr<OfiProvider> FindProvider(const OfiApi& api, const OfiRequest& request) {
  const auto list = [&](const fi_info* asked, OfiInfo* answer) {
    fi_info* found = nullptr;
    const int result = api.getinfo(kOfiVersion, nullptr, nullptr, 0, asked, &found);
    if (result == 0) *answer = OfiInfo(found, {&api});
    if (result == 0 || result == -FI_ENODATA) return absl::OkStatus();
    return OfiStatus(api, result, "fi_getinfo");
  };
  OfiInfo fitting(nullptr, {&api}), all(nullptr, {&api});
  // Messages bring their numbers along. But a farewell should not overtake them, where a provider can see to that.
  for (const uint64_t order : {uint64_t{FI_ORDER_SAS}, uint64_t{0}}) {
    const OfiInfo hints = Hints(api, order);
    if (hints == nullptr) return absl::ResourceExhaustedError("libfabric: no memory for hints");
    LOCKSTEP_RETURN_IF_ERROR(list(hints.get(), &fitting));
    if (fitting != nullptr) break;
  }
  LOCKSTEP_RETURN_IF_ERROR(list(nullptr, &all));
  LOCKSTEP_ASSIGN_OR_RETURN(OfiChoice choice, ChooseProvider(fitting.get(), all.get(), request));
  OfiInfo info(api.dupinfo(choice.chosen), {&api});
  if (info == nullptr) return absl::ResourceExhaustedError("libfabric: no memory for a copy of an info");
  return OfiProvider{std::move(info), std::move(choice.candidates)};
}

}  // namespace lockstep
