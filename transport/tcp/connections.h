// Connections: which ranks are connected on which channel, and how they get there.
//
// One socket serves two ranks on a channel, both ways. The rank that sends first makes it, or the rank that has waited for a
// message for some time: only a refusal by the listener tells that a peer has gone. If both connect at once, the connection
// of the lower rank counts:
//
//   a hello arrives while this rank     and is answered            because
//   waits, or pauses between attempts   accepted                   nothing of ours is under way
//   connects, and is the higher rank    accepted                   ours is given up: it would be answered "crossed"
//   connects, and is the lower rank     crossed                    ours counts, and gets there
//   is connected with that process      crossed                    it was given up there, and comes late
//   is connected with another process   duplicate                  two processes claim one rank
//   has broken the channel off          aborted
//
// No message is lost: none is sent before a connection is accepted, and a pair accepts one. A higher rank that was answered
// "crossed" tries again now and then until the other's connection is there, so that it learns when that never comes. The
// final result counts for both directions.
//
// For a connection of several sockets, all of this is about the first. The rank that made it makes the others, one after the
// other, and messages flow when all are there.

#ifndef TRANSPORT_TCP_CONNECTIONS_H_
#define TRANSPORT_TCP_CONNECTIONS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "base/deadline.h"
#include "base/rank.h"
#include "transport/link/byte_stream.h"
#include "transport/link/link.h"
#include "transport/link/link_table.h"
#include "transport/link/record_keys.h"
#include "transport/net/socket.h"
#include "transport/tcp/acceptor.h"
#include "transport/tcp/handshake.h"
#include "transport/tcp/socket_tuning.h"
#include "transport/tcp/tcp_stream.h"
#include "transport/transport.h"

namespace lockstep {

// One attempt to connect: in connections.cc.
class Connector;

// A socket on which both ranks have agreed, and what its records are sealed with each way, if messages travel in records: the kernel's
// or our own.
struct OpenSocket {
  std::shared_ptr<TcpSocket> socket;
  bool kernel_tls = false;
  absl::optional<RecordSecret> send;
  absl::optional<RecordSecret> receive;
};

// A pair of ranks on a channel, as one of them sees it. Its address is what events of its sockets carry.
struct Connection {
  Link* send = nullptr;
  Link* receive = nullptr;
  SocketAddress address;                       // where this rank connects to, if it does
  Deadline connect_at = Deadline::Infinite();  // while it is awaited
  std::unique_ptr<Connector> connector;        // while it tries
  uint32_t peer_instance = 0;                  // once the first socket is there
  std::vector<OpenSocket> sockets;             // until all are there: the links' then
  bool ended = false;                          // see TcpStream
  bool kernel_tls = false;                     // once it is open

  ~Connection();

  bool waiting() const { return send->waiting() && receive->waiting(); }
};

// Externally synchronised. Never waits.
class Connections {
 public:
  // Puts sockets into the epoll instance `events`. Borrows the options and the table, in which the links of connections are.
  Connections(const TcpTransportOptions& options, int events, LinkTable* links);

  // Finds it or makes it, waiting for either rank to connect.
  Connection* Get(Rank peer, ChannelId channel);

  // Begins to connect; false when that is under way or over.
  bool Connect(Connection* connection, const SocketAddress& address);

  // Connects after receive_patience, unless there is a connection by then. False if this rank connects, or will, anyway.
  bool Await(Connection* connection, const SocketAddress& address);

  // What epoll says of its socket.
  void OnEvents(Connection* connection, uint32_t mask);

  // Answers a hello that fits, by the table above.
  void Admit(Acceptor::Arrival arrival);

  // Goes on with all attempts to connect. Returns whether one has ended.
  bool Advance();
  Deadline next_deadline() const;

  // Ends what was being made for links that the table has broken, of one channel or all.
  void AbortChannel(ChannelId channel);
  void AbortAll();
  // Forgets connections of aborted channels whose operations have completed. Between two runs of the table.
  void ReleaseAborted();

 private:
  // Whether there is no socket and no attempt.
  static bool Untried(const Connection& connection);
  // Begins to connect where the patience is over.
  void ConnectAwaited();
  void MakeConnector(Connection* connection);
  // True when connecting has ended, well or not.
  bool AdvanceConnector(Connection* connection);
  // Gives the connection its next socket, and opens the links with the last.
  void Add(Connection* connection, OpenSocket socket, uint32_t peer_instance);
  std::unique_ptr<ByteStream> MakeStream(Connection* connection, Link::Direction direction) const;
  void Break(Connection* connection, const absl::Status& cause);
  Verdict Judge(const Connection& connection, const Hello& hello) const;
  void Schedule(Connection* connection);

  const TcpTransportOptions& options_;
  const int events_;
  LinkTable* const links_;
  KernelTls* const kernel_tls_;                                             // or null
  const Hello hello_;                                                       // target, channel and socket are filled in
  absl::flat_hash_map<uint64_t, std::unique_ptr<Connection>> connections_;  // by peer and channel
  std::vector<Connection*> connecting_;                                     // those with a connector
  std::vector<Connection*> awaited_;                                        // those with connect_at
  std::vector<uint64_t> aborted_;                                           // keys of those to be released
};

}  // namespace lockstep

#endif  // TRANSPORT_TCP_CONNECTIONS_H_
