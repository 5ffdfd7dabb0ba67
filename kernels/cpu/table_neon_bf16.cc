#include "kernels/cpu/table_inl.h"

namespace lockstep {
namespace kernels {

constexpr KernelTable kNeonBf16Table = MakeTable();

}  // namespace kernels
}  // namespace lockstep
