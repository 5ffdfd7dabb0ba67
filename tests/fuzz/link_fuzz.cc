// Messages on a byte stream, as links of TCP and loopback read them: any bytes, in pieces of any length, against receives that expect
// something.
//
//   input   = receives:u8 { receive } cut:u8 ending:u8 stream
//   receive = kind:u8 bytes:u16            kind: bit 0 reduced, bit 1 another envelope

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "base/types/reduction.h"
#include "tests/fuzz/fuzz.h"
#include "transport/link/link.h"
#include "transport/loopback/loopback.h"
#include "transport/net/little_endian.h"

namespace lockstep {
namespace {

using Code = absl::StatusCode;

constexpr size_t kReceivesMax = 8;
constexpr size_t kStagingBytes = 256;

Envelope EnvelopeOf(uint8_t kind) {
  Envelope envelope = {'f', 'u', 'z', 'z'};
  envelope[31] = kind & 2;
  return envelope;
}

// Gives the bytes in pieces, and says before each piece that none is there.
class CutStream final : public ByteStream {
 public:
  CutStream(absl::string_view bytes, size_t cut, ssize_t ending) : bytes_(bytes), cut_(cut), ending_(ending) {}

  ssize_t Write(const iovec*, int) override { return -EPIPE; }
  ssize_t Read(const iovec* pieces, int count) override {
    if (bytes_.empty()) return ending_;
    if (dry_ = !dry_; dry_) return -EAGAIN;
    size_t read = 0;
    for (int i = 0; i < count && read < cut_; ++i) {
      const size_t bytes = std::min({pieces[i].iov_len, cut_ - read, bytes_.size()});
      if (bytes > 0) std::memcpy(pieces[i].iov_base, bytes_.data(), bytes);
      bytes_.remove_prefix(bytes);
      read += bytes;
    }
    return static_cast<ssize_t>(read);
  }

 private:
  absl::string_view bytes_;
  const size_t cut_;
  const ssize_t ending_;
  bool dry_ = false;
};

// Sums that wrap around.
void Add(void* target, const void* operand, const void* arriving, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    uint32_t a;
    uint32_t b;
    std::memcpy(&a, static_cast<const char*>(operand) + 4 * i, 4);
    std::memcpy(&b, static_cast<const char*>(arriving) + 4 * i, 4);
    a += b;
    std::memcpy(static_cast<char*>(target) + 4 * i, &a, 4);
  }
}
const Reduction kAdd = {DType::kU32, ReduceOp::kSum, &Add};

struct Receive {
  Operation operation;  // the first member
  uint8_t kind = 0;
  std::vector<char> memory;
  int completions = 0;
  absl::Status status;

  static void OnComplete(Operation* operation, const absl::Status& status) {
    auto* const self = reinterpret_cast<Receive*>(operation);
    ++self->completions;
    self->status = status;
  }
};

std::string Message(uint8_t kind, absl::string_view payload) {
  unsigned char header[kMessageHeaderBytes];
  EncodeMessageHeader({payload.size(), EnvelopeOf(kind)}, header);
  return absl::StrCat(absl::string_view(reinterpret_cast<const char*>(header), kMessageHeaderBytes), payload);
}

}  // namespace

std::vector<std::string> fuzz::Seeds() {
  std::vector<std::string> seeds;
  for (const uint8_t cut : {1, 7, 50, 255}) {
    std::string input(1, 4);
    std::string stream;
    const std::vector<std::pair<uint8_t, size_t>> receives = {{0, 5}, {1, 1000}, {2, 0}, {1, 2000}};
    for (const auto& [kind, bytes] : receives) {
      AppendLittleEndian(&input, kind, static_cast<uint16_t>(bytes));
      stream += Message(kind, std::string(bytes, 'x'));
    }
    AppendLittleEndian(&input, cut, uint8_t{1});
    seeds.push_back(input + stream);
  }
  return seeds;
}

}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;  // NOLINT: nothing else is here
  static LoopbackNetwork network(2);
  static const std::unique_ptr<Transport> transport = network.CreateTransport(Rank(0));

  fuzz::Input input(data, size);
  std::deque<Receive> receives(input.Take<uint8_t>() % (kReceivesMax + 1));
  std::vector<unsigned char> staging(kStagingBytes);
  PeerCounters counters;
  Link link(transport.get(), Link::Direction::kReceive, Rank(1), 7, &counters, {staging.data(), staging.size()});
  for (Receive& receive : receives) {
    receive.kind = input.Take<uint8_t>();
    const bool reduced = receive.kind & 1;
    // A reduction is of whole elements.
    receive.memory.resize(input.Take<uint16_t>() % 4096 / (reduced ? 4 : 1) * (reduced ? 4 : 1));
    Sink sink;
    sink.target = receive.memory.data();
    sink.bytes = receive.memory.size();
    sink.operand = receive.memory.data();
    sink.reduction = reduced ? &kAdd : nullptr;
    receive.operation.complete = &Receive::OnComplete;
    FillReceive(&receive.operation, Rank(1), 7, EnvelopeOf(receive.kind), sink);
    link.Post(&receive.operation);
  }
  const size_t cut = std::max<size_t>(input.Take<uint8_t>(), 1);
  const ssize_t ending = input.Take<uint8_t>() % 2 == 0 ? -ECONNRESET : 0;
  absl::string_view stream = input.Rest();
  const fuzz::Allocations allocations;
  link.Open(std::make_unique<CutStream>(stream, cut, ending));
  while (link.pending()) {
    int64_t budget = 1 << 20;
    link.MarkReady();
    (void)link.Advance(&budget);
  }
  // Texts of errors; whatever a message's header announces.
  LOCKSTEP_CHECK(allocations.bytes() <= 16384) << allocations.bytes() << " bytes allocated for " << size;

  bool broken = false;
  for (const Receive& receive : receives) {
    LOCKSTEP_CHECK(receive.completions == 1) << receive.completions << " completions";
    fuzz::CheckCode(receive.status, {Code::kFailedPrecondition, Code::kDataLoss, Code::kUnavailable});
    LOCKSTEP_CHECK(!broken || !receive.status.ok()) << "a message behind the end of its channel";
    broken |= !receive.status.ok();
    if (broken) continue;
    // Each element of a reduction began as zero: what is there is what arrived.
    const std::string expected = Message(receive.kind, {receive.memory.data(), receive.memory.size()});
    LOCKSTEP_CHECK(stream.substr(0, expected.size()) == expected) << "this message did not arrive";
    stream.remove_prefix(expected.size());
  }
  return 0;
}
