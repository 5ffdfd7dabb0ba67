// The frames of the control channel: cutting a stream, decoding messages.
//
//   input = piece_bytes:u8 stream

#include <algorithm>

#include "base/error_info.h"
#include "tests/fuzz/fuzz.h"
#include "transport/control/control_protocol.h"
#include "transport/secure/secret.h"

namespace lockstep {
namespace {

using Code = absl::StatusCode;

void CheckMessage(absl::string_view frame) {
  const fuzz::Allocations allocations;
  const absl::StatusOr<control::Message> message = control::Decode(frame);
  LOCKSTEP_CHECK(allocations.bytes() <= 64 * frame.size() + 4096)
      << allocations.bytes() << " bytes allocated for " << frame.size();
  fuzz::CheckCode(message.status(), {Code::kInvalidArgument});
  if (!message.ok()) return;
  // Addresses and error infos have several texts: what is encoded again is the one that we write.
  const std::string encoded = control::Encode(*message);
  const absl::StatusOr<control::Message> again =
      control::Decode(absl::string_view(encoded).substr(control::kFrameHeaderBytes));
  LOCKSTEP_CHECK(again.ok()) << again.status().ToString();
  LOCKSTEP_CHECK(control::Encode(*again) == encoded) << "decoded and encoded, it is another message";
}

// Appends the frames of the stream, which comes in pieces; and at its end the error, if there is one.
std::vector<std::string> Frames(absl::string_view stream, size_t piece_bytes) {
  std::vector<std::string> frames;
  control::FrameReader reader(control::kHelloBytesMax);
  while (!stream.empty()) {
    const absl::string_view piece = stream.substr(0, piece_bytes);
    stream.remove_prefix(piece.size());
    reader.Append(piece.data(), piece.size());
    for (absl::string_view frame;;) {
      const absl::StatusOr<bool> whole = reader.Next(&frame);
      fuzz::CheckCode(whole.status(), {Code::kInvalidArgument});
      if (!whole.ok()) {
        frames.push_back(whole.status().ToString());
        return frames;
      }
      if (!*whole) break;
      LOCKSTEP_CHECK(!frame.empty() && frame.size() <= control::kHelloBytesMax);
      frames.emplace_back(frame);
    }
  }
  return frames;
}

}  // namespace

std::vector<std::string> fuzz::Seeds() {
  using namespace control;  // NOLINT: its messages, by name
  Member member;
  member.rank = Rank(1);
  member.host = "b";
  member.host_id = "4f1c22aa/4026531840";
  member.pid = 71;
  member.data_address = *SocketAddress::Parse("10.0.0.7:4411");
  member.shm_address = "lockstep-4f1c22aa90ee1b07/9d0c5e6a77b3f218";
  member.cores = {0x3, 0};
  Hello hello;
  hello.job_id = "job";
  hello.rank = 1;
  hello.size = 2;
  hello.world = 42;
  hello.host = "b";
  hello.pid = 71;
  const absl::Status error = WithFailedRank(absl::AbortedError("rank 1 (host b, pid 71) died"), 1);
  const std::vector<Message> messages = {
      hello,
      Welcome{42, 30000, member, nullptr},
      Welcome{42, 30000, member, Secret::FromBytes(std::string(Secret::kBytes, 's')).value()},
      Reject{RejectReason::kOtherWorld, absl::UnavailableError("another world")},
      Join{member, {{"chunk_bytes", "262144"}, {"algorithm", ""}}},
      Joined{{member, member}},
      JoinFailed{error},
      GiveUp{},
      Waiting{"rank 1 of 2 has not joined"},
      Ping{3},
      Pong{3, {{7, {5, 4}}, {8, {}}}},
      Report{7, 1, error},
      Late{7, 5, "all_reduce #5"},
      FailureMessage{kAllChannels, error},
      PostMessage{7, 1, "posted"},
      AwaitMessages{1, 7, 1, 2},
      DropMessages{1},
      PostedMessages{1, {{Rank(0), "posted"}, {Rank(1), ""}}},
      Disconnect{},
      Ask{7, 5},
      Called{7, 5, "all_reduce #5"},
      EnterBarrier{2, 7, 1, 2, 1000},
      Closed{7, 2, 5},
      Exiting{},
  };
  std::vector<std::string> seeds;
  std::string all(1, '\x10');
  for (const Message& message : messages) {
    seeds.push_back('\xff' + Encode(message));
    all += Encode(message);
  }
  seeds.push_back(all);
  return seeds;
}

}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  lockstep::fuzz::Input input(data, size);
  const size_t piece_bytes = std::max<size_t>(input.Take<uint8_t>(), 1);
  const absl::string_view stream = input.Rest();
  const std::vector<std::string> frames = lockstep::Frames(stream, piece_bytes);
  LOCKSTEP_CHECK(frames == lockstep::Frames(stream, stream.size())) << "where a stream is cut makes a difference";
  for (const std::string& frame : frames) lockstep::CheckMessage(frame);
  return 0;
}
