// Lists where libnccl may be, from the environment and folders. Loads nothing.

#ifndef TRANSPORT_NCCL_NCCL_PLACES_H_
#define TRANSPORT_NCCL_NCCL_PLACES_H_

#include <string>
#include <vector>

namespace lockstep {

struct NcclPlace {
  std::string file;      // for dlopen: a path, or a name that the loader looks for
  std::string reason;    // "LOCKSTEP_NCCL_LIBRARY", for messages
  bool present = false;  // only if it is in this process already
};

// In order of preference: LOCKSTEP_NCCL_LIBRARY, and if that is set nothing else; the library that this process has
// loaded already (a framework's, whose communicators and ours then share one); the loader's path; CUDA_HOME and
// /usr/local/cuda; the nvidia-nccl package of Python where it is installed (VIRTUAL_ENV, CONDA_PREFIX, the prefix of
// the python3 on PATH, PYTHONPATH, HOME).
std::vector<NcclPlace> NcclPlaces();

}  // namespace lockstep

#endif  // TRANSPORT_NCCL_NCCL_PLACES_H_
