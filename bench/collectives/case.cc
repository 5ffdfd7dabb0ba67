#include "bench/collectives/case.h"

#include <stdlib.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/deadline.h"
#include "base/status.h"

namespace lockstep {
namespace bench {
namespace {

constexpr size_t kPageBytes = 4096;

// In no input and no result: none is negative, and none is as large.
constexpr unsigned char kWrongByte = 0xFB;

std::vector<Operation> AllOperations() {
  std::vector<Operation> all;
  for (const bool unequal : {false, true}) {
    for (int i = 0; i < kCollectiveCount; ++i) {
      Operation operation;
      operation.collective = static_cast<Collective>(i);
      operation.unequal = unequal;
      if (!unequal || operation.has_blocks()) all.push_back(operation);
    }
  }
  all.emplace_back().messages = true;
  return all;
}

}  // namespace

std::string Name(const Operation& operation) {
  if (operation.messages) return "send_receive";
  return absl::StrCat(Name(operation.collective), operation.unequal ? "_v" : "");
}

absl::StatusOr<std::vector<Operation>> ParseOperations(absl::string_view text) {
  const std::vector<Operation> all = AllOperations();
  if (text == "all") return all;
  std::vector<Operation> chosen;
  for (const absl::string_view name : absl::StrSplit(text, ',')) {
    const size_t before = chosen.size();
    for (const Operation& operation : all) {
      if (Name(operation) == name) chosen.push_back(operation);
    }
    if (chosen.size() == before) {
      return absl::InvalidArgumentError(absl::StrCat(
          "no collective '", name, "'; known are all, ",
          absl::StrJoin(all, ", ", [](std::string* out, const Operation& some) { out->append(Name(some)); })));
    }
  }
  return chosen;
}

std::vector<int64_t> BlockCounts(int64_t count, int ranks, bool unequal) {
  std::vector<int64_t> counts(ranks);
  const int64_t parts = unequal ? int64_t{ranks} * (ranks + 1) / 2 : ranks;
  for (int rank = 0; rank < ranks; ++rank) counts[rank] = count / parts * (unequal ? rank + 1 : 1);
  counts.back() += count - std::accumulate(counts.begin(), counts.end(), int64_t{0});
  return counts;
}

double AlgorithmBandwidth(int64_t bytes, double seconds) {
  return seconds > 0 ? static_cast<double>(bytes) / seconds / 1e9 : 0;
}

double BusFactor(const Operation& operation, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  if (operation.messages) return 1;
  switch (operation.collective) {
    case Collective::kAllReduce:
      return 2 * others;
    case Collective::kAllGather:
    case Collective::kReduceScatter:
    case Collective::kGather:
    case Collective::kScatter:
    case Collective::kAllToAll:
      return others;
    case Collective::kBroadcast:
    case Collective::kReduce:
    case Collective::kBarrier:
      break;
  }
  return 1;
}

void Memory::Free::operator()(char* memory) const { free(memory); }

absl::StatusOr<Memory> Memory::Create(int vectors, size_t vector_bytes) {
  Memory memory;
  memory.vector_bytes_ = std::max(vector_bytes, kPageBytes);
  for (int i = 0; i < vectors; ++i) {
    void* allocated = nullptr;
    if (posix_memalign(&allocated, kPageBytes, memory.vector_bytes_) != 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no memory for ", vectors, " vectors of ", memory.vector_bytes_, " bytes"));
    }
    memory.ordinary_.emplace_back(static_cast<char*>(allocated));
    memory.vectors_.push_back(static_cast<char*>(allocated));
    std::memset(allocated, 0, memory.vector_bytes_);
  }
  return memory;
}

absl::StatusOr<Memory> Memory::Allocate(Communicator* communicator, int vectors, size_t vector_bytes) {
  Memory memory;
  memory.vector_bytes_ = std::max(vector_bytes, kPageBytes);
  for (int i = 0; i < vectors; ++i) {
    LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<SymmetricBuffer> buffer, communicator->Allocate(memory.vector_bytes_));
    memory.vectors_.push_back(buffer->data());
    std::memset(buffer->data(), 0, memory.vector_bytes_);
    memory.allocated_.push_back(std::move(buffer));
  }
  return memory;
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

int Case::VectorsFor(const CaseKind& kind) { return std::max(kind.in_flight, 1) * (kind.in_place ? 1 : 2); }

Case::Case(const CaseKind& kind, const CaseSize& size, Communicator* communicator, const Pattern* pattern,
           Memory* memory)
    : kind_(kind),
      size_(size),
      communicator_(communicator),
      pattern_(pattern),
      counts_(BlockCounts(static_cast<int64_t>(size.count), communicator->size(), kind.operation.unequal)) {
  LOCKSTEP_CHECK(memory->vectors() >= VectorsFor(kind));
  LOCKSTEP_CHECK(memory->vector_bytes() >= size.bytes);
  const Operation& operation = kind_.operation;
  const size_t own_offset = OwnBlock().begin * SizeOf(kind_.dtype);
  for (int rank = 0; rank < communicator_->size(); ++rank) {
    pair_counts_.push_back(PairCount(communicator_->rank().value(), rank));
  }
  for (int i = 0; i < std::max(kind_.in_flight, 1); ++i) {
    Place place;
    if (kind_.in_place) {
      place.input = place.output = memory->vector(i);
      if (operation.is(Collective::kAllGather) || operation.is(Collective::kGather)) place.input += own_offset;
      if (operation.is(Collective::kReduceScatter) || operation.is(Collective::kScatter)) place.output += own_offset;
    } else {
      place.input = memory->vector(2 * i);
      place.output = memory->vector(2 * i + 1);
    }
    places_.push_back(place);
    CollectiveRequest request;
    request.collective = operation.collective;
    request.dtype = kind_.dtype;
    request.op = kind_.op;
    request.root = kind_.root;
    request.count = size_.count;
    if (operation.unequal && operation.is(Collective::kAllToAll)) {
      request.counts = request.output_counts = pair_counts_;
    } else if (operation.unequal) {
      request.counts = counts_;
    }
    request.input = place.input;
    request.output = place.output;
    request.factor = Pattern::kFactor;
    request.algorithm = kind_.algorithm;
    requests_.push_back(request);
  }
}

Case::Part Case::OwnBlock() const {
  const int rank = communicator_->rank().value();
  return {std::accumulate(counts_.begin(), counts_.begin() + rank, int64_t{0}), static_cast<size_t>(counts_[rank])};
}

Case::Part Case::PartOf(Buffer buffer) const {
  const bool input = buffer == Buffer::kInput;
  const Part whole = {0, size_.count};
  const Part at_root = {0, communicator_->rank() == kind_.root ? size_.count : 0};
  if (kind_.operation.messages) return whole;
  switch (kind_.operation.collective) {
    case Collective::kBroadcast:
      return input ? at_root : whole;
    case Collective::kReduce:
      return input ? whole : at_root;
    case Collective::kAllGather:
      return input ? OwnBlock() : whole;
    case Collective::kReduceScatter:
      return input ? whole : OwnBlock();
    case Collective::kGather:
      return input ? OwnBlock() : at_root;
    case Collective::kScatter:
      return input ? at_root : OwnBlock();
    case Collective::kAllReduce:
    case Collective::kAllToAll:
    case Collective::kBarrier:
      break;
  }
  return whole;
}

void Case::Fill() {
  const Part input = PartOf(Buffer::kInput);
  const Part output = PartOf(Buffer::kOutput);
  for (const Place& place : places_) {
    std::memset(place.output, kWrongByte, output.count * SizeOf(kind_.dtype));
    pattern_->FillInput(communicator_->rank(), input.begin, place.input, input.count);
  }
}

absl::Status Case::Run(int64_t calls) {
  if (kind_.prepared) return RunPrepared(calls);
  if (kind_.grouped) return RunGroups(calls);
  if (kind_.in_flight > 0) return RunInFlight(calls);
  for (int64_t i = 0; i < calls; ++i) LOCKSTEP_RETURN_IF_ERROR(RunOne());
  return absl::OkStatus();
}

// The operation's own deadline bounds every wait, here and below.
absl::Status Case::RunOne() {
  if (!kind_.operation.messages) return communicator_->Run(requests_[0]);
  LOCKSTEP_ASSIGN_OR_RETURN(Work receive, StartReceive(0));
  LOCKSTEP_RETURN_IF_ERROR(communicator_->Send(Outgoing(0)));
  return receive.Wait(Deadline::Infinite());
}

absl::Status Case::RunInFlight(int64_t calls) {
  std::deque<Work> flying;
  for (int64_t i = 0; i < calls; ++i) {
    if (flying.size() == places_.size()) {
      LOCKSTEP_RETURN_IF_ERROR(flying.front().Wait(Deadline::Infinite()));
      flying.pop_front();
    }
    LOCKSTEP_ASSIGN_OR_RETURN(Work work, Start(i % places_.size()));
    flying.push_back(std::move(work));
  }
  for (Work& work : flying) LOCKSTEP_RETURN_IF_ERROR(work.Wait(Deadline::Infinite()));
  return absl::OkStatus();
}

absl::Status Case::RunGroups(int64_t calls) {
  while (calls > 0) {
    const int64_t together = std::min(calls, static_cast<int64_t>(places_.size()));
    LOCKSTEP_RETURN_IF_ERROR(communicator_->StartGroup());
    for (int64_t place = 0; place < together; ++place) LOCKSTEP_RETURN_IF_ERROR(Start(place).status());
    LOCKSTEP_ASSIGN_OR_RETURN(Work group, communicator_->EndGroup());
    LOCKSTEP_RETURN_IF_ERROR(group.Wait(Deadline::Infinite()));
    calls -= together;
  }
  return absl::OkStatus();
}

absl::Status Case::RunPrepared(int64_t calls) {
  while (prepared_.size() < requests_.size()) {
    LOCKSTEP_ASSIGN_OR_RETURN(prepared_.emplace_back(), communicator_->Prepare(requests_[prepared_.size()]));
  }
  for (int64_t i = 0; i < calls; ++i) {
    PreparedCollective& next = *prepared_[i % prepared_.size()];
    if (kind_.in_flight == 0) {
      LOCKSTEP_RETURN_IF_ERROR(next.Run());
    } else {
      LOCKSTEP_RETURN_IF_ERROR(next.Wait(Deadline::Infinite()));
      LOCKSTEP_RETURN_IF_ERROR(next.Start());
    }
  }
  for (const auto& collective : prepared_) LOCKSTEP_RETURN_IF_ERROR(collective->Wait(Deadline::Infinite()));
  return absl::OkStatus();
}

absl::StatusOr<Work> Case::Start(size_t place) {
  if (!kind_.operation.messages) return communicator_->Start(requests_[place]);
  LOCKSTEP_RETURN_IF_ERROR(communicator_->StartGroup());
  LOCKSTEP_RETURN_IF_ERROR(StartReceive(place).status());
  LOCKSTEP_RETURN_IF_ERROR(communicator_->StartSend(Outgoing(place)).status());
  return communicator_->EndGroup();
}

absl::StatusOr<Work> Case::StartReceive(size_t place) {
  ReceiveRequest request;
  request.source = PreviousRank();
  request.tag = static_cast<int64_t>(place);
  request.data = places_[place].output;
  request.bytes = static_cast<size_t>(size_.bytes);
  return communicator_->StartReceive(request);
}

SendRequest Case::Outgoing(size_t place) const {
  SendRequest request;
  request.target = Rank((communicator_->rank().value() + 1) % communicator_->size());
  request.tag = static_cast<int64_t>(place);
  request.data = places_[place].input;
  request.bytes = static_cast<size_t>(size_.bytes);
  return request;
}

Rank Case::PreviousRank() const {
  return Rank((communicator_->rank().value() + communicator_->size() - 1) % communicator_->size());
}

uint64_t Case::CountWrong() const {
  const Place& place = places_[0];
  const Part input = PartOf(Buffer::kInput);
  uint64_t wrong = 0;
  if (!kind_.in_place) {
    wrong += pattern_->CountWrongInput(communicator_->rank(), input.begin, place.input, input.count);
  }
  return wrong + CountWrongOutput();
}

uint64_t Case::CountWrongOutput() const {
  const char* const data = places_[0].output;
  const Part output = PartOf(Buffer::kOutput);
  if (kind_.operation.messages) return pattern_->CountWrongInput(PreviousRank(), 0, data, output.count);
  const size_t element_bytes = SizeOf(kind_.dtype);
  uint64_t wrong = 0;
  int64_t begin = 0;
  switch (kind_.operation.collective) {
    case Collective::kBroadcast:
    case Collective::kScatter:
      return pattern_->CountWrongInput(kind_.root, output.begin, data, output.count);
    case Collective::kGather:
      if (communicator_->rank() != kind_.root) return 0;
      [[fallthrough]];
    case Collective::kAllGather:
      for (int rank = 0; rank < communicator_->size(); begin += counts_[rank++]) {
        wrong += pattern_->CountWrongInput(Rank(rank), begin, data + begin * element_bytes, counts_[rank]);
      }
      return wrong;
    case Collective::kAllToAll:
      for (int rank = 0; rank < communicator_->size(); begin += pair_counts_[rank++]) {
        int64_t begin_there = 0;
        for (int before = 0; before < communicator_->rank().value(); ++before) begin_there += PairCount(rank, before);
        wrong += pattern_->CountWrongInput(Rank(rank), begin_there, data + begin * element_bytes, pair_counts_[rank]);
      }
      return wrong;
    case Collective::kAllReduce:
    case Collective::kReduce:
    case Collective::kReduceScatter:
    case Collective::kBarrier:
      break;
  }
  return pattern_->CountWrongResult(output.begin, data, output.count);
}

absl::StatusOr<Measurement> Measure(const ProcessGroup& group, const MeasureOptions& options, Case* measured) {
  const auto calls = [measured](int64_t count) { return measured->Run(count); };
  Measurement measurement;
  measured->Fill();
  LOCKSTEP_ASSIGN_OR_RETURN(measurement.iterations, WarmUp(group, options, calls));
  std::vector<double> rounds;
  for (int round = 0; round < options.rounds; ++round) {
    LOCKSTEP_ASSIGN_OR_RETURN(const double seconds, TimeRound(group, measurement.iterations, calls));
    rounds.push_back(seconds);
  }
  measurement.seconds = Median(rounds);
  measured->Fill();
  LOCKSTEP_RETURN_IF_ERROR(measured->Run(1));
  LOCKSTEP_ASSIGN_OR_RETURN(measurement.wrong, group.Sum(measured->CountWrong()));
  return measurement;
}

}  // namespace bench
}  // namespace lockstep
