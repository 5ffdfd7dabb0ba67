#include "kernels/cpu/table_inl.h"

namespace lockstep {
namespace kernels {

constexpr KernelTable kScalarTable = MakeTable();

}  // namespace kernels
}  // namespace lockstep
