#include "kernels/cpu/table_inl.h"

namespace lockstep::kernels {

constexpr KernelTable kAvx2Table = MakeTable();

}  // namespace lockstep::kernels
