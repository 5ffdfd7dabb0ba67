#include "comm/ipc_page.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <iterator>
#include <map>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/deadline.h"
#include "base/error_info.h"
#include "base/fork.h"
#include "base/mutex.h"
#include "base/rank.h"
#include "base/status.h"
#include "comm/agreement.h"
#include "comm/byte_objects.h"

namespace lockstep {
namespace {

// How long a rank that tells why it failed is waited for.
constexpr std::chrono::milliseconds kWritingTime(20);

// Pages of this process, by name, so that its ranks share them.
struct Pages {
  Mutex mu;
  std::map<std::string, std::weak_ptr<IpcPage>> by_name ABSL_GUARDED_BY(mu);
};

Pages& ThePages() {
  static auto* const pages = new Pages;
  return *pages;
}

uint64_t RandomToken() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

// The upper bits are the call's hash, the lower ones its number, so that a word is of one call or of another.
constexpr uint64_t kNumberBits = 24;
constexpr uint64_t kNumberMask = (uint64_t{1} << kNumberBits) - 1;

}  // namespace

// Each rank's inbox begins a cache line. All zero at first but for the token.
struct IpcPage::Layout {
  enum Failure : uint32_t { kNone = 0, kBeingWritten = 1, kTold = 2 };

  struct alignas(64) Inbox {
    std::array<std::atomic<uint32_t>, kIpcRanksMax> ready;
    std::array<std::atomic<uint32_t>, kIpcRanksMax> done;
    std::atomic<uint32_t> trial;
    std::atomic<int32_t> process;  // of the rank
  };

