// PollableTransport: a Transport whose events a poll() can wait for together with other descriptors, so that one
// thread can sleep on several transports at once (transport/composite.h).
//
// To wait: call BeginWait, poll() the descriptors if it returned true, then call EndWait. WaitForEvent does that for one
// transport.
//
// THREADS  Any thread may do this at any time, as WaitForEvent.

#ifndef TRANSPORT_POLLABLE_TRANSPORT_H_
#define TRANSPORT_POLLABLE_TRANSPORT_H_

#include <poll.h>

#include <vector>

#include "transport/transport.h"

namespace lockstep {

class PollableTransport : public Transport {
 public:
  // Appends the descriptors (with POLLIN) that are readable while Progress() may have something to do or Wake() was
  // called. The same ones every time.
  virtual void AppendDescriptors(std::vector<pollfd>* descriptors) const = 0;

  // True when it is safe to sleep on the descriptors: whatever happens from now on, also to operations posted
  // meanwhile, makes one of them readable. False when Progress() should be called first. Each call is followed by one
  // of EndWait, whatever it returned.
  virtual bool BeginWait() = 0;

  // `event`: whether one of this transport's descriptors was readable.
  virtual void EndWait(bool event) = 0;

  // Whether Close would have something to flush. Synchronised as Progress().
  virtual bool sends_pending() const = 0;
};

}  // namespace lockstep

#endif  // TRANSPORT_POLLABLE_TRANSPORT_H_
