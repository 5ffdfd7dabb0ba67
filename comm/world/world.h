// World: the ranks of a job, connected. Made from options and the environment, by every rank at once.
//
// Owns what one rank needs to take part: its slot in the control channel, its transport, the progress engine, the communicator of all
// ranks, and the communicator for a device if the options name one. A world of one has communicators only.

#ifndef COMM_WORLD_WORLD_H_
#define COMM_WORLD_WORLD_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "base/mutex.h"
#include "comm/communicator.h"
#include "transport/store/store.h"

namespace lockstep {

// An option left at its default here is read from the environment (docs/environment.md). If it is not there either, it has the
// default that its comment gives.
struct WorldOptions {
  // This rank. size 0: all of this is read from the environment; if it is not there, a world of one.
  int size = 0;
  int rank = 0;
  int local_size = 0;  // 0: unknown
  int local_rank = 0;
  std::string store_url;               // tcp://host:port, served by rank 0; file:///path
  Store* store = nullptr;              // instead of a URL; needed until Create returns
  std::string job_id;                  // LOCKSTEP_JOB_ID, or ""
  std::string interface;               // any; see ChooseInterface
  std::string host_id;                 // ranks with equal ids are treated as on one host; see HostId
  std::string tcp_congestion_control;  // reno between ranks of one host, else the system's
  int tcp_send_buffer_bytes = 0;       // the kernel's, which grow as needed
  int tcp_receive_buffer_bytes = 0;
  std::string secret_file;     // the job's secret; LOCKSTEP_SECRET_FILE, or found as docs/security.md says
  bool tcp_zero_copy = false;  // long messages are sent without a copy, where the kernel can
  std::chrono::milliseconds setup_timeout{0};  // 300,000
  std::chrono::milliseconds timeout{0};        // of a collective: 1,800,000
  std::chrono::milliseconds peer_timeout{0};   // 30,000
  // These must be equal on all ranks; Create compares them.
  std::string transport;     // "auto": shared memory inside a host, TCP between hosts; "tcp"; "shm"; "ofi"
  std::string security;      // "none", "authenticate" or "encrypt": LOCKSTEP_SECURITY, or "authenticate"
  std::string algorithm;     // chosen by size; see ParseAlgorithmOverrides
  int64_t chunk_bytes = 0;   // 262,144, with "tcp" 261,696, with "ofi" 524,288; a multiple of 64
  std::string ofi_provider;  // with "ofi": a provider of libfabric, "tcp;ofi_rxm"; the best that there is
  std::string ofi_domain;    // with "ofi", each rank's own: a device of the provider's, "mlx5_1"
  int tcp_sockets = 0;       // 1: over which each connection's bytes are spread
  bool checked = false;
  bool deterministic = false;  // reductions are in rank order: docs/numerics.md
  // The device whose tensors the communicator takes beside the host's, and how they travel: "auto", "nccl" or "staged"
  // (comm/world/device_backend.h). The kind of the device and the back end are equal on all ranks.
  DeviceId device;
  std::string device_backend;  // "auto"
  int nccl_ctas_min = 0;       // of NCCL's kernels; 0: its choice
  int nccl_ctas_max = 0;
  bool nccl_split_share = false;  // parts share its resources: NcclCommOptions
};

class World final {
 public:
  // Connects this rank. Returns when all ranks have joined and agreed.
  // ERRORS  those of DetermineWorld, OpenStore, ChooseInterface and ControlChannel::Join, which name what is missing, taken, unknown or
  //         different, and on which ranks
  //         PERMISSION_DENIED, FAILED_PRECONDITION where ranks do not share a secret or a level: docs/security.md
  //         with a device: those of FindDevice on the rank that has them, and UNAVAILABLE, naming that rank, on the others; then those
  //         of MakeDeviceCommunicator
  static absl::StatusOr<std::unique_ptr<World>> Create(const WorldOptions& options);

  // Closes.
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // The communicator of all ranks; null once it is closed. Destroy its subgroups (Communicator::Split) before the world.
  Communicator* communicator();

  // Destroys only the communicator of all ranks. Its subgroups go on.
  void CloseCommunicator();

  // Disconnects, and ends all communicators of the world: operations in flight and later calls are CANCELLED. For a world whose
  // communicators, or what was made of them, are still in use; they may be destroyed at any time afterwards. Waits for no peer, but see
  // ControlChannel::Leave. Idempotent; any thread.
  void Close();

 private:
  struct Parts;

  World();

  Mutex mu_;  // held while the communicator, or the whole world, is ended
  const std::unique_ptr<Parts> parts_;
};

}  // namespace lockstep

#endif  // COMM_WORLD_WORLD_H_
