// What docs/embedding.md shows in C is in examples that are built and run, line for line.

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

std::string Read(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The text between "```c" and "```".
std::vector<std::string> Quotations(const std::string& page) {
  std::vector<std::string> quotations;
  bool inside = false;
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    if (absl::StartsWith(line, "```")) {
      inside = line == "```c";
      if (inside) quotations.emplace_back();
    } else if (inside) {
      absl::StrAppend(&quotations.back(), line, "\n");
    }
  }
  return quotations;
}

TEST(EmbeddingDoc, QuotesProgramsThatRun) {
  const std::string programs = Read("examples/c99/two_ranks.c") + Read("examples/c99/patterns.c");
  const std::vector<std::string> quotations = Quotations(Read("docs/embedding.md"));
  EXPECT_GE(quotations.size(), 5);
  for (const std::string& quotation : quotations) EXPECT_THAT(programs, ::testing::HasSubstr(quotation));
}

}  // namespace
}  // namespace lockstep
