#include "kernels/cpu/table_inl.h"

namespace lockstep {
namespace kernels {

constexpr KernelTable kNeonFp16Table = MakeTable();

}  // namespace kernels
}  // namespace lockstep
