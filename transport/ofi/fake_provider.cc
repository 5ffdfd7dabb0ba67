#include "transport/ofi/fake_provider.h"

#include <rdma/fi_cm.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/mutex.h"

namespace lockstep {
namespace {

FakeProvider* the_provider = nullptr;

// Real providers have a lock for each domain; here one rank writes into another's queues.
Mutex* Lock() {
  static Mutex* const mu = new Mutex();
  return mu;
}

// What an operation's context holds while the provider has it.
void* const kTaken = reinterpret_cast<void*>(0x7a6b);

struct Addresses {
  fid_av fid = {};
  std::vector<std::string> names;
};
struct Queue {
  fid_cq fid = {};
  FakeProvider* provider = nullptr;
  void* endpoint = nullptr;
  std::deque<fi_cq_tagged_entry> entries;
  std::deque<fi_cq_err_entry> errors;
};
// What the library allocates for one info.
struct Info {
  fi_info info = {};
  fi_tx_attr tx = {};
  fi_rx_attr rx = {};
  fi_ep_attr ep = {};
  fi_domain_attr domain = {};
  fi_fabric_attr fabric = {};
  std::string provider;
  std::string domain_name = "memory";
};

fi_info* Linked(std::unique_ptr<Info> made) {
  Info* const self = made.release();
  self->info.tx_attr = &self->tx;
  self->info.rx_attr = &self->rx;
  self->info.ep_attr = &self->ep;
  self->info.domain_attr = &self->domain;
  self->info.fabric_attr = &self->fabric;
  self->fabric.prov_name = self->provider.empty() ? nullptr : self->provider.data();
  self->domain.name = self->provider.empty() ? nullptr : self->domain_name.data();
  return &self->info;
}

}  // namespace

struct FakeProvider::Endpoint {
  struct Place {
    char* data;
    size_t bytes;
    const void* descriptor;
  };
  struct Receive {
    std::vector<Place> places;
    uint64_t tag;
    uint64_t ignore;
    void* context;
  };
  struct Message {
    uint64_t tag;
    std::string copy;            // of an eager one
    std::vector<Place> places;   // else: where it lies
    Endpoint* sender = nullptr;  // to be told; null when it was
    void* context = nullptr;
  };

  fid_ep fid = {};
  FakeProvider* provider = nullptr;
  Addresses* addresses = nullptr;
  Queue* queue = nullptr;
  std::string name;
  std::deque<Receive> receives;
  std::deque<Message> arriving;
  std::deque<Message> unexpected;
  size_t sends = 0;

  bool stopped() const {
    return std::find(provider->stopped_.begin(), provider->stopped_.end(), name) != provider->stopped_.end();
  }
};

// The functions that the tables of the objects point to.
struct FakeCalls {
  using Endpoint = FakeProvider::Endpoint;
  using Message = Endpoint::Message;
  using Place = Endpoint::Place;

  template <typename Object>
  static int Delete(fid* object) {
    delete reinterpret_cast<Object*>(object);
    return 0;
  }
  // Of objects without a state.
  static int Keep(fid*) { return 0; }
  template <int (*close)(fid*)>
  static fi_ops* Ops() {
    static fi_ops ops = {sizeof(fi_ops), close, &Bind, &Control, nullptr, nullptr, nullptr};
    return &ops;
  }

