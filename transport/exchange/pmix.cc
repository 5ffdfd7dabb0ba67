#include "transport/exchange/pmix.h"

#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/call_within.h"
#include "base/clipped.h"
#include "base/fork.h"
#include "base/mutex.h"
#include "base/status.h"
#include "transport/secure/secret.h"

namespace lockstep {
namespace {

// A text that may be the job's secret: overwritten at its end.
std::shared_ptr<std::string> KeptUntilWiped(absl::string_view text) {
  return std::shared_ptr<std::string>(new std::string(text), [](std::string* ends) {
    Wipe(ends);
    delete ends;
  });
}

// Of the PMIx standard, as far as it is used here; in pmix_common.h.
namespace pmix {

using Status = int;
constexpr Status kSuccess = 0;
constexpr uint32_t kEveryRank = UINT32_MAX - 1;  // PMIX_RANK_WILDCARD
constexpr uint8_t kGlobal = 3;                   // a scope
constexpr uint16_t kBool = 1, kString = 3, kUint16 = 13, kUint32 = 14;

struct Proc {
  char space[256];
  uint32_t rank;
};

struct Value {
  uint16_t type;
  union {
    bool flag;
    char* string;
    uint16_t uint16;
    uint32_t uint32;
    struct {
      char* name;
      char* value;
      char separator;
    } variable;  // the largest
  } data;
};

struct Info {
  char key[512];
  uint32_t flags;
  Value value;
};

struct Api {
  const char* (*GetVersion)();
  const char* (*ErrorString)(Status);
  Status (*Init)(Proc* self, Info* infos, size_t count);
  Status (*Finalize)(const Info* infos, size_t count);
  Status (*Put)(uint8_t scope, const char* key, Value* value);
  Status (*Commit)();
  Status (*Fence)(const Proc* procs, size_t proc_count, const Info* infos, size_t info_count);
  Status (*Get)(const Proc* proc, const char* key, const Info* infos, size_t count, Value** value);
};

}  // namespace pmix

constexpr int kOldest = 2;
constexpr int kNewest = 6;

// "OpenPMIx 4.2.2, repo rev ...", "PMIx 3.1.5": 4, 3. 0: none there.
int MajorVersion(absl::string_view text) {
  const size_t digit = text.find_first_of("0123456789");
  return digit == absl::string_view::npos ? 0 : std::atoi(std::string(text.substr(digit, 4)).c_str());
}

template <typename Function>
bool Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

absl::StatusOr<pmix::Api> Load() {
  pmix::Api api = {};
  // That of MPI, if it is here already.
  void* library = dlopen("libpmix.so.2", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (library == nullptr) library = dlopen("libpmix.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const error = dlerror();
    return absl::NotFoundError(
        absl::StrCat("load PMIx's library: ", error != nullptr ? error : "dlopen failed",
                     ": install it (Debian: libpmix2), or add the folder of the launcher's own to LD_LIBRARY_PATH"));
  }
  const bool complete = Find(library, "PMIx_Get_version", &api.GetVersion) &&
                        Find(library, "PMIx_Error_string", &api.ErrorString) && Find(library, "PMIx_Init", &api.Init) &&
                        Find(library, "PMIx_Finalize", &api.Finalize) && Find(library, "PMIx_Put", &api.Put) &&
                        Find(library, "PMIx_Commit", &api.Commit) && Find(library, "PMIx_Fence", &api.Fence) &&
                        Find(library, "PMIx_Get", &api.Get);
  const std::string version = api.GetVersion != nullptr ? api.GetVersion() : "";
  if (complete && MajorVersion(version) >= kOldest && MajorVersion(version) <= kNewest) return api;
  return absl::NotFoundError(absl::StrCat("libpmix.so.2 is '", Clipped(version), "': PMIx from version ", kOldest,
                                          " to ", kNewest, " is needed"));
}

absl::Status FailedForGood(const absl::Status& status) {
  return absl::FailedPreconditionError(absl::StrCat("an earlier call has failed: ", status.message()));
}

// Both are set before the connection is shared.
struct Connected {
  pmix::Api api = {};
  pmix::Proc self = {};
};

class PmixExchange final : public Exchange {
 public:
  explicit PmixExchange(const Connected& connected) : connected_(connected) {}

  absl::Status Put(absl::string_view key, absl::string_view value, Deadline deadline) override {
    return Call("PMIx_Put and PMIx_Commit", deadline,
                [connected = connected_, key = std::string(key), text = KeptUntilWiped(value)](std::string*) {
                  pmix::Value value = {};
                  value.type = pmix::kString;
                  value.data.string = &(*text)[0];
                  const pmix::Status status = connected.api.Put(pmix::kGlobal, key.c_str(), &value);
                  return status == pmix::kSuccess ? connected.api.Commit() : status;
                })
        .status();
  }

  absl::Status Fence(Deadline deadline) override {
    return Call("PMIx_Fence", deadline,
                [connected = connected_](std::string*) {
                  // With it, every host gets what was put.
                  pmix::Info collect = {};
                  std::strcpy(collect.key, "pmix.collect");
                  collect.value.type = pmix::kBool;
                  collect.value.data.flag = true;
                  return connected.api.Fence(nullptr, 0, &collect, 1);
                })
        .status();
  }

  absl::StatusOr<std::string> Get(absl::string_view key, Deadline deadline) override {
    pmix::Proc zero = connected_.self;
    zero.rank = 0;
    return GetOf(zero, std::string(key), deadline);
  }

  // Of the job, for kEveryRank, or of a process.
  absl::StatusOr<std::string> GetOf(const pmix::Proc& of, const std::string& key, Deadline deadline) {
    return Call(absl::StrCat("PMIx_Get of ", key), deadline, [connected = connected_, of, key](std::string* text) {
      pmix::Value* value = nullptr;
      const pmix::Status status = connected.api.Get(&of, key.c_str(), nullptr, 0, &value);
      if (status != pmix::kSuccess || value == nullptr) return status;
      if (value->type == pmix::kUint16) *text = absl::StrCat(value->data.uint16);
      if (value->type == pmix::kUint32) *text = absl::StrCat(value->data.uint32);
      if (value->type == pmix::kString) {
        *text = value->data.string;
        explicit_bzero(value->data.string, text->size());
        free(value->data.string);
      }
      free(value);
      return status;
    });
  }

  const Connected& connected() const { return connected_; }

  // Unless the library is, or may be, at another call.
  void Finalize() {
    if (!mu_.TryLock()) return;
    // Itself, it waits two seconds for its server at most.
    if (failure_.ok()) connected_.api.Finalize(nullptr, 0);
    mu_.Unlock();
  }

  // Runs `call`, which may write a text, on a thread that is left behind at the deadline.
  static absl::StatusOr<std::string> Within(Deadline deadline, absl::string_view what,
                                            const std::function<pmix::Status(std::string*)>& call,
                                            const char* (*error_string)(pmix::Status)) {
    LOCKSTEP_ASSIGN_OR_RETURN(auto result, CallWithin(deadline, "lockstep-pmix", [call] {
                                std::string text;
                                const pmix::Status status = call(&text);
                                return std::make_pair(status, std::move(text));
                              }));
    if (!result.has_value()) return absl::DeadlineExceededError(absl::StrCat(what, " has not ended in time"));
    if (result->first == pmix::kSuccess) return std::move(result->second);
    return absl::UnavailableError(absl::StrCat(what, ": ", error_string(result->first), " (", result->first, ")"));
  }

 private:
  absl::StatusOr<std::string> Call(absl::string_view what, Deadline deadline,
                                   const std::function<pmix::Status(std::string*)>& call) {
    MutexLock lock(&mu_);
    LOCKSTEP_RETURN_IF_ERROR(failure_);
    absl::StatusOr<std::string> result = Within(deadline, what, call, connected_.api.ErrorString);
    if (absl::IsDeadlineExceeded(result.status())) {
      failure_ = FailedForGood(result.status());
    }
    return result;
  }

  const Connected connected_;
  // Held while a call is under way.
  Mutex mu_;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);  // the first at a deadline, after which the library may still be at it
};

// The process's connection, once it is there.
struct ProcessPmix {
  static ProcessPmix& Get() {
    static ProcessPmix* const pmix = new ProcessPmix;
    return *pmix;
  }

