#include "tests/attacks.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "base/fork.h"

namespace lockstep {
namespace {

using Clock = Deadline::Clock;

constexpr int kPollMs = 10;
constexpr std::chrono::milliseconds kFindAgain(100);
// Before an attacker leaves a connection for another: time enough for most listeners to answer.
constexpr std::chrono::milliseconds kStay(100);
// How long, and how often, a listener is asked what it is for.
constexpr std::chrono::milliseconds kAskTime(200);
constexpr int kAsks = 3;

class AttackConnection {
 public:
  AttackConnection(UniqueFd socket, AttackResults::Case attack_case, const std::string& name, AttackBytes attack_bytes)
      : socket_(std::move(socket)),
        case_(std::move(attack_case)),
        name_(name),
        attack_bytes_(std::move(attack_bytes)) {}

  pollfd interest() const {
    const bool writes = !connected_ || (sent_ < attack_bytes_.bytes.size() && !attack_bytes_.slowly);
    return {socket_.get(), static_cast<int16_t>(POLLIN | (writes ? POLLOUT : 0)), 0};
  }

  // Goes on as far as it can.
  void Go(int16_t events) {
    if (!connected_) {
      int error = 0;
      socklen_t bytes = sizeof(error);
      if ((events & (POLLOUT | POLLERR | POLLHUP)) == 0) return;
      (void)getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
      connected_ = error == 0;
      over_ = error != 0;
      if (over_) return;
    }
    Send();
    if ((events & (POLLIN | POLLERR | POLLHUP)) != 0) Receive();
  }

  bool over() const { return over_; }
  bool connected() const { return connected_; }
  Clock::duration age() const { return Clock::now() - begin_; }
  const AttackResults::Case& attack_case() const { return case_; }
  size_t answered() const { return answered_; }  // bytes
  // Why it looks as if the listener took the attacker for a peer; empty if not.
  std::string admitted() const {
    if (!admitted_ && answered_ <= kAnswerBytesMax) return "";
    return absl::StrCat(name_, " admitted ", Name(std::get<Attack>(case_)), ", after an answer of ", answered_,
                        " bytes");
  }

 private:
  void Send() {
    if (sent_ >= attack_bytes_.bytes.size()) return;
    const auto now = Clock::now();
    if (attack_bytes_.slowly && now < next_byte_) return;
    next_byte_ = now + std::chrono::milliseconds(50);
    const size_t bytes = attack_bytes_.slowly ? 1 : attack_bytes_.bytes.size() - sent_;
    const ssize_t sent = send(socket_.get(), attack_bytes_.bytes.data() + sent_, bytes, MSG_NOSIGNAL);
    if (sent > 0) sent_ += static_cast<size_t>(sent);
    // Nobody hears the rest; what the listener had to say may still be read.
    if (sent < 0 && errno != EAGAIN) sent_ = attack_bytes_.bytes.size();
  }

