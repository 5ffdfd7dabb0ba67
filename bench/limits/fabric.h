// BareFabric: a BareLink over one provider of libfabric. It is the limit that Lockstep's transport over libfabric is measured against.
// The two share the choice of the provider, and nothing else.
//
// Reliable-datagram endpoints, tagged messages, receives posted before sends; short messages are injected.

#ifndef BENCH_LIMITS_FABRIC_H_
#define BENCH_LIMITS_FABRIC_H_

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/limits/link.h"
#include "transport/ofi/provider.h"

namespace lockstep {
namespace bench {

class BareFabric : public BareLink {
 public:
  // Connects to the other side of `socket`, which makes the same call. The two swap their addresses over the socket, which stays open,
  // and then a byte each way over the provider. `provider`: as in LOCKSTEP_OFI_PROVIDER; empty: the preferred one. `host`: an IPv4
  // address of this machine.
  //
  // ERRORS  UNIMPLEMENTED  the provider wants its memory registered
  //         those of Ofi() and FindProvider()
  static absl::StatusOr<std::unique_ptr<BareFabric>> Connect(const std::string& provider, const std::string& host,
                                                             std::shared_ptr<BareLink> socket);
  ~BareFabric() override;
  BareFabric(const BareFabric&) = delete;
  BareFabric& operator=(const BareFabric&) = delete;

  // The provider's own name.
  std::string provider() const { return info_->fabric_attr->prov_name; }

  void set_piece_bytes(size_t bytes) override { piece_bytes_ = bytes; }
  absl::Status Exchange(const void* out, size_t out_bytes, void* in, size_t in_bytes) override;

 private:
  static constexpr int kWindow = 4;  // pieces in flight, each way

  // A piece in flight. Its completion names it by its address.
  struct Slot {
    fi_context2 context = {};
    size_t bytes = 0;
    bool receives = false;
  };
  // One direction of an exchange.
  struct Half {
    std::vector<Slot*>* slots;  // the free ones
    uint64_t* pieces;           // how many were posted, in all exchanges
    size_t bytes;
    size_t posted_bytes = 0;
    size_t done_bytes = 0;
    bool done() const { return done_bytes == bytes; }
  };

  BareFabric(const OfiApi* api, OfiInfo info, std::shared_ptr<BareLink> socket);
  absl::Status Open();
  absl::StatusOr<std::string> Address() const;
  // Posts as many pieces as there are free slots, until the provider is busy. True if it posted any. Only receives write to `data`.
  absl::StatusOr<bool> Post(char* data, Half* half);
  // True if something completed.
  absl::StatusOr<bool> Poll(Half* out, Half* in);
  absl::Status ReadError();

  const OfiApi* const api_;
  const std::shared_ptr<BareLink> socket_;
  const OfiInfo info_;
  fid_fabric* fabric_ = nullptr;
  fid_domain* domain_ = nullptr;
  fid_av* addresses_ = nullptr;
  fid_cq* completions_ = nullptr;
  fid_ep* endpoint_ = nullptr;
  fi_addr_t peer_ = FI_ADDR_UNSPEC;
  size_t piece_bytes_ = kPieceBytes;
  // Tags count the pieces, so that nothing depends on the order in which a provider delivers.
  uint64_t sent_ = 0;
  uint64_t received_ = 0;
  std::array<Slot, 2 * kWindow> slots_;
  std::vector<Slot*> send_slots_;  // the free ones
  std::vector<Slot*> receive_slots_;
};

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_LIMITS_FABRIC_H_
