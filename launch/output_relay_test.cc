#include "launch/output_relay.h"

#include <string>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

TEST(LinePrefixer, PutsThePrefixBeforeEachLineHoweverTheBytesArrive) {
  const std::string input = "one\n\ntwo three\n";
  for (size_t piece = 1; piece <= input.size(); ++piece) {
    LinePrefixer prefixer("[7] ");
    std::string output;
    for (size_t begin = 0; begin < input.size(); begin += piece) prefixer.Append(input.substr(begin, piece), &output);
    EXPECT_EQ(output, "[7] one\n[7] \n[7] two three\n") << "in pieces of " << piece;
    prefixer.Finish(&output);
    EXPECT_EQ(output, "[7] one\n[7] \n[7] two three\n") << "in pieces of " << piece;
  }
}

TEST(LinePrefixer, HoldsBackAPartialLineUntilItIsWholeOrTheStreamEnds) {
  LinePrefixer prefixer("> ");
  std::string output;
  prefixer.Append("ab", &output);
  EXPECT_EQ(output, "");
  prefixer.Append("c\nd", &output);
  EXPECT_EQ(output, "> abc\n");
  prefixer.Finish(&output);
  EXPECT_EQ(output, "> abc\n> d\n");
  prefixer.Finish(&output);
  EXPECT_EQ(output, "> abc\n> d\n");
}

TEST(LinePrefixer, CutsLinesThatAreTooLong) {
  for (size_t piece = 1; piece <= 12; ++piece) {
    LinePrefixer prefixer("> ", 4);
    const std::string input = "123\n1234\n12345\n12345678";
    std::string output;
    for (size_t begin = 0; begin < input.size(); begin += piece) prefixer.Append(input.substr(begin, piece), &output);
    prefixer.Finish(&output);
    EXPECT_EQ(output, "> 123\n> 1234\n> 1234\n> 5\n> 1234\n> 5678\n") << "in pieces of " << piece;
  }
}

TEST(LinePrefixer, KeepsZeroBytesAndCarriageReturns) {
  LinePrefixer prefixer("> ");
  std::string output;
  prefixer.Append(std::string("a\0b\rc\n", 6), &output);
  EXPECT_EQ(output, std::string("> a\0b\rc\n", 8));
}

TEST(LinePrefixer, AnEmptyStreamGivesNothing) {
  LinePrefixer prefixer("> ");
  std::string output;
  prefixer.Append("", &output);
  prefixer.Finish(&output);
  EXPECT_EQ(output, "");
}

}  // namespace
}  // namespace lockstep
