// A rank of Gloo in bench:compare. Usage: gloo_runner FOLDER BYTES_MAX ALGORITHM, which is ring, hd
// (halving-doubling) or hd_busy (the same, where the caller does its own I/O and polls instead of sleeping).
//
// Compiled on a machine that has libgloo-dev; elsewhere nothing of it is.

#if __has_include(<gloo/allreduce_halving_doubling.h>)

#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <cstdio>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runner.h"

namespace {

using HalvingDoubling = gloo::AllreduceHalvingDoubling<float>;

class Rank {
 public:
  Rank(const std::string& folder, int rank, int size, const std::string& algorithm)
      : ring_(algorithm == "ring"), context_(std::make_shared<gloo::rendezvous::Context>(rank, size)) {
    gloo::transport::tcp::attr attributes("127.0.0.1");
    std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(attributes);
    gloo::rendezvous::FileStore store(folder);
    context_->connectFullMesh(store, device);
    if (algorithm != "hd_busy") return;
    for (int other = 0; other < size; ++other) {
      if (other != rank) context_->getPair(other)->setSync(true, /*busyPoll=*/true);
    }
  }

  void AllReduce(float* data, size_t count) {
    if (ring_) {
      gloo::AllreduceOptions options(context_);
      options.setOutput(data, count);
      options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
      options.setReduceFunction(static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
      gloo::allreduce(options);
      return;
    }
    // Bound to the memory and set up once, as its users do.
    std::unique_ptr<HalvingDoubling>& algorithm = algorithms_[count];
    if (algorithm == nullptr) {
      algorithm = std::make_unique<HalvingDoubling>(context_, std::vector<float*>{data}, static_cast<int>(count));
    }
    algorithm->run();
  }

 private:
  const bool ring_;
  std::shared_ptr<gloo::rendezvous::Context> context_;
  std::map<size_t, std::unique_ptr<HalvingDoubling>> algorithms_;
};

int AllReduce(void* context, float* data, size_t count) {
  static_cast<Rank*>(context)->AllReduce(data, count);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  lockstep_runner runner = {};
  if (argc != 4 || lockstep_runner_begin(&runner, argc, argv) != 0) return 2;
  runner.allreduce = &AllReduce;
  try {
    Rank rank(argv[1], runner.rank, runner.size, argv[3]);
    runner.context = &rank;
    return lockstep_runner_serve(&runner);
  } catch (const std::exception& error) {
    std::snprintf(runner.error, sizeof(runner.error), "%s", error.what());
    return lockstep_runner_refuse(&runner);
  }
}

#endif
