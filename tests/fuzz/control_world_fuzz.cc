// The coordinator's world: any messages of its ranks, in any order, with connections that end and time that passes.
//
//   input = { event }
//   event = kind:u8 rank:u8 bytes:u16 payload       kind modulo 8: 0 hello | 1 connection lost | 2 time passes, by `bytes` ms |
//                                                   3 the coordinator fails | others: a message. The payload is a frame

#include <chrono>
#include <variant>

#include "tests/fuzz/fuzz.h"
#include "transport/control/control_world.h"
#include "transport/net/little_endian.h"

namespace lockstep {
namespace {

constexpr int kSize = 3;
constexpr uint64_t kWorld = 42;

// What the world sends is for a rank of this world, and can be read there.
class CheckedOutput final : public control::World::Output {
 public:
  void Send(int rank, const control::Message& message) override {
    LOCKSTEP_CHECK(rank >= 0 && rank < kSize) << "a message to rank " << rank;
    SendToAll(message);
  }
  void SendToAll(const control::Message& message) override {
    const std::string encoded = control::Encode(message);
    LOCKSTEP_CHECK(encoded.size() <= control::kCoordinatorFrameBytesMax) << encoded.size();
    const auto decoded = control::Decode(absl::string_view(encoded).substr(control::kFrameHeaderBytes));
    LOCKSTEP_CHECK(decoded.ok()) << decoded.status().ToString();
  }
};

std::string Event(int kind, int rank, const std::string& payload) {
  std::string event;
  AppendLittleEndian(&event, static_cast<uint8_t>(kind), static_cast<uint8_t>(rank),
                     static_cast<uint16_t>(payload.size()));
  return event + payload;
}

std::string Said(int rank, const control::Message& message) {
  const int kind = std::holds_alternative<control::Hello>(message) ? 0 : 4;
  return Event(kind, rank, control::Encode(message).substr(control::kFrameHeaderBytes));
}

std::string Time(int ms) {
  std::string event;
  AppendLittleEndian(&event, uint8_t{2}, uint8_t{0}, static_cast<uint16_t>(ms));
  return event;
}

// All ranks come and join.
std::string Formed() {
  std::string events;
  for (int rank = 0; rank < kSize; ++rank) {
    control::Hello hello;
    hello.job_id = "job";
    hello.rank = static_cast<uint32_t>(rank);
    hello.size = kSize;
    hello.world = kWorld;
    hello.host = "a";
    events += Said(rank, hello);
    control::Join join;
    join.member.rank = Rank(rank);
    join.member.data_address = *SocketAddress::Parse("10.0.0.7:4411");
    join.options = {{"chunk_bytes", "4096"}};
    events += Said(rank, join);
  }
  return events;
}

}  // namespace

std::vector<std::string> fuzz::Seeds() {
  using namespace control;  // NOLINT: its messages, by name
  const absl::Status error = absl::UnavailableError("connection lost");
  std::string stuck = Formed();
  for (int rank = 0; rank < kSize; ++rank) {
    for (int beat = 0; beat < 2; ++beat) stuck += Said(rank, Pong{0, {{7, {5, 4}}}});
    stuck += Said(rank, Called{7, 5, rank == 1 ? "broadcast #5" : "all_reduce #5"});
  }
  std::string late = Formed() + Said(0, Late{7, 5, "all_reduce #5"});
  for (int rank = 0; rank < kSize; ++rank) {
    late += Said(rank, Pong{1, {{7, {4u + static_cast<uint64_t>(rank % 2), 4}}}});
  }
  return {
      Formed() + Said(0, Report{7, 1, error}) + Event(1, 1, "") + Time(600),
      Formed() + Said(0, Report{7, 1, error}) + Time(600) + Said(2, Disconnect{}) + Said(0, Exiting{}),
      Formed() + Said(1, PostMessage{7, 1, "text"}) + Said(0, AwaitMessages{1, 7, 1, 2}) +
          Said(2, AwaitMessages{1, 7, 2, 1}) + Said(2, DropMessages{1}) + Said(2, PostMessage{7, 1, "text"}),
      Formed() + Said(0, EnterBarrier{1, 7, 1, 3, 100}) + Said(1, EnterBarrier{1, 7, 1, 3, 50}) + Time(60) +
          Said(2, EnterBarrier{1, 7, 1, 3, 100}),
      Formed() + Said(1, Closed{7, 3, 5}) + Said(0, Pong{0, {{7, {6, 5}}}}) + Said(0, Closed{8, 2, 5}),
      Said(0, GiveUp{}) + Time(6000),
      stuck,
      late + Time(200),
      late + Event(1, 2, "") + Event(3, 0, ""),
  };
}

}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using lockstep::control::World;
  lockstep::CheckedOutput output;
  World::Options options;
  options.size = lockstep::kSize;
  options.job_id = "job";
  options.world_id = lockstep::kWorld;
  options.answer_time = std::chrono::milliseconds(100);
  World::TimePoint now = World::TimePoint() + std::chrono::hours(1);
  World world(options, &output, now);
  bool connected[lockstep::kSize] = {};
  for (lockstep::fuzz::Input input(data, size); !input.empty();) {
    const int kind = input.Take<uint8_t>() % 8;
    const int rank = input.Take<uint8_t>() % lockstep::kSize;
    const size_t bytes = input.Take<uint16_t>();
    if (kind == 1) {
      world.Gone(rank, "died: control connection closed");
      connected[rank] = false;
    }
    if (kind == 2) {
      now += std::chrono::milliseconds(bytes);
      world.Tick(now);
      LOCKSTEP_CHECK(world.next_event() >= now) << "it wants to run again at once";
    }
    if (kind == 3) world.Fail(absl::ResourceExhaustedError("no descriptors"));
    if (kind >= 1 && kind <= 3) continue;
    const auto message = lockstep::control::Decode(input.Take(bytes));
    if (!message.ok()) continue;
    if (const auto* hello = std::get_if<lockstep::control::Hello>(&*message)) {
      if (kind == 0 && hello->magic == lockstep::control::kMagic && !world.Connect(*hello).has_value()) {
        connected[hello->rank] = true;
      }
    } else if (connected[rank] && !world.Handle(rank, *message, now)) {
      // As the coordinator, which ends the connection of a rank that breaks the protocol.
      world.Gone(rank, "broke the control protocol");
      connected[rank] = false;
    }
  }
  world.Close();
  return 0;
}