  Mutex mu;
  PmixExchange* open ABSL_GUARDED_BY(mu) = nullptr;
  absl::Status failure ABSL_GUARDED_BY(mu);  // of a PMIx_Init that may still be at it
  uint64_t fork_generation ABSL_GUARDED_BY(mu) = 0;
};

void FinalizeAtExit() {
  ProcessPmix& pmix = ProcessPmix::Get();
  if (!pmix.mu.TryLock()) return;  // a thread waits for PMIx's server, and this one should not
  if (pmix.fork_generation == ForkGeneration() && pmix.failure.ok()) pmix.open->Finalize();
  pmix.mu.Unlock();
}

absl::StatusOr<PmixExchange*> Open(Deadline deadline) {
  ProcessPmix& process = ProcessPmix::Get();
  MutexLock lock(&process.mu);
  if (process.fork_generation == ForkGeneration()) {
    LOCKSTEP_RETURN_IF_ERROR(process.failure);
    if (process.open != nullptr) return process.open;
  }
  const auto connected = std::make_shared<Connected>();
  LOCKSTEP_ASSIGN_OR_RETURN(connected->api, Load());
  const absl::Status begun =
      PmixExchange::Within(
          deadline, "PMIx_Init",
          [connected](std::string*) { return connected->api.Init(&connected->self, nullptr, 0); },
          connected->api.ErrorString)
          .status();
  if (absl::IsDeadlineExceeded(begun)) {
    process.failure = FailedForGood(begun);
    process.fork_generation = ForkGeneration();
  }
  LOCKSTEP_RETURN_IF_ERROR(begun);
  if (process.open == nullptr) std::atexit(FinalizeAtExit);
  process.open = new PmixExchange(*connected);
  process.failure = absl::OkStatus();
  process.fork_generation = ForkGeneration();
  return process.open;
}

}  // namespace

absl::StatusOr<Exchange*> OpenPmix(Deadline deadline) {
  LOCKSTEP_ASSIGN_OR_RETURN(PmixExchange* const exchange, Open(deadline));
  return exchange;
}

absl::StatusOr<PmixJob> AskPmixForJob(Deadline deadline) {
  LOCKSTEP_ASSIGN_OR_RETURN(PmixExchange* const exchange, Open(deadline));
  const pmix::Proc& self = exchange->connected().self;
  pmix::Proc job = self;
  job.rank = pmix::kEveryRank;
  PmixJob result;
  result.rank = static_cast<int>(self.rank);
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string size, exchange->GetOf(job, "pmix.job.size", deadline));
  if (!absl::SimpleAtoi(size, &result.size)) {
    return absl::UnavailableError("PMIx does not say how many ranks the job has (pmix.job.size)");
  }
  // These two are no more than useful.
  const absl::StatusOr<std::string> local_rank = exchange->GetOf(self, "pmix.lrank", deadline);
  const absl::StatusOr<std::string> local_size = exchange->GetOf(job, "pmix.local.size", deadline);
  if (local_rank.ok() && local_size.ok() &&
      (!absl::SimpleAtoi(*local_rank, &result.local_rank) || !absl::SimpleAtoi(*local_size, &result.local_size))) {
    result.local_rank = result.local_size = -1;
  }
  return result;
}

}  // namespace lockstep
