// Runs a fuzz target over files: the test of its committed corpus.
//
//   run_corpus FOLDER               runs the target over its seeds and over each file of the folder; fails if there are none
//   run_corpus --write_seeds=FOLDER writes the seeds into the folder

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "tests/fuzz/fuzz.h"

namespace {

void Run(const std::string& input) {
  // Exactly as long as the input, so that a sanitizer sees what is read beyond it.
  const std::vector<uint8_t> bytes(input.begin(), input.end());
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

}  // namespace

int main(int argc, char** argv) {
  absl::string_view argument = argc == 2 ? argv[1] : "";
  if (absl::ConsumePrefix(&argument, "--write_seeds=")) {
    int number = 0;
    for (const std::string& seed : lockstep::fuzz::Seeds()) {
      std::ofstream(absl::StrCat(argument, "/seed-", number++), std::ios::binary) << seed;
    }
    return 0;
  }
  lockstep::fuzz::over_a_corpus = true;
  const std::vector<std::string> seeds = lockstep::fuzz::Seeds();
  for (const std::string& seed : seeds) Run(seed);
  size_t files = 0;
  std::error_code absent;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(argument), absent)) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string input((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    // Where the target aborts, this says over what.
    std::fprintf(stderr, "%s: %zu bytes\n", entry.path().c_str(), input.size());
    Run(input);
    ++files;
  }
  std::fprintf(stderr, "%zu seeds, %zu files\n", seeds.size(), files);
  return !seeds.empty() && files > 0 ? 0 : 1;
}
