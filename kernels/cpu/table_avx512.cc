#include "kernels/cpu/table_inl.h"

namespace lockstep::kernels {

constexpr KernelTable kAvx512Table = MakeTable();

}  // namespace lockstep::kernels
