#include "tests/ranks.h"

#include <thread>
#include <utility>

#include "base/check.h"
#include "comm/device/staged/staged_communicator.h"
#include "tests/test_device.h"

namespace lockstep::testing {

void RunRanks(int size, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&body, rank] {
      BecomeTestRank(rank);
      body(rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

absl::StatusOr<std::unique_ptr<Communicator>> MakeStagedTestCommunicator(Communicator* host, Device* device,
                                                                         std::chrono::milliseconds timeout) {
  StagedOptions options;
  options.timeout = timeout;
  return StagedCommunicator::Create(host, device, options);
}

namespace {

MakeTestCommunicator make_test_communicator = &MakeStagedTestCommunicator;

}  // namespace

ForTestDevice::ForTestDevice(Communicator* host, std::chrono::milliseconds timeout) : host_(host) {
  if (OnHost()) return;
  auto made = make_test_communicator(host, TestDevice(host->rank().value()), timeout);
  LOCKSTEP_CHECK(made.ok()) << made.status();
  on_device_ = *std::move(made);
}

void ReplaceTestCommunicators(MakeTestCommunicator make) { make_test_communicator = make; }

LoopbackWorld::LoopbackWorld(int size, LoopbackOptions network, TransportCommunicatorOptions options)
    : network_(size, std::move(network)), ranks_(size) {
  for (int rank = 0; rank < size; ++rank) {
    Member& member = ranks_[rank];
    member.transport = network_.CreateTransport(Rank(rank));
    // As worlds do whose ranks have a core each.
    const std::chrono::microseconds spin(size <= 2 ? 20 : 0);
    member.engine = std::make_unique<ProgressEngine>(member.transport.get(), spin);
    member.registry = std::make_unique<ChannelRegistry>();
    options.registry = member.registry.get();
    member.communicator = std::make_unique<TransportCommunicator>(member.engine.get(), nullptr, options);
    member.noting = std::make_unique<NotingCommunicator>(member.communicator.get(), &board_);
  }
  RunRanks(size, [&](int rank) {
    Member& member = ranks_[rank];
    member.for_device = std::make_unique<ForTestDevice>(member.noting.get(), options.timeout);
  });
}

LoopbackWorld::~LoopbackWorld() {
  for (Member& member : ranks_) member.for_device.reset();
  for (Member& member : ranks_) member.communicator.reset();
  for (Member& member : ranks_) member.engine.reset();
}

void LoopbackWorld::Run(const std::function<void(Communicator&)>& body) {
  RunRanks(size(), [&](int rank) { body(*communicator(rank)); });
}

}  // namespace lockstep::testing