  static int GetInfo(uint32_t version, const char* node, const char* service, uint64_t flags, const fi_info* hints,
                     fi_info** info) {
    const FakeProviderOptions& options = the_provider->options_;
    auto made = std::make_unique<Info>();
    made->provider = options.name;
    made->info.caps = FI_TAGGED | FI_MSG | FI_SEND | FI_RECV;
    made->info.mode = options.mode;
    made->tx.inject_size = options.inject_bytes;
    made->tx.size = made->rx.size = options.queue;
    made->tx.iov_limit = made->rx.iov_limit = options.iov_limit;
    made->tx.msg_order = made->rx.msg_order = options.scramble ? 0 : FI_ORDER_SAS;
    made->ep.type = FI_EP_RDM;
    made->ep.max_msg_size = options.message_bytes_max;
    made->ep.mem_tag_format = (uint64_t{1} << 48) - 1;
    made->domain.mr_mode = options.mr_mode;
    made->domain.threading = FI_THREAD_DOMAIN;
    made->domain.data_progress = FI_PROGRESS_MANUAL;
    made->domain.resource_mgmt = FI_RM_ENABLED;
    *info = Linked(std::move(made));
    return 0;
  }
  static void FreeInfo(fi_info* info) { delete reinterpret_cast<Info*>(info); }
  static fi_info* DupInfo(const fi_info* info) {
    return Linked(info == nullptr ? std::make_unique<Info>()
                                  : std::make_unique<Info>(*reinterpret_cast<const Info*>(info)));
  }
  static uint32_t Version() { return kOfiVersion; }
  static const char* StrError(int error) { return strerror(error); }

  static int OpenFabric(fi_fabric_attr* attributes, fid_fabric** fabric, void* context) {
    static fi_ops_fabric ops = {};
    ops.size = sizeof(ops);
    ops.domain = &OpenDomain;
    ops.trywait = [](fid_fabric*, fid**, int) { return 0; };
    static fid_fabric made = {};
    made.fid.ops = Ops<&Keep>();
    made.ops = &ops;
    *fabric = &made;
    return 0;
  }
  static int OpenDomain(fid_fabric* fabric, fi_info* info, fid_domain** domain, void* context) {
    static fi_ops_domain ops = {};
    ops.size = sizeof(ops);
    ops.av_open = &OpenAddresses;
    ops.cq_open = &OpenQueue;
    ops.endpoint = &OpenEndpoint;
    static fi_ops_mr mr = {};
    mr.size = sizeof(mr);
    mr.regattr = &Register;
    static fid_domain made = {};
    made.fid.ops = Ops<&Keep>();
    made.ops = &ops;
    made.mr = &mr;
    *domain = &made;
    return 0;
  }
  static int OpenAddresses(fid_domain* domain, fi_av_attr* attributes, fid_av** av, void* context) {
    static fi_ops_av ops = {};
    ops.size = sizeof(ops);
    ops.insert = [](fid_av* fid, const void* name, size_t count, fi_addr_t* address, uint64_t, void*) {
      auto* const self = reinterpret_cast<Addresses*>(fid);
      self->names.emplace_back(static_cast<const char*>(name), sizeof(uint64_t));
      *address = self->names.size() - 1;
      return 1;
    };
    auto* const made = new Addresses();
    made->fid.fid.ops = Ops<&Delete<Addresses>>();
    made->fid.ops = &ops;
    *av = &made->fid;
    return 0;
  }
  static int OpenQueue(fid_domain* domain, fi_cq_attr* attributes, fid_cq** cq, void* context) {
    if (attributes->wait_obj != FI_WAIT_NONE) return -FI_ENOSYS;
    static fi_ops_cq ops = {};
    ops.size = sizeof(ops);
    ops.read = &Read;
    ops.readerr = &ReadError;
    ops.strerror = [](fid_cq*, int, const void*, char*, size_t) { return "the fake's own words"; };
    auto* const made = new Queue();
    made->fid.fid.ops = Ops<&Delete<Queue>>();
    made->fid.ops = &ops;
    made->provider = the_provider;
    *cq = &made->fid;
    return 0;
  }
  static int OpenEndpoint(fid_domain* domain, fi_info* info, fid_ep** ep, void* context) {
    MutexLock lock(Lock());
    static fi_ops_ep ops = {};
    ops.size = sizeof(ops);
    ops.cancel = &Cancel;
    static fi_ops_cm cm = {};
    cm.size = sizeof(cm);
    cm.getname = [](fid* fid, void* name, size_t* bytes) {
      const std::string& own = reinterpret_cast<Endpoint*>(fid)->name;
      own.copy(static_cast<char*>(name), own.size());
      *bytes = own.size();
      return 0;
    };
    static fi_ops_tagged tagged = {};
    tagged.size = sizeof(tagged);
    tagged.recv = &Receive;
    tagged.recvv = &ReceiveList;
    tagged.send = &Send;
    tagged.sendv = &SendList;
    tagged.inject = &Inject;
    auto* const made = new Endpoint();
    made->fid.fid.ops = Ops<&CloseEndpoint>();
    made->fid.ops = &ops;
    made->fid.cm = &cm;
    made->fid.tagged = &tagged;
    made->provider = the_provider;
    const uint64_t number = the_provider->next_address_++;
    made->name.assign(reinterpret_cast<const char*>(&number), sizeof(number));
    the_provider->endpoints_.push_back(made);
    *ep = &made->fid;
    return 0;
  }

