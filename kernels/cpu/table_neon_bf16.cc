#include "kernels/cpu/table_inl.h"

namespace lockstep::kernels {

constexpr KernelTable kNeonBf16Table = MakeTable();

}  // namespace lockstep::kernels
