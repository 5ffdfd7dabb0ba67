// A provider of libfabric in memory, for tests. It makes the demands that real providers make only on machines with their
// hardware, as its options say, and checks that they are met.

#ifndef TRANSPORT_OFI_FAKE_PROVIDER_H_
#define TRANSPORT_OFI_FAKE_PROVIDER_H_

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "transport/ofi/provider.h"

namespace lockstep {

// As the provider for InfiniBand: every buffer is to be registered.
inline constexpr int kFakeRegistersAll = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;

struct FakeProviderOptions {
  int mr_mode = 0;
  uint64_t mode = FI_CONTEXT2;
  size_t inject_bytes = 64;
  size_t message_bytes_max = SIZE_MAX;
  const char* name = "fake";
  size_t iov_limit = 4;  // in how many places a message may lie
  size_t queue = 512;    // of posts, each way
  // Of messages that have reached an endpoint and that it has not looked at; what would be more is answered with "again".
  size_t arriving_max = SIZE_MAX;
  // A message of up to so many bytes leaves its sender without a receive.
  size_t eager_bytes = 16384;
  // Up to so many calls in a row that post something are answered with "again", then one is carried out.
  int refusals = 0;
  // The sender of a message that leaves only with a receive is not told that it has left.
  bool silent = false;
  // Messages with different tags arrive in another order than they were sent in.
  bool scramble = false;
  // Registrations beyond so many fail.
  size_t registrations_max = SIZE_MAX;
};

// One at a time in a process, whose endpoints reach each other. Outlives everything that is made of it. The objects are
// as thread-safe as real ones; what is below is for one thread while nothing else goes on.
class FakeProvider {
 public:
  explicit FakeProvider(FakeProviderOptions options);
  ~FakeProvider();
  FakeProvider(const FakeProvider&) = delete;
  FakeProvider& operator=(const FakeProvider&) = delete;

  const OfiApi& api() const { return api_; }
  FakeProviderOptions& options() { return options_; }

  // What was done that the attributes forbid, in words. Empty when all is well.
  const std::vector<std::string>& complaints() const { return complaints_; }
  // Registrations that are open, and how many were made.
  size_t registered() const { return registrations_.size(); }
  int registrations_made() const { return registrations_made_; }
  // Of all endpoints, in the order in which they were made.
  std::vector<std::string> addresses() const;
  // From now on this endpoint's messages get nowhere, and its peers are not told, as if its process were stopped.
  void Stop(const std::string& address) { stopped_.push_back(address); }
  // Receives cannot be cancelled from now on: their data is on its way.
  void KeepReceives() { keep_receives_ = true; }
  // Every endpoint's next receive that completes fails with this error, once.
  void FailNextReceive(int error) { receive_error_ = error; }

 private:
  friend struct FakeCalls;
  struct Registration {
    fid_mr mr = {};
    uintptr_t begin = 0;
    size_t bytes = 0;
    FakeProvider* provider = nullptr;
  };
  struct Endpoint;

  OfiApi api_;
  FakeProviderOptions options_;
  std::vector<std::string> complaints_;
  std::vector<Registration*> registrations_;
  std::vector<Endpoint*> endpoints_;
  std::vector<std::string> stopped_;
  int registrations_made_ = 0;
  int refused_ = 0;
  bool keep_receives_ = false;
  int receive_error_ = 0;
  uint64_t next_address_ = 1;
  uint64_t random_ = 1;
};

}  // namespace lockstep

#endif  // TRANSPORT_OFI_FAKE_PROVIDER_H_