  static int Bind(fid* object, fid* bound, uint64_t flags) {
    auto* const endpoint = reinterpret_cast<Endpoint*>(object);
    const auto& all = the_provider->endpoints_;
    // A registration is bound to an endpoint, or an endpoint to what it works with.
    if (std::find(all.begin(), all.end(), endpoint) == all.end()) return 0;
    if (bound->ops == Ops<&Delete<Addresses>>()) endpoint->addresses = reinterpret_cast<Addresses*>(bound);
    if (bound->ops == Ops<&Delete<Queue>>()) {
      endpoint->queue = reinterpret_cast<Queue*>(bound);
      endpoint->queue->endpoint = endpoint;
    }
    return 0;
  }
  static int Control(fid* object, int command, void* argument) { return command == FI_ENABLE ? 0 : -FI_ENOSYS; }

  static int CloseEndpoint(fid* object) {
    MutexLock lock(Lock());
    auto* const self = reinterpret_cast<Endpoint*>(object);
    auto& all = self->provider->endpoints_;
    all.erase(std::find(all.begin(), all.end(), self));
    // Nobody reads this one's memory any more.
    for (Endpoint* const other : all) {
      for (auto* const messages : {&other->arriving, &other->unexpected}) {
        messages->erase(std::remove_if(messages->begin(), messages->end(),
                                       [self](const Message& message) { return message.sender == self; }),
                        messages->end());
      }
    }
    self->queue->endpoint = nullptr;
    delete self;
    return 0;
  }

  static int Register(fid* domain, const fi_mr_attr* attributes, uint64_t flags, fid_mr** mr) {
    MutexLock lock(Lock());
    FakeProvider* const provider = the_provider;
    if (provider->registrations_.size() >= provider->options_.registrations_max) return -FI_ENOMEM;
    auto* const made = new FakeProvider::Registration();
    made->provider = provider;
    made->begin = reinterpret_cast<uintptr_t>(attributes->mr_iov[0].iov_base);
    made->bytes = attributes->mr_iov[0].iov_len;
    made->mr.fid.ops = Ops<&Deregister>();
    made->mr.mem_desc = made;
    provider->registrations_.push_back(made);
    ++provider->registrations_made_;
    *mr = &made->mr;
    return 0;
  }
  static int Deregister(fid* object) {
    MutexLock lock(Lock());
    auto* const self = reinterpret_cast<FakeProvider::Registration*>(object);
    for (const Endpoint* const endpoint : self->provider->endpoints_) {
      for (const auto* const messages : {&endpoint->arriving, &endpoint->unexpected}) {
        for (const Message& message : *messages) {
          if (message.sender != nullptr && Uses(message.places, self))
            Complain("memory of a message that is being sent");
        }
      }
      for (const Endpoint::Receive& receive : endpoint->receives) {
        if (Uses(receive.places, self)) Complain("memory that waits for a message");
      }
    }
    auto& all = self->provider->registrations_;
    all.erase(std::find(all.begin(), all.end(), self));
    delete self;
    return 0;
  }

