// Who this process is, from options and the environment of whichever launcher.
//
//   input = flags:u8 { name "=" value "\n" }        flags: bits of Flag

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/env.h"
#include "tests/fuzz/fuzz.h"
#include "transport/store/rendezvous.h"

namespace lockstep {
namespace {

using Code = absl::StatusCode;

enum Flag : uint8_t { kOptions = 1, kStore = 2, kMpi = 4, kPmixAnswers = 8, kLocal = 16, kUrl = 32 };

// The options are variables, too: their own names are no launcher's.
absl::optional<int> IntOf(const std::map<std::string, std::string>& variables, const char* name) {
  const auto found = variables.find(name);
  int64_t value = 0;
  if (found == variables.end() || !ParseInteger(found->second, &value) || value != static_cast<int>(value)) {
    return absl::nullopt;
  }
  return static_cast<int>(value);
}

std::string TextOf(const std::map<std::string, std::string>& variables, const char* name) {
  const auto found = variables.find(name);
  return found == variables.end() ? "" : found->second;
}

void CheckWorld(const WorldSpec& world) {
  LOCKSTEP_CHECK(world.size >= 1 && world.rank.value() >= 0 && world.rank.value() < world.size);
  LOCKSTEP_CHECK(world.local_size == -1 || (world.local_size >= 1 && world.local_size <= world.size));
  LOCKSTEP_CHECK(world.local_rank >= -1 && world.local_rank < (world.local_size == -1 ? world.size : world.local_size));
  LOCKSTEP_CHECK(world.job_id.size() <= 256) << world.job_id.size();
  LOCKSTEP_CHECK(world.store_url.empty() || ParseStoreUrl(world.store_url).ok()) << world.store_url;
  LOCKSTEP_CHECK(!world.source.empty() && !Explain(world).empty());
}

}  // namespace

std::vector<std::string> fuzz::Seeds() {
  const auto seed = [](int flags, absl::string_view variables) {
    return absl::StrCat(std::string(1, static_cast<char>(flags)), variables);
  };
  return {
      seed(0, ""),
      seed(kOptions | kUrl, "rank=1\nsize=4\nurl=tcp://h:1\njob=j\n"),
      seed(kOptions | kStore | kLocal, "rank=1\nsize=4\nlocal_rank=1\nlocal_size=2\n"),
      seed(0,
           "LOCKSTEP_RANK=1\nLOCKSTEP_WORLD_SIZE=2\nLOCKSTEP_LOCAL_RANK=1\nLOCKSTEP_LOCAL_WORLD_SIZE=2\n"
           "LOCKSTEP_STORE=tcp://[::1]:29400\nLOCKSTEP_STORE_SERVED=1\nLOCKSTEP_JOB_ID=j\n"),
      seed(0, "LOCKSTEP_RANK=0\nLOCKSTEP_WORLD_SIZE=2\nLOCKSTEP_STORE=file:///tmp/job\n"),
      seed(0,
           "RANK=3\nWORLD_SIZE=4\nLOCAL_RANK=1\nLOCAL_WORLD_SIZE=2\nMASTER_ADDR=fd00::1\nMASTER_PORT=65000\n"
           "TORCHELASTIC_RUN_ID=r\nTORCHELASTIC_RESTART_COUNT=1\nGROUP_WORLD_SIZE=1\n"),
      seed(kPmixAnswers,
           "OMPI_COMM_WORLD_RANK=1\nOMPI_COMM_WORLD_SIZE=2\nOMPI_COMM_WORLD_LOCAL_RANK=1\n"
           "OMPI_COMM_WORLD_LOCAL_SIZE=2\nPMIX_NAMESPACE=n\nPMIX_RANK=1\n"),
      seed(0, "PMI_RANK=1\nPMI_SIZE=2\nPMI_FD=5\nMPI_LOCALRANKID=1\nMPI_LOCALNRANKS=2\n"),
      seed(kMpi,
           "PMI_RANK=1\nPMI_SIZE=2\nPMI_FD=5\nPMI_JOBID=7.0\nSLURM_STEP_ID=0\nSLURM_JOB_ID=7\n"
           "SLURM_STEP_NODELIST=n[07-09,12],x\n"),
      seed(0,
           "PET_NODE_RANK=1\nPET_NNODES=2\nPET_NPROC_PER_NODE=4\nLOCAL_RANK=3\nPET_MASTER_ADDR=h\nPET_MASTER_PORT=1\n"),
      seed(kPmixAnswers,
           "PMIX_NAMESPACE=n\nPMIX_RANK=1\npmix_rank=1\npmix_size=3\npmix_local_rank=0\npmix_local_size=1\n"),
      seed(0,
           "SLURM_PROCID=2\nSLURM_NTASKS=4\nSLURM_LOCALID=0\nSLURM_NODEID=1\nSLURM_STEP_TASKS_PER_NODE=2(x2)\n"
           "SLURM_JOB_ID=7\nSLURM_STEP_ID=0\nSLURM_STEP_NODELIST=n[07-09,12],x\nSLURM_RESTART_COUNT=1\n"),
      seed(kPmixAnswers, "PMIX_NAMESPACE=slurm.pmix.7.0\nPMIX_RANK=0\nSLURM_PROCID=0\nSLURM_NTASKS=1\n"),
  };
}

}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;  // NOLINT: nothing else is here
  fuzz::Input input(data, size);
  const auto flags = input.Take<uint8_t>();
  std::map<std::string, std::string> variables;
  for (const absl::string_view line : absl::StrSplit(input.Rest(), '\n')) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(line, absl::MaxSplits('=', 1));
    variables.insert(parts);
  }
  RendezvousOptions options;
  if (flags & kOptions) {
    options.rank = IntOf(variables, "rank");
    options.size = IntOf(variables, "size");
  }
  if (flags & kLocal) {
    options.local_rank = IntOf(variables, "local_rank");
    options.local_size = IntOf(variables, "local_size");
  }
  if (flags & kUrl) options.store_url = TextOf(variables, "url");
  options.has_store = flags & kStore;
  options.job_id = TextOf(variables, "job");

  Environment environment;
  environment.lookup = [&](absl::string_view name) -> absl::optional<std::string> {
    const auto found = variables.find(std::string(name));
    if (found == variables.end()) return absl::nullopt;
    return found->second;
  };
  environment.has_mpi = flags & kMpi;
  environment.pmix_job = [&]() -> absl::StatusOr<PmixJob> {
    if (!(flags & kPmixAnswers)) return absl::NotFoundError("no libpmix.so.2");
    PmixJob job;
    job.rank = IntOf(variables, "pmix_rank").value_or(-1);
    job.size = IntOf(variables, "pmix_size").value_or(-1);
    job.local_rank = IntOf(variables, "pmix_local_rank").value_or(-1);
    job.local_size = IntOf(variables, "pmix_local_size").value_or(-1);
    return job;
  };
  const absl::StatusOr<WorldSpec> world = DetermineWorld(options, environment);
  fuzz::CheckCode(world.status(), {Code::kInvalidArgument, Code::kUnavailable, Code::kNotFound});
  if (world.ok()) CheckWorld(*world);
  return 0;
}
