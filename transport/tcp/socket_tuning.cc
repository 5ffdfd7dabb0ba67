#include "transport/tcp/socket_tuning.h"

#include <sys/socket.h>

#include <cerrno>

#include "base/log.h"
#include "base/status.h"
#include "transport/tcp/congestion_control.h"

namespace lockstep {
namespace {

void SetBuffer(int socket, int option, const char* name, int bytes) {
  if (bytes == 0 || setsockopt(socket, SOL_SOCKET, option, &bytes, sizeof(bytes)) == 0) return;
  LOCKSTEP_LOG(kDebug) << "tcp transport: " << ErrnoStatus(errno, name).message();
}

}  // namespace

void Tune(int socket, const SocketTuning& tuning) {
  ChooseCongestionControl(socket, tuning.congestion_control);
  SetBuffer(socket, SO_SNDBUF, "SO_SNDBUF", tuning.send_buffer_bytes);
  SetBuffer(socket, SO_RCVBUF, "SO_RCVBUF", tuning.receive_buffer_bytes);
  const int on = 1;
  if (tuning.zero_copy && setsockopt(socket, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof(on)) != 0) {
    LOCKSTEP_LOG(kInfo) << "tcp transport: " << ErrnoStatus(errno, "SO_ZEROCOPY").message();
  }
}

}  // namespace lockstep