  static void Complain(std::string what) { the_provider->complaints_.push_back(std::move(what)); }

  static bool Uses(const std::vector<Place>& places, const FakeProvider::Registration* registration) {
    return std::any_of(places.begin(), places.end(),
                       [registration](const Place& place) { return place.descriptor == registration; });
  }
  static size_t Bytes(const std::vector<Place>& places) {
    size_t bytes = 0;
    for (const Place& place : places) bytes += place.bytes;
    return bytes;
  }
  static std::string Contents(const std::vector<Place>& places) {
    std::string contents;
    for (const Place& place : places) contents.append(place.data, place.bytes);
    return contents;
  }

  // The memory of a call, but for empty places.
  static std::vector<Place> Places(const iovec* memory, void** descriptors, size_t count) {
    std::vector<Place> places;
    for (size_t i = 0; i < count; ++i) {
      if (memory[i].iov_len == 0) continue;
      places.push_back({static_cast<char*>(memory[i].iov_base), memory[i].iov_len,
                        descriptors == nullptr ? nullptr : descriptors[i]});
    }
    return places;
  }

  static void CheckMemory(const std::vector<Place>& places) {
    const FakeProviderOptions& options = the_provider->options_;
    if (places.size() > options.iov_limit) Complain(absl::StrCat("a message in ", places.size(), " places"));
    for (const Place& place : places) {
      const auto begin = reinterpret_cast<uintptr_t>(place.data);
      const auto holds = [&](const FakeProvider::Registration* one) {
        return one == place.descriptor && one->begin <= begin && begin + place.bytes <= one->begin + one->bytes;
      };
      const auto& all = the_provider->registrations_;
      if ((options.mr_mode & FI_MR_LOCAL) == 0 || std::any_of(all.begin(), all.end(), holds)) continue;
      Complain(absl::StrCat(place.bytes, " bytes that are not registered"));
    }
  }
  static void Take(void* context) {
    void*& mark = static_cast<fi_context2*>(context)->internal[0];
    if (mark == kTaken) Complain("a context that is in use already");
    mark = kTaken;
  }
  static void GiveBack(void* context) {
    void*& mark = static_cast<fi_context2*>(context)->internal[0];
    if (mark != kTaken) Complain("a context that was written to");
    mark = nullptr;
  }
  static uint64_t Random() {
    uint64_t& state = the_provider->random_;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return state >> 33;
  }
  static bool Refused() {
    FakeProvider& provider = *the_provider;
    if (provider.options_.refusals == 0) return false;
    if (provider.refused_-- > 0) return true;
    provider.refused_ = static_cast<int>(Random() % (provider.options_.refusals + 1));
    return false;
  }

  static Endpoint* Find(const std::string& name) {
    for (Endpoint* const one : the_provider->endpoints_) {
      if (one->name == name) return one;
    }
    return nullptr;
  }

  // As tcp;ofi_rxm does for a peer that is not there, too.
  static bool HasRoom(const Endpoint* peer) {
    return peer != nullptr && peer->arriving.size() < the_provider->options_.arriving_max;
  }

  static void Complete(Endpoint* endpoint, void* context, size_t bytes, uint64_t tag, int error) {
    GiveBack(context);
    if (error == 0) {
      endpoint->queue->entries.push_back({context, 0, bytes, nullptr, 0, tag});
      return;
    }
    fi_cq_err_entry entry = {};
    entry.op_context = context;
    entry.len = bytes;
    entry.tag = tag;
    entry.err = error;
    endpoint->queue->errors.push_back(entry);
  }

