#include "transport/control/control_protocol.h"

#include <numeric>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/error_info.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/control/control_types.h"
#include "transport/net/socket.h"
#include "transport/secure/secret.h"

namespace lockstep::control {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Member SomeMember(int rank) {
  Member member;
  member.rank = Rank(rank);
  member.host = "host b";
  member.host_id = std::string("id\0with nul", 11);
  member.pid = 7100 + rank;
  member.launched_as = 10 + rank;
  member.data_address = *SocketAddress::Parse("[2001:db8::1]:4411");
  member.shm_address = "lockstep-1-2";
  member.ofi_address = "tcp;ofi_rxm 0200";
  member.cores = {5, uint64_t{1} << 63};
  return member;
}

// One of each type, with every field set.
std::vector<Message> Samples() {
  ErrorInfo info;
  info.failed_rank = 2;
  info.collective = "all_reduce";
  const absl::Status status = WithErrorInfo(absl::AbortedError("rank 2 died"), info);
  Hello hello;
  hello.job_id = "job";
  hello.rank = 3;
  hello.size = 8;
  hello.world = 0x0123456789abcdef;
  hello.host = "host";
  hello.pid = 77;
  return {hello,
          Welcome{7, 30000, SomeMember(0), *Secret::FromBytes(std::string(32, 's'))},
          Reject{RejectReason::kOtherWorld, status},
          Join{SomeMember(2), {{"chunk_bytes", "65536"}, {"", ""}}},
          Joined{{SomeMember(0), SomeMember(1)}},
          JoinFailed{status},
          GiveUp{},
          Waiting{"rank 2 of 8 has not joined"},
          Ping{9},
          Pong{9, {{1, {17, 16}}, {kAllChannels, {~uint64_t{0}, 0}}}},
          Report{4, 2, status},
          Late{4, 17, "allreduce #17"},
          FailureMessage{kAllChannels, status},
          PostMessage{4, 5, "text"},
          AwaitMessages{6, 4, 5, 2},
          DropMessages{6},
          PostedMessages{6, {{Rank(0), "a"}, {Rank(3), ""}}},
          Disconnect{},
          Ask{3, 17},
          Called{3, 17, "all_reduce #17"},
          EnterBarrier{6, 3, 17, 4, 500},
          Closed{3, 4, 17},
          Exiting{}};
}

absl::string_view WithoutLength(const std::string& frame) { return absl::string_view(frame).substr(kFrameHeaderBytes); }

TEST(ControlProtocol, EveryTypeSurvivesEncodingAndDecoding) {
  const std::vector<Message> samples = Samples();
  ASSERT_EQ(samples.size(), std::variant_size_v<Message>);
  for (const Message& sample : samples) {
    const std::string frame = Encode(sample);
    const absl::StatusOr<Message> decoded = Decode(WithoutLength(frame));
    ASSERT_THAT(decoded, IsOk()) << "alternative " << sample.index();
    EXPECT_EQ(decoded->index(), sample.index());
    // The encoding is canonical: equal bytes mean equal fields.
    EXPECT_EQ(Encode(*decoded), frame) << "alternative " << sample.index();
  }
}

TEST(ControlProtocol, BytesOnTheWireAreAsDocumented) {
  EXPECT_EQ(Encode(Ping{0x0102}), std::string("\x09\0\0\0"
                                              "\x09"
                                              "\x02\x01\0\0\0\0\0\0",
                                              13));
  EXPECT_EQ(Encode(FailureMessage{5, absl::AbortedError("no")}), std::string("\x13\0\0\0"
                                                                             "\x0d"
                                                                             "\x05\0\0\0"
                                                                             "\x0a\0\0\0"
                                                                             "\x02\0\0\0"
                                                                             "no"
                                                                             "\0\0\0\0",
                                                                             23));
  EXPECT_EQ(Encode(Disconnect{}), std::string("\x01\0\0\0"
                                              "\x12",
                                              5));
  EXPECT_EQ(Encode(Hello{}).substr(0, 11), std::string("\x27\0\0\0"
                                                       "\x01"
                                                       "LSTC"
                                                       "\x06\0",
                                                       11));
}

TEST(ControlProtocol, FieldsArriveAsSent) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Message decoded,
                                Decode(WithoutLength(Encode(Join{SomeMember(2), {{"name", "value"}}}))));
  const Join& join = std::get<Join>(decoded);
  EXPECT_EQ(join.member.rank, Rank(2));
  EXPECT_EQ(join.member.host, "host b");
  EXPECT_EQ(join.member.host_id, std::string("id\0with nul", 11));
  EXPECT_EQ(join.member.pid, 7102);
  EXPECT_EQ(join.member.data_address.ToString(), "[2001:db8::1]:4411");
  EXPECT_EQ(join.member.shm_address, "lockstep-1-2");
  EXPECT_EQ(join.member.ofi_address, "tcp;ofi_rxm 0200");
  EXPECT_EQ(join.member.launched_as, 10 + join.member.rank.value());
  EXPECT_EQ(join.member.cores, (std::vector<uint64_t>{5, uint64_t{1} << 63}));
  EXPECT_EQ(join.options, std::vector<AgreedOption>({{"name", "value"}}));
}

