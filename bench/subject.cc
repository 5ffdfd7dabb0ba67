#include "bench/subject.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>

#include "base/check.h"
#include "base/deadline.h"
#include "base/status.h"
#include "comm/work.h"

namespace lockstep {
namespace bench {
namespace {

// In no input and no result: none is negative, and none is as large.
constexpr unsigned char kWrongByte = 0xFB;

}  // namespace

SubjectSize SizeOfSubject(const SubjectKind& kind, int ranks, int64_t bytes) {
  SubjectSize size;
  if (kind.collective == Collective::kBarrier) return size;
  const size_t element_bytes = SizeOf(kind.dtype);
  size.count = static_cast<size_t>(bytes) / element_bytes;
  if (IsByRank(kind.collective)) size.count -= size.count % ranks;
  size.own_count = IsByRank(kind.collective) ? size.count / ranks : size.count;
  size.bytes = static_cast<int64_t>(size.count * element_bytes);
  return size;
}

int Subject::VectorsFor(const SubjectKind& kind) { return std::max(kind.in_flight, 1) * (kind.in_place ? 1 : 2); }

Subject::Subject(const SubjectKind& kind, const SubjectSize& size, Communicator* communicator, const Pattern* pattern,
                 Memory* memory)
    : kind_(kind), size_(size), communicator_(communicator), pattern_(pattern) {
  LOCKSTEP_CHECK(memory->vectors() >= VectorsFor(kind));
  LOCKSTEP_CHECK(memory->vector_bytes() >= size.bytes);
  const size_t own_offset = size_.own_count * SizeOf(kind_.dtype) * communicator_->rank().value();
  for (int i = 0; i < std::max(kind_.in_flight, 1); ++i) {
    Place place;
    if (kind_.in_place) {
      place.input = place.output = memory->vector(i);
      if (kind_.collective == Collective::kAllGather || kind_.collective == Collective::kGather) {
        place.input += own_offset;
      }
      if (kind_.collective == Collective::kReduceScatter || kind_.collective == Collective::kScatter) {
        place.output += own_offset;
      }
    } else {
      place.input = memory->vector(2 * i);
      place.output = memory->vector(2 * i + 1);
    }
    places_.push_back(place);
    CollectiveRequest request;
    request.collective = kind_.collective;
    request.dtype = kind_.dtype;
    request.op = kind_.op;
    request.root = kind_.root;
    request.count = size_.count;
    request.input = place.input;
    request.output = place.output;
    request.factor = Pattern::kFactor;
    request.algorithm = kind_.algorithm;
    requests_.push_back(request);
  }
}

Subject::Part Subject::InputPart() const {
  const int64_t own_begin = static_cast<int64_t>(size_.own_count) * communicator_->rank().value();
  switch (kind_.collective) {
    case Collective::kBroadcast:
    case Collective::kScatter:
      return {0, communicator_->rank() == kind_.root ? size_.count : 0};
    case Collective::kAllGather:
    case Collective::kGather:
      return {own_begin, size_.own_count};
    case Collective::kAllReduce:
    case Collective::kReduce:
    case Collective::kReduceScatter:
    case Collective::kAllToAll:
    case Collective::kBarrier:
      break;
  }
  return {0, size_.count};
}

Subject::Part Subject::OutputPart() const {
  const int64_t own_begin = static_cast<int64_t>(size_.own_count) * communicator_->rank().value();
  switch (kind_.collective) {
    case Collective::kReduce:
    case Collective::kGather:
      return {0, communicator_->rank() == kind_.root ? size_.count : 0};
    case Collective::kReduceScatter:
    case Collective::kScatter:
      return {own_begin, size_.own_count};
    case Collective::kAllReduce:
    case Collective::kBroadcast:
    case Collective::kAllGather:
    case Collective::kAllToAll:
    case Collective::kBarrier:
      break;
  }
  return {0, size_.count};
}

void Subject::Fill() {
  const Part input = InputPart();
  const Part output = OutputPart();
  for (const Place& place : places_) {
    std::memset(place.output, kWrongByte, output.count * SizeOf(kind_.dtype));
    pattern_->FillInput(communicator_->rank(), input.begin, place.input, input.count);
  }
}

absl::Status Subject::Run(int64_t calls) {
  if (kind_.in_flight == 0) {
    for (int64_t i = 0; i < calls; ++i) LOCKSTEP_RETURN_IF_ERROR(communicator_->Run(requests_[0]));
    return absl::OkStatus();
  }
  // The operation's own deadline bounds every wait.
  std::deque<Work> flying;
  for (int64_t i = 0; i < calls; ++i) {
    if (flying.size() == requests_.size()) {
      LOCKSTEP_RETURN_IF_ERROR(flying.front().Wait(Deadline::Infinite()));
      flying.pop_front();
    }
    LOCKSTEP_ASSIGN_OR_RETURN(Work work, communicator_->Start(requests_[i % requests_.size()]));
    flying.push_back(std::move(work));
  }
  for (Work& work : flying) LOCKSTEP_RETURN_IF_ERROR(work.Wait(Deadline::Infinite()));
  return absl::OkStatus();
}

uint64_t Subject::CountWrong() const {
  const Place& place = places_[0];
  const Part input = InputPart();
  const Part output = OutputPart();
  uint64_t wrong = 0;
  if (!kind_.in_place) {
    wrong += pattern_->CountWrongInput(communicator_->rank(), input.begin, place.input, input.count);
  }
  switch (kind_.collective) {
    case Collective::kBroadcast:
    case Collective::kScatter:
      return wrong + pattern_->CountWrongInput(kind_.root, output.begin, place.output, output.count);
    case Collective::kGather:
      if (communicator_->rank() != kind_.root) return wrong;
      [[fallthrough]];
    case Collective::kAllGather:
      for (int rank = 0; rank < communicator_->size(); ++rank) {
        const int64_t begin = static_cast<int64_t>(size_.own_count) * rank;
        wrong +=
            pattern_->CountWrongInput(Rank(rank), begin, place.output + begin * SizeOf(kind_.dtype), size_.own_count);
      }
      return wrong;
    case Collective::kAllToAll: {
      const int64_t own_begin = static_cast<int64_t>(size_.own_count) * communicator_->rank().value();
      for (int rank = 0; rank < communicator_->size(); ++rank) {
        const int64_t block_begin = static_cast<int64_t>(size_.own_count) * rank;
        wrong += pattern_->CountWrongInput(Rank(rank), own_begin, place.output + block_begin * SizeOf(kind_.dtype),
                                           size_.own_count);
      }
      return wrong;
    }
    case Collective::kAllReduce:
    case Collective::kReduce:
    case Collective::kReduceScatter:
    case Collective::kBarrier:
      break;
  }
  return wrong + pattern_->CountWrongResult(output.begin, place.output, output.count);
}

}  // namespace bench
}  // namespace lockstep
