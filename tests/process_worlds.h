// Worlds whose ranks are processes (tests/processes.h) and meet at a store that the test serves.

#ifndef TESTS_PROCESS_WORLDS_H_
#define TESTS_PROCESS_WORLDS_H_

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "base/status.h"
#include "comm/communicator.h"
#include "comm/schedule/schedule.h"
#include "comm/world/world.h"
#include "tests/communicator_testing.h"
#include "tests/processes.h"
#include "transport/net/socket.h"
#include "transport/store/store.h"
#include "transport/store/store_tcp_client.h"
#include "transport/store/store_tcp_server.h"

namespace lockstep {

// In the test: at an address of the system's choice, to be told to the ranks.
inline absl::StatusOr<std::unique_ptr<TcpStoreServer>> ServeTestStore() {
  return TcpStoreServer::Create(*SocketAddress::Parse("127.0.0.1:0"), TcpStoreServer::Options());
}

// In a rank.
inline absl::StatusOr<std::unique_ptr<TcpStoreClient>> ConnectToTestStore(absl::string_view address) {
  LOCKSTEP_ASSIGN_OR_RETURN(const HostPort server, ParseHostPort(address));
  return TcpStoreClient::Connect(server, {}, CommTestDeadline());
}

// Of a world of all the processes, which are on this host, with deadlines that end a test that hangs.
inline WorldOptions ProcessWorldOptions(const RankProcess& self, Store* store) {
  WorldOptions options;
  options.rank = options.local_rank = self.rank();
  options.size = options.local_size = self.size();
  options.store = store;
  options.setup_timeout = std::chrono::milliseconds(20'000);
  options.timeout = std::chrono::milliseconds(20'000);
  return options;
}

// Every collective once. DATA_LOSS for a wrong result.
inline absl::Status RunAllCollectives(Communicator* self) {
  for (const Collective collective : kAllCollectives) {
    CollectiveCase c;
    c.collective = collective;
    c.count = 100'000;
    const CaseReference reference(c, self->size());
    CaseRun run(reference, self->rank());
    LOCKSTEP_RETURN_IF_ERROR(self->Run(run.request()));
    if (const std::string wrong = run.Check(); !wrong.empty()) return absl::DataLossError(wrong);
  }
  return absl::OkStatus();
}

}  // namespace lockstep

#endif  // TESTS_PROCESS_WORLDS_H_
