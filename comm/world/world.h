// World: the ranks of a job, connected. Made from options and the environment, by every rank at once.
//
// Owns what one rank needs to take part: its slot in the control channel, its transport, the progress engine, the communicator of all
// ranks, and where it names a device the one over that. A world of one has communicators alone.

#ifndef COMM_WORLD_WORLD_H_
#define COMM_WORLD_WORLD_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "base/mutex.h"
#include "comm/communicator.h"
#include "transport/store/store.h"

namespace lockstep {

// What is left at its default is read from the environment (docs/environment.md), and then has the default given here.
struct WorldOptions {
  // Who we are. size 0: all of this from the environment; with nothing there either, a world of one.
  int size = 0;
  int rank = 0;
  int local_size = 0;  // 0: unknown
  int local_rank = 0;
  std::string store_url;               // tcp://host:port, served by rank 0; file:///path
  Store* store = nullptr;              // instead of a URL; needed until Create returns
  std::string job_id;                  // LOCKSTEP_JOB_ID, or ""
  std::string interface;               // any; see ChooseInterface
  std::string host_id;                 // ranks with the same one are taken to share a host; see HostId
  std::string tcp_congestion_control;  // reno between ranks of one host, else the system's
  int tcp_send_buffer_bytes = 0;       // the kernel's, which grow as needed
  int tcp_receive_buffer_bytes = 0;
  bool tcp_zero_copy = false;                  // long messages are sent from where they lie, where the kernel can
  std::chrono::milliseconds setup_timeout{0};  // 300,000
  std::chrono::milliseconds timeout{0};        // of a collective: 1,800,000
  std::chrono::milliseconds peer_timeout{0};   // 30,000
  // These must be equal on all ranks, and are compared.
  std::string transport;     // "auto": shared memory inside a host, TCP between hosts; "tcp"; "shm"; "ofi"
  std::string algorithm;     // chosen by size; see ParseAlgorithmOverrides
  int64_t chunk_bytes = 0;   // 262,144, with "ofi" 524,288; a multiple of 64
  std::string ofi_provider;  // with "ofi": a provider of libfabric, "tcp;ofi_rxm"; the best that there is
  std::string ofi_domain;    // with "ofi", each rank's own: a device of the provider's, "mlx5_1"
  int tcp_sockets = 0;       // 1: over which each connection's bytes are spread
  bool checked = false;
  bool deterministic = false;  // reductions are in rank order: docs/numerics.md
  bool measure_links = false;  // algorithms are chosen by costs measured now, not by those built in
  // Whose tensors the communicator takes beside the host's, and how they travel: "auto", "nccl" or "staged"
  // (comm/world/device_backend.h). The kind of the device and the way are equal on all ranks.
  DeviceId device;
  std::string device_backend;  // "auto"
  int nccl_ctas_min = 0;       // of NCCL's kernels; 0: its choice
  int nccl_ctas_max = 0;
  bool nccl_split_share = false;  // parts share its resources: NcclCommOptions
};

class World final {
 public:
  // Returns when all ranks have joined and agreed.
  // ERRORS  those of DetermineWorld, OpenStore, ChooseInterface and ControlChannel::Join, which name what is missing, taken, unknown or
  //         different, and on which ranks; with measure_links, those of MeasureLinks; with a device, those of FindDevice on the rank that
  //         has them and UNAVAILABLE, naming it, on the others, then those of MakeDeviceCommunicator.
  static absl::StatusOr<std::unique_ptr<World>> Create(const WorldOptions& options);

  // Closes.
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // Of all ranks; null once it is closed. Its parts (Communicator::Split) go before the world.
  Communicator* communicator();

  // Destroys the communicator of all ranks alone: the parts that it was split into go on.
  void CloseCommunicator();

  // Disconnects, and ends all communicators of the world: operations in flight complete with CANCELLED, and later calls are. For
  // when something that was made of them is still there; it may go at any time afterwards, and the communicators with it. Waits
  // for no peer. Idempotent; any thread.
  void Close();

 private:
  struct Parts;

  World();

  Mutex mu_;  // of those that end the communicator, or all of it
  const std::unique_ptr<Parts> parts_;
};

}  // namespace lockstep

#endif  // COMM_WORLD_WORLD_H_
