#include "base/env.h"

namespace lockstep {
namespace {

// Sorted by name. docs/environment.md repeats it.
constexpr EnvironmentVariable kTable[] = {
    {"LOCKSTEP_ALGORITHM", "an algorithm, or collective:algorithm;...", "chosen by size",
     "Algorithms to use, whose names a wrong one is answered with; must be the same on all ranks."},
    {"LOCKSTEP_BAZEL", "path of a program", "bazel on PATH", "The Bazel that ./bazelw runs; the library ignores it."},
    {"LOCKSTEP_CHECKED", "0 or 1", "0",
     "Exchanges the signatures of each collective before it starts, so that a mismatch is an error on every rank."},
    {"LOCKSTEP_CHECK_OUTPUT", "a folder", "/var/tmp/lockstep-check-UID",
     "Where tools/check keeps its sanitized builds; the library ignores it."},
    {"LOCKSTEP_CHUNK_BYTES", "bytes, a multiple of 64 up to 1,073,741,824", "262,144; over libfabric 524,288",
     "Size into which messages are cut; must be the same on all ranks."},
    {"LOCKSTEP_CPU", "scalar, avx2 or avx512", "the best that the processor has",
     "Highest variant of the CPU kernels to use, which a process chooses once; all give the same bits."},
    {"LOCKSTEP_DETERMINISTIC", "0 or 1", "0",
     "Every reduction folds in rank order, so that its bits depend on the inputs alone; must be the same on all "
     "ranks."},
    {"LOCKSTEP_DEVICE_BACKEND", "auto, nccl or staged", "auto",
     "How tensors on a device travel between ranks: the first of these that all ranks can use, or one of them; must be "
     "the "
     "same on all ranks."},
    {"LOCKSTEP_FLIGHT_RECORDS", "a count, 16 to 1,048,576", "256",
     "How many of the latest operations a communicator remembers for its error messages."},
    {"LOCKSTEP_HOST_ID", "any text", "derived from the machine",
     "Names the host: ranks with the same text are taken to share memory."},
    {"LOCKSTEP_INTERFACE", "a list of names, ^names, =names and CIDR blocks", "chosen by the route to rank 0",
     "Network interface whose address a rank listens on; the grammar is below."},
    {"LOCKSTEP_JOB_ID", "any text", "empty", "Names the job: connections of another job are refused."},
    {"LOCKSTEP_LOCAL_RANK", "0 to LOCKSTEP_LOCAL_WORLD_SIZE - 1", "unset", "This process's number on its host."},
    {"LOCKSTEP_LOCAL_WORLD_SIZE", "a count, 1 or more", "unset", "How many processes of the job run on this host."},
    {"LOCKSTEP_LOG", "error, warning, info, debug or trace", "warning",
     "Least urgent level that is logged, read when a process first logs."},
    {"LOCKSTEP_MEASURE_LINKS", "0 or 1", "0",
     "Chooses algorithms by what the links cost as measured at set-up, not by costs built in; must be the same on all "
     "ranks."},
    {"LOCKSTEP_NCCL_LIBRARY", "path or name of a library", "found",
     "The NCCL to load, 2.14 or newer; the order in which it is looked for otherwise is below."},
    {"LOCKSTEP_NO_APT", "0 or 1", "0", "Keeps ./bazelw from installing packages; the library ignores it."},
    {"LOCKSTEP_OFI_DOMAIN", "a domain of the provider, such as mlx5_1", "the first at the rank's address",
     "Device or interface, as the provider of libfabric calls it; each rank may have its own."},
    {"LOCKSTEP_OFI_LIBRARY", "path or name of a library", "libfabric.so.1", "The libfabric to load, 1.12 or newer."},
    {"LOCKSTEP_OFI_PROVIDER", "the name of a provider, such as tcp;ofi_rxm", "the best that this machine has",
     "Provider of libfabric to use; must be the same on all ranks."},
    {"LOCKSTEP_PEER_TIMEOUT_MS", "milliseconds, 1 to 86,400,000", "30,000",
     "Silence of a peer that counts as its death."},
    {"LOCKSTEP_RANK", "0 to LOCKSTEP_WORLD_SIZE - 1", "unset", "This process's number in the world."},
    {"LOCKSTEP_RUN", "path of lockstep-run", "found beside the program, then on PATH",
     "The launcher that programs with --nproc start themselves under; the library ignores it."},
    {"LOCKSTEP_STORE", "tcp://host:port or file:///path", "unset", "Where the ranks meet."},
    {"LOCKSTEP_STORE_SERVED", "0 or 1", "0",
     "Set by the launcher when it serves the store itself, so that rank 0 does not."},
    {"LOCKSTEP_TCP_CONGESTION", "a congestion control of this system",
     "reno between ranks of one host, else the system's", "Congestion control of TCP connections between ranks."},
    {"LOCKSTEP_TCP_RECEIVE_BUFFER", "bytes, 1 to 1,073,741,824", "the kernel's",
     "Size of each connection's receive buffer, which then does not grow as needed."},
    {"LOCKSTEP_TCP_SEND_BUFFER", "bytes, 1 to 1,073,741,824", "the kernel's",
     "Size of each connection's send buffer, which then does not grow as needed."},
    {"LOCKSTEP_TCP_SOCKETS", "a count, 1 to 64", "1",
     "Sockets over which the bytes of each connection are spread; must be the same on all ranks."},
    {"LOCKSTEP_TCP_ZERO_COPY", "0 or 1", "0",
     "Long messages are sent from where they lie, where the kernel can; of use between hosts only."},
    {"LOCKSTEP_TIMEOUT_MS", "milliseconds, 1 to 86,400,000", "1,800,000",
     "Time that one operation may take before it fails everywhere."},
    {"LOCKSTEP_TRACE", "a folder, or a prefix of file names", "unset",
     "Where reducers write a trace of their steps, in a file for each rank."},
    {"LOCKSTEP_TRANSPORT", "auto, tcp, shm or ofi", "auto",
     "What carries the collectives: shared memory inside a host and TCP between hosts, one of them alone, or "
     "libfabric; must be the same on all ranks."},
    {"LOCKSTEP_WORLD_SIZE", "a count, 1 or more", "unset", "How many processes the world has."},
};

}  // namespace

absl::Span<const EnvironmentVariable> EnvironmentTable() { return kTable; }

}  // namespace lockstep
