#include "tests/ranks.h"

#include <chrono>
#include <thread>
#include <utility>

#include "base/check.h"
#include "comm/staged_communicator.h"
#include "tests/test_device.h"

namespace lockstep {
namespace testing {

void RunRanks(int size, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back([&body, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

LoopbackWorld::LoopbackWorld(int size, LoopbackOptions network, TransportCommunicatorOptions options)
    : network_(size, std::move(network)), ranks_(size) {
  for (int rank = 0; rank < size; ++rank) {
    Member& member = ranks_[rank];
    member.transport = network_.CreateTransport(Rank(rank));
    member.engine = std::make_unique<ProgressEngine>(member.transport.get(), std::chrono::nanoseconds::zero());
    member.registry = std::make_unique<ChannelRegistry>();
    options.registry = member.registry.get();
    member.communicator = std::make_unique<TransportCommunicator>(member.engine.get(), nullptr, options);
    member.noting = std::make_unique<NotingCommunicator>(member.communicator.get(), &board_);
  }
  if (OnHost()) return;
  StagedOptions staged;
  staged.timeout = options.timeout;
  RunRanks(size, [&](int rank) {
    auto created = StagedCommunicator::Create(ranks_[rank].noting.get(), TestDevice(rank), staged);
    LOCKSTEP_CHECK(created.ok()) << created.status();
    ranks_[rank].on_device = *std::move(created);
  });
}

LoopbackWorld::~LoopbackWorld() {
  for (Member& member : ranks_) member.on_device.reset();
  for (Member& member : ranks_) member.communicator.reset();
  for (Member& member : ranks_) member.engine.reset();
}

void LoopbackWorld::Run(const std::function<void(Communicator&)>& body) {
  RunRanks(size(), [&](int rank) { body(*communicator(rank)); });
}

}  // namespace testing
}  // namespace lockstep
