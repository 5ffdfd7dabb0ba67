// The operation that a fault test interrupts: one collective, or a message from each rank to the next. It may be repeated, and
// each result is checked.

#ifndef COMM_RECORD_FAULT_OPERATION_TESTING_H_
#define COMM_RECORD_FAULT_OPERATION_TESTING_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/communicator.h"
#include "comm/schedule/schedule.h"
#include "comm/symmetric_buffer.h"
#include "comm/work.h"
#include "tests/communicator_testing.h"

namespace lockstep {

// Used by one thread.
class FaultOperation {
 public:
  static constexpr char kMessages[] = "messages";

  // Bytes of a symmetric buffer with room for any operation of a world of at most `size` ranks.
  static size_t SymmetricBytes(int size);

  // `name` is a collective's or kMessages. Its vectors are ordinary memory; those of a collective may lie in `symmetric`. Borrows
  // communicator and buffer.
  FaultOperation(const std::string& name, Communicator* self, SymmetricBuffer* symmetric = nullptr);

  // Executes it and checks the result. DATA_LOSS if the result is wrong.
  absl::Status Run();

  // REQUIRES  the last one is done
  absl::StatusOr<Work> Start();

 private:
  SendRequest Outgoing() const;
  ReceiveRequest Incoming();
  absl::Status Exchange();
  absl::Status RunCollective();
  std::string FindWrong();

  Communicator& self_;
  const bool is_collective_;
  const CaseReference reference_;
  CaseRun run_;
  CollectiveRequest request_;  // of run_, or the same in symmetric memory
  std::vector<char> sent_, received_;
};

}  // namespace lockstep

#endif  // COMM_RECORD_FAULT_OPERATION_TESTING_H_
