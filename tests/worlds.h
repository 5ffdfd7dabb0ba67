// Worlds over TCP whose ranks are threads of one process.

#ifndef TESTS_WORLDS_H_
#define TESTS_WORLDS_H_

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "comm/world/world.h"
#include "tests/ranks.h"
#include "transport/store/store.h"
#include "transport/store/store_memory.h"

namespace lockstep {

using WorldOrError = absl::StatusOr<std::unique_ptr<World>>;

// Options for rank `rank` of `size`, all on this host, with deadlines that end a test that hangs.
inline WorldOptions TestWorldOptions(Store* store, int rank, int size) {
  WorldOptions options;
  options.rank = rank;
  options.size = size;
  options.local_rank = rank;
  options.local_size = size;
  options.store = store;
  options.setup_timeout = std::chrono::milliseconds(30'000);
  options.timeout = std::chrono::milliseconds(60'000);
  options.peer_timeout = std::chrono::milliseconds(30'000);
  return options;
}

inline std::vector<absl::Status> StatusesOf(const std::vector<WorldOrError>& worlds) {
  std::vector<absl::Status> statuses;
  for (const WorldOrError& world : worlds) statuses.push_back(world.status());
  return statuses;
}

// Creates a world for each of these options, all at once.
inline std::vector<WorldOrError> CreateWorlds(const std::vector<WorldOptions>& options) {
  std::vector<WorldOrError> worlds;
  for (size_t i = 0; i < options.size(); ++i) worlds.emplace_back(absl::UnknownError("not created"));
  testing::RunRanks(static_cast<int>(options.size()), [&](int i) { worlds[i] = World::Create(options[i]); });
  return worlds;
}

// All ranks of a world of `size`; `change` sees each rank's options first.
inline std::vector<WorldOrError> CreateWorlds(Store* store, int size,
                                              const std::function<void(int rank, WorldOptions*)>& change = nullptr) {
  std::vector<WorldOptions> options;
  for (int rank = 0; rank < size; ++rank) {
    options.push_back(TestWorldOptions(store, rank, size));
    if (change) change(rank, &options.back());
  }
  return CreateWorlds(options);
}

// Runs a body with each rank's communicator, which has the host's shared memory.
inline void RunOnOneHost(int size, bool deterministic, const std::function<void(Communicator&)>& body) {
  MemoryStore store;
  const std::vector<WorldOrError> worlds =
      CreateWorlds(&store, size, [&](int, WorldOptions* options) { options->deterministic = deterministic; });
  for (const WorldOrError& world : worlds) LOCKSTEP_ASSERT_OK(world);
  testing::RunRanks(size, [&](int rank) { body(*(*worlds[rank])->communicator()); });
}

}  // namespace lockstep

#endif  // TESTS_WORLDS_H_
