#include "comm/point_to_point.h"

#include <deque>
#include <memory>
#include <string>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/loopback/loopback.h"
#include "transport/net/little_endian.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

constexpr ChannelId kChannel = 7;

struct Owner final : PointToPoint::Owner {
  void OnMessageDone(MessageCall*, const absl::Status& status) override { done.push_back(status); }
  void OnMessageFailed(MessageCall*, const absl::Status& status, Rank) override { failure = status; }

  std::deque<absl::Status> done;
  absl::Status failure;
};

// Rank 1, which keeps to no protocol but the transport's.
class RawPeer {
 public:
  explicit RawPeer(LoopbackNetwork* network) : transport_(network->CreateTransport(Rank(1))) {}

  // As comm/point_to_point.h: an eager message.
  void SendEager(int64_t tag, size_t bytes) {
    std::string header;
    AppendLittleEndian(&header, uint64_t{1}, static_cast<uint64_t>(tag), uint64_t{0}, uint64_t{bytes});
    Send({'p', '2', 'p', ' ', 'h', 'e', 'a', 'd', 'e', 'r'}, header);
    if (bytes > 0) Send({'p', '2', 'p', ' ', 'p', 'a', 'y', 'l', 'o', 'a', 'd'}, std::string(bytes, 'x'));
  }
  bool Progress() { return transport_->Progress(); }

 private:
  void Send(const Envelope& envelope, const std::string& bytes) {
    const std::string& kept = sent_.emplace_back(bytes);
    Operation& operation = operations_.emplace_back();
    operation.complete = [](Operation*, const absl::Status&) {};
    transport_->Send(Rank(0), kChannel, envelope, kept.data(), kept.size(), &operation);
  }

  std::deque<std::string> sent_;
  std::deque<Operation> operations_;
  const std::unique_ptr<Transport> transport_;  // ends before what it sends
};

class PointToPointTest : public testing::Test {
 protected:
  // Until nothing moves.
  void Settle() {
    for (int idle = 0; idle < 10; ++idle) {
      if (transport_->Progress() || peer_.Progress()) idle = 0;
    }
  }

  LoopbackNetwork network_{2};
  RawPeer peer_{&network_};
  const std::unique_ptr<Transport> transport_ = network_.CreateTransport(Rank(0));
  Owner owner_;
};

TEST_F(PointToPointTest, ASourceThatSendsMoreThanMayWaitBreaksItsLane) {
  PointToPoint messages(transport_.get(), kChannel, Rank(0), 2, {}, &owner_);
  MessageCall waits;
  waits.peer = Rank(1);
  waits.tag = 99;
  messages.Start(&waits);

  const size_t fit = PointToPoint::kEagerWindow / (PointToPoint::kEagerBytesMax + 128);
  for (size_t i = 0; i < fit; ++i) peer_.SendEager(1, PointToPoint::kEagerBytesMax);
  Settle();
  EXPECT_THAT(owner_.failure, IsOk());

  // What is received makes room.
  std::string room(PointToPoint::kEagerBytesMax, '\0');
  MessageCall receive;
  receive.peer = Rank(1);
  receive.tag = 1;
  receive.data = &room[0];
  receive.bytes = room.size();
  messages.Start(&receive);
  ASSERT_THAT(owner_.done, testing::ElementsAre(IsOk()));
  peer_.SendEager(1, PointToPoint::kEagerBytesMax);
  Settle();
  EXPECT_THAT(owner_.failure, IsOk());

  peer_.SendEager(1, PointToPoint::kEagerBytesMax);
  Settle();
  EXPECT_THAT(owner_.failure,
              StatusIs(absl::StatusCode::kInternal, HasSubstr("rank 1 sent more than may wait for a receiver")));
  messages.FailAll(owner_.failure);
  EXPECT_EQ(owner_.done.size(), 2);
}

}  // namespace
}  // namespace lockstep
