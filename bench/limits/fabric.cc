#include "bench/limits/fabric.h"

#include <rdma/fi_cm.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "transport/net/socket.h"

namespace lockstep {
namespace bench {
namespace {

// A running count of pieces, in fewer bits than any provider's tags have.
uint64_t TagOf(uint64_t piece) { return piece & 0xffffffff; }

}  // namespace

BareFabric::BareFabric(const OfiApi* api, OfiInfo info, std::shared_ptr<BareLink> socket)
    : api_(api), socket_(std::move(socket)), info_(std::move(info)) {
  for (Slot& slot : slots_) {
    slot.receives = receive_slots_.size() < kWindow;
    (slot.receives ? receive_slots_ : send_slots_).push_back(&slot);
  }
}

BareFabric::~BareFabric() {
  if (endpoint_ != nullptr) fi_close(&endpoint_->fid);
  if (completions_ != nullptr) fi_close(&completions_->fid);
  if (addresses_ != nullptr) fi_close(&addresses_->fid);
  if (domain_ != nullptr) fi_close(&domain_->fid);
  if (fabric_ != nullptr) fi_close(&fabric_->fid);
}

absl::StatusOr<std::unique_ptr<BareFabric>> BareFabric::Connect(const std::string& provider, const std::string& host,
                                                                std::shared_ptr<BareLink> socket) {
  LOCKSTEP_ASSIGN_OR_RETURN(const OfiApi* const api, Ofi());
  OfiRequest request;
  request.provider = provider;
  LOCKSTEP_ASSIGN_OR_RETURN(request.address, SocketAddress::Parse(absl::StrCat(host, ":0")));
  LOCKSTEP_ASSIGN_OR_RETURN(OfiProvider found, FindProvider(*api, request));
  if ((found.info->domain_attr->mr_mode & FI_MR_LOCAL) != 0) {
    return absl::UnimplementedError(
        absl::StrCat(found.info->fabric_attr->prov_name, " wants memory registered, which this program does not do"));
  }
  std::unique_ptr<BareFabric> made(new BareFabric(api, std::move(found.info), socket));
  LOCKSTEP_RETURN_IF_ERROR(made->Open());

  LOCKSTEP_ASSIGN_OR_RETURN(const std::string own, made->Address());
  const uint64_t own_bytes = own.size();
  uint64_t peer_bytes = 0;
  LOCKSTEP_RETURN_IF_ERROR(socket->Exchange(&own_bytes, sizeof(own_bytes), &peer_bytes, sizeof(peer_bytes)));
  if (peer_bytes > FI_NAME_MAX * 16) return absl::InternalError("the other side's address has no sensible length");
  std::string peer(peer_bytes, '\0');
  LOCKSTEP_RETURN_IF_ERROR(socket->Exchange(own.data(), own.size(), &peer[0], peer.size()));
  if (const int inserted = fi_av_insert(made->addresses_, peer.data(), 1, &made->peer_, 0, nullptr); inserted != 1) {
    return absl::InternalError(absl::StrCat(made->provider(), " does not take the other side's address: ", inserted));
  }
  char byte = 0;
  LOCKSTEP_RETURN_IF_ERROR(made->Exchange(&byte, 1, &byte, 1));
  return made;
}

absl::Status BareFabric::Open() {
  const auto checked = [this](int64_t result, const char* attempt) {
    return result == 0 ? absl::OkStatus() : OfiStatus(*api_, result, absl::StrCat(provider(), ": ", attempt));
  };
  LOCKSTEP_RETURN_IF_ERROR(checked(api_->fabric(info_->fabric_attr, &fabric_, nullptr), "fi_fabric"));
  LOCKSTEP_RETURN_IF_ERROR(checked(fi_domain(fabric_, info_.get(), &domain_, nullptr), "fi_domain"));
  fi_av_attr addresses = {};
  addresses.type = FI_AV_TABLE;
  LOCKSTEP_RETURN_IF_ERROR(checked(fi_av_open(domain_, &addresses, &addresses_, nullptr), "fi_av_open"));
  fi_cq_attr completions = {};
  completions.format = FI_CQ_FORMAT_CONTEXT;
  completions.wait_obj = FI_WAIT_NONE;
  LOCKSTEP_RETURN_IF_ERROR(checked(fi_cq_open(domain_, &completions, &completions_, nullptr), "fi_cq_open"));
  LOCKSTEP_RETURN_IF_ERROR(checked(fi_endpoint(domain_, info_.get(), &endpoint_, nullptr), "fi_endpoint"));
  LOCKSTEP_RETURN_IF_ERROR(checked(fi_ep_bind(endpoint_, &addresses_->fid, 0), "fi_ep_bind"));
  LOCKSTEP_RETURN_IF_ERROR(checked(fi_ep_bind(endpoint_, &completions_->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind"));
  return checked(fi_enable(endpoint_), "fi_enable");
}

absl::StatusOr<std::string> BareFabric::Address() const {
  size_t bytes = 0;
  fi_getname(&endpoint_->fid, nullptr, &bytes);
  std::string address(bytes, '\0');
  const int result = fi_getname(&endpoint_->fid, &address[0], &bytes);
  if (result != 0) return OfiStatus(*api_, result, "fi_getname");
  return address;
}

absl::StatusOr<bool> BareFabric::Post(char* data, Half* half) {
  bool posted = false;
  while (half->posted_bytes < half->bytes && !half->slots->empty()) {
    Slot* const slot = half->slots->back();
    slot->bytes = std::min(piece_bytes_, half->bytes - half->posted_bytes);
    char* const piece = data + half->posted_bytes;
    const uint64_t tag = TagOf(*half->pieces);
    const bool inject = !slot->receives && slot->bytes <= info_->tx_attr->inject_size;
    const int64_t result =
        slot->receives ? fi_trecv(endpoint_, piece, slot->bytes, nullptr, peer_, tag, /*ignore=*/0, &slot->context)
        : inject       ? fi_tinject(endpoint_, piece, slot->bytes, peer_, tag)
                       : fi_tsend(endpoint_, piece, slot->bytes, nullptr, peer_, tag, &slot->context);
    if (result == -FI_EAGAIN) break;
    if (result != 0) return OfiStatus(*api_, result, slot->receives ? "fi_trecv" : inject ? "fi_tinject" : "fi_tsend");
    half->posted_bytes += slot->bytes;
    ++*half->pieces;
    posted = true;
    if (inject) {
      half->done_bytes += slot->bytes;
    } else {
      half->slots->pop_back();
    }
  }
  return posted;
}

absl::StatusOr<bool> BareFabric::Poll(Half* out, Half* in) {
  fi_cq_entry entries[kWindow];
  const ssize_t count = fi_cq_read(completions_, entries, kWindow);
  if (count == -FI_EAGAIN || count == 0) return false;
  if (count == -FI_EAVAIL) return ReadError();
  if (count < 0) return OfiStatus(*api_, count, "fi_cq_read");
  for (ssize_t i = 0; i < count; ++i) {
    Slot* const slot = static_cast<Slot*>(entries[i].op_context);
    Half* const half = slot->receives ? in : out;
    half->done_bytes += slot->bytes;
    half->slots->push_back(slot);
  }
  return true;
}

absl::Status BareFabric::ReadError() {
  fi_cq_err_entry error = {};
  const ssize_t count = fi_cq_readerr(completions_, &error, 0);
  if (count != 1) return OfiStatus(*api_, count, "fi_cq_readerr");
  char text[128] = "";
  const char* const why = fi_cq_strerror(completions_, error.prov_errno, error.err_data, text, sizeof(text));
  return OfiStatus(*api_, -error.err, absl::StrCat(provider(), " (", why == nullptr ? "" : why, ")"));
}

absl::Status BareFabric::Exchange(const void* out, size_t out_bytes, void* in, size_t in_bytes) {
  Half sending{&send_slots_, &sent_, out_bytes};
  Half receiving{&receive_slots_, &received_, in_bytes};
  BarePatience patience;
  while (!sending.done() || !receiving.done()) {
    LOCKSTEP_ASSIGN_OR_RETURN(const bool received, Post(static_cast<char*>(in), &receiving));
    LOCKSTEP_ASSIGN_OR_RETURN(const bool sent, Post(static_cast<char*>(const_cast<void*>(out)), &sending));
    // Also after what was injected: providers move nothing but while they are asked.
    LOCKSTEP_ASSIGN_OR_RETURN(const bool completed, Poll(&sending, &receiving));
    if (received || sent || completed) {
      patience.Moved();
    } else {
      LOCKSTEP_RETURN_IF_ERROR(patience.NothingMoved());
    }
  }
  return absl::OkStatus();
}

}  // namespace bench
}  // namespace lockstep
