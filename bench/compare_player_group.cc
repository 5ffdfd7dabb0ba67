#include "bench/compare_player_group.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "bench/peers/player.h"

namespace lockstep {
namespace bench {
namespace {

constexpr int kLookMs = 20;             // between looks at processes
constexpr size_t kLineBytesMax = 4096;  // of an answer

absl::Status WritePage(const std::string& path, bool pin) {
  lockstep_player_page content = {};
  content.loose = pin ? 0 : 1;
  std::ofstream page(path, std::ios::binary);
  page.write(reinterpret_cast<const char*>(&content), sizeof(content));
  page.close();
  return page ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("cannot write ", path));
}

// At "socket" in the folder.
absl::StatusOr<UniqueFd> Listen(const std::string& folder, int ranks) {
  const UniqueFd directory(open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!directory.valid()) return ErrnoStatus(errno, absl::StrCat("open ", folder));
  // The folder's own path may be longer than an address can be.
  const std::string path = absl::StrCat("/proc/self/fd/", directory.get(), "/socket");
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  UniqueFd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.valid()) return ErrnoStatus(errno, "socket");
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return ErrnoStatus(errno, absl::StrCat("bind ", folder, "/socket"));
  }
  if (listen(listener.get(), ranks) != 0) return ErrnoStatus(errno, absl::StrCat("listen at ", folder, "/socket"));
  return listener;
}

std::string Name(int rank) { return absl::StrCat("rank ", rank); }

std::string Names(const std::vector<int>& numbers) {
  return absl::StrCat(numbers.size() == 1 ? "rank " : "ranks ", absl::StrJoin(numbers, ", "));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PlayerGroup>> PlayerGroup::Start(const Contender& contender,
                                                                const PlayerGroupOptions& options, Deadline deadline) {
  if (mkdir(options.folder.c_str(), S_IRWXU) != 0) {
    return ErrnoStatus(errno, absl::StrCat("make folder ", options.folder));
  }
  LOCKSTEP_RETURN_IF_ERROR(WritePage(options.folder + "/page", options.pin));
  LOCKSTEP_ASSIGN_OR_RETURN(const UniqueFd listener, Listen(options.folder, options.ranks));
  std::unique_ptr<PlayerGroup> group(new PlayerGroup(options.ranks, options.folder));
  LOCKSTEP_RETURN_IF_ERROR(group->StartProcesses(contender, options));
  LOCKSTEP_RETURN_IF_ERROR(group->AwaitHellos(listener.get(), deadline));
  return group;
}

absl::Status PlayerGroup::StartProcesses(const Contender& contender, const PlayerGroupOptions& options) {
  for (int rank = 0; rank < (contender.process_per_rank ? options.ranks : 1); ++rank) {
    std::vector<std::string> words = contender.command;
    words.push_back(options.folder);
    words.push_back(absl::StrCat(options.bytes_max));
    words.push_back(contender.process_per_rank ? absl::StrCat(rank) : "-");
    words.push_back(absl::StrCat(options.ranks));
    words.insert(words.end(), contender.options.begin(), contender.options.end());
    LOCKSTEP_RETURN_IF_ERROR(processes_.Start(words, contender.environment));
  }
  return absl::OkStatus();
}

absl::Status PlayerGroup::AwaitHellos(int listener, Deadline deadline) {
  for (size_t missing = ranks_.size(); missing > 0;) {
    // Looked at first: a process that has ended by now has said what it had to, and its connection is there.
    const bool some_ended = processes_.SomeEnded();
    pollfd waiting = {listener, POLLIN, 0};
    const int ready = poll(&waiting, 1, some_ended ? 0 : std::min(kLookMs, deadline.remaining_ms()));
    if (ready < 0 && errno != EINTR) return ErrnoStatus(errno, "poll");
    if (ready > 0) {
      UniqueFd connection(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!connection.valid()) return ErrnoStatus(errno, "accept");
      LOCKSTEP_RETURN_IF_ERROR(Greet(std::move(connection), deadline));
      --missing;
      continue;
    }
    if (some_ended) return Ended("a process", /*pid=*/0);
    if (!deadline.passed()) continue;
    std::vector<int> late;
    for (int rank = 0; rank < ranks_.size(); ++rank) {
      if (!ranks_[rank].socket.valid()) late.push_back(rank);
    }
    return absl::DeadlineExceededError(absl::StrCat(Names(late), " did not start in time", processes_.LastOutput()));
  }
  return absl::OkStatus();
}

absl::Status PlayerGroup::Greet(UniqueFd connection, Deadline deadline) {
  ucred who = {};
  socklen_t length = sizeof(who);
  if (getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &who, &length) != 0) {
    return ErrnoStatus(errno, "SO_PEERCRED");
  }
  processes_.Adopt(who.pid);
  Rank rank;
  rank.socket = std::move(connection);
  rank.pid = who.pid;
  std::string line;
  while (line.empty()) {
    pollfd waiting = {rank.socket.get(), POLLIN, 0};
    if (poll(&waiting, 1, deadline.remaining_ms()) == 0) {
      return absl::DeadlineExceededError(absl::StrCat("process ", who.pid, " says no hello"));
    }
    LOCKSTEP_ASSIGN_OR_RETURN(line, TakeLine(&rank, "a rank"));
  }
  int number = -1;
  absl::string_view rest = line;
  if (!absl::ConsumePrefix(&rest, "hello ") || !absl::SimpleAtoi(rest, &number) || number < 0 ||
      number >= ranks_.size() || ranks_[number].socket.valid()) {
    return absl::InternalError(absl::StrCat("a player says '", line, "' instead of hello and its rank"));
  }
  ranks_[number] = std::move(rank);
  return absl::OkStatus();
}

