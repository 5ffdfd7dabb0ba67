// How the messages of a TCP connection are protected: in records of our own, in those of the kernel's TLS, or not at all.

#ifndef TRANSPORT_TCP_PROTECTION_H_
#define TRANSPORT_TCP_PROTECTION_H_

#include "transport/tcp/socket_tuning.h"

namespace lockstep {

// The one whose TLS connections have, or null: at kEncrypt, with one socket a connection, if it can. Its streams do not work in stripes.
KernelTls* UsableKernelTls(const TcpTransportOptions& options);

// Whether messages on a connected socket travel in records: always at kEncrypt, and at kAuthenticate if they leave the host. Both ends find
// the same as long as nothing between them changes addresses.
bool WantsRecords(int socket, const TcpTransportOptions& options);

}  // namespace lockstep

#endif  // TRANSPORT_TCP_PROTECTION_H_
