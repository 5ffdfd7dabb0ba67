// Pieces: one rank's memory of a vector that does not lie in one place. To a collective it is a vector like any other: plans, messages and
// results are those of contiguous memory, and peers cannot tell.
//
// The vector has one dtype. A piece is
//   plain      memory of that dtype, in the vector's order: read and written where it lies
//   converted  a tensor of another float dtype, with gaps between its elements, or multiplied by the pieces' factor on the way: as it is
//              read, and as it is written
//   nothing    zeros where it is read; what is written there is dropped
//
// Positions and lengths are bytes of the vector, at whole elements. Memory is borrowed, as the buffers of a collective are.
//
// THREADS  any may read it and the memory; Add and Clear by one, while no collective uses it

#ifndef COMM_PIECES_H_
#define COMM_PIECES_H_

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "base/device/tensor_view.h"
#include "base/ref.h"
#include "base/types/dtype.h"
#include "kernels/cpu/blocks.h"

namespace lockstep {

class Pieces : public RefCounted {
 public:
  // No more than this are told to the ranks that map the memory: CollectiveRequest::shared_pieces.
  static constexpr size_t kSharedMax = 8000;

  explicit Pieces(DType dtype, double factor = 1)
      : dtype_(dtype), element_bytes_(SizeOf(dtype)), factor_(factor), blocks_(1) {}

  // Forgets all pieces, but keeps what it has allocated.
  void Clear();
  // Appends elements: of a tensor, dense ones in the order of their memory, others in row-major order; or of nothing.
  // ERRORS  INVALID_ARGUMENT  it is not on the host, or its dtype and the vector's do not convert to each other (kernels::CheckCast)
  absl::Status Add(const TensorView& tensor);
  void AddPlain(void* data, size_t elements);
  // `of_all_ranks`: no rank has anything there, so that what is written is the zeros that are read.
  void AddNothing(size_t elements, bool of_all_ranks);

  DType dtype() const { return dtype_; }
  size_t bytes() const { return blocks_.back().begin; }
  size_t pieces() const { return kinds_.size(); }
  // By what elements are multiplied on their way, if not by 1.
  double factor() const { return factor_; }
  // The address, if all of it is contiguous and plain, else null.
  void* contiguous() const { return pieces() == 1 ? blocks_[0].data : nullptr; }
  // Whether all pieces are plain.
  bool plain() const { return others_ == 0; }
  // Whether what is written can be read again: dtypes have all values of the vector's, nothing is of all ranks, and the factor is 1.
  bool keeps_values() const { return losses_ == 0 && factor_ == 1; }

  // What is at a position: as far as it is one piece, and of a plain one the address.
  struct Run {
    char* data = nullptr;  // null: not plain
    size_t bytes = 0;      // to the end of the piece
  };
  // REQUIRES  position < bytes()
  Run At(size_t position) const;

  // The memory of a range, appended to the list, if all of it is plain, of at most `max` runs. Whether it is; else the list is of no use.
  bool AppendRuns(size_t position, size_t bytes, size_t max, std::vector<iovec>* runs) const;

  // Copies the vector's [position, position + bytes) to contiguous memory, and back.
  void Read(size_t position, size_t bytes, char* target) const;
  void Write(size_t position, size_t bytes, const char* source) const;

 private:
  void Append(char* data, int32_t tensor, size_t elements);
  size_t EndOf(size_t index) const { return blocks_[index + 1].begin; }
  // The piece that has the position. REQUIRES position < bytes()
  size_t Find(size_t position) const;
  // Calls visit(index, begin in the piece, bytes) for each part of a range.
  template <typename Visit>
  void Walk(size_t position, size_t bytes, Visit visit) const;
  // The same where all are plain: part(address, bytes) for parts of pieces, and whole(blocks, count) for what lies between.
  template <typename Part, typename Whole>
  void WalkPlain(size_t position, size_t bytes, Part part, Whole whole) const;

  const DType dtype_;
  const size_t element_bytes_;
  const double factor_;
  size_t others_ = 0;  // pieces that are not plain
  size_t losses_ = 0;  // pieces that do not keep values
  // By piece, and one more, which begins where the last one ends. No data but of plain ones.
  std::vector<kernels::Block> blocks_;
  std::vector<int32_t> kinds_;  // by piece: of a converted one its tensor, else negative
  std::vector<TensorView> tensors_;
};

// Whether every value of `from` is one of `to`.
bool HasValuesOf(DType to, DType from);

}  // namespace lockstep

#endif  // COMM_PIECES_H_
