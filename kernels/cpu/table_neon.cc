#include "kernels/cpu/table_inl.h"

namespace lockstep::kernels {

constexpr KernelTable kNeonTable = MakeTable();

}  // namespace lockstep::kernels
