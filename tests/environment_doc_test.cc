// docs/environment.md lists exactly the variables that the library knows, as the library describes them.

#include <fstream>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

TEST(EnvironmentDoc, RepeatsTheTable) {
  std::ifstream file("docs/environment.md");
  ASSERT_TRUE(file.good());
  std::set<std::string> documented;
  std::string line;
  while (std::getline(file, line)) {
    if (absl::StartsWith(line, "| `LOCKSTEP_")) documented.insert(line);
  }
  std::set<std::string> known;
  for (const EnvironmentVariable& variable : EnvironmentTable()) {
    known.insert(absl::StrCat("| `", variable.name, "` | ", variable.takes, " | ", variable.default_value, " | ",
                              variable.meaning, " |"));
  }
  EXPECT_THAT(documented, ::testing::ContainerEq(known));
}

}  // namespace
}  // namespace lockstep
