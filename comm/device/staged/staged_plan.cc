#include "comm/device/staged/staged_plan.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/types/dtype.h"
#include "comm/schedule/schedule.h"

namespace lockstep {
namespace {

// The largest element, and pieces that begin at multiples of a cache line.
constexpr size_t kElementBytesMax = 16;
constexpr size_t kCutMultiple = 64;

size_t Regions(const CollectiveRequest& request) { return request.collective == Collective::kAllToAll ? 2 : 1; }

// What this rank has a vector, or its block, of.
bool HasInput(const CollectiveRequest& request, bool is_root) {
  if (request.collective == Collective::kBroadcast || request.collective == Collective::kScatter) return is_root;
  return request.collective != Collective::kBarrier;
}
bool HasOutput(const CollectiveRequest& request, bool is_root) {
  if (request.collective == Collective::kReduce || request.collective == Collective::kGather) return is_root;
  return request.collective != Collective::kBarrier;
}

bool AllEqual(absl::Span<const int64_t> counts) {
  return std::all_of(counts.begin(), counts.end(), [&](int64_t count) { return count == counts[0]; });
}

}  // namespace

size_t StagedPlan::SlotBytesMin(int size) { return size * 2 * kElementBytesMax; }

std::vector<StagedPlan::Block> StagedPlan::BlocksOf(absl::Span<const int64_t> counts, size_t count, int blocks) {
  std::vector<Block> result(blocks);
  size_t begin = 0;
  for (int b = 0; b < blocks; ++b) {
    result[b] = {begin, counts.empty() ? count / blocks : static_cast<size_t>(counts[b])};
    begin += result[b].count;
  }
  return result;
}

StagedPlan::StagedPlan(const CollectiveRequest& request, Rank rank, int size, size_t slot_bytes)
    : request_(request), rank_(rank.value()), has_counts_(!request.counts.empty()), slot_bytes_(slot_bytes) {
  LOCKSTEP_CHECK(slot_bytes >= SlotBytesMin(size)) << "a slot of " << slot_bytes << " bytes for " << size << " ranks";
  const int blocks = IsByRank(request.collective) ? size : 1;
  input_blocks_ = BlocksOf(request.counts, request.collective == Collective::kBarrier ? 0 : request.count, blocks);
  output_blocks_ = request.output_counts.empty() ? input_blocks_ : BlocksOf(request.output_counts, 0, blocks);
  request_.counts = request_.output_counts = {};
  request_.device = DeviceId();

  cut_ = slot_bytes / (Regions(request) * blocks * SizeOf(request.dtype));
  if (cut_ > kCutMultiple) cut_ -= cut_ % kCutMultiple;
  size_t largest = 0;
  for (const std::vector<Block>* list : {&input_blocks_, &output_blocks_}) {
    for (const Block& block : *list) largest = std::max(largest, block.count);
  }
  pieces_ = std::max<size_t>(1, (largest + cut_ - 1) / cut_);
  ranks_know_pieces_ = request.collective != Collective::kAllToAll || !has_counts_;
}

size_t StagedPlan::CutBlocks(const std::vector<Block>& blocks, size_t index, std::vector<int64_t>* counts) const {
  counts->clear();
  const size_t begin = index * cut_;
  for (const Block& block : blocks) {
    counts->push_back(static_cast<int64_t>(std::min(cut_, block.count - std::min(begin, block.count))));
  }
  return std::accumulate(counts->begin(), counts->end(), int64_t{0});
}

void StagedPlan::AddCopies(const std::vector<Block>& blocks, bool own_block, size_t index,
                           absl::Span<const int64_t> counts, size_t slot_offset,
                           std::vector<StagedCopy>* copies) const {
  const size_t element_bytes = SizeOf(request_.dtype);
  for (size_t b = 0; b < blocks.size(); ++b) {
    if (own_block && b != static_cast<size_t>(rank_)) continue;
    StagedCopy copy;
    copy.device_offset = ((own_block ? 0 : blocks[b].begin) + index * cut_) * element_bytes;
    copy.slot_offset = slot_offset;
    copy.bytes = counts[b] * element_bytes;
    slot_offset += copy.bytes;
    if (copy.bytes > 0) copies->push_back(copy);
  }
}

void StagedPlan::MakePiece(size_t index, char* slot, StagedPiece* piece) const {
  const Collective collective = request_.collective;
  const bool by_rank = IsByRank(collective);
  const bool is_root = HasRoot(collective) && request_.root == Rank(rank_);
  const bool has_input = HasInput(request_, is_root);
  const bool has_output = HasOutput(request_, is_root);
  const bool block_in = IsOwnBlock(collective, Window::kInput);
  const bool block_out = IsOwnBlock(collective, Window::kOutput);
  piece->in.clear();
  piece->out.clear();
  piece->request = request_;
  piece->request.count = CutBlocks(input_blocks_, index, &piece->counts);
  CutBlocks(output_blocks_, index, &piece->output_counts);

  // The rank's block is at its place among the others where these are in the slot as well.
  const bool whole = (has_input && !block_in) || (has_output && !block_out);
  size_t before = 0;
  if (by_rank && whole) {
    before = std::accumulate(piece->counts.begin(), piece->counts.begin() + rank_, int64_t{0}) * SizeOf(request_.dtype);
  }
  const size_t output_region = Regions(request_) == 2 ? slot_bytes_ / 2 : 0;
  const size_t input_offset = block_in ? before : 0;
  const size_t output_offset = block_out ? before : output_region;
  piece->request.input = has_input ? slot + input_offset : nullptr;
  piece->request.output = has_output ? slot + output_offset : nullptr;
  if (has_input) AddCopies(input_blocks_, block_in, index, piece->counts, input_offset, &piece->in);
  if (has_output) AddCopies(output_blocks_, block_out, index, piece->output_counts, output_offset, &piece->out);

  if (!by_rank || !has_counts_) return;
  if (collective == Collective::kAllToAll) {
    piece->request.counts = piece->counts;
    piece->request.output_counts = piece->output_counts;
  } else if (!AllEqual(piece->counts)) {
    piece->request.counts = piece->counts;
  }
}

}  // namespace lockstep