  void Receive() {
    char bytes[4096];
    for (;;) {
      const ssize_t count = recv(socket_.get(), bytes, sizeof(bytes), 0);
      if (count < 0 && errno == EAGAIN) return;
      if (count <= 0) {
        over_ = true;
        return;
      }
      answered_ += static_cast<size_t>(count);
      if (attack_bytes_.channel == nullptr || refused_) continue;
      std::string plain;
      std::string answer;
      refused_ =
          !attack_bytes_.channel->Receive(absl::string_view(bytes, static_cast<size_t>(count)), &plain, &answer).ok();
      admitted_ = admitted_ || attack_bytes_.channel->ready();
      (void)send(socket_.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
    }
  }

  UniqueFd socket_;
  const AttackResults::Case case_;
  const std::string name_;
  AttackBytes attack_bytes_;
  bool connected_ = false;
  bool over_ = false;
  bool refused_ = false;
  bool admitted_ = false;
  size_t sent_ = 0;
  size_t answered_ = 0;
  const Clock::time_point begin_ = Clock::now();
  Clock::time_point next_byte_;
};

// Once it is over, or the attacker has left.
void NoteEnd(const AttackConnection& connection, AttackResults* results) {
  if (!connection.connected()) {
    ++results->unreachable;
    return;
  }
  results->cases[connection.attack_case()].turned_away += connection.over() ? 1 : 0;
  ++(connection.over() ? results->turned_away : results->left);
  results->heard_bytes += static_cast<int64_t>(connection.answered());
  if (const std::string admitted = connection.admitted(); !admitted.empty()) results->admitted.push_back(admitted);
}

// Lets all of them go on, and takes out those that are over.
void GoOn(std::deque<std::unique_ptr<AttackConnection>>* connections, int wait_ms, AttackResults* results) {
  std::vector<pollfd> sockets;
  for (const auto& connection : *connections) sockets.push_back(connection->interest());
  (void)poll(sockets.data(), sockets.size(), wait_ms);
  for (size_t i = 0; i < connections->size(); ++i) {
    AttackConnection& connection = *(*connections)[i];
    const bool connected = connection.connected();
    connection.Go(sockets[i].revents);
    if (connected || !connection.connected()) continue;
    ++results->cases[connection.attack_case()].connections;
    ++results->connections;
  }
  const auto over = [&](const std::unique_ptr<AttackConnection>& connection) {
    if (connection->over()) NoteEnd(*connection, results);
    return connection->over();
  };
  connections->erase(std::remove_if(connections->begin(), connections->end(), over), connections->end());
}

// How often each attack was begun at each socket, in one phase.
class Schedule {
 public:
  // One of those begun least often, at random. `targets` is not empty.
  std::pair<const AttackTarget*, Attack> Next(const std::vector<AttackTarget>& targets, AttackWriter* writer) {
    std::pair<const AttackTarget*, Attack> next;
    int64_t* least = nullptr;
    size_t ties = 0;
    for (const AttackTarget& target : targets) {
      auto& begun = begun_[target.socket.name];
      for (size_t i = 0; i < kAttacks; ++i) {
        if (!writer->Applies(static_cast<Attack>(i), target.purpose)) continue;
        if (least != nullptr && begun[i] > *least) continue;
        if (least == nullptr || begun[i] < *least) ties = 0;
        if (writer->Below(++ties) != 0) continue;
        next = {&target, static_cast<Attack>(i)};
        least = &begun[i];
      }
    }
    ++*least;
    return next;
  }

