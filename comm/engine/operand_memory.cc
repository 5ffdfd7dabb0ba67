#include "comm/engine/operand_memory.h"

#include <algorithm>
#include <cstring>

#include "base/status.h"
#include "kernels/cpu/cast.h"

namespace lockstep {
namespace {

// A few of them fit in the first-level cache: a whole number of elements of every dtype.
constexpr size_t kBufferBytes = 8192;
// Of less than this, working where it lies costs more than going by way of a buffer, which joins it with its neighbours.
constexpr size_t kInPlaceBytesMin = 1024;

// The bytes, at most `bytes`, of which each of the operands is contiguous and plain; 0 if one of them is not.
size_t ContiguousBytes(absl::Span<const OperandMemory> operands, size_t done, size_t bytes) {
  for (const OperandMemory& operand : operands) {
    if (operand.pieces == nullptr || bytes == 0) continue;
    const Pieces::Run run = operand.pieces->At(operand.position + done);
    bytes = run.data == nullptr ? 0 : std::min(bytes, run.bytes);
  }
  return bytes;
}

char* AddressOf(const OperandMemory& operand, size_t done) {
  return operand.pieces == nullptr ? operand.data + done : operand.pieces->At(operand.position + done).data;
}

}  // namespace

char* OperandMemory::At(size_t bytes) const {
  if (pieces == nullptr) return data;
  const Pieces::Run run = pieces->At(position);
  return run.bytes >= bytes ? run.data : nullptr;
}

bool OperandMemory::ListRuns(size_t bytes, size_t max, std::vector<iovec>* runs) const {
  runs->clear();
  if (pieces != nullptr) return pieces->AppendRuns(position, bytes, max, runs);
  runs->push_back({data, bytes});
  return true;
}

void OperandSteps::Copy(const OperandMemory& target, const OperandMemory& source, size_t bytes) {
  if (source.pieces == nullptr && target.pieces == nullptr) {
    if (source.data != target.data) std::memcpy(target.data, source.data, bytes);
    return;
  }
  if (target.pieces == nullptr) return source.pieces->Read(source.position, bytes, target.data);
  if (source.pieces == nullptr) return target.pieces->Write(target.position, bytes, source.data);
  for (size_t done = 0, part = 0; done < bytes; done += part) {
    part = ContiguousBytes({source, target}, done, bytes - done);
    if (part > 0) {
      char* const to = AddressOf(target, done);
      const char* const from = AddressOf(source, done);
      if (from != to) std::memcpy(to, from, part);
      continue;
    }
    part = std::min(bytes - done, kBufferBytes);
    buffers_.resize(std::max(buffers_.size(), kBufferBytes));
    source.pieces->Read(source.position + done, part, buffers_.data());
    target.pieces->Write(target.position + done, part, buffers_.data());
  }
}

void OperandSteps::Reduce(const ExecutionPlan& plan, absl::Span<const OperandMemory> targets,
                          absl::Span<const OperandMemory> terms, size_t bytes) {
  buffers_.resize(std::max(buffers_.size(), (targets.size() + terms.size()) * kBufferBytes));
  for (size_t done = 0, part = 0; done < bytes; done += part) {
    part = ContiguousBytes(terms, done, ContiguousBytes(targets, done, bytes - done));
    const bool in_place = part >= std::min(kInPlaceBytesMin, bytes - done);
    if (!in_place) part = std::min(kBufferBytes, bytes - done);
    terms_.clear();
    targets_.clear();
    char* buffer = buffers_.data();
    for (const OperandMemory& term : terms) {
      if (in_place || term.pieces == nullptr) {
        terms_.push_back(AddressOf(term, done));
        continue;
      }
      term.pieces->Read(term.position + done, part, buffer);
      terms_.push_back(buffer);
      buffer += kBufferBytes;
    }
    for (const OperandMemory& target : targets) {
      const bool direct = in_place || target.pieces == nullptr;
      targets_.push_back(direct ? AddressOf(target, done) : buffer);
      if (!direct) buffer += kBufferBytes;
    }
    plan.ReduceMany(targets_.data(), targets_.size(), terms_.data(), terms_.size(), part / plan.element_bytes());
    if (in_place) continue;
    for (size_t k = 0; k < targets.size(); ++k) {
      if (targets[k].pieces == nullptr) continue;
      targets[k].pieces->Write(targets[k].position + done, part, static_cast<const char*>(targets_[k]));
    }
  }
}

absl::Status OperandSteps::Scale(DType dtype, const OperandMemory& target, const OperandMemory& source, size_t bytes,
                                 double factor) {
  buffers_.resize(std::max(buffers_.size(), kBufferBytes));
  for (size_t done = 0, part = 0; done < bytes; done += part) {
    part = ContiguousBytes({source, target}, done, bytes - done);
    const bool in_place = part > 0;
    if (!in_place) {
      part = std::min(bytes - done, kBufferBytes);
      Copy({buffers_.data()}, source + done, part);
    }
    char* const to = in_place ? AddressOf(target, done) : buffers_.data();
    const char* const from = in_place ? AddressOf(source, done) : to;
    LOCKSTEP_RETURN_IF_ERROR(kernels::Scale(dtype, to, from, part / SizeOf(dtype), factor));
    if (!in_place) Copy(target + done, {to}, part);
  }
  return absl::OkStatus();
}

}  // namespace lockstep
