// The ranks of the limits in bench:compare.
//
//   runner FOLDER BYTES_MAX KIND [CONGESTION_CONTROL]   a rank that lockstep-run starts
//   runner facts                                        what the numbers depend on: a line "NAME: VALUE" each
//
// KIND is direct, bounce or bounce_list, prototypes that sum, the last in 64 pieces; or both_ways or one_way, which only move bytes
// between two bare sockets.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/fork.h"
#include "base/status.h"
#include "bench/compare/runner.h"
#include "bench/limits/link.h"
#include "bench/limits/shared_memory.h"
#include "bench/report.h"

namespace lockstep::bench {
namespace {

// Of bounce_list.
constexpr size_t kPieces = 64;

// One rank: its all-reduce, or what stands for it, and where its vector has to lie (null: anywhere). The call owns what it needs.
struct Implementation {
  std::function<absl::Status(float* data, size_t count)> call;
  float* vector = nullptr;
};

// Rank 0 tells its port in the page's note.
absl::StatusOr<BareSocket> ConnectBareSockets(const std::string& congestion_control, lockstep_runner* runner) {
  if (lockstep_runner_open_page(runner) != 0) return absl::UnavailableError(runner->error);
  if (runner->rank == 0) {
    LOCKSTEP_ASSIGN_OR_RETURN(BareListener listener, BareListener::Create(congestion_control));
    runner->page->note = listener.port();
    lockstep_runner_barrier(runner);
    return listener.Accept();
  }
  lockstep_runner_barrier(runner);
  return BareSocket::Connect(static_cast<uint16_t>(runner->page->note), congestion_control);
}

absl::StatusOr<Implementation> MakeBareSockets(bool one_way, const std::string& congestion_control,
                                               lockstep_runner* runner) {
  runner->moves_only = 1;
  LOCKSTEP_ASSIGN_OR_RETURN(BareSocket connected, ConnectBareSockets(congestion_control, runner));
  const auto socket = std::make_shared<BareSocket>(std::move(connected));
  const auto arriving = std::make_shared<std::vector<float>>(runner->bytes_max / sizeof(float));
  Implementation made;
  if (one_way) {
    // Two ways are one call each.
    made.call = [socket, arriving, sends = runner->rank == 0](float* data, size_t count) mutable {
      return std::exchange(sends, !sends) ? socket->Send(data, count * sizeof(float))
                                          : socket->Receive(arriving->data(), count * sizeof(float));
    };
  } else {
    made.call = [socket, arriving](float* data, size_t count) {
      return socket->Exchange(data, count * sizeof(float), arriving->data(), count * sizeof(float));
    };
  }
  return made;
}

// An empty file of memory that all ranks have open. Rank 0 makes it, and tells the others in the page's note where.
absl::StatusOr<UniqueFd> OpenSharedFile(lockstep_runner* runner) {
  if (lockstep_runner_open_page(runner) != 0) return absl::UnavailableError(runner->error);
  UniqueFd file;
  if (runner->rank == 0) {
    file = UniqueFd(memfd_create("prototype", MFD_CLOEXEC));
    runner->page->note = static_cast<uint64_t>(getpid()) << 32 | static_cast<uint32_t>(file.get());
  }
  lockstep_runner_barrier(runner);
  if (runner->rank != 0) {
    const uint64_t note = runner->page->note;
    file = UniqueFd(open(absl::StrCat("/proc/", note >> 32, "/fd/", note & 0xffffffff).c_str(), O_RDWR | O_CLOEXEC));
  }
  if (file.get() < 0) return ErrnoStatus(errno, "share memory");
  lockstep_runner_barrier(runner);
  return file;
}

absl::StatusOr<Implementation> MakeDirect(lockstep_runner* runner) {
  LOCKSTEP_ASSIGN_OR_RETURN(const UniqueFd file, OpenSharedFile(runner));
  LOCKSTEP_ASSIGN_OR_RETURN(DirectAllReduce reduce, DirectAllReduce::Create(runner->bytes_max, file.get()));
  Implementation made;
  made.vector = reduce.vector(runner->rank);
  made.call = [reduce, rank = runner->rank](float* /*data*/, size_t count) { return reduce.Run(rank, count); };
  return made;
}

// In pieces that do not lie one behind the other: the last of the vector comes first.
absl::StatusOr<Implementation> MakeBounce(size_t pieces, lockstep_runner* runner) {
  LOCKSTEP_ASSIGN_OR_RETURN(const UniqueFd file, OpenSharedFile(runner));
  LOCKSTEP_ASSIGN_OR_RETURN(BounceAllReduce reduce, BounceAllReduce::Create(file.get()));
  Implementation made;
  made.call = [reduce, rank = runner->rank, begins = std::vector<float*>(pieces), elements = size_t{0},
               last = size_t{0}](float* data, size_t count) mutable {
    if (count != last) {
      last = count;
      elements = (count + begins.size() - 1) / begins.size();
      const size_t used = (count + elements - 1) / elements;
      const size_t rest = count - (used - 1) * elements;
      for (size_t i = 0; i + 1 < used; ++i) begins[i] = data + rest + (used - 2 - i) * elements;
      begins[used - 1] = data;
    }
    return reduce.Run(rank, {begins.data(), elements}, count);
  };
  return made;
}

absl::StatusOr<Implementation> Make(const std::string& kind, const std::string& congestion_control,
                                    lockstep_runner* runner) {
  if (runner->size != 2) return absl::InvalidArgumentError(kind + " is for two ranks");
  if (kind == "direct") return MakeDirect(runner);
  if (kind == "bounce" || kind == "bounce_list") return MakeBounce(kind == "bounce" ? 1 : kPieces, runner);
  if (kind == "both_ways" || kind == "one_way") {
    return MakeBareSockets(kind == "one_way", congestion_control, runner);
  }
  return absl::InvalidArgumentError("no kind '" + kind + "'");
}

struct Rank {
  Implementation implementation;
  lockstep_runner runner = {};
};

void SetError(const absl::Status& status, lockstep_runner* runner) {
  const std::string message(status.message());
  std::snprintf(runner->error, sizeof(runner->error), "%s", message.c_str());
}

int Call(void* context, float* data, size_t count) {
  Rank* const rank = static_cast<Rank*>(context);
  const absl::Status status = rank->implementation.call(data, count);
  if (status.ok()) return 0;
  SetError(status, &rank->runner);
  return -1;
}

int Main(int argc, char** argv) {
  if (argc == 2 && argv[1] == std::string("facts")) {
    for (const auto& fact : MachineFacts()) std::printf("%s: %s\n", fact.first.c_str(), fact.second.c_str());
    return 0;
  }
  Rank rank;
  if (argc < 4 || argc > 5 || lockstep_runner_begin(&rank.runner, argc, argv) != 0) {
    std::fprintf(stderr, "usage: lockstep-run ... runner FOLDER BYTES_MAX KIND [CONGESTION_CONTROL]; runner facts\n");
    return 2;
  }
  rank.runner.allreduce = &Call;
  rank.runner.context = &rank;
  // Until it serves, which sets the alarm anew.
  alarm(LOCKSTEP_RUNNER_PATIENCE_S);
  absl::StatusOr<Implementation> made = Make(argv[3], argc > 4 ? argv[4] : "", &rank.runner);
  if (!made.ok()) {
    SetError(made.status(), &rank.runner);
    return lockstep_runner_refuse(&rank.runner);
  }
  rank.implementation = *std::move(made);
  rank.runner.data = rank.implementation.vector;
  return lockstep_runner_serve(&rank.runner);
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) { return lockstep::bench::Main(argc, argv); }