  uint64_t token;
  // Released with kTold, after the text was written.
  std::atomic<uint32_t> failure;
  int32_t failure_code;
  std::array<char, 256> failure_info;  // ToText of its ErrorInfo; both are NUL-terminated
  std::array<char, 1024> failure_text;
  std::array<Inbox, kIpcRanksMax> inboxes;
  std::array<std::atomic<uint32_t>, kMemoriesMax> left;
  std::array<std::array<std::atomic<uint64_t>, kCallsKept>, kIpcRanksMax> calls;
};

IpcPage::Layout& IpcPage::layout() const { return *reinterpret_cast<Layout*>(memory_.data()); }

IpcPage::IpcPage(SharedMemory memory, Device* device) : memory_(std::move(memory)), device_(device) {}

IpcPage::~IpcPage() {
  if (registered_) device_->UnregisterOnHost(memory_.data());
}

absl::StatusOr<SharedMemory> IpcPage::Map(const std::string& name) {
  // process descriptor token
  const std::vector<std::string> words = absl::StrSplit(name, ' ');
  uint64_t token = 0;
  if (words.size() != 3 || !absl::SimpleAtoi(words[2], &token)) {
    return absl::InternalError(absl::StrCat("\"", name, "\" names no memory"));
  }
  const std::string path = absl::StrCat("/proc/", words[0], "/fd/", words[1]);
  UniqueFd descriptor(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!descriptor.valid()) {
    return absl::UnavailableError(
        absl::StrCat("memory of process ", words[0], " cannot be shared: open(", path, "): ", std::strerror(errno)));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(SharedMemory memory, SharedMemory::Attach(std::move(descriptor), sizeof(Layout)));
  if (reinterpret_cast<const Layout*>(memory.data())->token != token) {
    return absl::UnavailableError(
        absl::StrCat("process ", words[0], " is another one here: the ranks are in different PID namespaces"));
  }
  return memory;
}

absl::StatusOr<std::shared_ptr<IpcPage>> IpcPage::Open(const std::string& name, Device* device) {
  MutexLock lock(&ThePages().mu);
  auto& by_name = ThePages().by_name;
  for (auto page = by_name.begin(); page != by_name.end();) {
    page = page->second.expired() ? by_name.erase(page) : std::next(page);
  }
  std::weak_ptr<IpcPage>& known = by_name[absl::StrCat(name, " in ", getpid())];
  if (std::shared_ptr<IpcPage> page = known.lock(); page != nullptr) return page;
  LOCKSTEP_ASSIGN_OR_RETURN(SharedMemory memory, Map(name));
  const std::shared_ptr<IpcPage> page(new IpcPage(std::move(memory), device));
  LOCKSTEP_RETURN_IF_ERROR(device->RegisterOnHost(page->memory_.data(), page->memory_.bytes()));
  page->registered_ = true;
  known = page;
  return page;
}

absl::StatusOr<std::shared_ptr<IpcPage>> IpcPage::Join(Communicator* host, Device* device) {
  SharedMemory made;
  absl::Status mine;
  std::string name;
  if (host->rank() == Rank(0)) {
    absl::StatusOr<SharedMemory> created = SharedMemory::Create(sizeof(Layout));
    mine = created.status();
    if (created.ok()) {
      made = *std::move(created);
      auto* const layout = reinterpret_cast<Layout*>(made.data());
      layout->token = RandomToken();
      name = absl::StrCat(getpid(), " ", made.descriptor(), " ", layout->token);
    }
  }
  LOCKSTEP_RETURN_IF_ERROR(BroadcastBytes(host, &name, Rank(0)));
  std::shared_ptr<IpcPage> page;
  if (!name.empty()) {
    absl::StatusOr<std::shared_ptr<IpcPage>> opened = Open(name, device);
    mine = opened.status();
    if (opened.ok()) {
      page = *std::move(opened);
      page->layout().inboxes[host->rank().value()].process.store(getpid(), std::memory_order_relaxed);
    }
  }
  // Also what rank 0 waits for before it closes its descriptor.
  LOCKSTEP_RETURN_IF_ERROR(AgreeThatAllCan(host, mine));
  return page;
}

std::atomic<uint32_t>* IpcPage::ready(int to, int from) const { return &layout().inboxes[to].ready[from]; }
std::atomic<uint32_t>* IpcPage::done(int to, int from) const { return &layout().inboxes[to].done[from]; }
std::atomic<uint32_t>* IpcPage::trial(int rank) const { return &layout().inboxes[rank].trial; }
std::atomic<uint32_t>* IpcPage::left(int memory) const { return &layout().left[memory]; }

int IpcPage::CompareCall(int rank, int size, uint64_t number, uint32_t hash) {
  const size_t slot = number % kCallsKept;
  const uint64_t mine = uint64_t{hash} << kNumberBits | (number & kNumberMask);
  // Sequentially consistent, so that of two ranks at least one sees what the other has stored.
  layout().calls[rank][slot].store(mine);
  for (int other = 0; other < size; ++other) {
    const uint64_t told = layout().calls[other][slot].load();
    // Of an earlier call, or of a later one: there is nothing to compare.
    if ((told & kNumberMask) != (mine & kNumberMask) || told == mine) continue;
    return other;
  }
  return -1;
}

pid_t IpcPage::process(int rank) const { return layout().inboxes[rank].process.load(std::memory_order_relaxed); }

bool IpcPage::HasEnded(int rank) const { return kill(process(rank), 0) != 0 && errno == ESRCH; }

void IpcPage::TellFailure(const absl::Status& status) {
  Layout& page = layout();
  uint32_t none = Layout::kNone;
  if (!page.failure.compare_exchange_strong(none, Layout::kBeingWritten)) return;
  page.failure_code = static_cast<int32_t>(status.code());
  // The page began as zeros.
  ToText(GetErrorInfo(status)).copy(page.failure_info.data(), page.failure_info.size() - 1);
  const size_t bytes = std::min(status.message().size(), page.failure_text.size() - 1);
  std::memcpy(page.failure_text.data(), status.message().data(), bytes);
  page.failure.store(Layout::kTold, std::memory_order_release);
}

absl::Status IpcPage::failure() const {
  const Layout& page = layout();
  uint32_t state = page.failure.load(std::memory_order_acquire);
  // Some hundred bytes are being copied there, unless who does so was stopped.
  for (const Deadline deadline = Deadline::After(kWritingTime); state == Layout::kBeingWritten && !deadline.passed();) {
    std::this_thread::yield();
    state = page.failure.load(std::memory_order_acquire);
  }
  if (state == Layout::kNone) return absl::OkStatus();
  if (state == Layout::kBeingWritten) return absl::AbortedError("another rank of this host has failed");
  return WithErrorInfo(absl::Status(static_cast<absl::StatusCode>(page.failure_code), page.failure_text.data()),
                       ErrorInfoFromText(page.failure_info.data()));
}

}  // namespace lockstep