 private:
  std::map<std::string, std::array<int64_t, kAttacks>> begun_;
};

}  // namespace

std::vector<AttackTarget> AttackTargets::Find(const std::vector<pid_t>& processes) {
  const std::vector<ListeningSocket> sockets = ListeningSocketsOf(processes);
  std::map<std::string, Answer> known;
  for (const ListeningSocket& socket : sockets) known[socket.name] = answers_[socket.name];
  answers_ = std::move(known);
  Ask(sockets);
  std::vector<AttackTarget> targets;
  for (const ListeningSocket& socket : sockets) {
    if (socket.family == AF_UNIX) {
      // It knows peers by their user, and has no purpose.
      const bool handout = absl::StartsWith(socket.name, "@lockstep-secret-");
      targets.push_back({socket, Purpose::kLocal, handout ? "secret hand-out" : Name(Purpose::kLocal)});
      continue;
    }
    const Answer& answer = answers_[socket.name];
    const bool of_provider = provider_ && !answer.purpose.has_value();
    const Purpose purpose = answer.purpose.value_or(transport_);
    targets.push_back({socket, purpose, of_provider ? "libfabric's port" : Name(purpose)});
  }
  return targets;
}

void AttackTargets::Ask(const std::vector<ListeningSocket>& sockets) {
  const std::string question("LKSP\x01\0\xff\x01", kPreambleBytes);  // a purpose that no listener has
  std::vector<UniqueFd> connections;
  std::vector<std::pair<pollfd, Answer*>> asked;
  for (const ListeningSocket& socket : sockets) {
    Answer& answer = answers_[socket.name];
    if (socket.family == AF_UNIX || answer.purpose.has_value() || answer.asks == kAsks) continue;
    ++answer.asks;
    absl::StatusOr<UniqueFd> connection = BeginConnect(socket, 0);
    if (!connection.ok()) continue;
    asked.push_back({{connection->get(), POLLOUT, 0}, &answer});
    connections.push_back(*std::move(connection));
  }
  const Deadline deadline = Deadline::After(kAskTime);
  while (!asked.empty() && !deadline.passed()) {
    std::vector<pollfd> events;
    for (const auto& one : asked) events.push_back(one.first);
    (void)poll(events.data(), events.size(), kPollMs);
    for (size_t i = 0; i < asked.size(); ++i) {
      if (events[i].revents == 0) continue;
      pollfd& one = asked[i].first;
      if (one.events == POLLOUT) {
        (void)send(one.fd, question.data(), question.size(), MSG_NOSIGNAL);
        one.events = POLLIN;
        continue;
      }
      char bytes[kPreambleBytes];
      const bool whole = recv(one.fd, bytes, sizeof(bytes), 0) == ssize_t{sizeof(bytes)};
      if (whole && absl::StartsWith({bytes, sizeof(bytes)}, "LKSP")) {
        asked[i].second->purpose = static_cast<Purpose>(bytes[6]);
      }
      one.fd = -1;
    }
    const auto over = [](const std::pair<pollfd, Answer*>& one) { return one.first.fd < 0; };
    asked.erase(std::remove_if(asked.begin(), asked.end(), over), asked.end());
  }
}

void AttackResults::Add(const AttackResults& other) {
  for (const auto& [key, count] : other.cases) {
    cases[key].connections += count.connections;
    cases[key].turned_away += count.turned_away;
  }
  connections += other.connections;
  turned_away += other.turned_away;
  left += other.left;
  unreachable += other.unreachable;
  heard_bytes += other.heard_bytes;
  admitted.insert(admitted.end(), other.admitted.begin(), other.admitted.end());
}

AttackResults RunAttacks(const std::function<std::vector<AttackTarget>()>& find, const AttackOptions& options,
                         const std::function<bool(const AttackResults&)>& done) {
  AttackResults results;
  AttackWriter writer(options.knowledge, options.seed);
  std::deque<std::unique_ptr<AttackConnection>> under_way;  // oldest first
  std::vector<AttackTarget> targets;
  std::string phase;
  Schedule schedule;
  Clock::time_point find_again = Clock::now();
  const auto leave_oldest = [&] {
    NoteEnd(*under_way.front(), &results);
    under_way.pop_front();
  };
  const auto begin = Clock::now();
  int64_t begun = 0;
  // How many more may begin now: a few between looks at those under way.
  const auto allowed = [&]() -> int64_t {
    const std::chrono::duration<double> elapsed = Clock::now() - begin;
    const auto due = static_cast<int64_t>(elapsed.count() * static_cast<double>(options.per_second)) + 1;
    const int64_t few = 16;
    const bool full = under_way.size() >= options.at_once && under_way.front()->age() < kStay;
    return targets.empty() || full ? 0 : options.per_second == 0 ? few : std::min(few, due - begun);
  };
  while (!done(results)) {
    if (targets.empty() || Clock::now() >= find_again) {
      const auto found_at = Clock::now();
      targets = find();
      // A long table of connections takes long to read.
      find_again = Clock::now() + std::max<Clock::duration>(kFindAgain, 2 * (Clock::now() - found_at));
    }
    if (std::string now = options.phase(); now != phase) {
      phase = std::move(now);
      schedule = Schedule();
    }
    for (const int64_t end = begun + allowed(); begun < end; ++begun) {
      if (under_way.size() >= options.at_once) leave_oldest();
      const auto [target, attack] = schedule.Next(targets, &writer);
      absl::StatusOr<UniqueFd> socket = BeginConnect(target->socket, writer.Below(4));
      if (!socket.ok()) {
        ++results.unreachable;
        continue;
      }
      under_way.push_back(
          std::make_unique<AttackConnection>(*std::move(socket), AttackResults::Case(phase, target->listener, attack),
                                             target->socket.name, writer.Write(attack, target->purpose)));
    }
    GoOn(&under_way, allowed() > 0 ? 0 : kPollMs, &results);
  }
  const Deadline deadline = Deadline::After(options.patience);
  while (!under_way.empty() && !deadline.passed()) GoOn(&under_way, kPollMs, &results);
  while (!under_way.empty()) leave_oldest();
  return results;
}

}  // namespace lockstep
