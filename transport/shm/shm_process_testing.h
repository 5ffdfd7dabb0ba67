// Worlds of shared-memory transports between processes (tests/processes.h), brought together by the test.

#ifndef TRANSPORT_SHM_SHM_PROCESS_TESTING_H_
#define TRANSPORT_SHM_SHM_PROCESS_TESTING_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tests/processes.h"
#include "tests/transport_testing.h"
#include "transport/shm/shm_testing.h"
#include "transport/shm/shm_transport.h"

namespace lockstep {

// The process's part: tells the test its address, is told all of them, and connects.
inline absl::StatusOr<std::unique_ptr<ShmTransport>> ConnectInProcess(RankProcess* self, int rank, int size) {
  LOCKSTEP_ASSIGN_OR_RETURN(auto transport, ShmTransport::Create(ShmTestOptions(rank, size)));
  LOCKSTEP_RETURN_IF_ERROR(self->Send(transport->address()));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string addresses, self->Receive(TestDeadline()));
  const auto found = transport->Connect(absl::StrSplit(addresses, ','), TestDeadline());
  for (const absl::Status& status : found) LOCKSTEP_RETURN_IF_ERROR(status);
  return transport;
}

// The test's part: `members` become ranks 0, 1, ... of the world.
inline void Introduce(ProcessGroup* group, const std::vector<int>& members) {
  std::vector<std::string> addresses;
  for (const int member : members) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::string address, group->Receive(member, TestDeadline()));
    addresses.push_back(address);
  }
  for (const int member : members) ASSERT_THAT(group->Send(member, absl::StrJoin(addresses, ",")), IsOk());
}

}  // namespace lockstep

#endif  // TRANSPORT_SHM_SHM_PROCESS_TESTING_H_
