// A process's number in a world, from 0 to size-1. A type, so that it is not mistaken for an index or a count.

#ifndef BASE_RANK_H_
#define BASE_RANK_H_

#include <ostream>
#include <utility>

namespace lockstep {

class Rank {
 public:
  constexpr Rank() = default;
  constexpr explicit Rank(int value) : value_(value) {}

  constexpr int value() const { return value_; }

  friend constexpr bool operator==(Rank a, Rank b) { return a.value_ == b.value_; }
  friend constexpr bool operator!=(Rank a, Rank b) { return a.value_ != b.value_; }
  friend constexpr bool operator<(Rank a, Rank b) { return a.value_ < b.value_; }
  friend std::ostream& operator<<(std::ostream& stream, Rank rank) { return stream << rank.value_; }
  template <typename H>
  friend H AbslHashValue(H state, Rank rank) {
    return H::combine(std::move(state), rank.value_);
  }

 private:
  int value_ = 0;
};

}  // namespace lockstep

#endif  // BASE_RANK_H_