  static void Deliver(Endpoint* endpoint, const Endpoint::Receive& receive, const Message& message) {
    const std::string contents = message.places.empty() ? message.copy : Contents(message.places);
    size_t bytes = 0;
    for (const Place& place : receive.places) bytes += contents.copy(place.data, place.bytes, bytes);
    const int error = std::exchange(the_provider->receive_error_, 0);
    Complete(endpoint, receive.context, bytes, message.tag,
             error != 0                ? error
             : contents.size() > bytes ? FI_ETRUNC
                                       : 0);
    if (message.sender == nullptr) return;
    --message.sender->sends;
    if (the_provider->options_.silent) return;
    Complete(message.sender, message.context, 0, message.tag, 0);
  }

  static bool Matches(const Endpoint::Receive& receive, const Message& message) {
    return ((receive.tag ^ message.tag) & ~receive.ignore) == 0;
  }

  static ssize_t Receive(fid_ep* ep, void* buffer, size_t bytes, void* descriptor, fi_addr_t source, uint64_t tag,
                         uint64_t ignore, void* context) {
    const iovec place = {buffer, bytes};
    return ReceiveList(ep, &place, &descriptor, 1, source, tag, ignore, context);
  }
  static ssize_t ReceiveList(fid_ep* ep, const iovec* memory, void** descriptors, size_t count, fi_addr_t source,
                             uint64_t tag, uint64_t ignore, void* context) {
    MutexLock lock(Lock());
    auto* const self = reinterpret_cast<Endpoint*>(ep);
    if (Refused() || self->receives.size() >= the_provider->options_.queue) return -FI_EAGAIN;
    const Endpoint::Receive receive = {Places(memory, descriptors, count), tag, ignore, context};
    CheckMemory(receive.places);
    Take(context);
    for (auto message = self->unexpected.begin(); message != self->unexpected.end(); ++message) {
      if (!Matches(receive, *message)) continue;
      const Message taken = std::move(*message);
      self->unexpected.erase(message);
      Deliver(self, receive, taken);
      return 0;
    }
    self->receives.push_back(receive);
    return 0;
  }

  static ssize_t Send(fid_ep* ep, const void* data, size_t bytes, void* descriptor, fi_addr_t target, uint64_t tag,
                      void* context) {
    const iovec place = {const_cast<void*>(data), bytes};
    return SendList(ep, &place, &descriptor, 1, target, tag, context);
  }
  static ssize_t SendList(fid_ep* ep, const iovec* memory, void** descriptors, size_t count, fi_addr_t target,
                          uint64_t tag, void* context) {
    MutexLock lock(Lock());
    auto* const self = reinterpret_cast<Endpoint*>(ep);
    const FakeProviderOptions& options = the_provider->options_;
    std::vector<Place> places = Places(memory, descriptors, count);
    const size_t bytes = Bytes(places);
    if (bytes > options.message_bytes_max) Complain(absl::StrCat("a message of ", bytes, " bytes"));
    Endpoint* const peer = Find(self->addresses->names[target]);
    if (Refused() || self->sends >= options.queue || !HasRoom(peer)) return -FI_EAGAIN;
    CheckMemory(places);
    Take(context);
    Message message;
    message.tag = tag;
    if (bytes <= options.eager_bytes) {
      message.copy = Contents(places);
      Complete(self, context, 0, tag, 0);
    } else {
      message.places = std::move(places);
      message.sender = self;
      message.context = context;
      ++self->sends;
    }
    peer->arriving.push_back(std::move(message));
    return 0;
  }

  static ssize_t Inject(fid_ep* ep, const void* data, size_t bytes, fi_addr_t target, uint64_t tag) {
    MutexLock lock(Lock());
    auto* const self = reinterpret_cast<Endpoint*>(ep);
    if (bytes > the_provider->options_.inject_bytes) Complain(absl::StrCat(bytes, " bytes injected"));
    Endpoint* const peer = Find(self->addresses->names[target]);
    if (Refused() || !HasRoom(peer)) return -FI_EAGAIN;
    Message message;
    message.tag = tag;
    message.copy.assign(static_cast<const char*>(data), bytes);
    peer->arriving.push_back(std::move(message));
    return 0;
  }