TEST(ControlProtocol, HelloOfAnotherVersionIsReadAsFarAsItsVersion) {
  std::string frame = Encode(Hello{});
  frame[kFrameHeaderBytes + 1 + 4] = 9;
  frame += "whatever version 9 adds";
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Message decoded, Decode(WithoutLength(frame)));
  EXPECT_EQ(std::get<Hello>(decoded).version, 9);
}

TEST(ControlProtocol, WhatDoesNotFollowTheGrammarIsInvalid) {
  const auto invalid = [](const char* what) { return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what)); };
  EXPECT_THAT(Decode(""), invalid("without a type"));
  EXPECT_THAT(Decode(absl::string_view("\0", 1)), invalid("type 0: there is no such type"));
  EXPECT_THAT(Decode("\x18"), invalid("type 24: there is no such type"));
  EXPECT_THAT(Decode("\x12x"), invalid("type 18: bytes after its end"));
  EXPECT_THAT(Decode("\x09xyz"), invalid("type 9: it ends too early"));
  // A failure that is no failure.
  EXPECT_THAT(Decode(absl::string_view("\x0d"
                                       "\x05\0\0\0"
                                       "\0\0\0\0"
                                       "\0\0\0\0",
                                       13)),
              invalid("no error code"));
  // A list that claims four billion members.
  EXPECT_THAT(Decode("\x05\xff\xff\xff\xff"), invalid("it ends too early"));
  // A string that claims as many bytes.
  EXPECT_THAT(Decode("\x08\xff\xff\xff\xff"), invalid("it ends too early"));
  // An address that is none, before two empty strings and two empty lists.
  Join join;
  std::string frame = Encode(join);
  frame.replace(frame.size() - 20, 4, std::string("\x03\0\0\0", 4));
  frame.insert(frame.size() - 16, "abc");
  EXPECT_THAT(Decode(WithoutLength(frame)), invalid("an address that is none"));
}

TEST(ControlProtocol, EveryPrefixOfAMessageIsInvalidAndNoneCrashes) {
  for (const Message& sample : Samples()) {
    const std::string frame = Encode(sample);
    const absl::string_view whole = WithoutLength(frame);
    for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
      EXPECT_THAT(Decode(std::string(whole.substr(0, bytes))), StatusIs(absl::StatusCode::kInvalidArgument))
          << "alternative " << sample.index() << ", " << bytes << " of " << whole.size();
    }
  }
}

