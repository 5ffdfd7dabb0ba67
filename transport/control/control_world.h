// World: the coordinator's state and decisions: who has joined, what failed first, who is late. A state machine without
// sockets, threads or clocks: each event comes with its time, and messages go to an Output.
//
//   the world      becomes               when
//   gathering      formed                all ranks have joined with equal options: joined to all
//                  failed                a rank died, left, gave up, failed or has another world size, options differ, a rank
//                                        cannot be reached: join failed to all
//   formed         (stays)               failures are announced per channel, only the first of a channel
//
//   a rank         becomes               when
//   absent         connected             its hello was accepted
//   connected      joined                it sent join
//   connected,     left                  disconnect
//   joined         dead                  its connection closed without one; silence; it does not read; it said that it exits
//
//   stuck: a rank has not finished a collective for a heartbeat. Then the world asks every rank what it called there, and announces
//   two different answers as FAILED_PRECONDITION. So ranks learn of a mismatch even if their calls exchange no message.
//
//   closed: a rank has ended its use of a channel after a number of collectives. If another rank's progress says that it has called
//   more, the world announces the closing, since those calls cannot end. It forgets the channel when all members have closed it.
//
//   a report       is announced          as
//   no suspect     at once               the reporter's own text
//   a suspect      at once if it left,   "rank 2 (...) has closed its communicator"
//                  or closed the channel
//                  when it dies          that death, on all channels
//                  after 500 ms          the reporter's own text

#ifndef TRANSPORT_CONTROL_CONTROL_WORLD_H_
#define TRANSPORT_CONTROL_CONTROL_WORLD_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/deadline.h"
#include "transport/control/control_protocol.h"
#include "transport/control/control_types.h"
#include "transport/transport.h"

namespace lockstep::control {

// ---- What ranks wait for at the coordinator: messages and monitored barriers. Only the coordinator's thread uses them.

// What to send to a rank whose wait is over.
struct Answer {
  int rank = 0;
  PostedMessages messages;
};

// The messages that ranks post at the coordinator, and who waits for which.
//
// Bounded. There are at most 64 topics; the oldest is dropped first. A rank has at most 64 waits; one more is ignored and runs into
// its deadline. After 2 MiB of text in a topic, further messages are cut to 64 bytes, so that an answer fits into a frame.
class MessageBoard {
 public:
  // A second message of a rank on a topic replaces its first. Returns the answers to waits that are over.
  std::vector<Answer> Post(int rank, const PostMessage& post);

  // The messages if there are enough; otherwise a later Post answers the rank.
  absl::optional<PostedMessages> Await(int rank, const AwaitMessages& await);

  void Drop(int rank, uint64_t request);
  // The rank is gone: it waits for nothing. Its messages stay.
  void Forget(int rank);

 private:
  using Key = std::pair<ChannelId, uint64_t>;
  struct Topic {
    std::map<int, std::string> texts;  // by rank
    size_t bytes = 0;
  };
  struct Wait {
    int rank = 0;
    AwaitMessages await;
  };

  static PostedMessages Compose(const Topic& topic, uint64_t request);

  std::map<Key, Topic> topics_;
  std::deque<Key> age_;  // oldest first
  std::vector<Wait> waits_;
};

// Who has entered which monitored barrier of a world, and when each times out.
//
// A barrier ends once: when all its ranks have entered, or when the timeout of a waiting rank passes. All waiting ranks
// then get the same list of ranks that had entered. A rank that enters later gets that list too, and is not on it.
//
// Bounded: at most 1024 barriers that not all ranks have entered. The oldest is dropped first; ranks that wait in it run into their
// own deadlines.
class Barriers {
 public:
  using TimePoint = Deadline::Clock::time_point;
  // Both return the answers to ranks whose barrier is over: empty messages of the ranks that had entered, in rank order.
  std::vector<Answer> Enter(int rank, const EnterBarrier& enter, TimePoint now);
  std::vector<Answer> Expire(TimePoint now);
  // When to call Expire.
  TimePoint next_event() const;
  // The rank is gone: it waits for nothing more, but it has entered.
  void Forget(int rank);

  size_t barrier_count() const { return barriers_.size(); }

 private:
  using Key = std::pair<ChannelId, uint64_t>;
  struct Barrier {
    size_t count = 0;
    std::set<int> entered;
    std::set<int> late;               // entered when it was over
    std::map<int, uint64_t> waiting;  // requests, by rank
    TimePoint due = TimePoint::max();
    bool over = false;
  };

  static std::vector<Answer> End(Barrier* barrier);
  void Remove(const Key& key);

  std::map<Key, Barrier> barriers_;
  std::deque<Key> age_;  // oldest first
};

class World {
 public:
  using TimePoint = Deadline::Clock::time_point;

  // Takes the messages. Must not call back into the world.
  class Output {
   public:
    virtual ~Output() = default;
    virtual void Send(int rank, const Message& message) = 0;
    // To every rank with an open connection, also to unresponsive ones: they read it when they wake.
    virtual void SendToAll(const Message& message) = 0;
  };

