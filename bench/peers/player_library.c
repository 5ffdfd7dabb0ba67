/* player.h as a shared library, for players in other languages: torch_player.py. */

#include "player.h"

int lockstep_player_library_play(const char* folder, int rank, int size, size_t bytes_max,
                                 int (*allreduce)(void* context, float* data, size_t count)) {
  struct lockstep_player player;
  memset(&player, 0, sizeof(player));
  player.folder = folder;
  player.rank = rank;
  player.size = size;
  player.bytes_max = bytes_max;
  player.allreduce = allreduce;
  return lockstep_player_play(&player);
}
