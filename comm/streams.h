// Streams: the times at which the chunks of messages are where they have to be, as two numbers each. What prices
// (comm/prices.h) are made of; the model is the simulator's (comm/simulator.h).
//
// The chunks between the first and the last wait for what is linear in their number, and of linear functions one of the
// ends is the largest: so two numbers are exact. Times are nanoseconds from the start of the collective.

#ifndef COMM_STREAMS_H_
#define COMM_STREAMS_H_

#include <algorithm>
#include <limits>

namespace lockstep {
namespace prices {

inline constexpr double kNever = -std::numeric_limits<double>::infinity();

inline int FloorLog2(int value) { return 31 - __builtin_clz(static_cast<unsigned>(value)); }
inline int CeilLog2(int value) { return value == 1 ? 0 : FloorLog2(value - 1) + 1; }

// When the first and the last chunk of a message are there. That is all there is to know: what the chunks between them
// wait for is linear in their number, and of linear functions one of the ends is the largest.
struct Stream {
  double first = 0;
  double last = 0;

  Stream Later(double ns) const { return {first + ns, last + ns}; }
};

// One message between two ranks: its chunks, and what one of them costs.
struct Message {
  double chunks = 1;
  double sending_ns = 0;    // at the sending end, the host's link shared
  double receiving_ns = 0;  // at the receiving end
  double reducing_ns = 0;
  double copying_ns = 0;  // of a local copy, where there is one
  double latency_ns = 0;

  double hop_ns() const { return sending_ns + latency_ns + reducing_ns; }
  // From one chunk to the next, where nothing else holds them up.
  double spacing_ns() const { return std::max(sending_ns, receiving_ns + reducing_ns); }
};

// The two ends of a rank: until when they are busy.
struct Ends {
  double sending = kNever;
  double receiving = kNever;
};
// When what waits for nothing may start.
inline constexpr Stream kAlways = {kNever, kNever};

// `data` is when the chunks may be sent; returns when they have left.
inline Stream Send(const Message& message, const Stream& data, Ends& ends) {
  Stream left;
  left.first = std::max(data.first, ends.sending) + message.sending_ns;
  left.last = std::max(data.last + message.sending_ns, left.first + (message.chunks - 1) * message.sending_ns);
  ends.sending = left.last;
  return left;
}

// `left` is what the other side's Send returned, `posted` when the receive of each chunk could start.
inline Stream Receive(const Message& message, const Stream& left, const Stream& posted, Ends& ends) {
  const double spacing = message.receiving_ns + message.reducing_ns;
  const Stream arrived = left.Later(message.latency_ns);
  Stream there;
  there.first = std::max(arrived.first, std::max(posted.first, ends.receiving) + message.receiving_ns);
  there.first += message.reducing_ns;
  there.last = std::max(arrived.last + message.reducing_ns, posted.last + spacing);
  there.last = std::max(there.last, there.first + (message.chunks - 1) * spacing);
  ends.receiving = there.last;
  return there;
}

// A copy or a reduction of `chunks` chunks, each of which takes `chunk_ns`.
inline Stream Work(double chunks, double chunk_ns, const Stream& ready, Ends& ends) {
  Stream done;
  done.first = std::max(ready.first, ends.receiving) + chunk_ns;
  done.last = std::max(ready.last + chunk_ns, done.first + (chunks - 1) * chunk_ns);
  ends.receiving = done.last;
  return done;
}

// The same as it passes `count` ranks that have nothing else to do.
inline Stream Pass(const Message& message, const Stream& stream, int count) {
  if (count == 0) return stream;
  Stream there = stream.Later(count * message.hop_ns());
  there.last = std::max(there.last, there.first + (message.chunks - 1) * message.spacing_ns());
  return there;
}

// What all ranks of a symmetric algorithm do alike, seen from one of them: in each round it sends what it has and
// receives as much.
class Symmetric {
 public:
  // Sends on what arrived in the round before.
  void Exchange(const Message& message, int rounds = 1) {
    Repeat(rounds, [&] { data_ = Receive(message, Send(message, data_, ends_), kAlways, ends_); });
  }
  // Sends what it has in every round, and receives what it does not send.
  void Share(const Message& message, int rounds) {
    Repeat(rounds, [&] { Receive(message, Send(message, data_, ends_), kAlways, ends_); });
  }
  // A copy of something else.
  void Copy(const Message& message) { Work(message.chunks, message.copying_ns, {0, 0}, ends_); }
  // What it has then is the reduction of `operands` messages and its own, which it has received.
  void Reduce(const Message& message, int operands) {
    data_ = Work(message.chunks, operands * message.reducing_ns, kAlways, ends_);
  }
  double ns() const { return std::max(data_.last, ends_.receiving); }

 private:
  // Equal rounds soon add the same to the state, each as much as the one before: the rest is a multiplication.
  template <typename Round>
  void Repeat(int count, Round round) {
    constexpr int kToSettle = 4;
    for (int i = 0; i < std::min(count, kToSettle); ++i) round();
    if (count <= kToSettle) return;
    const Stream data = data_;
    const Ends ends = ends_;
    round();
    const auto extrapolate = [more = count - kToSettle - 1](double before, double* after) {
      *after += (*after - before) * more;
    };
    extrapolate(data.first, &data_.first);
    extrapolate(data.last, &data_.last);
    extrapolate(ends.sending, &ends_.sending);
    extrapolate(ends.receiving, &ends_.receiving);
  }

  Stream data_;
  Ends ends_;
};

}  // namespace prices
}  // namespace lockstep

#endif  // COMM_STREAMS_H_