absl::StatusOr<std::string> PlayerGroup::TakeLine(Rank* rank, const std::string& name) {
  for (;;) {
    const size_t end = rank->received.find('\n');
    if (end != std::string::npos) {
      std::string line = rank->received.substr(0, end);
      rank->received.erase(0, end + 1);
      absl::string_view error = line;
      if (!absl::ConsumePrefix(&error, "error ")) return line;
      return absl::UnavailableError(absl::StrCat(name, ": ", error));
    }
    if (rank->received.size() > kLineBytesMax) return absl::InternalError(absl::StrCat(name, " sends no lines"));
    char bytes[1024];
    const ssize_t received = recv(rank->socket.get(), bytes, sizeof(bytes), 0);
    if (received > 0) {
      rank->received.append(bytes, received);
      continue;
    }
    if (received < 0 && (errno == EAGAIN || errno == EINTR)) return std::string();
    return Ended(name, rank->pid);
  }
}

absl::StatusOr<std::vector<std::string>> PlayerGroup::Ask(absl::string_view line, absl::string_view word,
                                                          Deadline deadline) {
  const std::string command = absl::StrCat(line, "\n");
  for (int i = 0; i < ranks_.size(); ++i) {
    ranks_[i].answered = false;
    // A line is short and the player reads it before it answers, so it fits.
    if (send(ranks_[i].socket.get(), command.data(), command.size(), MSG_NOSIGNAL) != command.size()) {
      return Ended(Name(i), ranks_[i].pid);
    }
  }
  std::vector<std::string> answers(ranks_.size());
  for (size_t missing = ranks_.size(); missing > 0;) {
    std::vector<pollfd> waiting;
    std::vector<int> late;
    for (int i = 0; i < ranks_.size(); ++i) {
      if (ranks_[i].answered) continue;
      waiting.push_back({ranks_[i].socket.get(), POLLIN, 0});
      late.push_back(i);
    }
    const int ready = poll(waiting.data(), waiting.size(), deadline.remaining_ms());
    if (ready < 0 && errno != EINTR) return ErrnoStatus(errno, "poll");
    if (ready == 0) {
      return absl::DeadlineExceededError(absl::StrCat(Names(late), " did not answer '", line, "' in time"));
    }
    for (size_t i = 0; i < waiting.size(); ++i) {
      if (ready <= 0 || waiting[i].revents == 0) continue;
      Rank& rank = ranks_[late[i]];
      LOCKSTEP_ASSIGN_OR_RETURN(const std::string answer, TakeLine(&rank, Name(late[i])));
      if (answer.empty()) continue;
      absl::string_view rest = answer;
      if (!absl::ConsumePrefix(&rest, absl::StrCat(word, " "))) {
        return absl::InternalError(absl::StrCat("rank ", late[i], " answers '", line, "' with '", answer, "'"));
      }
      answers[late[i]] = std::string(rest);
      rank.answered = true;
      --missing;
    }
  }
  return answers;
}

absl::StatusOr<PlayerTiming> PlayerGroup::Run(int64_t bytes, int64_t calls, Deadline deadline) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> answers,
                            Ask(absl::StrCat("run ", bytes, " ", calls), "time", deadline));
  PlayerTiming slowest;
  for (const std::string& answer : answers) {
    const std::vector<std::string> words = absl::StrSplit(answer, ' ');
    double seconds = 0;
    double wall_seconds = 0;
    if (words.size() != 2 || !absl::SimpleAtod(words[0], &seconds) || !absl::SimpleAtod(words[1], &wall_seconds)) {
      return absl::InternalError(absl::StrCat("a player's time is '", answer, "'"));
    }
    slowest.seconds = std::max(slowest.seconds, seconds);
    slowest.wall_seconds = std::max(slowest.wall_seconds, wall_seconds);
  }
  return slowest;
}

absl::StatusOr<uint64_t> PlayerGroup::Check(int64_t bytes, Deadline deadline) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> answers,
                            Ask(absl::StrCat("check ", bytes), "wrong", deadline));
  uint64_t sum = 0;
  for (const std::string& answer : answers) {
    uint64_t wrong = 0;
    if (!absl::SimpleAtoi(answer, &wrong)) return absl::InternalError(absl::StrCat("a player counts '", answer, "'"));
    sum += wrong;
  }
  return sum;
}

absl::StatusOr<PlayerSockets> PlayerGroup::Sockets(Deadline deadline) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> answers, Ask("sockets", "sockets", deadline));
  PlayerSockets busiest;
  for (const std::string& answer : answers) {
    const std::vector<std::string> words = absl::StrSplit(answer, ' ');
    uint64_t bytes = 0;
    if (words.size() != 2 || !absl::SimpleAtoi(words[1], &bytes)) {
      return absl::InternalError(absl::StrCat("a player's sockets are '", answer, "'"));
    }
    if (bytes > busiest.bytes) busiest = {words[0], bytes};
  }
  return busiest;
}

absl::Status PlayerGroup::Quit(Deadline deadline) {
  constexpr absl::string_view kQuit = "quit\n";
  for (int i = 0; i < ranks_.size(); ++i) {
    if (send(ranks_[i].socket.get(), kQuit.data(), kQuit.size(), MSG_NOSIGNAL) != kQuit.size()) {
      return Ended(Name(i), ranks_[i].pid);
    }
  }
  if (processes_.AllEnded(deadline)) return absl::OkStatus();
  return absl::DeadlineExceededError("the processes did not end in time");
}

absl::Status PlayerGroup::Ended(const std::string& name, pid_t pid) {
  return absl::UnavailableError(absl::StrCat(name, " ", processes_.DescribeEnd(pid)));
}

}  // namespace bench
}  // namespace lockstep
