#include "kernels/cpu/table_inl.h"

namespace lockstep {
namespace kernels {

constexpr KernelTable kNeonTable = MakeTable();

}  // namespace kernels
}  // namespace lockstep
