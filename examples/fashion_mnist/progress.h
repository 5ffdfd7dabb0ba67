// Tells a person how training is going: a bar on a terminal, a line now and then elsewhere.

#ifndef EXAMPLES_FASHION_MNIST_PROGRESS_H_
#define EXAMPLES_FASHION_MNIST_PROGRESS_H_

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

#include "absl/strings/string_view.h"

namespace fashion_mnist {

class Progress {
 public:
  // Borrows the stream. A null stream shows nothing.
  explicit Progress(std::FILE* stream);

  void BeginEpoch(int epoch, int epochs, int64_t steps);
  // After step `step` of the epoch (from 0), in which all ranks together saw `images`. Cheap: draws at most ten times a
  // second.
  void Step(int64_t step, int64_t images, double loss);
  // Images per second in the steps of all epochs so far; evaluation is not counted.
  double images_per_second() const;
  void EndEpoch();
  // A line of its own.
  void Print(absl::string_view line);

 private:
  using Clock = std::chrono::steady_clock;

  void Draw(int64_t step, double loss);

  std::FILE* const stream_;
  const bool terminal_;
  std::string epoch_name_;
  int64_t steps_ = 0;
  Clock::time_point epoch_begin_;
  Clock::time_point next_draw_;
  Clock::duration earlier_epochs_ = {};
  Clock::duration this_epoch_ = {};
  int64_t images_ = 0;
};

}  // namespace fashion_mnist

#endif  // EXAMPLES_FASHION_MNIST_PROGRESS_H_
