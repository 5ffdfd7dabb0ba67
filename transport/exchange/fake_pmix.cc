// A libpmix for tests: a job of 4 ranks, of which this is rank 0, whose key-value space is a map. FakeBehave tells it how to misbehave:
//   old       it is of version 1
//   refuse    PMIx_Init fails
//   hang      calls do not return
// PMIx_Finalize says that it was called.

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

// Of pmix_common.h. Written anew, so that a slip in pmix.cc shows.
struct Proc {
  char nspace[256];
  uint32_t rank;
};

struct Value {
  uint16_t type;
  union {
    char* string;
    uint16_t u16;
    uint32_t u32;
    char room[24];
  };
};

std::map<std::string, std::string> put, committed;
std::atomic<int> inits{0};
std::atomic<const char*> behaviour{""};

bool Told(const char* what) { return std::strcmp(behaviour, what) == 0; }

void MayHang() {
  while (Told("hang")) usleep(1000);
}

}  // namespace

EXPORTED const char* PMIx_Get_version() { return Told("old") ? "PMIx 1.2.5" : "OpenPMIx 4.2.2, repo rev: fake"; }
EXPORTED const char* PMIx_Error_string(int) { return "UNREACHABLE"; }

// A literal; "" is to behave.
EXPORTED void FakeBehave(const char* how) { behaviour = how; }
EXPORTED int FakeInits() { return inits; }

EXPORTED int PMIx_Init(Proc* self, void*, size_t) {
  ++inits;
  MayHang();
  if (Told("refuse")) return -25;
  std::strcpy(self->nspace, "job");
  self->rank = 0;
  return 0;
}

EXPORTED int PMIx_Finalize(const void*, size_t) {
  std::fputs("PMIx_Finalize\n", stderr);
  return 0;
}

EXPORTED int PMIx_Put(uint8_t scope, const char* key, Value* value) {
  MayHang();
  if (scope != 3 || value->type != 3) return -27;
  put[key] = value->string;
  return 0;
}

EXPORTED int PMIx_Commit() {
  committed = put;
  return 0;
}

EXPORTED int PMIx_Fence(const void* procs, size_t, const void* infos, size_t count) {
  MayHang();
  // It is to collect.
  const char* const info = static_cast<const char*>(infos);
  return procs == nullptr && count == 1 && std::strcmp(info, "pmix.collect") == 0 && info[520] == 1 && info[528] == 1
             ? 0
             : -27;
}

EXPORTED int PMIx_Get(const Proc* proc, const char* key, const void*, size_t, Value** value) {
  MayHang();
  if (std::strcmp(proc->nspace, "job") != 0) return -46;
  auto* const made = static_cast<Value*>(calloc(1, sizeof(Value)));
  *value = made;
  const std::string name = key;
  if (name == "pmix.job.size" && proc->rank == UINT32_MAX - 1) {
    made->type = 14;
    made->u32 = 4;
  } else if (name == "pmix.local.size" && proc->rank == UINT32_MAX - 1) {
    made->type = 14;
    made->u32 = 2;
  } else if (name == "pmix.lrank" && proc->rank == 0) {
    made->type = 13;
    made->u16 = 1;
  } else if (committed.count(name) != 0 && proc->rank == 0) {
    made->type = 3;
    made->string = strdup(committed[name].c_str());
  } else {
    free(made);
    *value = nullptr;
    return -46;
  }
  return 0;
}
