// What the pages in docs say in tables and in C is what the code says and does.

#include <cstdlib>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/env.h"
#include "base/status_matchers.h"
#include "comm/schedule/schedule.h"
#include "comm/world/world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::ContainerEq;
using testing::HasSubstr;

std::string Read(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::set<std::string> Matches(const std::string& text, const char* expression) {
  const std::regex regex(expression);
  std::set<std::string> found;
  for (std::sregex_iterator at(text.begin(), text.end(), regex), end; at != end; ++at) found.insert((*at)[1]);
  return found;
}

// The cells of each row of the table whose first line begins like this.
std::vector<std::vector<std::string>> Table(const std::string& page, const std::string& head) {
  std::vector<std::vector<std::string>> rows;
  bool inside = false;
  for (absl::string_view line : absl::StrSplit(page, '\n')) {
    const bool first = absl::StartsWith(line, head);
    inside = first || (inside && absl::StartsWith(line, "|"));
    if (!inside || first || absl::StartsWith(line, "|---")) continue;
    rows.emplace_back();
    for (absl::string_view cell : absl::StrSplit(line.substr(1, line.size() - 2), '|')) {
      rows.back().emplace_back(absl::StripAsciiWhitespace(cell));
    }
  }
  EXPECT_FALSE(rows.empty()) << head;
  return rows;
}

TEST(Embedding, QuotesProgramsThatRun) {
  const std::string programs = Read("examples/c99/two_ranks.c") + Read("examples/c99/patterns.c");
  std::vector<std::string> quotations;
  bool inside = false;
  for (absl::string_view line : absl::StrSplit(Read("docs/embedding.md"), '\n')) {
    if (absl::StartsWith(line, "```")) {
      inside = line == "```c";
      if (inside) quotations.emplace_back();
    } else if (inside) {
      absl::StrAppend(&quotations.back(), line, "\n");
    }
  }
  EXPECT_GE(quotations.size(), 5);
  for (const std::string& quotation : quotations) EXPECT_THAT(programs, HasSubstr(quotation));
}

TEST(Embedding, NamesEveryOptionAndHookOfTheReducerAndNoFunctionThatDoesNotExist) {
  const std::string page = Read("docs/embedding.md");
  std::string header = Read("capi/lockstep.h");
  for (size_t at = header.find("/*"); at != std::string::npos; at = header.find("/*", at)) {
    header.erase(at, header.find("*/", at) + 2 - at);
  }
  const size_t begin = header.find("typedef struct lockstep_reducer_options {");
  const std::string options = header.substr(begin, header.find("} lockstep_reducer_options;") - begin);
  for (const std::string& field : Matches(options, R"((\w+);)")) {
    // What goes with another one is told there.
    if (std::regex_search(field, std::regex("struct_size|_context$|_release$|_count$"))) continue;
    EXPECT_TRUE(absl::StrContains(page, absl::StrCat("`", field, "`"))) << field;
  }
  for (const std::string& hook : Matches(header, R"(LOCKSTEP_HOOK_(\w+) =)"))
    EXPECT_TRUE(absl::StrContains(page, absl::StrCat("`", hook, "`"))) << hook;
  for (const std::string& function : Matches(page, R"(`(lockstep_\w+[a-z])(\(\))?`)"))
    EXPECT_TRUE(std::regex_search(header, std::regex("\\b" + function + "\\b"))) << function;
}

TEST(ArchitecturePage, HasOnlyCodesOfTheHeader) {
  const std::string header = Read("capi/lockstep.h");
  for (const auto& row : Table(Read("docs/architecture.md"), "| code |")) {
    for (absl::string_view code : absl::StrSplit(row[0], ", ")) {
      EXPECT_TRUE(absl::StrContains(header, absl::StrCat("  LOCKSTEP_", code, " = "))) << code;
    }
  }
}

TEST(EnvironmentPage, ListsEveryVariable) {
  std::vector<std::string> documented;
  for (const auto& row : Table(Read("docs/environment.md"), "| variable |")) {
    ASSERT_EQ(row.size(), 4);
    documented.push_back(std::string(absl::StripPrefix(absl::StripSuffix(row[0], "`"), "`")));
    for (const std::string& cell : row) EXPECT_NE(cell, "") << row[0];
    EXPECT_EQ(row[3].back(), '.') << row[0];
  }
  const auto known = EnvironmentVariables();
  EXPECT_THAT(documented, ContainerEq(std::vector<std::string>(known.begin(), known.end())));
}

// By what the library answers to a value that is wrong.
TEST(EnvironmentPage, SaysWhatAVariableTakes) {
  const std::regex range(R"(.*\b([\d,]+) to ([\d,]+))");
  int checked = 0;
  for (const auto& row : Table(Read("docs/environment.md"), "| variable |")) {
    const std::string name = row[0].substr(1, row[0].size() - 2);
    std::smatch ends;
    std::string answer;
    if (absl::StrContains(row[3], "the library ignores it") || name == "LOCKSTEP_STORE_SERVED") continue;
    if (row[1] == "0 or 1") answer = "takes 0 or 1,";
    if (name == "LOCKSTEP_LOG" || name == "LOCKSTEP_CPU" || name == "LOCKSTEP_TRANSPORT") {
      answer = absl::StrReplaceAll(row[1], {{" or ", ", "}});
    }
    if (std::regex_match(row[1], ends, range)) {
      answer = absl::StrReplaceAll(absl::StrCat("an integer from ", ends[1].str(), " to ", ends[2].str()), {{",", ""}});
    }
    if (answer.empty()) continue;
    setenv(name.c_str(), "-7", 1);
    EXPECT_THAT(World::Create({}), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(answer))) << name;
    unsetenv(name.c_str());
    ++checked;
  }
  EXPECT_GE(checked, 13);
}

// Which algorithms reduce what, in rank order or not, with one rounding or more.
TEST(NumericsPage, HasTheAlgorithmsThatReduce) {
  std::set<std::string> documented;
  for (const auto& row : Table(Read("docs/numerics.md"), "| algorithm |")) {
    documented.insert(absl::StrCat(row[0], ": ", row[1], row[2] == "rank order" ? ", rank order" : "", ", ", row[3]));
  }
  std::set<std::string> known;
  for (int i = 1; i < kAlgorithmCount; ++i) {
    const auto algorithm = static_cast<Algorithm>(i);
    std::vector<std::string> reduces;
    bool in_rank_order = false, rounds_once = false;
    for (const Collective collective : {Collective::kAllReduce, Collective::kReduce, Collective::kReduceScatter}) {
      if (!CheckAlgorithm(collective, algorithm).ok()) continue;
      reduces.push_back(absl::StrReplaceAll(Name(collective), {{"_", "-"}}));
      in_rank_order = ReducesInRankOrder(collective, algorithm);
      rounds_once = RoundsOnce(collective, algorithm);
    }
    if (reduces.empty()) continue;
    known.insert(absl::StrCat(Name(algorithm), ": ", absl::StrJoin(reduces, ", "), in_rank_order ? ", rank order" : "",
                              rounds_once ? ", once" : ", each hop"));
  }
  EXPECT_THAT(documented, ContainerEq(known));
}

}  // namespace
}  // namespace lockstep
