#include "transport/exchange/mpi_presence.h"

#include <dlfcn.h>
#include <link.h>

#include <cstddef>
#include <cstring>

namespace lockstep {
namespace {

// dl_iterate_phdr's: stores the path of a library such as libmpi.so.40, libmpich.so.12, libmpi_cray.so.12.
int FindLibrary(dl_phdr_info* info, size_t, void* path) {
  const char* const slash = std::strrchr(info->dlpi_name, '/');
  const char* const name = slash != nullptr ? slash + 1 : info->dlpi_name;
  if (std::strncmp(name, "libmpi", 6) != 0) return 0;
  *static_cast<const char**>(path) = info->dlpi_name;
  return 1;
}

bool Says(void* library, const char* function) {
  void* const found = dlsym(library, function);
  int answer = 0;
  if (found != nullptr) reinterpret_cast<int (*)(int*)>(found)(&answer);
  return answer != 0;
}

}  // namespace

MpiPresence MpiOfThisProcess() {
  void* library = RTLD_DEFAULT;
  const char* path = nullptr;
  if (dlsym(library, "MPI_Initialized") == nullptr) {
    // Loaded by a module of Python's, say, out of sight of the default search.
    if (dl_iterate_phdr(FindLibrary, &path) == 0) return MpiPresence::kAbsent;
    library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);  // one more reference, kept: it stays
    if (library == nullptr || dlsym(library, "MPI_Initialized") == nullptr) return MpiPresence::kAbsent;
  }
  if (!Says(library, "MPI_Initialized")) return MpiPresence::kLoaded;
  return Says(library, "MPI_Finalized") ? MpiPresence::kFinalized : MpiPresence::kInitialized;
}

}  // namespace lockstep
