// A rank of Lockstep in bench:compare. Usage: compare_lockstep_player FOLDER BYTES_MAX RANK SIZE [symmetric], with
// `symmetric` for a vector in memory of the communicator's allocator; LOCKSTEP_TRANSPORT and other settings come from the
// environment.

#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "bench/peers/player.h"
#include "comm/communicator.h"
#include "comm/symmetric_buffer.h"
#include "comm/world.h"

namespace lockstep {
namespace bench {
namespace {

void SetError(const absl::Status& status, lockstep_player* player) {
  const std::string message(status.message());
  std::snprintf(player->error, sizeof(player->error), "%s", message.c_str());
}

struct Rank {
  std::unique_ptr<World> world;
  std::unique_ptr<SymmetricBuffer> buffer;  // null: ordinary memory
  lockstep_player player = {};
};

int AllReduce(void* context, float* data, size_t count) {
  Rank* const rank = static_cast<Rank*>(context);
  CollectiveRequest request;
  request.collective = Collective::kAllReduce;
  request.dtype = DType::kF32;
  request.op = ReduceOp::kSum;
  request.count = count;
  request.input = data;
  request.output = data;
  const absl::Status status = rank->world->communicator()->Run(request);
  if (status.ok()) return 0;
  SetError(status, &rank->player);
  return -1;
}

int Main(int argc, char** argv) {
  Rank rank;
  lockstep_player& player = rank.player;
  const bool symmetric = argc == 6 && absl::string_view(argv[5]) == "symmetric";
  if (argc != (symmetric ? 6 : 5) || !absl::SimpleAtoi(argv[2], &player.bytes_max) ||
      !absl::SimpleAtoi(argv[3], &player.rank) || !absl::SimpleAtoi(argv[4], &player.size)) {
    std::fprintf(stderr, "usage: compare_lockstep_player FOLDER BYTES_MAX RANK SIZE [symmetric]\n");
    return 2;
  }
  player.folder = argv[1];
  player.allreduce = &AllReduce;
  player.context = &rank;
  WorldOptions options;
  options.size = options.local_size = player.size;
  options.rank = options.local_rank = player.rank;
  options.store_url = absl::StrCat("file://", argv[1], "/store");
  options.setup_timeout = std::chrono::seconds(30);
  absl::StatusOr<std::unique_ptr<World>> world = World::Create(options);
  if (!world.ok()) {
    SetError(world.status(), &player);
    return lockstep_player_refuse(&player);
  }
  rank.world = *std::move(world);
  if (symmetric) {
    absl::StatusOr<std::unique_ptr<SymmetricBuffer>> buffer = rank.world->communicator()->Allocate(player.bytes_max);
    if (!buffer.ok()) {
      SetError(buffer.status(), &player);
      return lockstep_player_refuse(&player);
    }
    rank.buffer = *std::move(buffer);
    player.data = reinterpret_cast<float*>(rank.buffer->data());
  }
  return lockstep_player_play(&player);
}

}  // namespace
}  // namespace bench
}  // namespace lockstep

int main(int argc, char** argv) { return lockstep::bench::Main(argc, argv); }
