// What a TransportCommunicator keeps of each call. Included by its own source files only.

#ifndef COMM_HOST_TRANSPORT_CALL_H_
#define COMM_HOST_TRANSPORT_CALL_H_

#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "base/deadline.h"
#include "base/ref.h"
#include "base/status.h"
#include "comm/communicator.h"
#include "comm/engine/executor.h"
#include "comm/engine/progress_engine.h"
#include "comm/host/transport_communicator.h"
#include "comm/pieces.h"
#include "comm/point_to_point.h"
#include "comm/work.h"
#include "transport/shm/symmetric_arena.h"

namespace lockstep {

// The result of a call, or of a group of them.
class TransportCommunicator::CallState : public WorkState {
 public:
  explicit CallState(ProgressEngine* engine) : engine_(engine) {}

  void Await(Deadline deadline) override { engine_->Drive(done(), deadline, /*spin=*/true); }
  // Waits for it, by the operation's own deadline. What a group has collected its end waits for.
  absl::Status Finish() {
    if (collected()) return absl::OkStatus();
    Await(Deadline::Infinite());
    return status();
  }

  using WorkState::Reset;

  // Guarded by the engine's mutex.
  Ref<CallState> group;      // the group that this is a member of
  int members_left = 0;      // of a group
  absl::Status first_error;  // of a group's members

 private:
  ProgressEngine* const engine_;
};

// The values of all ranks, in rank order, sent as bytes in this machine's order. Collective. `what` describes it in errors.
template <typename T>
absl::StatusOr<std::vector<T>> AllGatherValues(Communicator& communicator, const T& mine, const char* what) {
  std::vector<T> all(communicator.size());
  CollectiveRequest exchange =
      MakeRequest(Collective::kAllGather, DType::kU8, all.size() * sizeof(T), &mine, all.data());
  LOCKSTEP_RETURN_IF_ERROR(Annotate(communicator.Run(exchange), what));
  return all;
}

// An arena that the ranks are making.
struct TransportCommunicator::AskedArena {
  explicit AskedArena(ProgressEngine* engine) : state(engine) {}

  CallState state;
  std::unique_ptr<SymmetricArena> arena;
};

// A job with the work before and after it. Pooled.
struct TransportCommunicator::Call : Job {
  Plan call_plan;  // owns Job::plan; kept until the next use of this call
  CallState* work = nullptr;
  bool at_once = false;         // the clock was not read for it yet; not needed if it is done before its caller waits
  Ref<CallState> background;    // holds `work` if nobody has to wait for it
  bool counted = false;         // it is background work of the engine's
  std::vector<char> prepared;   // a copy of the input, if it had to be read before the collective
  Ref<const Pieces> copied_to;  // the result is in `prepared`, and goes there
};

struct TransportCommunicator::Message : MessageCall {
  Message(const MessageCall& call, MessageInfo* info_target, std::chrono::milliseconds given_timeout,
          ProgressEngine* engine)
      : MessageCall(call), state(MakeRef<CallState>(engine)), out_info(info_target), timeout(given_timeout) {}

  const Ref<CallState> state;
  MessageInfo* const out_info;  // may be null
  const std::chrono::milliseconds timeout;
  bool background = false;
};

struct TransportCommunicator::Group {
  struct Member {
    Ref<CallState> state;
    // A collective, unless there is a message.
    CollectiveRequest request;
    Plan plan;
    std::unique_ptr<Message> message;
  };

  // Completes all of it with an error: it is not launched.
  void Drop(const absl::Status& status) {
    for (const Member& member : members) {
      member.state->set_collector({});
      member.state->Complete(status);
    }
    work->set_collector({});
    work->Complete(status);
  }

  std::thread::id thread;
  int depth = 1;
  Ref<CallState> work;  // of all members
  std::vector<Member> members;
  absl::Status refused;  // the error of the first refused call
};

}  // namespace lockstep

#endif  // COMM_HOST_TRANSPORT_CALL_H_
