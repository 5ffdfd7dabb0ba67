// Two ranks over TCP whose kernels have TLS, or not.

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport_testing.h"
#include "tests/transport_testing_credentials.h"
#include "transport/secure/credentials.h"
#include "transport/tcp/fake_kernel_tls.h"
#include "transport/tcp/handshake.h"
#include "transport/tcp/kernel_tls.h"
#include "transport/tcp/tcp_testing.h"

namespace lockstep {
namespace {

using Code = absl::StatusCode;
using testing::HasSubstr;

class KernelTlsTransportTest : public TcpFixture {
 protected:
  // Before their kernels go.
  ~KernelTlsTransportTest() override { ranks_.clear(); }

  // Two ranks, each with a kernel.
  void CreateOver(
      KernelTls* first, KernelTls* second,
      const std::function<void(TcpTransportOptions*)>& change = [](TcpTransportOptions*) {}) {
    Create(2, [&](TcpTransportOptions* options) {
      options->credentials = TestCredentials(SecurityLevel::kEncrypt);
      options->kernel_tls = options->rank == Rank(0) ? first : second;
      change(options);
    });
  }
  void ExpectExchanges() {
    for (int i = 0; i < 2; ++i) {
      ExpectExchange(0, 1, /*channel=*/0);
      ExpectExchange(1, 0, /*channel=*/0);
      ExpectExchange(1, 0, /*channel=*/1);
      ExpectExchange(0, 1, /*channel=*/1);
    }
  }

