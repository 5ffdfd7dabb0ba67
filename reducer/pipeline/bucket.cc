#include "reducer/pipeline/bucket.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/device/host_device.h"
#include "base/status.h"
#include "kernels/cpu/cast.h"
#include "kernels/cpu/flatten.h"

namespace lockstep {

TensorView DenseView(const Parameter& parameter, void* data) {
  auto view = TensorView::Create(data, parameter.dtype, parameter.shape, parameter.strides, parameter.device);
  if (view.ok() && view->dense()) return *std::move(view);
  return TensorView::Create(data, parameter.dtype, parameter.shape, {}, parameter.device).value();
}

Bucket::Bucket(const BucketPlan::Bucket& plan, size_t index, char* flat, char* views, Bucket* before)
    : slots(plan.slots.size()),
      own_trailer(flat == nullptr ? plan.trailer_elements() + 1 : 0),
      plan_(&plan),
      index_(index),
      flat_(flat),
      views_(views),
      before_(before) {}

void Bucket::Reset() {
  static const TensorView kNone;
  for (Slot& slot : slots) {
    slot.used = false;
    slot.used_anywhere = false;
    slot.keeps = false;
    slot.saved = false;
    slot.gradient = kNone;
    slot.target = kNone;
    slot.rows = {};
  }
  sparse_average = CoalescedGradient();
  // Relaxed: threads fill slots after they have seen the backward begin, under a lock of the reducer.
  slots_left_.store(slots.size(), std::memory_order_relaxed);
  full_.store(false, std::memory_order_relaxed);
  staged.clear();
  streams.clear();
  points = 0;
  reduced = false;
  failed = 0;
  joined = 0;
  unrequested = 0;
  hashes_differ = false;
  copied_out_well = false;
  written = Written::kNothing;
  restored = false;
}

bool Bucket::InPlace(size_t slot) const {
  return in_place() && slots[slot].gradient.data() == static_cast<void*>(FlatAt(slot));
}

Bucket::Result Bucket::result() const {
  if (!hooked.result.has_value()) return {flat_, plan_->wire};
  return {static_cast<const char*>(hooked.result->data()), hooked.result->dtype()};
}

void Bucket::ReadTrailer(const StatusTrailer& trailer) {
  failed = trailer.Count(StatusTrailer::kFailed);
  joined = trailer.Count(StatusTrailer::kJoined);
  unrequested = trailer.Count(StatusTrailer::kUnrequested);
  hashes_differ = plan_->hashed && trailer.HashesDiffer(StatusTrailer::Hash(slots.size()));
  if (failed > 0) return;
  for (size_t s = 0; s < slots.size(); ++s) slots[s].used_anywhere = trailer.Count(StatusTrailer::Used(s)) > 0;
}

void Bucket::TakeSparse(const Parameter& parameter) {
  sparse = SparseGradient();
  sparse.name = parameter.name;
  sparse.dtype = parameter.dtype;
  sparse.rows = parameter.shape[0];
  sparse.row_elements = 1;
  for (size_t d = 1; d < parameter.shape.size(); ++d) sparse.row_elements *= parameter.shape[d];
  if (!slots[0].used) return;
  sparse.indices = slots[0].rows;
  sparse.values = slots[0].gradient.data();
}

absl::StatusOr<char*> Bucket::Spare(size_t index, Device* device, const Parameter& parameter) {
  Slot& slot = slots[index];
  if (slot.spare.data() == nullptr) {
    auto spare = DeviceMemory::Allocate(device, parameter.bytes());
    if (!spare.ok()) {
      return Annotate(spare.status(), absl::StrCat("memory for a copy of the gradient of ",
                                                   Describe(plan_->slots[index].parameter, parameter)));
    }
    slot.spare = *std::move(spare);
  }
  return slot.spare.data();
}

absl::Status Bucket::CopyIn(size_t slot, double factor, const Parameter& parameter) {
  if (plan_->sparse || in_pieces()) return absl::OkStatus();
  const size_t bytes = plan_->slots[slot].elements * SizeOf(plan_->wire);
  absl::Status kept;
  if (slots[slot].keeps) {
    const absl::StatusOr<char*> spare = Spare(slot, HostDevice(), parameter);
    slots[slot].keeps = spare.ok();
    if (spare.ok()) std::memcpy(*spare, FlatAt(slot), bytes);
    kept = spare.status();
  }
  if (!slots[slot].used) {
    std::memset(FlatAt(slot), 0, bytes);
    return kept;
  }
  LOCKSTEP_RETURN_IF_ERROR(kept);
  if (InPlace(slot)) {
    return factor == 1 ? absl::OkStatus()
                       : kernels::CastScaled(plan_->wire, FlatAt(slot), plan_->wire, FlatAt(slot),
                                             plan_->slots[slot].elements, factor);
  }
  const kernels::ViewPiece piece = {&slots[slot].gradient, plan_->slots[slot].offset};
  return kernels::FlattenViews({&piece, 1}, flat_, plan_->wire, factor);
}

void Bucket::PutBack() {
  for (size_t s = 0; s < slots.size(); ++s) {
    if (!slots[s].keeps || slots[s].used_anywhere) continue;
    std::memcpy(FlatAt(s), slots[s].spare.data(), plan_->slots[s].elements * SizeOf(plan_->wire));
  }
}

absl::Status Bucket::Save(size_t index, Device* device, const Parameter& parameter, Stream* stream) {
  if (plan_->sparse || plan_->slots[index].elements == 0) return absl::OkStatus();  // nothing is written
  Slot& slot = slots[index];
  const bool in_view = ViewAt(index) == nullptr || slot.target.data() == ViewAt(index);
  slot.copies[0].original = slot.target;
  slot.copies[1].original = in_view ? TensorView() : DenseView(parameter, ViewAt(index));
  for (Slot::Copy& copy : slot.copies) {
    const TensorView& original = copy.original;
    if (original.data() == nullptr) continue;
    if (copy.memory.bytes() < original.bytes()) {
      LOCKSTEP_ASSIGN_OR_RETURN(copy.memory, DeviceMemory::Allocate(device, original.bytes()));
    }
    if (stream != nullptr) {
      LOCKSTEP_RETURN_IF_ERROR(stream->Copy(copy.memory.data(), original.data(), original.bytes()));
    } else {
      kernels::ReadElements(original, 0, original.elements(), copy.memory.data(), original.dtype(), 1);
    }
  }
  slot.saved = true;
  return absl::OkStatus();
}

absl::Status Bucket::Restore(Stream* stream) {
  for (const Slot& slot : slots) {
    for (const Slot::Copy& copy : slot.copies) {
      const TensorView& original = copy.original;
      if (!slot.saved || original.data() == nullptr) continue;
      if (stream != nullptr) {
        LOCKSTEP_RETURN_IF_ERROR(stream->Copy(original.data(), copy.memory.data(), original.bytes()));
      } else {
        kernels::WriteElements(original, 0, original.elements(), copy.memory.data(), original.dtype(), 1);
      }
    }
  }
  restored = true;
  return absl::OkStatus();
}

GradientState Bucket::StateOf(size_t index) const {
  const Slot& slot = slots[index];
  const bool has_view = ViewAt(index) != nullptr;
  if (plan_->sparse || plan_->slots[index].elements == 0 || (restored && slot.saved)) return GradientState::kUnchanged;
  // Without a view, the reducer does not write an unused gradient, and only reads one that was marked without a target.
  const bool ours = slot.target.data() == nullptr || slot.target.data() == slot.spare.data();
  if (!has_view && (!slot.used || ours)) return GradientState::kUnchanged;
  switch (written) {
    case Written::kNothing:
      return GradientState::kUnchanged;
    case Written::kFlat:
      // What the slot keeps was put back, unless there was no memory to keep it.
      return in_place() && !slot.keeps ? GradientState::kUndefined : GradientState::kUnchanged;
    case Written::kParts:
      return GradientState::kUndefined;
    case Written::kAll:
      break;
  }
  return slot.used_anywhere ? GradientState::kAveraged : GradientState::kUnchanged;
}

// Whether the average goes exactly where the gradient is.
bool Bucket::AveragesInPlace(const Slot& slot) {
  return slot.gradient.data() == slot.target.data() && slot.gradient.dtype() == slot.target.dtype();
}

absl::Status Bucket::SetAside(absl::Span<const Parameter> parameters) {
  for (size_t s = 0; s < slots.size() && !plan_->sparse; ++s) {
    Slot& slot = slots[s];
    if (!slot.used || AveragesInPlace(slot) || !Overlap(slot.gradient, slot.target)) continue;
    LOCKSTEP_ASSIGN_OR_RETURN(char* const aside, Spare(s, HostDevice(), parameters[plan_->slots[s].parameter]));
    const size_t elements = slot.gradient.elements();
    kernels::ReadElements(slot.gradient, 0, elements, aside, plan_->dtype, 1);
    slot.gradient = *TensorView::Vector(aside, plan_->dtype, static_cast<int64_t>(elements));
  }
  return absl::OkStatus();
}

absl::Status Bucket::FindPieces(double factor_in, double factor_out, absl::Span<const Parameter> parameters) {
  absl::Status status;
  bool one = factor_in == 1 && factor_out == 1;
  for (size_t s = 0; s < slots.size(); ++s) {
    Slot& slot = slots[s];
    one = one && (slot.used ? AveragesInPlace(slot) : !slot.used_anywhere);
    if (slot.target.data() != nullptr || !slot.used_anywhere || plan_->slots[s].elements == 0) continue;
    const Parameter& parameter = parameters[plan_->slots[s].parameter];
    const absl::StatusOr<char*> spare = Spare(s, HostDevice(), parameter);
    if (spare.ok()) slot.target = DenseView(parameter, *spare);
    status.Update(spare.status());
  }
  const auto renew = [this](Ref<Pieces>* pieces, double factor) {
    if (*pieces == nullptr || !pieces->unique() || (*pieces)->factor() != factor) {
      *pieces = MakeRef<Pieces>(plan_->wire, factor);
    } else {
      (*pieces)->Clear();
    }
  };
  if (one || averages_in_pieces.get() == gradients_in_pieces.get()) averages_in_pieces = nullptr;
  renew(&gradients_in_pieces, factor_in);
  if (one) {
    averages_in_pieces = gradients_in_pieces;
  } else {
    renew(&averages_in_pieces, factor_out);
  }
  for (size_t s = 0; s < slots.size(); ++s) {
    const Slot& slot = slots[s];
    const auto add = [&](Pieces& pieces, bool there, const TensorView& tensor) {
      // Marks were checked: there is no error.
      if (there) return status.Update(pieces.Add(tensor));
      pieces.AddNothing(plan_->slots[s].elements, /*of_all_ranks=*/!slot.used_anywhere);
    };
    add(*gradients_in_pieces, slot.used, slot.gradient);
    if (!one) add(*averages_in_pieces, slot.used_anywhere && slot.target.data() != nullptr, slot.target);
  }
  return status;
}

absl::Status Bucket::CopyOut(size_t index, const char* result, DType dtype, double factor, const Parameter& parameter) {
  Slot& slot = slots[index];
  const size_t elements = plan_->slots[index].elements;
  if (elements == 0) return absl::OkStatus();
  if (slot.target.data() == nullptr) {
    char* memory = ViewAt(index);
    if (memory == nullptr) {
      LOCKSTEP_ASSIGN_OR_RETURN(memory, Spare(index, HostDevice(), parameter));
    }
    slot.target = DenseView(parameter, memory);
  }
  const char* const from = result + plan_->slots[index].offset * SizeOf(dtype);
  if (slot.target.data() == static_cast<const void*>(from)) {
    return factor == 1 ? absl::OkStatus()
                       : kernels::CastScaled(dtype, slot.target.data(), dtype, from, elements, factor);
  }
  const kernels::ViewPiece piece = {&slot.target, plan_->slots[index].offset};
  const absl::Status copied = kernels::UnflattenViews({&piece, 1}, result, dtype, factor);
  if (slot.keeps && slot.used && slot.target.data() != ViewAt(index)) {
    std::memcpy(FlatAt(index), slot.spare.data(), elements * SizeOf(plan_->wire));
  }
  return copied;
}

}  // namespace lockstep