// Flips bytes of good messages at random: the decoder must neither crash nor accept what it would not itself write.
TEST(ControlProtocol, DamagedMessagesAreInvalidOrCanonical) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const std::vector<Message> samples = Samples();
  for (int round = 0; round < 20'000; ++round) {
    std::string body(WithoutLength(Encode(samples[random() % samples.size()])));
    for (int flips = 1 + random() % 3; flips > 0; --flips) body[random() % body.size()] = static_cast<char>(random());
    const absl::StatusOr<Message> decoded = Decode(body);
    if (!decoded.ok()) {
      EXPECT_THAT(decoded, StatusIs(absl::StatusCode::kInvalidArgument));
      continue;
    }
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Message again, Decode(WithoutLength(Encode(*decoded))));
    EXPECT_EQ(Encode(again), Encode(*decoded));
  }
}

TEST(FrameReader, CutsFramesWhereverTheStreamIsTorn) {
  std::string stream;
  for (const Message& sample : Samples()) stream += Encode(sample);
  for (const size_t piece : {size_t{1}, size_t{3}, size_t{7}, stream.size()}) {
    FrameReader reader(kRankFrameBytesMax);
    std::string joined;
    size_t frames = 0;
    for (size_t begin = 0; begin < stream.size(); begin += piece) {
      const std::string part = stream.substr(begin, piece);
      reader.Append(part.data(), part.size());
      for (absl::string_view frame;;) {
        LOCKSTEP_ASSERT_OK_AND_ASSIGN(const bool whole, reader.Next(&frame));
        if (!whole) break;
        ++frames;
        LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Message message, Decode(frame));
        joined += Encode(message);
      }
    }
    EXPECT_EQ(frames, Samples().size());
    EXPECT_EQ(joined, stream);
  }
}

TEST(FrameReader, LengthsOutOfBoundsAreRefusedBeforeTheFrameIsThere) {
  const auto next = [](size_t limit_bytes, absl::string_view begin) {
    FrameReader reader(limit_bytes);
    reader.Append(begin.data(), begin.size());
    absl::string_view frame;
    return reader.Next(&frame);
  };
  const auto invalid = [](const char* what) { return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what)); };
  EXPECT_THAT(next(100, absl::string_view("\0\0\0\0", 4)), invalid("frame of 0 bytes"));
  EXPECT_THAT(next(100, absl::string_view("\x65\0\0\0", 4)), invalid("frame of 101 bytes; 1 to 100 are allowed"));
  EXPECT_THAT(next(kHelloBytesMax, "GET / HTTP/1.1\r\n"), invalid(""));
  EXPECT_THAT(next(100, absl::string_view("\x64\0\0\0", 4)), IsOkAndHolds(false));
}

TEST(CoordinatorRecord, SurvivesTheStore) {
  for (const bool with_secret : {false, true}) {
    CoordinatorRecord record = {*SocketAddress::Parse("10.0.0.7:4411"),
                                0xfedcba9876543210,
                                71,
                                3,
                                "host with blanks",
                                {},
                                1'700'000'000,
                                HostWord("a host")};
    if (with_secret) record.secret = *Secret::FromBytes(std::string(32, 's'));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const CoordinatorRecord read,
                                  DecodeCoordinatorRecord(EncodeCoordinatorRecord(record)));
    EXPECT_EQ(read.address, record.address);
    EXPECT_EQ(read.world, record.world);
    EXPECT_EQ(read.pid, record.pid);
    EXPECT_EQ(read.attempt, record.attempt);
    EXPECT_EQ(read.host, record.host);
    EXPECT_EQ(read.seconds, record.seconds);
    EXPECT_EQ(read.host_id, record.host_id);
    ASSERT_EQ(read.secret != nullptr, with_secret);
    if (with_secret) {
      EXPECT_EQ(read.secret->Hex(), record.secret->Hex());
    }
  }
}

// Whatever is wrong with it: errors get into logs.
TEST(CoordinatorRecord, ErrorsDoNotTellASecret) {
  CoordinatorRecord record = {*SocketAddress::Parse("10.0.0.7:4411"), 42, 71, 3, "host", {}, 9, "6964"};
  record.secret = *Secret::FromBytes(std::string(32, 's'));
  const std::string text = EncodeCoordinatorRecord(record);
  const std::string hex = record.secret->Hex();
  ASSERT_THAT(text, HasSubstr(hex));
  for (size_t i = 0; i < text.size(); ++i) {
    for (const std::string& wrong : {text.substr(0, i) + "~" + text.substr(i), text.substr(0, i) + text.substr(i + 1),
                                     text.substr(0, i) + " " + text.substr(i)}) {
      const absl::Status status = DecodeCoordinatorRecord(wrong).status();
      EXPECT_THAT(std::string(status.message()), Not(HasSubstr(hex.substr(0, 8)))) << wrong;
    }
  }
}