  FakeKernelTls kernels_[2];
};

TEST_F(KernelTlsTransportTest, RanksThatBothHaveItUseIt) {
  CreateOver(&kernels_[0], &kernels_[1]);
  const uint64_t before[] = {kernels_[0].counts().sealed, kernels_[0].counts().opened, kernels_[1].counts().sealed,
                             kernels_[1].counts().opened};
  ExpectExchanges();
  const std::vector<unsigned char>& data = LargePayload();
  std::vector<unsigned char> target(data.size());
  EXPECT_THAT(Exchange(0, 1, 0, data.data(), target.data(), data.size()), IsOk());
  EXPECT_TRUE(target == data);
  EXPECT_GT(kernels_[0].counts().sealed - before[0], data.size() / 16384);
  EXPECT_EQ(kernels_[0].counts().sealed - before[0], kernels_[1].counts().opened - before[3]);
  EXPECT_GT(kernels_[1].counts().sealed - before[2], 0);
  EXPECT_EQ(kernels_[1].counts().sealed - before[2], kernels_[0].counts().opened - before[1]);
}

TEST_F(KernelTlsTransportTest, RanksOfWhichOneHasItUseRecordsOfOurOwn) {
  for (const bool old : {false, true}) {
    for (const int with : {0, 1}) {
      FakeKernelTls has, lacks;
      lacks.faults.attach = old ? 0 : ENOENT;
      lacks.faults.updates_keys = !old;
      ranks_.clear();
      CreateOver(with == 0 ? &has : &lacks, with == 0 ? &lacks : &has);
      const uint64_t before = has.counts().sealed + lacks.counts().sealed;
      ExpectExchanges();
      EXPECT_EQ(has.counts().sealed + lacks.counts().sealed, before);
    }
  }
}

TEST_F(KernelTlsTransportTest, ASocketThatCannotHaveItUsesRecordsOfOurOwn) {
  for (FakeKernelTls& kernel : kernels_) {
    ASSERT_THAT(kernel.Check(), IsOk());
    kernel.faults.attach = ENOTCONN;
    CreateOver(&kernels_[0], &kernels_[1]);
    const uint64_t before = kernels_[0].counts().sealed + kernels_[1].counts().sealed;
    ExpectExchanges();
    EXPECT_EQ(kernels_[0].counts().sealed + kernels_[1].counts().sealed, before);
    kernel.faults.attach = 0;
    ranks_.clear();
  }
}

TEST_F(KernelTlsTransportTest, RanksOfWhichOneHasSmallBuffersUseRecordsOfOurOwn) {
  for (int small = 0; small < 4; ++small) {
    CreateOver(&kernels_[0], &kernels_[1], [&](TcpTransportOptions* options) {
      if (options->rank != Rank(small / 2)) return;
      (small % 2 == 0 ? options->tuning.send_buffer_bytes : options->tuning.receive_buffer_bytes) = 19'000;
    });
    const uint64_t before = kernels_[0].counts().sealed + kernels_[1].counts().sealed;
    ExpectExchanges();
    EXPECT_EQ(kernels_[0].counts().sealed + kernels_[1].counts().sealed, before) << small;
    ranks_.clear();
  }
}

TEST_F(KernelTlsTransportTest, IsForEncryptedConnectionsOfOneSocket) {
  CreateOver(&kernels_[0], &kernels_[1], [](TcpTransportOptions* options) { options->sockets = 2; });
  ExpectExchanges();
  ranks_.clear();
  CreateOver(&kernels_[0], &kernels_[1], [](TcpTransportOptions* options) {
    options->credentials = TestCredentials(SecurityLevel::kAuthenticate);
    options->records_on_one_host = true;
  });
  ExpectExchanges();
  EXPECT_EQ(kernels_[0].counts().attached + kernels_[1].counts().attached, 0);
}

TEST_F(KernelTlsTransportTest, AnAnswerThatTakesWhatWasNotOfferedIsNone) {
  FakeListener listener;
  Create(2);
  ASSERT_THAT(rank(0)->SetPeers({rank(0)->address(), listener.address()}), IsOk());
  TestOperation send;
  rank(0)->Send(Rank(1), 0, TestEnvelope(1), "x", 1, &send);
  DriveAll([&] {
    listener.Serve(Encoded({kTcpProtocolVersion, Verdict::kAccepted, 7, /*kernel_tls=*/true}));
    return send.done();
  });
  EXPECT_THAT(send.status, StatusIs(Code::kFailedPrecondition, HasSubstr("is no Lockstep peer")));
}

TEST_F(KernelTlsTransportTest, AnAlteredRecordIsDataLoss) {
  CreateOver(&kernels_[0], &kernels_[1]);
  ExpectExchange(0, 1);
  kernels_[0].faults.alters_next = true;
  const std::vector<unsigned char> data = TestPayload(300'000, 7);
  std::vector<unsigned char> target(data.size());
  TestOperation send, receive;
  rank(1)->Receive(Rank(0), 0, TestEnvelope(1), CopySink(&target), &receive);
  rank(0)->Send(Rank(1), 0, TestEnvelope(1), data.data(), data.size(), &send);
  EXPECT_TRUE(DriveAll([&] { return receive.done(); }));
  EXPECT_THAT(receive.status,
              StatusIs(Code::kDataLoss, "recv from rank 0 over tcp " + rank(0)->address().ToString() +
                                            ": a TLS record was altered, or is not from this connection"));
  rank(0)->Abort(absl::AbortedError("the test is over"));
  EXPECT_TRUE(send.done());
}

TEST_F(KernelTlsTransportTest, ARankThatCannotSetAKeyHasLostTheConnection) {
  for (int failing = 0; failing < 2; ++failing) {
    CreateOver(&kernels_[0], &kernels_[1]);
    ExpectExchange(0, 1);
    kernels_[failing].faults.set_key = ENOMEM;
    std::vector<unsigned char> target(1);
    TestOperation send, receive;
    rank(1)->Receive(Rank(0), /*channel=*/1, TestEnvelope(1), CopySink(&target), &receive);
    rank(0)->Send(Rank(1), /*channel=*/1, TestEnvelope(1), "x", 1, &send);
    const TestOperation& told = failing == 0 ? send : receive;
    EXPECT_TRUE(DriveAll([&] { return told.done(); }));
    EXPECT_THAT(told.status, StatusIs(Code::kUnavailable, HasSubstr("connection lost: Cannot allocate memory")));
    kernels_[failing].faults.set_key = 0;
    for (auto& rank : ranks_) rank->Abort(absl::AbortedError("the test is over"));
    EXPECT_TRUE(send.done() && receive.done());
    ranks_.clear();
  }
}

// The part of a record that TCP had no room for is lost with its socket: so the send is not over before. Some of these messages fill what
// there is of buffers up to their last record. On the system's kernel as well, if it has TLS.
TEST_F(KernelTlsTransportTest, WhatWasSentArrivesThoughItsRankCloses) {
  std::vector<KernelTls*> kernels = {&kernels_[0]};
  if (KernelTls::OfSystem()->Check().ok()) kernels.push_back(KernelTls::OfSystem());
  for (KernelTls* const kernel : kernels) {
    int full = 0;
    for (size_t bytes = 20'000; bytes < 400'000; bytes += 4000) {
      CreateOver(kernel, kernel, [](TcpTransportOptions* options) {
        options->tuning.send_buffer_bytes = 20'000;
        options->tuning.receive_buffer_bytes = 60'000;
      });
      ExpectExchange(0, 1);
      const std::vector<unsigned char> data = TestPayload(bytes, 1);
      std::vector<unsigned char> target(bytes);
      TestOperation send, receive;
      rank(1)->Receive(Rank(0), 0, TestEnvelope(1), CopySink(&target), &receive);
      rank(0)->Send(Rank(1), 0, TestEnvelope(1), data.data(), bytes, &send);
      for (int i = 0; i < 100; ++i) rank(0)->Progress();
      full += !send.done();
      EXPECT_TRUE(DriveAll([&] { return send.done(); }));
      ASSERT_THAT(send.status, IsOk());
      ranks_[0] = nullptr;
      EXPECT_TRUE(DriveAll([&] { return receive.done(); }));
      ASSERT_THAT(receive.status, IsOk()) << bytes;
      ASSERT_TRUE(target == data);
      ranks_.clear();
    }
    EXPECT_GT(full, 0);
  }
}

}  // namespace
}  // namespace lockstep
