#include "bench/output_file.h"

#include <stdlib.h>

#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace lockstep {
namespace bench {

absl::Status WriteFile(const std::string& path, const std::string& text) {
  const char* const folder = getenv("BUILD_WORKING_DIRECTORY");
  const bool as_it_is = absl::StartsWith(path, "/") || folder == nullptr;
  const std::string file = as_it_is ? path : absl::StrCat(folder, "/", path);
  std::ofstream stream(file);
  stream << text;
  stream.close();
  return stream ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("cannot write ", file));
}

}  // namespace bench
}  // namespace lockstep