  struct Options {
    int size = 1;
    std::string job_id;
    uint64_t world_id = 0;
    // How long a rank may take to report its progress when another is late.
    std::chrono::milliseconds answer_time{0};
    // Coordinator::Options::why_missing.
    std::function<std::string()> why_missing;
  };

  World(Options options, Output* output, TimePoint now);

  // A connection sent its hello: accepted, or the answer that refuses it.
  absl::optional<Reject> Connect(const Hello& hello);

  // A message of an accepted rank. False if it breaks the protocol.
  bool Handle(int rank, Message message, TimePoint now);

  // The rank can take no further part: `how` is "died: control connection closed" or "is unresponsive: ...". Does nothing if the
  // rank is gone already.
  void Gone(int rank, absl::string_view how);
  // The same for a rank that disconnected.
  void Left(int rank);

  // Runs what is due. next_event() is when to call it again.
  void Tick(TimePoint now);
  TimePoint next_event() const;

  // The coordinator cannot do its part. Does nothing once the world has formed.
  void Fail(const absl::Status& status);

  // The coordinator ends: announces pending reports as they are.
  void Close();

  bool has_formed() const { return phase_ == Phase::kFormed; }
  // Whether a failure was announced.
  bool has_failed() const { return phase_ == Phase::kFailed || !failures_.empty(); }

  // Whether the rank is connected or has joined.
  bool alive(int rank) const;

 private:
  enum class Phase { kGathering, kFormed, kFailed };
  enum class State { kAbsent, kConnected, kJoined, kLeft, kDead };

  struct Slot {
    State state = State::kAbsent;
    Member member;
    std::vector<AgreedOption> options;  // until the world has formed
    ProgressList progress;
    uint64_t answered = 0;  // the newest nonce it answered
  };

  // A report whose suspects may still turn out to be dead, or to have left.
  struct PendingReport {
    absl::Status status;
    std::vector<int> suspects;
    TimePoint due;
  };

  // About a collective in which a rank is stuck.
  struct Inquiry {
    std::vector<std::string> called;  // by rank; empty: no answer yet
    TimePoint asked;
  };

  // A channel that some of its ranks have ended.
  struct Closing {
    uint32_t members = 0;
    std::map<int, uint64_t> started;  // collectives, by the ranks that have
  };

  struct LatePoll {
    uint64_t nonce = 0;
    uint64_t sequence = 0;
    std::string operation;
    int missing = 0;  // living ranks that have not answered
    TimePoint due;
  };

  void HandleJoin(int rank, Join join);
  void HandlePong(int rank, Pong pong, TimePoint now);
  void HandleCalled(int rank, Called called);
  void HandleReport(int rank, const Report& report, TimePoint now);
  void HandleLate(const Late& late, TimePoint now);
  void Send(const std::vector<Answer>& answers);
  void HandleClosed(int rank, const Closed& closed);
  // Announces that some rank has closed the channel, if `rank` has called a collective there that the other has not.
  void CheckClosed(int rank, ChannelId channel, const Progress& progress);
  // The rank has gone in good order: explains pending reports that suspect it.
  void Explain(int rank, const std::vector<ChannelId>& channels);

  // Asks all ranks that have not answered yet what they called.
  void Inquire(ChannelId channel, uint64_t sequence, TimePoint now);

  // Who has not joined, whether a rank of another job came here, and why_missing.
  std::string MissingText() const;
  void FormOrFail();
  void FailSetup(const absl::Status& status);

  bool failed(ChannelId channel) const;
  void Announce(ChannelId channel, const absl::Status& status);
  void AnnounceDue(TimePoint now);
  void AnnounceLate(ChannelId channel, const LatePoll& poll);
  // Announces the polls that are due, or to which all living ranks have answered.
  void AnnouncePolls(TimePoint now);
  // Does not expect answers of a rank that is gone.
  void StopWaitingFor(int rank);

  const Options options_;
  Output* const output_;

  Phase phase_ = Phase::kGathering;
  absl::Status setup_failure_;
  std::vector<Slot> slots_;
  int joined_count_ = 0;
  std::string other_job_rank_;  // the newest rank of another job that came here
  TimePoint next_waiting_text_;

  std::map<ChannelId, absl::Status> failures_;  // kAllChannels is one of its keys
  std::map<ChannelId, PendingReport> reports_;
  std::map<ChannelId, LatePoll> polls_;
  std::map<ChannelId, Closing> closings_;
  std::map<std::pair<ChannelId, uint64_t>, Inquiry>
      inquiries_;  // by sequence number; forgotten when nobody is stuck any more
  uint64_t last_nonce_ = 0;
  MessageBoard messages_;
  Barriers barriers_;
};

}  // namespace lockstep::control

#endif  // TRANSPORT_CONTROL_CONTROL_WORLD_H_