  static ssize_t Cancel(fid* object, void* context) {
    MutexLock lock(Lock());
    auto* const self = reinterpret_cast<Endpoint*>(object);
    if (the_provider->keep_receives_) return 0;
    for (auto receive = self->receives.begin(); receive != self->receives.end(); ++receive) {
      if (receive->context != context) continue;
      self->receives.erase(receive);
      Complete(self, context, 0, 0, FI_ECANCELED);
      return 0;
    }
    return 0;
  }

  // The next that arrives: any whose tag no earlier one has, when they are scrambled.
  static Message Next(Endpoint* endpoint) {
    std::deque<Message>& arriving = endpoint->arriving;
    size_t chosen = 0;
    if (the_provider->options_.scramble) {
      chosen = Random() % arriving.size();
      for (size_t i = 0; i < chosen; ++i) {
        if (arriving[i].tag == arriving[chosen].tag) chosen = i;
      }
    }
    Message message = std::move(arriving[chosen]);
    arriving.erase(arriving.begin() + static_cast<ptrdiff_t>(chosen));
    return message;
  }

  static void MoveArriving(Endpoint* endpoint) {
    while (!endpoint->arriving.empty()) {
      Message message = Next(endpoint);
      const auto receive = std::find_if(endpoint->receives.begin(), endpoint->receives.end(),
                                        [&](const Endpoint::Receive& one) { return Matches(one, message); });
      if (receive == endpoint->receives.end()) {
        endpoint->unexpected.push_back(std::move(message));
        continue;
      }
      const Endpoint::Receive taken = std::move(*receive);
      endpoint->receives.erase(receive);
      Deliver(endpoint, taken, message);
    }
  }

  static ssize_t Read(fid_cq* cq, void* buffer, size_t count) {
    MutexLock lock(Lock());
    auto* const self = reinterpret_cast<Queue*>(cq);
    auto* const endpoint = static_cast<Endpoint*>(self->endpoint);
    if (endpoint == nullptr || endpoint->stopped()) return -FI_EAGAIN;
    MoveArriving(endpoint);
    if (!self->errors.empty()) return -FI_EAVAIL;
    if (self->entries.empty()) return -FI_EAGAIN;
    const size_t taken = std::min(count, self->entries.size());
    std::copy_n(self->entries.begin(), taken, static_cast<fi_cq_tagged_entry*>(buffer));
    self->entries.erase(self->entries.begin(), self->entries.begin() + static_cast<ptrdiff_t>(taken));
    return static_cast<ssize_t>(taken);
  }
  static ssize_t ReadError(fid_cq* cq, fi_cq_err_entry* entry, uint64_t flags) {
    MutexLock lock(Lock());
    auto* const self = reinterpret_cast<Queue*>(cq);
    if (self->errors.empty()) return -FI_EAGAIN;
    *entry = self->errors.front();
    self->errors.pop_front();
    return 1;
  }
};

FakeProvider::FakeProvider(FakeProviderOptions options) : options_(std::move(options)) {
  LOCKSTEP_CHECK(the_provider == nullptr) << "one at a time";
  the_provider = this;
  api_.getinfo = &FakeCalls::GetInfo;
  api_.freeinfo = &FakeCalls::FreeInfo;
  api_.dupinfo = &FakeCalls::DupInfo;
  api_.fabric = &FakeCalls::OpenFabric;
  api_.version = &FakeCalls::Version;
  api_.strerror = &FakeCalls::StrError;
}

FakeProvider::~FakeProvider() {
  LOCKSTEP_CHECK(endpoints_.empty() && registrations_.empty()) << "objects that outlive their provider";
  the_provider = nullptr;
}

std::vector<std::string> FakeProvider::addresses() const {
  std::vector<std::string> addresses;
  for (const Endpoint* const one : endpoints_) addresses.push_back(one->name);
  return addresses;
}

}  // namespace lockstep
