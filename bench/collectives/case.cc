#include "bench/collectives/case.h"

#include <stdlib.h>

#include <algorithm>
#include <complex>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/deadline.h"
#include "base/status.h"
#include "base/types/bfloat16.h"
#include "base/types/float16.h"
#include "base/types/float8.h"
#include "base/types/reduce_op.h"
#include "comm/symmetric_buffer.h"
#include "comm/work.h"

namespace lockstep::bench {
namespace {

constexpr size_t kPageBytes = 4096;

// In no input and no result: none is negative, and none is as large.
constexpr unsigned char kWrongByte = 0xFB;

// One rank's element, from 0 on, and such that the sum over all ranks is exact in the dtype: `max` at most.
int64_t Summand(int64_t index, int rank, int ranks, int64_t max) {
  // Squares, because a linear sequence would repeat after max + 1 elements, which may be a power of two.
  if (const int64_t each_max = max / ranks; each_max > 0) return (index * index + 7 * rank) % 1009 % (each_max + 1);
  // More ranks than that: most have 0.
  return (index + rank) % ((ranks + max - 1) / max) == 0 ? 1 : 0;
}

// All integers from 0 to this are elements of the dtype.
int64_t ExactIntegersMax(DType dtype) {
  if (dtype == DType::kBool) return 1;
  // Of integers as many as the smallest signed one has, and of all the wider ones as many as a float.
  const int64_t float32_max = FormatOf(DType::kF32).whole_max();
  if (!IsFloat(dtype)) return SizeOf(dtype) == 1 ? 127 : SizeOf(dtype) == 2 ? 32767 : float32_max;
  return std::min(FormatOf(dtype).whole_max(), float32_max);
}

template <typename T>
void Store(T value, void* target) {
  std::memcpy(target, &value, sizeof(value));
}

void StoreElement(DType dtype, int64_t value, void* target) {
  const float real = static_cast<float>(value);
  switch (dtype) {
#define LOCKSTEP_DTYPE_INTEGER(number, id, name, Type) \
  case DType::k##id:                                   \
    return Store(static_cast<Type>(value), target);
#define LOCKSTEP_DTYPE_BOOL(...) LOCKSTEP_DTYPE_INTEGER(__VA_ARGS__)
#define LOCKSTEP_DTYPE_NARROW(number, id, name, Type, ...) \
  case DType::k##id:                                       \
    return Store(Type(real), target);
#define LOCKSTEP_DTYPE_FLOAT(number, id, name, Type, ...) \
  case DType::k##id:                                      \
    return Store(static_cast<Type>(value), target);
#define LOCKSTEP_DTYPE_COMPLEX(number, id, name, Part, part) \
  case DType::k##id:                                         \
    return Store(std::complex<Part>(static_cast<Part>(value)), target);
#include "base/types/dtypes.inc"
  }
}

}  // namespace

std::string Name(const Operation& operation) {
  return operation.messages ? "send_receive" : Name(operation.collective);
}

absl::StatusOr<std::vector<Operation>> ParseOperations(absl::string_view text) {
  std::vector<Operation> all;
  for (int i = 0; i < kCollectiveCount; ++i) all.push_back({static_cast<Collective>(i)});
  all.emplace_back().messages = true;
  if (text == "all") return all;
  std::vector<Operation> chosen;
  for (const absl::string_view name : absl::StrSplit(text, ',')) {
    const auto found = std::find_if(all.begin(), all.end(), [&](const Operation& some) { return Name(some) == name; });
    if (found == all.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "no collective '", name, "'; known are all, ",
          absl::StrJoin(all, ", ", [](std::string* out, const Operation& some) { out->append(Name(some)); })));
    }
    chosen.push_back(*found);
  }
  return chosen;
}

double BusFactor(const Operation& operation, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  if (operation.is(Collective::kAllReduce)) return 2 * others;
  return operation.has_blocks() ? others : 1;
}

