// Contender: one thing that is compared, as the words and settings that start it.
//
// Its ranks are players (bench/peers/player.h): processes whose arguments begin with FOLDER BYTES_MAX RANK SIZE.

#ifndef BENCH_COMPARE_CONTENDER_H_
#define BENCH_COMPARE_CONTENDER_H_

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {
namespace bench {

enum class ContenderKind {
  kLockstep,  // what the others are held against
  kLimit,     // a prototype or bare sockets
  kPeer,      // another library
};

struct Contender {
  std::string name;  // heads its column
  ContenderKind kind = ContenderKind::kPeer;
  std::string about;                 // version and settings, for people
  std::vector<std::string> command;  // the program, and what comes before FOLDER
  std::vector<std::string> options;  // what comes after SIZE
  std::vector<std::pair<std::string, std::string>> environment;
  // False: the command starts all ranks by itself, and RANK is "-".
  bool process_per_rank = true;
  // Moves bytes and sums nothing: there is no result to check.
  bool moves_only = false;
  // Larger vectors are not asked of it.
  int64_t bytes_max = std::numeric_limits<int64_t>::max();
};

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_COMPARE_CONTENDER_H_
