// Runs the program as a user would, over loopback TCP, on the first of the real images.

#ifndef EXAMPLES_FASHION_MNIST_TRAIN_TESTING_H_
#define EXAMPLES_FASHION_MNIST_TRAIN_TESTING_H_

#include <string>
#include <vector>

namespace fashion_mnist {

struct Outcome {
  int exit_status = -1;
  std::string out;
  std::string err;
};

Outcome RunTrain(const std::vector<std::string>& arguments);

// The loss of each step, of so many processes and steps, with more arguments. A run that fails fails the test.
std::vector<double> TrainAndReadLosses(int nproc, int steps, const std::vector<std::string>& more);

}  // namespace fashion_mnist

#endif  // EXAMPLES_FASHION_MNIST_TRAIN_TESTING_H_
