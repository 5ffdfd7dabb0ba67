#include "transport/exchange/mpi_presence.h"

#include <dlfcn.h>
#include <link.h>

#include <cstddef>
#include <initializer_list>

namespace lockstep {
namespace {

// dl_iterate_phdr's: stores the path of a library such as libmpi.so.40, libmpich.so.12, libmpi_cray.so.12. Another thread may have written
// the names under the loader's lock, which is held here too, and which ThreadSanitizer does not see: nor has it to see them read.
__attribute__((no_sanitize("thread"))) int FindLibrary(dl_phdr_info* info, size_t, void* path) {
  const char* name = info->dlpi_name;
  for (const char* at = name; *at != '\0'; ++at) {
    if (*at == '/') name = at + 1;
  }
  for (const char c : {'l', 'i', 'b', 'm', 'p', 'i'}) {
    if (*name++ != c) return 0;
  }
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
