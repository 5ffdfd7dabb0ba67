#include "kernels/cpu/table_inl.h"

namespace lockstep::kernels {

constexpr KernelTable kNeonFp16Table = MakeTable();

}  // namespace lockstep::kernels
