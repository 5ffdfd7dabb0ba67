#include "kernels/cpu/table_inl.h"

namespace lockstep {
namespace kernels {

constexpr KernelTable kAvx512Table = MakeTable();

}  // namespace kernels
}  // namespace lockstep