absl::StatusOr<std::shared_ptr<char>> MakeVector(size_t bytes, Communicator* allocator) {
  bytes = std::max(bytes, kPageBytes);
  std::shared_ptr<char> vector;
  if (allocator != nullptr) {
    LOCKSTEP_ASSIGN_OR_RETURN(std::shared_ptr<SymmetricBuffer> buffer, allocator->Allocate(bytes));
    vector = std::shared_ptr<char>(buffer, buffer->data());
  } else {
    void* memory = nullptr;
    if (posix_memalign(&memory, kPageBytes, bytes) != 0) {
      return absl::ResourceExhaustedError(absl::StrCat("no memory for a vector of ", bytes, " bytes"));
    }
    vector = std::shared_ptr<char>(static_cast<char*>(memory), &free);
  }
  std::memset(vector.get(), 0, bytes);  // touched before anything is timed
  return vector;
}

Pattern::Pattern(DType dtype, int ranks) : element_bytes_(SizeOf(dtype)) {
  const int64_t max = ExactIntegersMax(dtype);
  std::vector<int64_t> sums(kPeriod);
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<int64_t> values(kPeriod);
    for (int64_t i = 0; i < kPeriod; ++i) {
      values[i] = Summand(i, rank, ranks, max);
      // bool's sum is or: more than 1 is 1.
      sums[i] = std::min(sums[i] + values[i], max);
    }
    inputs_.push_back(MakeTile(dtype, values));
  }
  sum_ = MakeTile(dtype, sums);
}

Pattern::Tile Pattern::MakeTile(DType dtype, const std::vector<int64_t>& values) {
  Tile tile(2 * kPeriod * SizeOf(dtype));
  for (int64_t i = 0; i < 2 * kPeriod; ++i) StoreElement(dtype, values[i % kPeriod], tile.data() + i * SizeOf(dtype));
  return tile;
}

void Pattern::FillInput(Rank rank, int64_t begin, void* target, size_t count) const {
  const char* const source = inputs_[rank.value()].data() + begin % kPeriod * element_bytes_;
  for (size_t done = 0; done < count; done += kPeriod) {
    const size_t elements = std::min<size_t>(kPeriod, count - done);
    std::memcpy(static_cast<char*>(target) + done * element_bytes_, source, elements * element_bytes_);
  }
}

uint64_t Pattern::CountWrong(const Tile& tile, int64_t begin, const void* data, size_t count) const {
  const char* const expected = tile.data() + begin % kPeriod * element_bytes_;
  uint64_t wrong = 0;
  for (size_t done = 0; done < count; done += kPeriod) {
    const size_t elements = std::min<size_t>(kPeriod, count - done);
    const char* const found = static_cast<const char*>(data) + done * element_bytes_;
    if (std::memcmp(found, expected, elements * element_bytes_) == 0) continue;
    for (size_t i = 0; i < elements; ++i) {
      if (std::memcmp(found + i * element_bytes_, expected + i * element_bytes_, element_bytes_) != 0) ++wrong;
    }
  }
  return wrong;
}

CaseSize SizeOfCase(const CaseKind& kind, int ranks, int64_t bytes) {
  CaseSize size;
  if (!kind.operation.has_data()) return size;
  const size_t element_bytes = SizeOf(kind.dtype);
  size.count = static_cast<size_t>(bytes) / element_bytes;
  if (kind.operation.has_blocks()) size.count -= size.count % ranks;
  size.own_count = kind.operation.has_blocks() ? size.count / ranks : size.count;
  size.bytes = static_cast<int64_t>(size.count * element_bytes);
  return size;
}

