// What faults interrupt: one collective, or a message from each rank to the next, with what it needs, repeated as often as
// wanted and checked each time.

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

  // `name` is a collective's or kMessages. Its vectors are ordinary memory, or, for collectives, lie in `symmetric`. Borrows both.
  FaultOperation(const std::string& name, Communicator* self, SymmetricBuffer* symmetric = nullptr);

  // Waits for it, and checks what came of it: DATA_LOSS where that is wrong.
  absl::Status Run();

  // One of it under way at a time.
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
