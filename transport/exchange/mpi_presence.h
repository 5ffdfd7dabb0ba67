// Whether an MPI library is in this process too, with which it shares its connection to the launcher.

#ifndef TRANSPORT_EXCHANGE_MPI_PRESENCE_H_
#define TRANSPORT_EXCHANGE_MPI_PRESENCE_H_

namespace lockstep {

// In the order in which they follow each other.
enum class MpiPresence { kAbsent, kLoaded, kInitialized, kFinalized };

// Asks the loader for a library whose name begins with libmpi, and the library. Any thread.
MpiPresence MpiOfThisProcess();

}  // namespace lockstep

#endif  // TRANSPORT_EXCHANGE_MPI_PRESENCE_H_