TEST(CoordinatorRecord, AnythingElseIsInvalid) {
  for (const char* text :
       {"", "lockstep-control", "lockstep-control 6 10.0.0.7:4411 x 71 1 9 - - host",
        "lockstep-control 6 10.0.0.7 5 71 1 9 - - host", "lockstep-control 6 10.0.0.7:4411 5 71 x 9 - - host",
        "lockstep-control 6 10.0.0.7:4411 5 71 1 x - - host", "lockstep-control 6 10.0.0.7:4411 5 71 1 9 - -",
        "something-else 6 10.0.0.7:4411 5 71 1 9 - - host", "lockstep-control 6 10.0.0.7:4411 5 71 1 9 - 0123 host",
        "lockstep-control one 10.0.0.7:4411 5 71 1 9 - - host"}) {
    EXPECT_THAT(DecodeCoordinatorRecord(text), StatusIs(absl::StatusCode::kInvalidArgument)) << text;
  }
  EXPECT_THAT(DecodeCoordinatorRecord("lockstep-control 9 10.0.0.7:4411 5 71 host"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("rank 0 speaks control protocol version 9, this rank 6")));
}

TEST(FailureRecord, SurvivesTheStore) {
  for (const std::vector<int>& untold : {std::vector<int>(), {3}, {1, 2, 3, 7, 9, 10}}) {
    const absl::Status status = WithFailedRank(absl::ResourceExhaustedError("rank 0: too many  open files"), 0);
    const FailureRecord record = {1'700'000'000, 2, untold, status};
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const FailureRecord read, DecodeFailureRecord(EncodeFailureRecord(record)));
    EXPECT_EQ(read.seconds, record.seconds);
    EXPECT_EQ(read.attempt, record.attempt);
    EXPECT_EQ(read.untold, untold);
    EXPECT_EQ(read.status, record.status);
  }
  std::vector<int> all(100'000);
  std::iota(all.begin(), all.end(), 1);
  EXPECT_EQ(EncodeFailureRecord({5, 2, all, absl::AbortedError("x")}), "lockstep-failed 5 10 2 1-100000 x");
  // It has to fit into a store, whatever the text.
  EXPECT_LT(EncodeFailureRecord({5, 2, {1}, absl::AbortedError(std::string(1 << 20, 'x'))}).size(), 8192);
}

TEST(FailureRecord, AnythingElseIsInvalid) {
  for (const char* text :
       {"", "x", "lockstep-failed", "lockstep-failed 5 10 2 1-2", "lockstep-failed x 10 2 1-2 why",
        "lockstep-failed 5 0 2 1-2 why", "lockstep-failed 5 10 2 2-1 why", "lockstep-failed 5 10 2 -1-1 why",
        "lockstep-failed 5 10 x 1-2 why", "lockstep-failed 5 10 2 0-2000000000 why",
        // The last rank that there can be, behind which a counter has no number.
        "lockstep-failed 5 10 2 2147483647-2147483647 why",
        // Not sorted, or twice the same.
        "lockstep-failed 5 10 2 5-6,1-2 why", "lockstep-failed 5 10 2 1-2,2-3 why",
        // No codes of errors.
        "lockstep-failed 5 17 2 1-2 why", "lockstep-failed 5 -1 2 1-2 why",
        "lockstep-control 1 10.0.0.7:4411 5 71 host"}) {
    EXPECT_THAT(DecodeFailureRecord(text), StatusIs(absl::StatusCode::kInvalidArgument)) << text;
  }
}

}  // namespace
}  // namespace lockstep::control
