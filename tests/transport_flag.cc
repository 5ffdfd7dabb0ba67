#include "tests/transport_flag.h"

#include <stdlib.h>

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace lockstep {
namespace {

constexpr char kVariable[] = "LOCKSTEP_TRANSPORT";

}  // namespace

void TakeTransportFlags(int* argc, char** argv) {
  int kept = 1;
  for (int i = 1; i < *argc; ++i) {
    absl::string_view argument = argv[i];
    if (absl::ConsumePrefix(&argument, "--transport=")) {
      setenv(kVariable, std::string(argument).c_str(), /*overwrite=*/1);
    } else if (absl::ConsumePrefix(&argument, "--provider=")) {
      setenv("LOCKSTEP_OFI_PROVIDER", std::string(argument).c_str(), /*overwrite=*/1);
    } else {
      argv[kept++] = argv[i];
    }
  }
  *argc = kept;
  argv[kept] = nullptr;
}

std::string ChosenTransport() {
  const char* const chosen = getenv(kVariable);
  return chosen == nullptr ? "" : chosen;
}

}  // namespace lockstep
