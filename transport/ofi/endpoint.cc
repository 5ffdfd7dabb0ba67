#include "transport/ofi/endpoint.h"

#include <rdma/fi_errno.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/log.h"
#include "base/status.h"

namespace lockstep {
namespace {

constexpr char kShm[] = "shm";
constexpr int kEntriesPerRead = 32;
// How many reads a Poll makes at most, so that it ends.
constexpr int kReadsPerPoll = 8;

void Close(fid* object) {
  if (object != nullptr) (void)fi_close(object);
}

}  // namespace

void OfiEndpoint::Queue::Push(OfiPost* post) {
  post->next = nullptr;
  (front == nullptr ? front : back->next) = post;
  back = post;
}

OfiPost* OfiEndpoint::Queue::Pop() {
  OfiPost* const post = front;
  front = post->next;
  return post;
}

bool OfiEndpoint::Queue::Remove(OfiPost* post) {
  OfiPost* before = nullptr;
  for (OfiPost* one = front; one != nullptr; before = one, one = one->next) {
    if (one != post) continue;
    (before == nullptr ? front : before->next) = one->next;
    if (back == one) back = before;
    return true;
  }
  return false;
}

OfiEndpoint::OfiEndpoint(const OfiApi* api, OfiInfo info) : api_(api), info_(std::move(info)) {}

// Before 1.18, closing a connection of the provider tcp, or of net, on which part of a message has been read gives up the
// reading twice, and rxm follows the second's null context (libfabric's pull request 8660). Only what is not a notice is
// long enough to be read (FI_OFI_RXM_SAR_LIMIT).
bool OfiEndpoint::CrashesWhenClosed() const {
  const absl::string_view provider = info_->fabric_attr->prov_name;
  return (provider == "tcp;ofi_rxm" || provider == "net;ofi_rxm") && api_->version() < FI_VERSION(1, 18) &&
         receives_taken_.others > 0;
}

void OfiEndpoint::Shutdown() {
  if (endpoint_ == nullptr) return;
  if (CrashesWhenClosed()) {
    // Its providers move data in calls of ours alone, of which there are no more.
    LOCKSTEP_LOG(kWarning)
        << info_->fabric_attr->prov_name << " may be in the middle of a message: this version of "
        << "libfabric crashes when it is closed then, so it stays open, unused, until the process ends";
    endpoint_ = nullptr;
    abandoned_ = true;
    return;
  }
  const OfiCallGuard::Call call(guard_.get());
  int result = fi_close(&endpoint_->fid);
  if (result == -FI_EBUSY) {
    // With FI_MR_ENDPOINT registrations belong to the endpoint (cxi).
    for (fid_mr* const registration : registrations_) Close(&registration->fid);
    registrations_.clear();
    result = fi_close(&endpoint_->fid);
  }
  if (result != 0) {
    LOCKSTEP_LOG(kError)
        << OfiStatus(*api_, result, "fi_close of the endpoint, which may still write into memory").message();
  }
  endpoint_ = nullptr;
}

OfiEndpoint::~OfiEndpoint() {
  Shutdown();
  if (abandoned_) return;
  Close(completions_ == nullptr ? nullptr : &completions_->fid);
  Close(addresses_ == nullptr ? nullptr : &addresses_->fid);
  Close(domain_ == nullptr ? nullptr : &domain_->fid);
  Close(fabric_ == nullptr ? nullptr : &fabric_->fid);
}

absl::StatusOr<std::unique_ptr<OfiEndpoint>> OfiEndpoint::Create(const OfiApi* api, OfiInfo info) {
  std::unique_ptr<OfiEndpoint> endpoint(new OfiEndpoint(api, std::move(info)));
  LOCKSTEP_RETURN_IF_ERROR(endpoint->Open());
  return endpoint;
}

absl::Status OfiEndpoint::Open() {
  const auto done = [this](int64_t result, absl::string_view call) {
    if (result == 0) return absl::OkStatus();
    return OfiStatus(*api_, result, absl::StrCat("libfabric ", info_->fabric_attr->prov_name, ": ", call));
  };
  LOCKSTEP_RETURN_IF_ERROR(done(api_->fabric(info_->fabric_attr, &fabric_, nullptr), "fi_fabric"));
  LOCKSTEP_RETURN_IF_ERROR(done(fi_domain(fabric_, info_.get(), &domain_, nullptr), "fi_domain"));
  fi_av_attr av = {};
  av.type = FI_AV_TABLE;
  LOCKSTEP_RETURN_IF_ERROR(done(fi_av_open(domain_, &av, &addresses_, nullptr), "fi_av_open"));
  LOCKSTEP_RETURN_IF_ERROR(OpenQueue());
  LOCKSTEP_RETURN_IF_ERROR(done(fi_endpoint(domain_, info_.get(), &endpoint_, nullptr), "fi_endpoint"));
  LOCKSTEP_RETURN_IF_ERROR(done(fi_ep_bind(endpoint_, &addresses_->fid, 0), "fi_ep_bind to addresses"));
  LOCKSTEP_RETURN_IF_ERROR(
      done(fi_ep_bind(endpoint_, &completions_->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind to completions"));
  if (absl::string_view(info_->fabric_attr->prov_name) == kShm) {
    // A name that no process has or had. What a killed process leaves behind would block the next with its number.
    std::random_device random;
    std::string name = absl::StrCat("fi_shm://lockstep-", getpid(), "-", absl::Hex(random()), absl::Hex(random()));
    LOCKSTEP_RETURN_IF_ERROR(done(fi_setname(&endpoint_->fid, &name[0], name.size() + 1), "fi_setname"));
    guard_ = std::make_unique<OfiCallGuard>(kShm, OfiCallGuard::Options());
  }
  LOCKSTEP_RETURN_IF_ERROR(done(fi_enable(endpoint_), "fi_enable"));
  char name[256];
  size_t bytes = sizeof(name);
  LOCKSTEP_RETURN_IF_ERROR(done(fi_getname(&endpoint_->fid, name, &bytes), "fi_getname"));
  address_.assign(name, bytes);
  return absl::OkStatus();
}

absl::Status OfiEndpoint::OpenQueue() {
  fi_cq_attr attributes = {};
  attributes.format = FI_CQ_FORMAT_TAGGED;
  attributes.size = info_->tx_attr->size + info_->rx_attr->size;
  // A provider without descriptors refuses here.
  for (const fi_wait_obj wait : {FI_WAIT_FD, FI_WAIT_NONE}) {
    attributes.wait_obj = wait;
    const int result = fi_cq_open(domain_, &attributes, &completions_, nullptr);
    if (result == 0) break;
    if (wait == FI_WAIT_NONE) return OfiStatus(*api_, result, "fi_cq_open");
  }
  int descriptor = -1;
  if (attributes.wait_obj == FI_WAIT_FD && fi_control(&completions_->fid, FI_GETWAIT, &descriptor) == 0) {
    wait_descriptor_ = descriptor;
  }
  return absl::OkStatus();
}

absl::StatusOr<int> OfiEndpoint::AddPeer(absl::string_view address) {
  Peer peer;
  const int inserted = address.size() != address_.size() && info_->addr_format != FI_ADDR_STR
                           ? 0
                           : fi_av_insert(addresses_, std::string(address).c_str(), 1, &peer.address, 0, nullptr);
  if (inserted != 1) {
    return absl::InvalidArgumentError(absl::StrCat("libfabric ", info_->fabric_attr->prov_name, ": ", address.size(),
                                                   " bytes are no address of this provider"));
  }
  peers_.push_back(peer);
  blocked_.reserve(peers_.size());
  return static_cast<int>(peers_.size()) - 1;
}

int64_t OfiEndpoint::Try(OfiPost* post) {
  const OfiCallGuard::Call call(guard_.get());
  if (post->kind == OfiPost::Kind::kReceive) {
    if (post->places != nullptr) {
      return fi_trecvv(endpoint_, post->places, nullptr, post->places_count, FI_ADDR_UNSPEC, post->tag, post->ignore,
                       &post->context);
    }
    return fi_trecv(endpoint_, post->buffer, post->bytes, post->descriptor, FI_ADDR_UNSPEC, post->tag, post->ignore,
                    &post->context);
  }
  if (post->places != nullptr) {
    return fi_tsendv(endpoint_, post->places, nullptr, post->places_count, peers_[post->peer].address, post->tag,
                     &post->context);
  }
  return fi_tsend(endpoint_, post->buffer, post->bytes, post->descriptor, peers_[post->peer].address, post->tag,
                  &post->context);
}

bool OfiEndpoint::Taken(OfiPost* post) {
  const bool sends = post->kind == OfiPost::Kind::kSend;
  InQueue& queue = sends ? sends_taken_ : receives_taken_;
  // Some providers do worse than refuse when their queues are full. What is no notice leaves room for those, without
  // which nothing else would move.
  const size_t size = sends ? info_->tx_attr->size : info_->rx_attr->size;
  const size_t reserved = sends ? size / 4 : size / 2;
  const bool room = queue.notices + queue.others < size && (post->notice || queue.others < size - reserved);
  const int64_t result = room ? Try(post) : -FI_EAGAIN;
  if (result == -FI_EAGAIN) return false;
  if (result == 0) {
    ++(post->notice ? queue.notices : queue.others);
    post->state = OfiPost::State::kPosted;
  } else {
    Fail(post, result);
  }
  return true;
}

void OfiEndpoint::Fail(OfiPost* post, int64_t error) {
  post->state = OfiPost::State::kFailed;
  post->error = error;
  failed_.Push(post);
}

OfiEndpoint::Queue* OfiEndpoint::RefusedLike(const OfiPost& post) {
  if (post.kind == OfiPost::Kind::kReceive) return post.notice ? &refused_notices_ : &refused_receives_;
  Peer& peer = peers_[post.peer];
  return post.notice ? &peer.refused_notices : &peer.refused;
}

void OfiEndpoint::Post(OfiPost* post) {
  const bool sends = post->kind == OfiPost::Kind::kSend;
  post->cancelled = false;
  Queue& refused = *RefusedLike(*post);
  if (refused.front == nullptr && Taken(post)) return;
  post->state = OfiPost::State::kRefused;
  refused.Push(post);
  if (!sends || peers_[post->peer].blocked) return;
  peers_[post->peer].blocked = true;
  blocked_.push_back(post->peer);
}

bool OfiEndpoint::Inject(int peer, uint64_t tag, const void* data, size_t bytes) {
  if (bytes > info_->tx_attr->inject_size || peers_[peer].refused_notices.front != nullptr) return false;
  const OfiCallGuard::Call call(guard_.get());
  return fi_tinject(endpoint_, data, bytes, peers_[peer].address, tag) == 0;
}

void OfiEndpoint::Cancel(OfiPost* post) {
  const bool again = std::exchange(post->cancelled, true);
  if (post->state == OfiPost::State::kRefused) {
    LOCKSTEP_CHECK(RefusedLike(*post)->Remove(post)) << "a post that is not where it says";
    Fail(post, -FI_ECANCELED);
  } else if (post->state == OfiPost::State::kPosted && post->kind == OfiPost::Kind::kSend) {
    if (again || ++sends_given_up_ < info_->tx_attr->size / 2) return;
    status_ = absl::ResourceExhaustedError(absl::StrCat(sends_given_up_,
                                                        " messages that their receivers gave up are still with ",
                                                        info_->fabric_attr->prov_name, ", which has no room for more"));
  } else if (post->state == OfiPost::State::kPosted) {
    // Whatever it says: what cannot be cancelled completes.
    const OfiCallGuard::Call call(guard_.get());
    (void)fi_cancel(&endpoint_->fid, &post->context);
  }
}

void OfiEndpoint::CancelRefused(int peer) {
  for (Queue* const queue : {&peers_[peer].refused_notices, &peers_[peer].refused}) {
    while (queue->front != nullptr) Cancel(queue->front);
  }
}

bool OfiEndpoint::Retry(Queue* queue) {
  while (queue->front != nullptr) {
    OfiPost* const post = queue->front;
    // Off the queue first: one that fails goes on another.
    queue->Pop();
    if (Taken(post)) continue;
    post->next = queue->front;
    if (queue->front == nullptr) queue->back = post;
    queue->front = post;
    return false;
  }
  return true;
}

bool OfiEndpoint::RetryAll() {
  if (refused_notices_.front != nullptr) (void)Retry(&refused_notices_);
  if (refused_receives_.front != nullptr) (void)Retry(&refused_receives_);
  for (size_t i = 0; i < blocked_.size();) {
    Peer& peer = peers_[blocked_[i]];
    const bool notices = Retry(&peer.refused_notices);
    if (!Retry(&peer.refused) || !notices) {
      ++i;
      continue;
    }
    peer.blocked = false;
    blocked_[i] = blocked_.back();
    blocked_.pop_back();
  }
  bool moved = false;
  while (failed_.front != nullptr) {
    OfiPost* const post = failed_.Pop();
    const bool sends = post->kind == OfiPost::Kind::kSend;
    Complete(post, {OfiStatus(*api_, post->error, sends ? "fi_tsend" : "fi_trecv")});
    moved = true;
  }
  return moved;
}

void OfiEndpoint::Complete(OfiPost* post, const OfiCompletion& completion) {
  const bool sends = post->kind == OfiPost::Kind::kSend;
  if (post->state == OfiPost::State::kPosted) {
    InQueue& queue = sends ? sends_taken_ : receives_taken_;
    --(post->notice ? queue.notices : queue.others);
    if (sends && post->cancelled) --sends_given_up_;
  }
  post->state = OfiPost::State::kIdle;
  post->complete(post, completion);
}

bool OfiEndpoint::ReadErrors() {
  fi_cq_err_entry entry = {};
  if (fi_cq_readerr(completions_, &entry, 0) != 1) return false;
  OfiCompletion completion;
  completion.tag = entry.tag;
  completion.bytes = entry.len;
  completion.truncated = entry.err == FI_ETRUNC;
  char text[128] = "";
  const char* const detail = fi_cq_strerror(completions_, entry.prov_errno, entry.err_data, text, sizeof(text));
  completion.status = OfiStatus(*api_, entry.err, absl::StrCat("libfabric ", info_->fabric_attr->prov_name));
  if (entry.err != FI_ECANCELED && detail != nullptr && detail[0] != 0) {
    completion.status = absl::Status(completion.status.code(), absl::StrCat(completion.status.message(), ": ", detail));
  }
  auto* const post = static_cast<OfiPost*>(entry.op_context);
  if (post == nullptr) {
    LOCKSTEP_LOG(kWarning) << "a message that was injected is lost: " << completion.status.message();
    return true;
  }
  // A provider calls what it gives up with a connection cancelled, too.
  if (absl::IsCancelled(completion.status) && !post->cancelled) {
    completion.status = absl::UnavailableError(absl::StrCat(completion.status.message(), ": given up by the provider"));
  }
  Complete(post, completion);
  return true;
}

bool OfiEndpoint::Poll() {
  bool moved = RetryAll();
  fi_cq_tagged_entry entries[kEntriesPerRead];
  for (int i = 0; i < kReadsPerPoll; ++i) {
    int64_t count;
    {
      const OfiCallGuard::Call call(guard_.get());
      count = fi_cq_read(completions_, entries, kEntriesPerRead);
    }
    if (count == -FI_EAVAIL) {
      moved |= ReadErrors();
      continue;
    }
    if (count < 0 && count != -FI_EAGAIN && status_.ok()) {
      status_ = OfiStatus(*api_, count, absl::StrCat("libfabric ", info_->fabric_attr->prov_name, ": fi_cq_read"));
    }
    if (count <= 0) break;
    moved = true;
    for (int64_t j = 0; j < count; ++j) {
      Complete(static_cast<OfiPost*>(entries[j].op_context), {absl::OkStatus(), entries[j].len, entries[j].tag});
    }
    if (count < kEntriesPerRead) break;
  }
  return moved;
}

bool OfiEndpoint::PrepareToWait() {
  if (failed_.front != nullptr) return false;
  if (wait_descriptor_ < 0) return true;
  fid* waited[] = {&completions_->fid};
  return fi_trywait(fabric_, waited, 1) == 0;
}

int OfiEndpoint::send_places_max() const {
  // The receiver's rxm reads each place of a long message by itself. It counts the reads that succeed, but reports each that fails, when
  // the connection ends, as the end of the same receive (rxm_handle_comp_error, in 1.17 as in 2.x).
  if (registers_all() || absl::StrContains(info_->fabric_attr->prov_name, "ofi_rxm")) return 1;
  return static_cast<int>(std::clamp<size_t>(info_->tx_attr->iov_limit, 1, kOfiPlacesMax));
}

int OfiEndpoint::receive_places_max() const {
  if (registers_all()) return 1;
  return static_cast<int>(std::clamp<size_t>(info_->rx_attr->iov_limit, 1, kOfiPlacesMax));
}

absl::StatusOr<fid_mr*> OfiEndpoint::Register(const void* memory, size_t bytes) {
  const int modes = info_->domain_attr->mr_mode;
  const iovec piece = {const_cast<void*>(memory), bytes};
  fi_mr_attr attributes = {};
  attributes.mr_iov = &piece;
  attributes.iov_count = 1;
  attributes.access = FI_SEND | FI_RECV;
  if ((modes & FI_MR_PROV_KEY) == 0) attributes.requested_key = next_key_++;
  fid_mr* registration = nullptr;
  const auto attempt = [&](const char* call) {
    return absl::StrCat("libfabric ", info_->fabric_attr->prov_name, ": ", call, " of ", bytes, " bytes");
  };
  int result = fi_mr_regattr(domain_, &attributes, 0, &registration);
  if (result != 0) return OfiStatus(*api_, result, attempt("fi_mr_regattr"));
  if ((modes & FI_MR_ENDPOINT) != 0) {
    result = fi_mr_bind(registration, &endpoint_->fid, 0);
    if (result == 0) result = fi_mr_enable(registration);
    if (result != 0) {
      Close(&registration->fid);
      return OfiStatus(*api_, result, attempt("fi_mr_enable"));
    }
  }
  registrations_.insert(registration);
  return registration;
}

void OfiEndpoint::CloseRegistration(fid_mr* registration) {
  if (!left_ && registrations_.erase(registration) > 0) Close(&registration->fid);
}

}  // namespace lockstep