Case::Case(const CaseKind& kind, const CaseSize& size, Communicator* communicator, const Pattern* pattern, char* first,
           char* second)
    : kind_(kind),
      size_(size),
      communicator_(communicator),
      pattern_(pattern),
      block_(size.count / communicator->size()),
      input_(first),
      output_(kind.in_place ? first : second) {
  if (kind_.in_place) {
    input_ += PartOf(Window::kInput).begin * SizeOf(kind_.dtype);
    output_ += PartOf(Window::kOutput).begin * SizeOf(kind_.dtype);
  }
  request_.collective = kind_.operation.collective;
  request_.dtype = kind_.dtype;
  request_.op = ReduceOp::kSum;
  request_.root = kind_.root;
  request_.count = size_.count;
  request_.input = input_;
  request_.output = output_;
}

Case::Part Case::OwnBlock() const { return {static_cast<int64_t>(communicator_->rank().value() * block_), block_}; }

Case::Part Case::PartOf(Window window) const {
  const Operation& operation = kind_.operation;
  if (operation.has_blocks() && IsOwnBlock(operation.collective, window)) return OwnBlock();
  const bool root_gives = operation.is(Collective::kBroadcast) || operation.is(Collective::kScatter);
  const bool at_root_alone = operation.has_root() && root_gives == (window == Window::kInput);
  return {0, at_root_alone && communicator_->rank() != kind_.root ? 0 : size_.count};
}

void Case::Fill() {
  const Part input = PartOf(Window::kInput);
  std::memset(output_, kWrongByte, PartOf(Window::kOutput).count * SizeOf(kind_.dtype));
  pattern_->FillInput(communicator_->rank(), input.begin, input_, input.count);
}

absl::Status Case::Run(int64_t calls) {
  for (int64_t i = 0; i < calls; ++i) {
    LOCKSTEP_RETURN_IF_ERROR(kind_.operation.messages ? RunMessages() : communicator_->Run(request_));
  }
  return absl::OkStatus();
}

absl::Status Case::RunMessages() {
  ReceiveRequest receive;
  receive.source = Neighbour(-1);
  receive.tag = 0;
  receive.data = output_;
  receive.bytes = static_cast<size_t>(size_.bytes);
  LOCKSTEP_ASSIGN_OR_RETURN(Work received, communicator_->StartReceive(receive));
  SendRequest send;
  send.target = Neighbour(1);
  send.data = input_;
  send.bytes = static_cast<size_t>(size_.bytes);
  LOCKSTEP_RETURN_IF_ERROR(communicator_->Send(send));
  // The operation's own deadline bounds the wait.
  return received.Wait(Deadline::Infinite());
}

Rank Case::Neighbour(int distance) const {
  const int size = communicator_->size();
  return Rank((communicator_->rank().value() + distance + size) % size);
}

uint64_t Case::CountWrong() const {
  uint64_t wrong = CountWrongOutput();
  if (!kind_.in_place) {
    const Part input = PartOf(Window::kInput);
    wrong += pattern_->CountWrongInput(communicator_->rank(), input.begin, input_, input.count);
  }
  return wrong;
}

uint64_t Case::CountWrongOutput() const {
  const Operation& operation = kind_.operation;
  const Part output = PartOf(Window::kOutput);
  if (operation.messages) return pattern_->CountWrongInput(Neighbour(-1), 0, output_, output.count);
  if (operation.is(Collective::kBroadcast) || operation.is(Collective::kScatter)) {
    return pattern_->CountWrongInput(kind_.root, output.begin, output_, output.count);
  }
  if (operation.reduces() || !operation.has_blocks()) {
    return pattern_->CountWrongSum(output.begin, output_, output.count);
  }
  if (output.count == 0) return 0;  // of a gather, on a rank that is not the root
  // Blocks of all ranks: each rank's own one, or from an all-to-all the one for this rank.
  uint64_t wrong = 0;
  for (int rank = 0; rank < communicator_->size(); ++rank) {
    const auto begin = static_cast<int64_t>(rank * block_);
    const int64_t begin_there = operation.is(Collective::kAllToAll) ? OwnBlock().begin : begin;
    wrong += pattern_->CountWrongInput(Rank(rank), begin_there, output_ + begin * SizeOf(kind_.dtype), block_);
  }
  return wrong;
}

}  // namespace lockstep::bench
