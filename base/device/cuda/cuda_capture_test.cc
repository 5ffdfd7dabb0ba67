#include "base/device/cuda/cuda_capture_testing.h"

#include <memory>
#include <string>

#include "base/device/cuda/cuda_api.h"
#include "base/thread.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::Pair;
using Order = FakeGraph::Order;

// Streams and events are addresses.
class CudaCaptureTest : public testing::Test {
 protected:
  void Put(const char& stream, char name) {
    EXPECT_THAT(captures_.Launch(&stream, [this, name] { ran_ += name; }), Pair(true, kCudaSuccess));
  }
  void Record(const char& stream, const char& event) {
    EXPECT_THAT(captures_.Record(&stream, &event), Pair(true, kCudaSuccess));
  }
  void Wait(const char& stream, const char& event) {
    EXPECT_THAT(captures_.Wait(&stream, &event), Pair(true, kCudaSuccess));
  }
  int End() { return captures_.End(&stream_, &graph_); }
  std::string Run(Order order) {
    ran_.clear();
    graph_->Run(order);
    return ran_;
  }

  const char stream_ = 0, other_ = 0, third_ = 0, forked_ = 0, joined_ = 0, before_ = 0;
  FakeCaptures captures_;
  std::shared_ptr<const FakeGraph> graph_;
  std::string ran_;
};

TEST_F(CudaCaptureTest, AForkedStreamComesBehindItsEventAndBeforeWhatJoinsIt) {
  ASSERT_EQ(captures_.Begin(&stream_), kCudaSuccess);
  EXPECT_FALSE(captures_.capturing(&other_));
  Put(stream_, 'a');
  Record(stream_, forked_);
  Put(stream_, 'b');
  Wait(other_, forked_);
  EXPECT_TRUE(captures_.capturing(&other_));
  Put(other_, 'x');
  Put(other_, 'y');
  Record(other_, joined_);
  Wait(stream_, joined_);
  Put(stream_, 'c');
  ASSERT_EQ(End(), kCudaSuccess);
  EXPECT_FALSE(captures_.capturing(&stream_));
  EXPECT_FALSE(captures_.capturing(&other_));
  EXPECT_FALSE(captures_.any());
  EXPECT_EQ(Run(Order::kOldestFirst), "abxyc");
  EXPECT_EQ(Run(Order::kNewestFirst), "axybc");
}

TEST_F(CudaCaptureTest, NothingOfAStreamThatIsNotCapturedIsTaken) {
  ASSERT_EQ(captures_.Begin(&stream_), kCudaSuccess);
  EXPECT_FALSE(captures_.Launch(&other_, [] {}).first);
  EXPECT_FALSE(captures_.Record(&other_, &before_).first);
  EXPECT_FALSE(captures_.Wait(&third_, &before_).first);
  EXPECT_FALSE(captures_.Query(&before_).first);
  EXPECT_EQ(End(), kCudaSuccess);
}

TEST_F(CudaCaptureTest, AStreamThatIsNotJoinedIsFoundOutAtTheEnd) {
  ASSERT_EQ(captures_.Begin(&stream_), kCudaSuccess);
  Record(stream_, forked_);
  Wait(other_, forked_);
  Put(other_, 'x');
  Record(other_, joined_);
  Put(other_, 'y');
  Wait(stream_, joined_);
  EXPECT_EQ(End(), kCudaCaptureUnjoined);
  EXPECT_EQ(graph_, nullptr);
  EXPECT_FALSE(captures_.capturing(&other_));
}

TEST_F(CudaCaptureTest, ACaptureWaitsForNothingFromOutside) {
  ASSERT_EQ(captures_.Begin(&stream_), kCudaSuccess);
  EXPECT_THAT(captures_.Wait(&stream_, &before_), Pair(true, kCudaCaptureIsolation));
  EXPECT_THAT(captures_.Launch(&stream_, [] {}), Pair(true, kCudaCaptureInvalidated));
  EXPECT_EQ(End(), kCudaCaptureInvalidated);
  // Nor for a capture that is over, or for another.
  ASSERT_EQ(captures_.Begin(&other_), kCudaSuccess);
  Record(other_, joined_);
  ASSERT_EQ(captures_.Begin(&stream_), kCudaSuccess);
  EXPECT_THAT(captures_.Wait(&stream_, &joined_), Pair(true, kCudaCaptureMerge));
  EXPECT_EQ(End(), kCudaCaptureInvalidated);
}

TEST_F(CudaCaptureTest, CapturedEventsAreNeitherQueriedNorWaitedForOutsideUntilTheyAreRecordedAgain) {
  ASSERT_EQ(captures_.Begin(&stream_), kCudaSuccess);
  Record(stream_, forked_);
  ASSERT_EQ(End(), kCudaSuccess);
  EXPECT_THAT(captures_.Query(&forked_), Pair(true, kCudaCapturedEvent));
  EXPECT_THAT(captures_.Wait(&other_, &forked_), Pair(true, kCudaCapturedEvent));
  EXPECT_FALSE(captures_.Record(&other_, &forked_).first);
  EXPECT_FALSE(captures_.Query(&forked_).first);
  EXPECT_FALSE(captures_.Wait(&third_, &forked_).first);
}

TEST_F(CudaCaptureTest, AQueryOfItsEventEndsACapture) {
  ASSERT_EQ(captures_.Begin(&stream_), kCudaSuccess);
  Record(stream_, forked_);
  EXPECT_THAT(captures_.Query(&forked_), Pair(true, kCudaCapturedEvent));
  EXPECT_EQ(End(), kCudaCaptureInvalidated);
}

TEST_F(CudaCaptureTest, ACaptureEndsOnItsOwnStreamAndThread) {
  ASSERT_EQ(captures_.Begin(&stream_), kCudaSuccess);
  Record(stream_, forked_);
  Wait(other_, forked_);
  std::shared_ptr<const FakeGraph> graph;
  EXPECT_EQ(captures_.End(&other_, &graph), kCudaCaptureUnmatched);
  {
    Thread thread("other", [&] { EXPECT_EQ(captures_.End(&stream_, &graph), kCudaCaptureWrongThread); });
  }
  EXPECT_EQ(End(), kCudaSuccess);
  EXPECT_EQ(End(), kCudaInvalidValue) << "it is over";
}

}  // namespace
}  // namespace lockstep
