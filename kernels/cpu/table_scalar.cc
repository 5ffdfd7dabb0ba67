#include "kernels/cpu/table_inl.h"

namespace lockstep::kernels {

constexpr KernelTable kScalarTable = MakeTable();

}  // namespace lockstep::kernels
