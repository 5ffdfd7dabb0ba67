// For tests of the control channel: ranks as threads, and a log of the failures that a rank gets.

#ifndef TRANSPORT_CONTROL_CONTROL_TESTING_H_
#define TRANSPORT_CONTROL_CONTROL_TESTING_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/mutex.h"
#include "base/rank.h"
#include "transport/control/control.h"
#include "transport/control/control_protocol.h"
#include "transport/control/control_types.h"
#include "transport/net/socket.h"
#include "transport/secure/credentials.h"
#include "transport/secure/secret.h"

namespace lockstep {

// Longer than anything here takes; short enough that a hang fails rather than times the test out.
inline Deadline Soon() { return Deadline::AfterMs(20'000); }

inline SocketAddress LoopbackAddress() { return *SocketAddress::Parse("127.0.0.1:0"); }

// Thread-safe.
class FailureLog {
 public:
  void Add(const Failure& failure) {
    MutexLock lock(&mu_);
    failures_.push_back(failure);
    changed_.SignalAll();
  }

  // The first `count` failures, or however many there are by the deadline.
  std::vector<Failure> Await(size_t count, Deadline deadline) {
    MutexLock lock(&mu_);
    while (failures_.size() < count && changed_.WaitUntil(&mu_, deadline)) {
    }
    return failures_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::vector<Failure> failures_ ABSL_GUARDED_BY(mu_);
};

// A secret of one repeated character.
inline std::shared_ptr<const Secret> SecretOf(char fill) {
  return *Secret::FromBytes(std::string(Secret::kBytes, fill));
}

// Without `fill`, the secret is to be found.
inline Credentials Secured(char fill = '\0', SecurityLevel level = SecurityLevel::kAuthenticate) {
  Credentials credentials;
  credentials.level = level;
  credentials.source = "the test";
  if (fill != '\0') credentials.secret = SecretOf(fill);
  return credentials;
}

inline ControlOptions OptionsOf(int rank, int size, std::chrono::milliseconds peer_timeout, FailureLog* log) {
  ControlOptions options;
  options.rank = Rank(rank);
  options.size = size;
  options.job_id = "job";
  options.coordinator_bind_address = LoopbackAddress();
  options.peer_timeout = peer_timeout;
  if (log != nullptr) options.on_failure = [log](const Failure& failure) { log->Add(failure); };
  return options;
}

// "rank 2 (host h2, pid 1002)", unless the process matters.
inline Member MemberOf(int rank, int64_t pid = 0) {
  Member member;
  member.rank = Rank(rank);
  member.host = absl::StrCat("h", rank);
  member.host_id = "id";
  member.pid = pid != 0 ? pid : 1000 + rank;
  member.data_address = LoopbackAddress().WithPort(static_cast<uint16_t>(40000 + rank));
  return member;
}

inline void InParallel(int count, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(body, i);
  for (std::thread& thread : threads) thread.join();
}

namespace control {

// Of world 42 of "job", whose rank 0 is "rank 0 (host h, pid 70)".
inline Hello HelloOf(int rank, int size) {
  Hello hello;
  hello.job_id = "job";
  hello.rank = static_cast<uint32_t>(rank);
  hello.size = static_cast<uint32_t>(size);
  hello.world = 42;
  hello.host = "h";
  hello.pid = 70 + rank;
  return hello;
}

inline Join JoinOf(int rank) {
  Join join;
  join.member.rank = Rank(rank);
  join.member.host = "h";
  join.member.pid = 70 + rank;
  return join;
}

}  // namespace control
}  // namespace lockstep

#endif  // TRANSPORT_CONTROL_CONTROL_TESTING_H_
