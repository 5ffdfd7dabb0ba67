/* Lockstep: gradient synchronisation for data-parallel training, embeddable by any framework.
 *
 * THE SMALLEST PROGRAM (examples/c99/two_ranks.c is it, whole):
 *
 *   lockstep_communicator_create(NULL, &communicator);                    who we are: from the environment
 *   lockstep_reducer_create(communicator, parameters, n, NULL, &reducer);
 *   for each step:
 *     lockstep_reducer_begin_backward(reducer, NULL);
 *     lockstep_reducer_mark_ready(reducer, index, &gradient, NULL);       as each gradient appears
 *     lockstep_reducer_end_backward(reducer, NULL);                       the gradients are averages now
 *   lockstep_reducer_destroy(reducer);
 *   lockstep_communicator_destroy(communicator);
 *
 * CONVENTIONS, which hold for everything below:
 *
 *   Errors      A call that can fail returns a lockstep_error*. NULL is success. Anything else belongs to the caller, has a
 *               code and a message, and is freed by lockstep_error_free(). A call that fails does not write its outputs.
 *   Handles     Opaque. ..._create makes one; ..._destroy ends it, and takes NULL. Handles may be destroyed in any order,
 *               so a garbage collector may do it: see lockstep_communicator_destroy. A handle made before fork() answers
 *               FAILED_PRECONDITION in the child, where destroying it only forgets it. The child may make its own.
 *   Structs     One that begins with struct_size is zeroed by the caller, who sets struct_size to its sizeof:
 *               LOCKSTEP_INIT(options) does both. So the size is that of the header which the caller was compiled with.
 *               Zero in any field is the default. New fields are only ever appended. In an array of such structs the first
 *               one's struct_size is the stride, and all are equal. A NULL options pointer means all defaults. The structs
 *               without struct_size (lockstep_tensor, lockstep_stream, lockstep_message) never change.
 *   Enums       An int32_t and named constants. Constants keep their values; new ones are appended.
 *   Outputs     Come last and are named out_*. Where one may be NULL, the comment says so.
 *   Memory      What the library allocates, the library frees (lockstep_string_free, lockstep_bytes_free). Strings and
 *               arrays passed in are copied before the call returns, unless the comment says "borrowed".
 *   Threads     Handles are thread-safe unless their comment says otherwise. A handle is not destroyed while another thread
 *               is inside a call on it. Loading the library starts no thread. Creating a communicator starts its threads,
 *               which block all signals. docs/threading.md lists them.
 *   Callbacks   Carry a context pointer, run on a documented thread and outside our locks. Where there is a `release`
 *               function beside the context, it is called once with the context when the library has made its last call.
 *               It may be NULL. If the call that was given the context fails, the context stays the caller's.
 *   Units       Bytes, milliseconds, elements: the name says which.
 *   Ranks       0 to world size - 1.
 *
 * A function's comment says what it does, and then, in this order and as far as there is more to say than above: REQUIRES,
 * RETURNS, ERRORS, THREADS. INVALID_ARGUMENT for a NULL or malformed argument and FAILED_PRECONDITION for a handle of before
 * fork() are not repeated, nor is the communicator's own error once it is over.
 *
 * The header is C99 and C++, and includes no framework's and no vendor's header. After preprocessing it holds declarations
 * alone; define LOCKSTEP_EXPORT as nothing for parsers that know no attributes (cffi, bindgen).
 */

#ifndef LOCKSTEP_H_
#define LOCKSTEP_H_

#include <stddef.h>
#include <stdint.h>

#define LOCKSTEP_VERSION_MAJOR 0
#define LOCKSTEP_VERSION_MINOR 2
#define LOCKSTEP_VERSION_PATCH 0
#define LOCKSTEP_VERSION (LOCKSTEP_VERSION_MAJOR * 10000 + LOCKSTEP_VERSION_MINOR * 100 + LOCKSTEP_VERSION_PATCH)

#ifndef LOCKSTEP_EXPORT
#if defined(__GNUC__)
#define LOCKSTEP_EXPORT __attribute__((visibility("default")))
#else
#define LOCKSTEP_EXPORT
#endif
#endif

/* Zeroes a struct variable that begins with struct_size, and sets that. It needs <string.h>. */
#define LOCKSTEP_INIT(variable) \
  (memset(&(variable), 0, sizeof(variable)), (void)((variable).struct_size = sizeof(variable)))

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lockstep_error lockstep_error;
typedef struct lockstep_communicator lockstep_communicator;
typedef struct lockstep_work lockstep_work;
typedef struct lockstep_reducer lockstep_reducer;
typedef struct lockstep_store lockstep_store;

/* Frees a callback's context: "Callbacks" above. */
typedef void (*lockstep_release)(void* context);

/* ---- Errors ------------------------------------------------------------------------------------------------------ */

/* What the caller should do is in brackets. */
typedef int32_t lockstep_code;
enum {
  LOCKSTEP_OK = 0,
  LOCKSTEP_CANCELLED = 1,           /* the handle, or its communicator, was closed meanwhile  [nothing] */
  LOCKSTEP_UNKNOWN = 2,             /* an embedder's callback failed without saying how */
  LOCKSTEP_INVALID_ARGUMENT = 3,    /*                                                        [fix the call] */
  LOCKSTEP_DEADLINE_EXCEEDED = 4,   /* of a wait: what is waited for goes on                  [wait again];
                                     * of a collective or message: the communicator is over   [make a new one];
                                     * of a creation: ranks did not appear in time            [fix the set-up] */
  LOCKSTEP_NOT_FOUND = 5,           /* no such host, key or interface                         [fix the set-up] */
  LOCKSTEP_ALREADY_EXISTS = 6,      /* rank claimed twice, port taken                         [fix the set-up] */
  LOCKSTEP_PERMISSION_DENIED = 7,   /*                                                        [fix the set-up] */
  LOCKSTEP_RESOURCE_EXHAUSTED = 8,  /* memory, descriptors, threads, a full queue             [raise the limit] */
  LOCKSTEP_FAILED_PRECONDITION = 9, /* wrong order of calls, ranks that disagree              [fix the program] */
  LOCKSTEP_ABORTED = 10,            /* a peer failed; the communicator is over                [make a new one] */
  LOCKSTEP_OUT_OF_RANGE = 11,
  LOCKSTEP_UNIMPLEMENTED = 12, /* this back end or this version cannot do it             [choose another] */
  LOCKSTEP_INTERNAL = 13,      /*                                                        [report a bug] */
  LOCKSTEP_UNAVAILABLE = 14,   /* not reachable, not installed                           [try again] */
  LOCKSTEP_DATA_LOSS = 15
};

/* LOCKSTEP_OK for NULL. */
LOCKSTEP_EXPORT lockstep_code lockstep_error_code(const lockstep_error* error);
/* Text for people, valid until the error is freed. "" for NULL. */
LOCKSTEP_EXPORT const char* lockstep_error_message(const lockstep_error* error);

/* What the message says, as data.
 *   failed_rank  in the world: the rank that died, stopped answering, exited, aborted or differed; of several the first that is
 *                named. On a communicator without coordinator, the one whose connection broke.
 *   collective   the operation that returned the error: "all_reduce" and so on, as the calls below are named; also "send", "receive"
 *   sequence     of that operation, as in the flight records; messages, and calls that were not started, have none
 *   bucket       the reducer's
 *   parameter    its index in the reducer's table
 *   RETURNS      -1, and "" for the collective, where there is none or it is not known, and for NULL. The text is valid until the
 *                error is freed. */
LOCKSTEP_EXPORT int32_t lockstep_error_failed_rank(const lockstep_error* error);
LOCKSTEP_EXPORT const char* lockstep_error_collective(const lockstep_error* error);
LOCKSTEP_EXPORT int64_t lockstep_error_sequence(const lockstep_error* error);
LOCKSTEP_EXPORT int64_t lockstep_error_bucket(const lockstep_error* error);
LOCKSTEP_EXPORT int64_t lockstep_error_parameter(const lockstep_error* error);

/* Takes NULL. */
LOCKSTEP_EXPORT void lockstep_error_free(lockstep_error* error);

/* Makes what a callback of the embedder's returns.
 *   RETURNS  NULL for LOCKSTEP_OK. A NULL message is "". */
LOCKSTEP_EXPORT lockstep_error* lockstep_error_create(lockstep_code code, const char* message);

/* Frees a text that a call gave out. Takes NULL. */
LOCKSTEP_EXPORT void lockstep_string_free(char* string);

/* ---- Tensors and streams ----------------------------------------------------------------------------------------- */

typedef int32_t lockstep_dtype;
enum {
  /* 0 is no dtype: INVALID_ARGUMENT */
  LOCKSTEP_BOOL = 1, /* one byte, 0 or 1 */
  LOCKSTEP_U8 = 2,
  LOCKSTEP_I8 = 3,
  LOCKSTEP_I32 = 4,
  LOCKSTEP_U32 = 5,
  LOCKSTEP_I64 = 6,
  LOCKSTEP_U64 = 7,
  LOCKSTEP_F16 = 8,
  LOCKSTEP_BF16 = 9,
  LOCKSTEP_F32 = 10,
  LOCKSTEP_F64 = 11,
  LOCKSTEP_F8E4M3 = 12,
  LOCKSTEP_F8E5M2 = 13,
  LOCKSTEP_COMPLEX64 = 14, /* two f32 */
  LOCKSTEP_COMPLEX128 = 15 /* two f64 */
};

/* Bytes of one element; 0 for what is no dtype. */
LOCKSTEP_EXPORT size_t lockstep_dtype_size(lockstep_dtype dtype);

typedef int32_t lockstep_device_kind;
enum { LOCKSTEP_HOST = 0, LOCKSTEP_CUDA = 1 };

/* A view of memory; it owns nothing. No two elements may overlap. Where a tensor is handed out, all fields zero means that
 * there is none. */
typedef struct lockstep_tensor {
  void* data;             /* may be NULL when there are no elements */
  const int64_t* shape;   /* `dimensions` extents; may be NULL when dimensions is 0 */
  const int64_t* strides; /* in elements; NULL: row-major */
  int32_t dimensions;     /* 0: a scalar */
  lockstep_dtype dtype;
  lockstep_device_kind device_kind;
  int32_t device_index;
} lockstep_tensor;

/* Views a DLTensor (a `const DLTensor*` of dlpack.h, which this header does not include). *out_tensor borrows its arrays. */
LOCKSTEP_EXPORT lockstep_error* lockstep_tensor_from_dlpack(const void* dl_tensor, lockstep_tensor* out_tensor);

/* An ordered queue of work. A NULL lockstep_stream* means the host, inline: the data is ready when the call is made, and what
 * the call produces is there when it returns. The handle of a CUDA stream is a cudaStream_t; NULL in it is the legacy default
 * stream, and cudaStreamPerThread that of the calling thread. A CUDA stream outlives the communicator or reducer that it was
 * passed to. The only streams of the host are those that a hook_issue is given. */
typedef struct lockstep_stream {
  void* handle;
  lockstep_device_kind device_kind;
  int32_t device_index;
} lockstep_stream;

/* ---- Communicators ----------------------------------------------------------------------------------------------- */

/* A lockstep_communicator is a fixed group of ranks that call the same collectives in the same order: what MPI calls a
 * communicator, NCCL an ncclComm_t and PyTorch a ProcessGroup.
 *
 * A field that is left at zero is read from the environment first (docs/environment.md), also where world_size is given. A
 * switch that the environment sets cannot be cleared here. */
typedef struct lockstep_communicator_options {
  size_t struct_size;
  /* Who we are. world_size 0: rank, size, local rank and size, store and job are read from the environment (LOCKSTEP_*, then
   * torchrun's, Open MPI's, PMI's, Slurm's), and with nothing set it is a world of one. */
  int32_t world_size;
  int32_t rank;
  /* Ranks on this host, and which of them this is. 0: LOCKSTEP_LOCAL_WORLD_SIZE and LOCKSTEP_LOCAL_RANK, else not known.
   * A world that is told to be on one host uses the loopback interface. local_rank counts only beside local_world_size. */
  int32_t local_world_size;
  int32_t local_rank;
  /* Where the ranks meet: a URL (tcp://host:port served by rank 0, file:///path), or a store. The store is used during the
   * creation only. */
  const char* store_url;
  lockstep_store* store;
  /* Keeps jobs apart that share a store or a port. At most 256 bytes; default LOCKSTEP_JOB_ID, or "". */
  const char* job_id;
  const char* network_interface; /* of this host: eth0, ^docker, 10.0.0.0/8; docs/environment.md has the grammar */
  const char* host_id;      /* ranks with the same one are taken to share a host; default: derived from the machine */
  int64_t setup_timeout_ms; /* for every rank to appear; default 300,000 */
  int64_t timeout_ms;       /* of one collective; default LOCKSTEP_TIMEOUT_MS or 1,800,000 */
  int64_t peer_timeout_ms;  /* a rank silent this long counts as failed; default LOCKSTEP_PEER_TIMEOUT_MS or 30,000 */
  /* What follows is equal on all ranks, unless it says otherwise; creation checks that. */

  /* How the ranks reach each other: "auto" (default; or LOCKSTEP_TRANSPORT) is shared memory between ranks of one host,
   * decided by really connecting, and TCP between hosts. "tcp" and "shm" are one of them alone. "ofi" is libfabric between
   * all ranks (docs/libfabric.md). */
  const char* transport;
  const char* algorithm; /* "ring", "all_reduce:recursive_doubling;broadcast:binomial"; default: chosen by size */
  int64_t chunk_bytes;   /* pipelining unit; default 262,144, over libfabric 524,288 */
  /* 1: every reduction adds up in rank order, so that its bits depend on nothing but the inputs: not on transport, chunks,
   * buckets or the choice of an algorithm (docs/numerics.md). */
  int32_t deterministic;
  int32_t checked; /* 1: compare every collective's arguments across ranks before it starts (slower) */
  /* This rank's device, whose tensors and streams the communicator takes beside the host's. LOCKSTEP_HOST: none. The kind is
   * equal on all ranks, the index this rank's own. */
  lockstep_device_kind device_kind;
  int32_t device_index;
  /* How its tensors travel: "nccl", "staged" (through memory of the host, and then as `transport` says), or "auto" (default;
   * or LOCKSTEP_DEVICE_BACKEND): the first that all ranks can use. lockstep_communicator_describe tells which, and why. */
  const char* device_backend;
  const char* tcp_congestion_control; /* default: reno between ranks of one host, else the system's; this rank's own */
  int32_t tcp_send_buffer_bytes;      /* default: the kernel's, which grow as needed; these two are this rank's own */
  int32_t tcp_receive_buffer_bytes;
  int32_t tcp_sockets; /* over which each connection's bytes are spread; default 1 */
  /* 1: long messages leave from where they lie, where the kernel can (MSG_ZEROCOPY). After an abort, what was under way may
   * still leave as the memory is then. This rank's own. */
  int32_t tcp_zero_copy;
  /* With the back end "nccl": how many thread blocks its kernels may have at least and at most (from NCCL 2.17 on; 0: its
   * choice), and 1 for subgroups that share the communicator's resources (from 2.18 on): they take less memory, and must not
   * be used at the same time as it or as each other. */
  int32_t nccl_ctas_min;
  int32_t nccl_ctas_max;
  int32_t nccl_split_share;
  /* With the transport "ofi": libfabric's provider, "tcp;ofi_rxm"; default LOCKSTEP_OFI_PROVIDER, or the best there is. Which
   * of the provider's devices this rank uses, only LOCKSTEP_OFI_DOMAIN tells. */
  const char* ofi_provider;
} lockstep_communicator_options;

/* Every rank calls it. Returns when all ranks have connected and agreed, or with the reason why not.
 *   REQUIRES  the store, if one is given, until the call returns
 *   ERRORS    DEADLINE_EXCEEDED    not every rank appeared within setup_timeout_ms; the message names those missing, and says
 *                                  if another job is at the store
 *             FAILED_PRECONDITION  ranks differ in size or options, or one told another host a loopback address; every rank
 *                                  gets the same text
 *             UNAVAILABLE          the device, its driver or libfabric is not there
 *             RESOURCE_EXHAUSTED   descriptors, threads or memory
 *             any code             another rank could not go on: the message names it */
LOCKSTEP_EXPORT lockstep_error* lockstep_communicator_create(const lockstep_communicator_options* options,
                                                             lockstep_communicator** out_communicator);

/* Ends operations in flight, here with CANCELLED and on the peers with ABORTED, and returns without waiting for them. With nothing in
 * flight here, peers may still finish what this rank has finished; what they call beyond that is ABORTED, naming this rank, after a
 * second or two. Subgroups go on. What was made of the communicator (reducers, prepared collectives, buffer sets) answers
 * FAILED_PRECONDITION or CANCELLED from then on, and is destroyed by its own call, before or after; works of it are done.
 * Does nothing to the communicator of a hook.
 *   THREADS  Other threads may be in calls on what was made of it, and return; none may be in a call on this handle. */
LOCKSTEP_EXPORT void lockstep_communicator_destroy(lockstep_communicator* communicator);

/* -1 for NULL. */
LOCKSTEP_EXPORT int32_t lockstep_communicator_rank(const lockstep_communicator* communicator);
LOCKSTEP_EXPORT int32_t lockstep_communicator_size(const lockstep_communicator* communicator);

/* NULL while the communicator is usable, else why it is not: the cause, which is the same on all ranks. Errors of operations say
 * besides which operation it was and how far it had come. */
LOCKSTEP_EXPORT lockstep_error* lockstep_communicator_status(const lockstep_communicator* communicator);

/* Fails all operations in flight and all later ones, on every rank, with ABORTED and this reason. Does not wait. */
LOCKSTEP_EXPORT lockstep_error* lockstep_communicator_abort(lockstep_communicator* communicator, const char* reason);

/* How ranks are connected, and why. lockstep_string_free the text. */
LOCKSTEP_EXPORT lockstep_error* lockstep_communicator_describe(const lockstep_communicator* communicator,
                                                               char** out_text);

/* The last collectives, one line each, newest last: sequence, operation, sizes, state, times, bytes per peer. One that was
 * over sooner than it takes to read the clock is "done at once". lockstep_string_free the text. */
LOCKSTEP_EXPORT lockstep_error* lockstep_communicator_flight_records(const lockstep_communicator* communicator,
                                                                     char** out_text);

/* ---- Collectives -------------------------------------------------------------------------------------------------
 *
 * Every rank of the communicator calls them, in the same order, with equal counts, dtypes and ops. A difference is the same
 * FAILED_PRECONDITION on every rank that has not finished, telling which rank called what, and at the next call on the
 * others. The communicator is over then; in checked mode it stays usable.
 *
 * Tensors are contiguous, and all of a call are on the host or on the communicator's device. In place: input and output are
 * the same memory, as each call says. Any other overlap is INVALID_ARGUMENT.
 *
 * Each call takes `options` (NULL: defaults), `stream` and `out_work`, which say when it returns:
 *
 *   stream NULL, out_work NULL    when the collective is done
 *   stream NULL, out_work given   at once (in checked mode, once all ranks have called). The tensors' memory is borrowed until
 *                                 the work is done. A call on a device waits for nothing of the caller's.
 *   stream given, out_work NULL   when the collective is enqueued on the stream, whose order says when it is done. The stream is
 *                                 of the communicator's device. What goes wrong later is told by lockstep_communicator_status.
 *   stream given, out_work given  INVALID_ARGUMENT
 *
 * The handle is the one thing that a call with out_work allocates, once a call like it has been made before. */

typedef int32_t lockstep_reduce_op;
enum {
  LOCKSTEP_SUM = 0,        /* bool: or */
  LOCKSTEP_AVG = 1,        /* floats: inputs times 1/n, then the sum; integers: the sum, divided toward zero */
  LOCKSTEP_PREMUL_SUM = 2, /* inputs times *options->factor, then the sum; floats and complex */
  LOCKSTEP_PROD = 3,
  LOCKSTEP_MIN = 4, /* IEEE 754-2019: NaN propagates, -0 < +0 */
  LOCKSTEP_MAX = 5,
  LOCKSTEP_AND = 6, /* integers and bool */
  LOCKSTEP_OR = 7,
  LOCKSTEP_XOR = 8
};

typedef struct lockstep_collective_options {
  size_t struct_size;
  /* The whole collective's; after it the communicator is aborted on every rank. 0: the communicator's. */
  int64_t timeout_ms;
  const double* factor; /* of LOCKSTEP_PREMUL_SUM, which requires it, and of nothing else; each rank may have its own */
  const char* algorithm; /* overrides the communicator's choice; equal on all ranks */
} lockstep_collective_options;

/* output on every rank = reduction of all inputs; same shape. In place: the same tensor. */
LOCKSTEP_EXPORT lockstep_error* lockstep_all_reduce(lockstep_communicator* communicator, const lockstep_tensor* input,
                                                    const lockstep_tensor* output, lockstep_reduce_op op,
                                                    const lockstep_collective_options* options,
                                                    const lockstep_stream* stream, lockstep_work** out_work);

/* tensor on every rank = tensor on the root. */
LOCKSTEP_EXPORT lockstep_error* lockstep_broadcast(lockstep_communicator* communicator, const lockstep_tensor* tensor,
                                                   int32_t root, const lockstep_collective_options* options,
                                                   const lockstep_stream* stream, lockstep_work** out_work);

/* output (world size x input's elements) on every rank = the inputs in rank order. In place: input is block `rank` of output. */
LOCKSTEP_EXPORT lockstep_error* lockstep_all_gather(lockstep_communicator* communicator, const lockstep_tensor* input,
                                                    const lockstep_tensor* output,
                                                    const lockstep_collective_options* options,
                                                    const lockstep_stream* stream, lockstep_work** out_work);

/* output = block `rank` (input's elements / world size) of the reduction of all inputs. In place: output is block `rank` of
 * input, and the rest of input is left as it was. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reduce_scatter(lockstep_communicator* communicator,
                                                        const lockstep_tensor* input, const lockstep_tensor* output,
                                                        lockstep_reduce_op op,
                                                        const lockstep_collective_options* options,
                                                        const lockstep_stream* stream, lockstep_work** out_work);

/* Block r of input goes to rank r; block r of output comes from rank r. In place: the same tensor (the input is then copied
 * aside first). */
LOCKSTEP_EXPORT lockstep_error* lockstep_all_to_all(lockstep_communicator* communicator, const lockstep_tensor* input,
                                                    const lockstep_tensor* output,
                                                    const lockstep_collective_options* options,
                                                    const lockstep_stream* stream, lockstep_work** out_work);

/* output on the root = reduction of all inputs. output is ignored elsewhere and may be NULL there. In place at the root. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reduce(lockstep_communicator* communicator, const lockstep_tensor* input,
                                                const lockstep_tensor* output, lockstep_reduce_op op, int32_t root,
                                                const lockstep_collective_options* options,
                                                const lockstep_stream* stream, lockstep_work** out_work);

/* Done on no rank before every rank has called it. */
LOCKSTEP_EXPORT lockstep_error* lockstep_barrier(lockstep_communicator* communicator,
                                                 const lockstep_collective_options* options,
                                                 const lockstep_stream* stream, lockstep_work** out_work);

/* In the next calls each rank has a block. An array of counts has an entry for each rank: block r has counts[r] elements, and
 * blocks lie one behind the other in rank order. Arrays of counts are copied. Counts that do not add up are INVALID_ARGUMENT
 * before anything starts. But for lockstep_all_to_all_v they are equal on all ranks; a difference is as above. */

/* As lockstep_all_gather and lockstep_reduce_scatter, with blocks of their own sizes. */
LOCKSTEP_EXPORT lockstep_error* lockstep_all_gather_v(lockstep_communicator* communicator, const lockstep_tensor* input,
                                                      const lockstep_tensor* output, const int64_t* counts,
                                                      const lockstep_collective_options* options,
                                                      const lockstep_stream* stream, lockstep_work** out_work);
LOCKSTEP_EXPORT lockstep_error* lockstep_reduce_scatter_v(lockstep_communicator* communicator,
                                                          const lockstep_tensor* input, const lockstep_tensor* output,
                                                          const int64_t* counts, lockstep_reduce_op op,
                                                          const lockstep_collective_options* options,
                                                          const lockstep_stream* stream, lockstep_work** out_work);

/* output on the root = the inputs in rank order; ignored elsewhere and may be NULL there. counts NULL: equal blocks. In place
 * at the root: input is block `root` of output. */
LOCKSTEP_EXPORT lockstep_error* lockstep_gather(lockstep_communicator* communicator, const lockstep_tensor* input,
                                                const lockstep_tensor* output, const int64_t* counts, int32_t root,
                                                const lockstep_collective_options* options,
                                                const lockstep_stream* stream, lockstep_work** out_work);

/* output = block `rank` of the root's input, which is ignored elsewhere and may be NULL there. counts NULL: equal blocks. In
 * place at the root: output is block `root` of input. */
LOCKSTEP_EXPORT lockstep_error* lockstep_scatter(lockstep_communicator* communicator, const lockstep_tensor* input,
                                                 const lockstep_tensor* output, const int64_t* counts, int32_t root,
                                                 const lockstep_collective_options* options,
                                                 const lockstep_stream* stream, lockstep_work** out_work);

/* lockstep_all_to_all with input_counts[r] elements to rank r and output_counts[r] from it. Each rank has its own arrays.
 *   ERRORS  FAILED_PRECONDITION  a sender and a receiver disagree: the message says which ranks and what each expected */
LOCKSTEP_EXPORT lockstep_error* lockstep_all_to_all_v(lockstep_communicator* communicator, const lockstep_tensor* input,
                                                      const lockstep_tensor* output, const int64_t* input_counts,
                                                      const int64_t* output_counts,
                                                      const lockstep_collective_options* options,
                                                      const lockstep_stream* stream, lockstep_work** out_work);

/* A lockstep_work is one operation in flight: a collective, a message or a group. It keeps what it needs, so the communicator
 * may be destroyed before it. */

/* Waits at most timeout_ms; 0 only looks.
 *   RETURNS  the operation's own result, as often as asked
 *   ERRORS   DEADLINE_EXCEEDED    it is not done: it goes on and the memory stays borrowed. If it is the operation's own time
 *                                 that ran out, lockstep_work_done says 1.
 *            FAILED_PRECONDITION  it belongs to a group that is still open on this thread */
LOCKSTEP_EXPORT lockstep_error* lockstep_work_wait(lockstep_work* work, int64_t timeout_ms);

/* 1 when it is over, well or not, and for NULL; else 0. Does not wait. */
LOCKSTEP_EXPORT int32_t lockstep_work_done(const lockstep_work* work);

/* `error` is the work's result, borrowed until the callback returns. */
typedef void (*lockstep_work_callback)(void* context, const lockstep_error* error);

/* Has `callback` called once when the work is over, well or not, though nobody waits for it. A work may be given several; they are
 * called in that order.
 *   ERRORS   FAILED_PRECONDITION  the work belongs to a group that is still open
 *            RESOURCE_EXHAUSTED   there is no thread for it; it is not called
 *   THREADS  The callback runs on this thread before the call returns, if the work is over already; else on the thread
 *            lockstep-done. It may start operations and destroy handles, this one included. It must not wait for operations, and
 *            should be short: all callbacks of the process take turns. */
LOCKSTEP_EXPORT lockstep_error* lockstep_work_on_complete(lockstep_work* work, lockstep_work_callback callback,
                                                          void* context);

/* Does not wait and does not cancel: an unfinished operation goes on, and its memory stays borrowed. */
LOCKSTEP_EXPORT void lockstep_work_destroy(lockstep_work* work);

/* ---- The reducer -------------------------------------------------------------------------------------------------
 *
 * Averages the gradients of a replicated model over the ranks, bucket by bucket, while the backward pass still computes: what
 * DistributedDataParallel does. docs/embedding.md has DDP's options and what they are called here.
 *
 * A reducer is used by one thread at a time, except that the mark_ready calls may be made by several at once. Between
 * begin_backward and end_backward its communicator belongs to it: collectives of others, subgroups, memory, and the backward of another
 * reducer are FAILED_PRECONDITION then. Messages, and a duplicate made before, are free. */

/* One row of the parameter table, which is equal on all ranks. */
typedef struct lockstep_parameter {
  size_t struct_size;
  const char* name;       /* for messages; compared across ranks; NULL or "": none; else no other parameter's */
  const int64_t* shape;   /* `dimensions` extents; zero elements are allowed */
  const int64_t* strides; /* of the gradient, in elements; NULL: row-major */
  int32_t dimensions;
  lockstep_dtype dtype;
  lockstep_device_kind device_kind;
  int32_t device_index;
  int32_t ignored; /* 1: it keeps its index but has no bucket: no gradient, or one that stays this rank's own */
  int32_t sparse;  /* 1: its gradient is rows of the first dimension: lockstep_reducer_mark_ready_sparse; row-major */
} lockstep_parameter;

typedef int32_t lockstep_averaging;
enum {
  LOCKSTEP_AVERAGING_BEFORE = 0,        /* gradients times 1/n while they are copied into the bucket, then the sum */
  LOCKSTEP_AVERAGING_AFTER = 1,         /* the sum, then times 1/n while it is copied out */
  LOCKSTEP_AVERAGING_NONE = 2,          /* the sum */
  LOCKSTEP_AVERAGING_IN_COLLECTIVE = 3, /* by the all-reduce, as LOCKSTEP_AVG */
  LOCKSTEP_AVERAGING_PREDIVIDE = 4      /* times 1/predivide_factor on the way in, predivide_factor/n on the way out */
};

/* What is sent of a gradient. Of f32 that is half the bytes; docs/embedding.md says what it costs in precision. */
typedef int32_t lockstep_compression;
enum {
  LOCKSTEP_COMPRESSION_NONE = 0,
  LOCKSTEP_COMPRESSION_F16 = 1, /* what is beyond 65504 becomes an infinity */
  LOCKSTEP_COMPRESSION_BF16 = 2
};

/* What is done with a bucket once its gradients are in it. */
typedef int32_t lockstep_hook;
enum {
  LOCKSTEP_HOOK_NONE = 0,          /* averaged by an all-reduce, as `averaging` says */
  LOCKSTEP_HOOK_ALL_REDUCE = 1,    /* the same */
  LOCKSTEP_HOOK_FP16_COMPRESS = 2, /* the same, with LOCKSTEP_COMPRESSION_F16 */
  LOCKSTEP_HOOK_BF16_COMPRESS = 3, /* the same, with LOCKSTEP_COMPRESSION_BF16 */
  LOCKSTEP_HOOK_NOOP = 4,          /* nothing: this rank's gradients come back; for comparison of speed */
  LOCKSTEP_HOOK_CALLBACK = 5       /* hook_issue or hook_start; averaging is theirs to do */
};

/* A bucket as a hook of the embedder's sees it, from the hook's call until the backward has ended. */
typedef struct lockstep_hook_bucket lockstep_hook_bucket;
typedef struct lockstep_hook_completion lockstep_hook_completion;

/* hook_issue: enqueues what is to be done with the bucket, by collectives on this communicator and stream and by
 * lockstep_hook_bucket_run, and returns without waiting for it. An error is taken over and means that the hook failed.
 *   THREADS  On a thread that called mark_ready, begin_backward or end_backward. */
typedef lockstep_error* (*lockstep_hook_issue)(void* context, lockstep_hook_bucket* bucket,
                                               lockstep_communicator* communicator, const lockstep_stream* stream);

/* hook_start: does with the bucket what is to be done, or has another thread do it, by whatever means, among them every call
 * of this header on this communicator.
 *   THREADS  On the thread lockstep-coll, which goes on when lockstep_hook_complete is called. */
typedef void (*lockstep_hook_start)(void* context, lockstep_hook_bucket* bucket, lockstep_communicator* communicator,
                                    lockstep_hook_completion* completion);

/* What an optimizer gets of a bucket: the parameters in it that some rank used, and their averages. Borrowed until the step
 * returns. */
typedef struct lockstep_reduced_bucket {
  size_t struct_size; /* set by the library */
  size_t index;       /* of `count` buckets of the step, in the order of launch */
  size_t count;
  size_t parameter_count;
  const size_t* parameters; /* indexes into the parameter table */
  const lockstep_tensor* gradients;
  /* Of a sparse parameter, which has a bucket of its own, instead of gradients, of which there is none then: as
   * lockstep_reducer_averaged_rows gives them. */
  const int64_t* rows;
  size_t row_count;
  const void* row_values;
  /* Of gradients on a device: where the step is to be enqueued; the averages are there in its order, and the call may be made
   * before they are. Else NULL: the step is to be taken now. */
  const lockstep_stream* stream;
} lockstep_reduced_bucket;

/* Steps these parameters while later buckets are still under way. An error is taken over. end_backward fails with it here,
 * and on the other ranks where a bucket launched later could still tell them.
 *   THREADS  On the thread lockstep-opt. */
typedef lockstep_error* (*lockstep_optimizer_step)(void* context, const lockstep_reduced_bucket* bucket);

/* Equal on all ranks, but for callbacks, contexts, hook_timeout_ms and trace_path; creation compares them. */
typedef struct lockstep_reducer_options {
  size_t struct_size;
  /* A bucket is full when its bytes reach the cap, so a cap is a lower bound but for the last bucket. */
  int64_t bucket_cap_bytes;       /* default 26,214,400 (25 MiB) */
  int64_t first_bucket_cap_bytes; /* default 1,048,576 (1 MiB), or bucket_cap_bytes where that was given */
  /* 1: not every parameter is used in every backward, on every rank. One that no rank used keeps its gradient as it is; for
   * one that this rank did not use see lockstep_reducer_averaged_gradient. Gradients of backwards without sync then stay
   * borrowed until the next one with sync ends, in which they count as used. */
  int32_t find_unused_parameters;
  /* 1: every backward marks the same parameters, each as often as in the first one, which may be several times (shared
   * weights, checkpointing). Only the last mark of each counts; unused ones are known from the first backward. */
  int32_t static_graph;
  /* 1: gradients live in the buckets, where lockstep_reducer_gradient_view says, and are not copied. Not with
   * buckets_in_memory_max. */
  int32_t gradient_as_bucket_view;
  lockstep_averaging averaging;
  double predivide_factor; /* of LOCKSTEP_AVERAGING_PREDIVIDE, which requires it; from 2^-10 to 2^15 */
  lockstep_compression compression;
  lockstep_hook hook;
  /* Of LOCKSTEP_HOOK_CALLBACK: one of the two functions. */
  const char* hook_name; /* for messages; compared across ranks; default "callback" */
  lockstep_hook_issue hook_issue;
  lockstep_hook_start hook_start;
  void* hook_context;
  lockstep_release hook_release;
  int64_t hook_timeout_ms; /* from hook_start to lockstep_hook_complete; default 1,800,000 */
  /* Called for each bucket as soon as its averages are there; NULL: none. Its gradients are not borrowed any more then. */
  lockstep_optimizer_step optimizer_step;
  void* optimizer_context;
  lockstep_release optimizer_release;
  /* Instead of the two caps above: a cap for each bucket of a dtype and device, the last one for all that follow. */
  const int64_t* bucket_caps_bytes;
  size_t bucket_cap_count;
  /* 1: the first cap is that of the bucket that is launched last, and so on backwards: a small last bucket leaves little to
   * wait for when backward ends. */
  int32_t caps_from_last;
  /* How many buckets have memory at a time, taking turns; 0: all. The gradients of the others stay where they are for longer. */
  int32_t buckets_in_memory_max;
  int32_t no_overlap; /* 1: launch every bucket at end_backward; for comparison */
  /* 1: buckets are planned anew only after lockstep_reducer_request_replan. Otherwise also once, by the order in which rank
   * 0's gradients appeared; not in bucket views, which would move. */
  int32_t no_replan;
  const char* plan; /* of an earlier run, from lockstep_reducer_export_plan: buckets as they were then */
  /* Parameters whose gradients are reduced when that of the trigger is ready, with what has been marked of them by then, in
   * whichever backward; those that were not marked are unused. */
  const size_t* delayed;
  size_t delayed_count;
  size_t delayed_trigger;
  /* 1: ranks may run out of inputs at different times; those that have call lockstep_reducer_join. With it:
   * divide_by_live_ranks 1: averages are those of the ranks that have inputs, rather than of all with zeros for the others.
   * Not with hooks, nor with LOCKSTEP_AVERAGING_NONE. throw_on_early_termination 1: as soon as a rank has joined, the step is
   * FAILED_PRECONDITION on all ranks, and so is join. */
  int32_t uneven_inputs;
  int32_t divide_by_live_ranks;
  int32_t throw_on_early_termination;
  /* Where this rank's trace of every step goes: a folder, or the beginning of a file's name. NULL: where LOCKSTEP_TRACE says,
   * if it does. */
  const char* trace_path;
} lockstep_reducer_options;

/* Every rank calls it with its parameter table in the order of definition. Tables and options are compared.
 *   ERRORS  FAILED_PRECONDITION  tables or options differ: the same text on every rank, naming rank, parameter and what
 *                                differs; or another rank's arguments are bad
 *           RESOURCE_EXHAUSTED   the buckets of this host's ranks do not fit in its memory: the message has what is needed and
 *                                what is left; FAILED_PRECONDITION on the other hosts' ranks
 *           INVALID_ARGUMENT     also options that exclude each other, by name
 *           UNIMPLEMENTED        what the communicator or the device cannot do */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_create(lockstep_communicator* communicator,
                                                        const lockstep_parameter* parameters, size_t parameter_count,
                                                        const lockstep_reducer_options* options,
                                                        lockstep_reducer** out_reducer);

/* Inside a step it waits for the buckets that were launched, at most until their deadline; once its communicator was destroyed or
 * aborted it ends at once. */
LOCKSTEP_EXPORT void lockstep_reducer_destroy(lockstep_reducer* reducer);

/* Copies the root's tensors (parameters, buffers) to every rank, coalesced, as at the start of training. Every rank calls it.
 * Blocks until done. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_broadcast(lockstep_reducer* reducer, const lockstep_tensor* tensors,
                                                           size_t tensor_count, int32_t root);

typedef struct lockstep_backward_options {
  size_t struct_size;
  int32_t no_sync; /* 1: gradients only accumulate in the embedder's memory; nothing is sent, marks are only checked */
  /* With find_unused_parameters. 0: what was not marked by the end is unused. 1: exactly the next are, which may be none; buckets
   * need not wait for the end then, and a gradient that is neither marked nor named is an error. */
  int32_t unused_given;
  const size_t* unused; /* indexes of parameters */
  size_t unused_count;
  /* Of the device that gradients are on: where the backward begins; may be NULL. In bucket views, what may still write the views
   * of `unused` parameters comes before this point in it. While it is being captured into a CUDA graph, so is the step: see
   * lockstep_reducer_check_replays. */
  const lockstep_stream* stream;
} lockstep_backward_options;

/* Begins a step. Returns errors of other ranks in an earlier step, once, where end_backward could not.
 *   ERRORS  FAILED_PRECONDITION  the last backward was not ended; that of another reducer is under way on this communicator;
 *                                unused parameters without find_unused_parameters; a step that is to be captured and cannot be
 *           INVALID_ARGUMENT     `unused` holds an index that is not in the table */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_begin_backward(lockstep_reducer* reducer,
                                                                const lockstep_backward_options* options);

/* The gradient of parameter `index` is final (with a stream: once the stream reaches this point). Its memory stays borrowed
 * until end_backward and is overwritten with the average.
 *   ERRORS   INVALID_ARGUMENT     an index out of range; a gradient that does not match the table, or that lies in memory into
 *                                 which another parameter's average goes in this backward
 *            FAILED_PRECONDITION  outside a backward; marked before; named as unused; not as in the first backward of a
 *                                 static graph
 *            A refused mark counts as none. Unless another mark of the parameter is accepted, the step fails on every rank, with
 *            this error in its message.
 *   THREADS  Several threads may mark at once. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_mark_ready(lockstep_reducer* reducer, size_t index,
                                                            const lockstep_tensor* gradient,
                                                            const lockstep_stream* stream);

/* The same, but the average goes to `target`, of the gradient's shape and strides and of any float dtype (for complex: the
 * same), and the gradient is only read. In a backward without sync the target counts for nothing. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_mark_ready_into(lockstep_reducer* reducer, size_t index,
                                                                 const lockstep_tensor* gradient,
                                                                 const lockstep_tensor* target,
                                                                 const lockstep_stream* stream);

/* Ends a step: waits for the averages (with a stream: makes the stream wait for them).
 *   ERRORS  FAILED_PRECONDITION  a gradient never came, or was refused, on some rank: the same on every rank, naming rank,
 *                                parameters and reason. No gradient of the step is an average then, and the next may be tried.
 *           With a stream errors are returned once, by a later call: the next begin_backward, or, where steps run ahead on a
 *           device, the one after it. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_end_backward(lockstep_reducer* reducer, const lockstep_stream* stream);

/* The average of a parameter, after a synchronised backward and until the next one begins. Where this rank did not use the
 * parameter and another did, it lies in memory of the reducer's.
 *   RETURNS  *out_used 1, and the average; or, where no rank used the parameter, 0 and all zero. out_used may be NULL. Shape and
 *            strides are borrowed until the next call for the same parameter.
 *   ERRORS   FAILED_PRECONDITION  at other times
 *            INVALID_ARGUMENT     an ignored or sparse parameter */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_averaged_gradient(lockstep_reducer* reducer, size_t index,
                                                                   lockstep_tensor* out_tensor, int32_t* out_used);

/* With gradient_as_bucket_view: where the gradient of a parameter lives, with the table's strides (row-major where those leave
 * gaps). The view holds until plan_version grows; then gradients have been moved, and views are asked for again. A gradient
 * elsewhere may be marked too: it is copied there and back. Shape and strides are borrowed as above.
 *
 * The view of a parameter that this rank did not use holds the average after a synchronised backward in which another rank used
 * it, and is as it was where no rank did; it is copied aside meanwhile. Whatever writes such a view must be done, or be in the stream
 * given to begin_backward (with `unused_given`) or to end_backward. On a rank that has joined, views mean nothing. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_gradient_view(lockstep_reducer* reducer, size_t index,
                                                               lockstep_tensor* out_tensor);

/* 0 for NULL. */
LOCKSTEP_EXPORT size_t lockstep_reducer_bucket_count(const lockstep_reducer* reducer);

/* ---- The reducer: hooks ------------------------------------------------------------------------------------------
 *
 * With LOCKSTEP_HOOK_CALLBACK every bucket goes through hook_issue or hook_start, in the order of launch, which is the same on
 * all ranks; also where this rank has only zeros to give. Gradients come as they are, cast to what `compression` says, and what
 * the hook leaves is taken for the average.
 *
 * hook_issue is stream-ordered. What it enqueues runs in order on the thread lockstep-coll (of gradients on a device: on a
 * stream of it), from when the gradients are in the bucket until the averages are taken out. It passes the stream that it was
 * given to the collectives of this header on the communicator that it was given, with out_work NULL; they always return at once.
 * The tensors' memory is borrowed until the backward has ended. A collective that fails later fails the hook. Without the
 * stream, or once hook_issue has returned, they are FAILED_PRECONDITION.
 *
 * hook_start is host-completed: it is called when the gradients are in the bucket.
 *
 * The communicator is the hook's own, so the reducer's stays good whatever happens to it. It belongs to the reducer: the hook
 * never destroys it. A hook that fails on one rank ends it on all of them; every rank's end_backward says so, and the next
 * backward begins with a new one. A hook calls nothing of its reducer. */

/* 0 to count - 1, in the order of launch; how many buckets; synchronised backwards begun so far, from 1; how many gradients are
 * in the bucket. 0 for NULL. */
LOCKSTEP_EXPORT size_t lockstep_hook_bucket_index(const lockstep_hook_bucket* bucket);
LOCKSTEP_EXPORT size_t lockstep_hook_bucket_count(const lockstep_hook_bucket* bucket);
LOCKSTEP_EXPORT int64_t lockstep_hook_bucket_step(const lockstep_hook_bucket* bucket);
LOCKSTEP_EXPORT size_t lockstep_hook_bucket_gradient_count(const lockstep_hook_bucket* bucket);

/* All of the bucket, as one vector of a multiple of 256 bytes. Each gradient in it begins at one, too; what lies in the gaps
 * means nothing, and may be reduced along. The shape is borrowed like the bucket. */
LOCKSTEP_EXPORT lockstep_error* lockstep_hook_bucket_tensor(const lockstep_hook_bucket* bucket,
                                                            lockstep_tensor* out_tensor);

/* Gradient `slot` of the bucket, as a vector at its place in it, and its index in the parameter table; either may be NULL. */
LOCKSTEP_EXPORT lockstep_error* lockstep_hook_bucket_gradient(const lockstep_hook_bucket* bucket, size_t slot,
                                                              size_t* out_parameter, lockstep_tensor* out_tensor);

/* Of a sparse parameter, whose bucket is a vector of no elements: this rank's rows and values as they were marked, or none; the
 * values are there in the order of the stream.
 *   RETURNS  *out_sparse 1 and the rest; or all 0 and NULL for another bucket. out_sparse may be NULL. */
LOCKSTEP_EXPORT lockstep_error* lockstep_hook_bucket_rows(const lockstep_hook_bucket* bucket, const int64_t** out_rows,
                                                          const void** out_values, size_t* out_row_count,
                                                          int32_t* out_sparse);

/* The average of a sparse bucket: values of row_count rows, in any order, those of repeated ones to be summed. Copied.
 *   REQUIRES  the hook is not done
 *   ERRORS    FAILED_PRECONDITION  another bucket */
LOCKSTEP_EXPORT lockstep_error* lockstep_hook_bucket_set_rows(lockstep_hook_bucket* bucket, const int64_t* rows,
                                                              const void* values, size_t row_count);

/* The averages are in `result` rather than in the bucket: contiguous, as many elements as the bucket, of a float dtype (for
 * complex: the same). The memory stays borrowed until the next backward begins.
 *   REQUIRES  the hook is not done */
LOCKSTEP_EXPORT lockstep_error* lockstep_hook_bucket_set_result(lockstep_hook_bucket* bucket,
                                                                const lockstep_tensor* result);

/* Runs in the stream's order. An error is taken over and fails the hook. */
typedef lockstep_error* (*lockstep_hook_function)(void* context, lockstep_hook_bucket* bucket);

/* Enqueues a function of the embedder's on the bucket's stream. It is not called when something enqueued before it for this
 * bucket has failed.
 *   ERRORS   FAILED_PRECONDITION  not inside hook_issue
 *   THREADS  The function runs on the thread lockstep-coll. Of gradients on a device CUDA runs it, on a thread of the driver's,
 *            where neither CUDA nor what uses it may be called (cudaLaunchHostFunc). */
LOCKSTEP_EXPORT lockstep_error* lockstep_hook_bucket_run(lockstep_hook_bucket* bucket, lockstep_hook_function function,
                                                         void* context);

/* A host-completed hook is done with its bucket: with success (NULL), or with an error, which is taken over. Exactly once: it
 * frees the completion. After hook_timeout_ms the hook has failed with DEADLINE_EXCEEDED, the bucket must not be touched any
 * more, and this call does nothing else.
 *   THREADS  Any. */
LOCKSTEP_EXPORT void lockstep_hook_complete(lockstep_hook_completion* completion, lockstep_error* error);

/* ---- The reducer: plans, reports --------------------------------------------------------------------------------- */

/* Every rank calls it. Buckets are planned anew, by the order in which rank 0's gradients appear in the next synchronised
 * backward, and used once all ranks have the plan. Nobody waits. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_request_replan(lockstep_reducer* reducer);

/* 1 for the first plan. Grows in begin_backward only. 0 for NULL. */
LOCKSTEP_EXPORT int64_t lockstep_reducer_plan_version(const lockstep_reducer* reducer);

/* The plan in use, as text for lockstep_reducer_options.plan: a run that starts again adds up in the same order.
 * lockstep_string_free the text. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_export_plan(const lockstep_reducer* reducer, char** out_text);

/* In how many synchronised backwards so far this rank used (marked) the parameter, and in how many some rank did: of those that
 * succeeded on all ranks. Use in a backward without sync counts in the next one with. Either output may be NULL.
 *   REQUIRES  no other call at the same time */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_parameter_uses(const lockstep_reducer* reducer, size_t index,
                                                                int64_t* out_here, int64_t* out_anywhere);

/* Times of the last synchronised backward, by the host's clock. */
typedef struct lockstep_reducer_statistics {
  size_t struct_size;
  int64_t steps;           /* synchronised backwards so far */
  double backward_ms;      /* begin_backward to the call of end_backward */
  double communication_ms; /* some bucket was being all-reduced */
  double exposed_ms;       /* of that, after end_backward was called: the part that backward did not hide */
  double hidden_ms;        /* communication_ms - exposed_ms */
  int64_t bytes_reduced;   /* payload of the buckets */
  int32_t buckets;
  int32_t buckets_launched_in_backward; /* before end_backward was called */
} lockstep_reducer_statistics;

/* REQUIRES  out_statistics->struct_size is set: as much is written */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_get_statistics(const lockstep_reducer* reducer,
                                                                lockstep_reducer_statistics* out_statistics);

/* One bucket of the last synchronised backward, in milliseconds since its begin_backward by the host's clock. Negative: not
 * recorded. */
typedef struct lockstep_bucket_statistics {
  size_t struct_size;
  double ready_ms;    /* its last gradient was marked */
  double launched_ms; /* all before it were launched too */
  double wire_begin_ms;
  double wire_end_ms;
  double done_ms;          /* averages are in the gradients, and stepped with where the reducer does that */
  double communication_ms; /* between wire_begin_ms and wire_end_ms */
  double exposed_ms;       /* of that, after end_backward was called */
  double hidden_ms;        /* communication_ms - exposed_ms */
  int64_t bytes;           /* that this rank gave to the bucket's collectives */
} lockstep_bucket_statistics;

/* REQUIRES  out_statistics->struct_size is set: as much is written
 * ERRORS    INVALID_ARGUMENT  the step did not have this bucket */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_get_bucket_statistics(const lockstep_reducer* reducer, size_t bucket,
                                                                       lockstep_bucket_statistics* out_statistics);

typedef int32_t lockstep_report;
enum {
  /* The last synchronised backward, in one screen, for people. */
  LOCKSTEP_REPORT_SUMMARY = 0,
  /* A JSON object under the names of DDP's logging data (world_size, bucket_sizes, avg_backward_comm_time, ...), times in
   * nanoseconds. Of steps it has what begin_forward, or else begin_backward, published: each of the first ten, and then every
   * hundredth, or as lockstep_reducer_set_logging_sample_rate says. */
  LOCKSTEP_REPORT_LOGGING_DATA = 1
};

/* lockstep_string_free the text. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_report(const lockstep_reducer* reducer, lockstep_report report,
                                                        char** out_text);

/* ERRORS  INVALID_ARGUMENT  below 1 */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_set_logging_sample_rate(lockstep_reducer* reducer,
                                                                         int64_t sample_rate);

/* ---- The reducer: sparse gradients, buffers, ranks that come and go, CUDA graphs --------------------------------- */

/* The gradient of a sparse parameter: that of row rows[i] is values[i]. Rows come in any order, and the values of repeated ones
 * are summed. `values` has the parameter's shape but for the first dimension, which is row_count (0 is fine), row-major. Both
 * are only read, and borrowed like a gradient.
 *   ERRORS   INVALID_ARGUMENT  what does not match the table, naming the first row that is out of range; otherwise as of
 *                              lockstep_reducer_mark_ready
 *   THREADS  as lockstep_reducer_mark_ready */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_mark_ready_sparse(lockstep_reducer* reducer, size_t index,
                                                                   const int64_t* rows, size_t row_count,
                                                                   const lockstep_tensor* values,
                                                                   const lockstep_stream* stream);

/* The average of a sparse parameter, after a synchronised backward: the rows for which any rank had values, ascending and each
 * once, and their averages, one row of the parameter's dtype behind the other. The same bits on every rank.
 *   RETURNS  *out_used 1 and the rows, borrowed until the next begin_backward; or, where no rank used the parameter, all 0 and
 *            NULL. out_used may be NULL.
 *   ERRORS   FAILED_PRECONDITION  before the first such backward has ended, and inside one
 *            INVALID_ARGUMENT     a parameter that is not sparse */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_averaged_rows(lockstep_reducer* reducer, size_t index,
                                                               const int64_t** out_rows, const void** out_values,
                                                               size_t* out_row_count, int32_t* out_used);

/* A model's buffers (running statistics and the like: what PyTorch calls buffers) are brought from one rank to the others around
 * its forward pass. They go over a communicator of their own, so the reducer's order of calls is not disturbed. */

/* Instead of a broadcast: changes the buffers in place, by calls on `communicator`, which has the ranks that take part. It and
 * the tensors are valid until the callback returns, and are never destroyed by it. An error is taken over, and fails that call
 * on this rank alone. It calls nothing of its reducer.
 *   THREADS  On the thread that called begin_forward, end_forward or join. */
typedef lockstep_error* (*lockstep_buffer_hook)(void* context, lockstep_communicator* communicator,
                                                const lockstep_tensor* buffers, size_t buffer_count);

typedef struct lockstep_reducer_buffer_options {
  size_t struct_size;
  int32_t root; /* only without uneven_inputs: with it, the highest rank that has inputs */
  /* 1: the other ranks' buffers are overwritten. Otherwise they come in fresh memory, and a backward pass to come still finds
   * those of its own forward pass. After the forward pass, and by a hook, always in place. */
  int32_t in_place;
  int32_t after_forward;     /* 1: by end_forward rather than begin_forward */
  lockstep_buffer_hook hook; /* NULL: a broadcast */
  void* hook_context;
  lockstep_release hook_release;
} lockstep_reducer_buffer_options;

/* Every rank calls it, with equal options, between backwards; again after lockstep_reducer_change_communicator. What the buffers
 * must be, what of them is remembered, and the errors are those of lockstep_buffer_set_create. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_set_buffers(lockstep_reducer* reducer, const lockstep_tensor* buffers,
                                                             size_t buffer_count,
                                                             const lockstep_reducer_buffer_options* options);

typedef struct lockstep_forward_options {
  size_t struct_size;
  const lockstep_tensor* buffers; /* those of set_buffers, wherever they lie now */
  size_t buffer_count;
} lockstep_forward_options;

/* Buffers as they came from the root; on the root, as they were there. Memory alone: it may outlive what it came from. Its calls
 * are at the buffer sets below. */
typedef struct lockstep_fresh_buffers lockstep_fresh_buffers;

/* A forward pass begins; ends. Without buffers both may be left out; begin_forward is then for the times in the logging data.
 * Buffers come at the first forward since the last synchronised backward, whatever its own backward is: every rank calls these then,
 * and they block. A forward that no backward follows (evaluation) needs no call. On tensors that are not as agreed see
 * lockstep_buffer_set_broadcast; a hook gets none where they cannot be read.
 *   RETURNS  *out_fresh NULL, unless buffers came in fresh memory. out_fresh may be NULL where they never do. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_begin_forward(lockstep_reducer* reducer,
                                                               const lockstep_forward_options* options,
                                                               lockstep_fresh_buffers** out_fresh);
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_end_forward(lockstep_reducer* reducer,
                                                             const lockstep_forward_options* options);

/* For a rank that has no more inputs, where others have: takes part in their steps with zeros, for as long as that takes (its
 * operations have no deadline), and returns when all ranks have joined. By then `model` is, on every rank, that of the rank which
 * joined last (of several the highest): pass parameters and buffers. `buffers` are those of set_buffers, or none: each rank that
 * has inputs brings them for each of its synchronised steps, a joining one once more, and then without it.
 *   ERRORS  INVALID_ARGUMENT     tensors that cannot be read; nothing has begun
 *           FAILED_PRECONDITION  without uneven_inputs, or as throw_on_early_termination says */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_join(lockstep_reducer* reducer, const lockstep_tensor* model,
                                                      size_t model_count, const lockstep_tensor* buffers,
                                                      size_t buffer_count);

/* The same reducer over another communicator, as after a failure or when ranks come and go; the old one may be destroyed already.
 * Every rank of the new one calls it, or lockstep_reducer_create with an equal table, equal options and the plan that the others
 * export. Ends what was under way, whether or not it failed. Keeps the plan if all ranks have the same, else begins with the first
 * one; bucket views move, with what is in them, and buffers are to be set again.
 *   ERRORS  those of lockstep_reducer_create. Then the reducer can only be given another communicator, or destroyed. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_change_communicator(lockstep_reducer* reducer,
                                                                     lockstep_communicator* communicator);

/* Steps in CUDA graphs. A backward that begins on a stream which is being captured (lockstep_backward_options.stream), with its
 * gradients and its end on streams of the same capture, becomes part of the graph; all ranks capture the same steps. Nothing of
 * it is done before the graph is launched, and then all of it: gradients at the same addresses are averaged over the ranks
 * again. Only over NCCL. begin_backward refuses what a graph cannot repeat, FAILED_PRECONDITION, saying why and what to do;
 * nothing was issued then, and other steps may follow: hooks, optimizers, buffers, uneven inputs, unused and delayed parameters,
 * the first step of a static graph, and any before buckets are planned anew, unless replanning is off. docs/gpu.md has the whole
 * of it.
 *
 * Tells what is known of replays, of each graph what the last replay that is done has told: synchronise with the stream that it
 * was launched in first. A replay that hangs has no deadline. Graphs are destroyed before the reducer.
 *   ERRORS  FAILED_PRECONDITION  gradients were missing as a step was captured: on every rank, naming the rank and the parameters;
 *                                averages were not written */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_check_replays(lockstep_reducer* reducer);

/* ---- Subgroups --------------------------------------------------------------------------------------------------
 *
 * Communicators made of one, by collective calls. They share its connections and nothing else, may be used at the same time from
 * other threads and in another order on each rank, and fail on their own. */

/* One communicator for each color, of the ranks that gave it, in the order of their keys and then of their ranks. A negative
 * color is in none: *out_communicator is NULL. */
LOCKSTEP_EXPORT lockstep_error* lockstep_communicator_split(lockstep_communicator* communicator, int32_t color,
                                                            int32_t key, lockstep_communicator** out_communicator);

/* The same ranks again. */
LOCKSTEP_EXPORT lockstep_error* lockstep_communicator_duplicate(lockstep_communicator* communicator,
                                                                lockstep_communicator** out_communicator);

/* The ranks as a grid of named dimensions, the last changing fastest from rank to rank, whose sizes multiply to the number of
 * ranks. {"dp", "tp"} and {2, 4}: ranks 0 to 3 are one line along tp, ranks 0 and 4 one along dp.
 *   RETURNS  for each dimension the communicator of this rank's line along it, in which its rank is its coordinate.
 *            out_communicators has room for `dimensions`. */
LOCKSTEP_EXPORT lockstep_error* lockstep_communicator_mesh(lockstep_communicator* communicator,
                                                           const char* const* names, const int32_t* sizes,
                                                           size_t dimensions,
                                                           lockstep_communicator** out_communicators);

/* The communicator of NCCL's, an ncclComm_t, that collectives on the device go over: borrowed, for calls of NCCL's that this
 * header has not. All ranks make them in the same order beside their collectives here, and none aborts or destroys it.
 *   ERRORS  FAILED_PRECONDITION  the device's tensors do not travel by NCCL */
LOCKSTEP_EXPORT lockstep_error* lockstep_communicator_nccl(const lockstep_communicator* communicator, void** out_comm);

/* A barrier that tells who has not come. It goes by the coordinator (tens of microseconds), apart from the order of collectives,
 * and may be called while some are in flight. timeout_ms is its own; 0: the communicator's.
 *   ERRORS  DEADLINE_EXCEEDED  some ranks had not come when the first who waits had waited its timeout. The message names them, on
 *                              every rank, those included that come later; lockstep_error_failed_rank is the first. The
 *                              communicator stays usable, and the next such barrier begins anew. */
LOCKSTEP_EXPORT lockstep_error* lockstep_monitored_barrier(lockstep_communicator* communicator, int64_t timeout_ms);

/* ---- Prepared collectives ----------------------------------------------------------------------------------------
 *
 * Set up once and started as often as wanted, without an allocation: what MPI calls persistent. Ranks may prepare, and call a
 * collective directly, in any combination. A prepared collective is used by one thread at a time. */
typedef struct lockstep_prepared lockstep_prepared;

typedef int32_t lockstep_collective_kind;
enum {
  LOCKSTEP_COLLECTIVE_ALL_REDUCE = 1,
  LOCKSTEP_COLLECTIVE_BROADCAST = 2,
  LOCKSTEP_COLLECTIVE_ALL_GATHER = 3,
  LOCKSTEP_COLLECTIVE_REDUCE_SCATTER = 4,
  LOCKSTEP_COLLECTIVE_ALL_TO_ALL = 5,
  LOCKSTEP_COLLECTIVE_REDUCE = 6,
  LOCKSTEP_COLLECTIVE_BARRIER = 7,
  LOCKSTEP_COLLECTIVE_GATHER = 8,
  LOCKSTEP_COLLECTIVE_SCATTER = 9
};

/* The arguments of a collective. What it does not take is zero. */
typedef struct lockstep_collective {
  size_t struct_size;
  lockstep_collective_kind kind;
  lockstep_reduce_op op;
  int32_t root;
  const lockstep_tensor* input; /* of a broadcast: the tensor */
  const lockstep_tensor* output;
  const int64_t* counts;        /* NULL: equal blocks; of an all-to-all the input's */
  const int64_t* output_counts; /* of an all-to-all with counts */
} lockstep_collective;

/* The tensors' memory is borrowed while the collective is under way. The communicator is the one it goes over; the
 * descriptions and the options are copied. Not collective. */
LOCKSTEP_EXPORT lockstep_error* lockstep_prepared_create(lockstep_communicator* communicator,
                                                         const lockstep_collective* collective,
                                                         const lockstep_collective_options* options,
                                                         lockstep_prepared** out_prepared);

/* Starts it, and returns.
 *   ERRORS  FAILED_PRECONDITION  its last start is not done */
LOCKSTEP_EXPORT lockstep_error* lockstep_prepared_start(lockstep_prepared* prepared);

/* As lockstep_work_wait and lockstep_work_done, of the last start. Before the first one it is done. */
LOCKSTEP_EXPORT lockstep_error* lockstep_prepared_wait(lockstep_prepared* prepared, int64_t timeout_ms);
LOCKSTEP_EXPORT int32_t lockstep_prepared_done(const lockstep_prepared* prepared);

/* Does not wait and does not cancel. */
LOCKSTEP_EXPORT void lockstep_prepared_destroy(lockstep_prepared* prepared);

/* ---- Groups of calls ---------------------------------------------------------------------------------------------
 *
 * The calls that this thread makes on a communicator between start and end are collected and launched together at the end, so
 * that none of them waits for another of them: blocking sends and receives in any order cannot deadlock inside. Calls without
 * out_work return at once. Groups nest, and the outermost end launches. A call that is refused says so, the end says it again,
 * and nothing is launched. Waiting inside for a work of the group is FAILED_PRECONDITION; destroying the communicator with a
 * group open gives its works that error, and so is starting one while another thread has one open. */
LOCKSTEP_EXPORT lockstep_error* lockstep_group_start(lockstep_communicator* communicator);

/* out_work NULL: returns when all calls of the group are done, with the first error of any. Otherwise *out_work is all of them.
 *   ERRORS  FAILED_PRECONDITION  this thread has no group open */
LOCKSTEP_EXPORT lockstep_error* lockstep_group_end(lockstep_communicator* communicator, lockstep_work** out_work);

/* ---- Messages ----------------------------------------------------------------------------------------------------
 *
 * From one rank to another, beside the collectives: neither waits for the other. Messages from one rank with one tag are received
 * in the order in which they were sent. Up to 64 KiB a send is done whether or not anybody receives, until a MiB from this rank
 * waits there; beyond that it is done once it is received. Rank and target may be the same. timeout_ms 0: the communicator's. A
 * device's tensor has to be ready when the call is made. out_work is as of a collective. */

enum { LOCKSTEP_ANY_SOURCE = -1, LOCKSTEP_ANY_TAG = -1, LOCKSTEP_EVERY_RANK = -1 };

/* What a receive got. */
typedef struct lockstep_message {
  int64_t tag;
  size_t bytes;
  int32_t source;
} lockstep_message;

/* The tensor's dtype and shape are not sent, only its bytes. Tags are not negative. */
LOCKSTEP_EXPORT lockstep_error* lockstep_send(lockstep_communicator* communicator, const lockstep_tensor* tensor,
                                              int32_t target, int64_t tag, int64_t timeout_ms,
                                              lockstep_work** out_work);

/* The tensor may be larger than the message.
 *   RETURNS  out_message may be NULL; it is written when the call waits, and lockstep_work_message tells it otherwise
 *   ERRORS   FAILED_PRECONDITION  the message does not fit, and is lost */
LOCKSTEP_EXPORT lockstep_error* lockstep_receive(lockstep_communicator* communicator, const lockstep_tensor* tensor,
                                                 int32_t source, int64_t tag, int64_t timeout_ms,
                                                 lockstep_message* out_message, lockstep_work** out_work);

/* ERRORS  FAILED_PRECONDITION  not a receive that is done well */
LOCKSTEP_EXPORT lockstep_error* lockstep_work_message(const lockstep_work* work, lockstep_message* out_message);

/* Byte objects, for set-up: collectives of bytes whose number the ranks need not know. They block. At most 1 GiB each.
 * lockstep_bytes_free what is given out. */

/* *out_data is a copy of the root's bytes, on every rank; data and bytes are looked at on the root alone. */
LOCKSTEP_EXPORT lockstep_error* lockstep_broadcast_bytes(lockstep_communicator* communicator, const void* data,
                                                         size_t bytes, int32_t root, void** out_data,
                                                         size_t* out_bytes);

/* *out_data has the bytes of all ranks in rank order, and out_sizes (one entry for each rank) their sizes; on the root alone,
 * or, with LOCKSTEP_EVERY_RANK for it, everywhere. Elsewhere both may be NULL. */
LOCKSTEP_EXPORT lockstep_error* lockstep_gather_bytes(lockstep_communicator* communicator, const void* data,
                                                      size_t bytes, int32_t root, void** out_data, size_t* out_sizes);

/* Takes NULL. */
LOCKSTEP_EXPORT void lockstep_bytes_free(void* data);

/* ---- Memory for collectives --------------------------------------------------------------------------------------
 *
 * Between ranks that share a host's memory, a collective whose tensors all lie in it moves nothing through a third place: each
 * rank reads its peers' inputs and writes their outputs, in one pass. Whether they lie in it is part of the call: on all ranks or
 * on none. Elsewhere it is memory like any other, and so it is for a premultiplied reduce and reduce-scatter, for an all-to-all
 * in place or with counts of its own, and for gather and scatter with a block that is empty. */
typedef struct lockstep_memory lockstep_memory;

/* Collective, with the same size and kind on every rank. On LOCKSTEP_HOST it is aligned to pages and zero at first. On the
 * communicator's kind of device it is what the back end likes best, and its contents are undefined at first. It may outlive its
 * communicator; a forked child has none of it. After a failure of the communicator a rank that was stopped may still write into
 * it: make a new one for the next communicator.
 *   ERRORS  INVALID_ARGUMENT    sizes differ, or are 0
 *           RESOURCE_EXHAUSTED  what this host's ranks ask for together is more than the machine or its control group have left:
 *                               the message has both figures; UNAVAILABLE, naming that rank, on the others. The communicator
 *                               stays usable.
 *           UNIMPLEMENTED       the communicator has no such device */
LOCKSTEP_EXPORT lockstep_error* lockstep_memory_create(lockstep_communicator* communicator, size_t bytes,
                                                       lockstep_device_kind device_kind, lockstep_memory** out_memory);
LOCKSTEP_EXPORT void lockstep_memory_destroy(lockstep_memory* memory);

/* NULL for NULL, and in a forked child. */
LOCKSTEP_EXPORT void* lockstep_memory_data(const lockstep_memory* memory);
LOCKSTEP_EXPORT size_t lockstep_memory_bytes(const lockstep_memory* memory);
/* 1 where the other ranks have it mapped, else 0. */
LOCKSTEP_EXPORT int32_t lockstep_memory_is_shared(const lockstep_memory* memory);

/* ---- Buffer sets, batch normalisation, casts ---------------------------------------------------------------------
 *
 * For embedders that bring a model's buffers around by themselves rather than by the reducer, and for mixed precision. These are
 * collectives of the communicator unless they say otherwise, and keep its order of calls: use the reducer's communicator between
 * end_backward and begin_backward, or a duplicate of it at any time. They block. */

/* Brings a model's buffers from one rank to all, coalesced, as before each forward pass. They land in fresh memory, so that a
 * backward pass to come still finds those of its own forward pass. That the ranks' buffers are alike is compared once, at
 * creation. A set is used by one thread at a time. */
typedef struct lockstep_buffer_set lockstep_buffer_set;

/* Every rank calls it. Buffers are on the host and without gaps, in any order of dimensions. Only their dtypes, shapes and
 * strides are remembered.
 *   ERRORS  those of lockstep_reducer_create; a difference is the same error on every rank */
LOCKSTEP_EXPORT lockstep_error* lockstep_buffer_set_create(lockstep_communicator* communicator,
                                                           const lockstep_tensor* tensors, size_t tensor_count,
                                                           lockstep_buffer_set** out_set);
LOCKSTEP_EXPORT void lockstep_buffer_set_destroy(lockstep_buffer_set* set);

typedef struct lockstep_buffer_set_options {
  size_t struct_size;
  int32_t root;       /* equal on all ranks */
  int64_t timeout_ms; /* as of a collective */
} lockstep_buffer_set_options;

/* The tensors are the buffers of now, wherever they lie; only the root's are read. out_fresh NULL: the other ranks' tensors are
 * overwritten instead.
 *   ERRORS  INVALID_ARGUMENT     this rank's tensors are not like those of the creation
 *           FAILED_PRECONDITION  the root's are not. In both cases nothing is written, and the communicator stays usable. */
LOCKSTEP_EXPORT lockstep_error* lockstep_buffer_set_broadcast(lockstep_buffer_set* set, const lockstep_tensor* tensors,
                                                              size_t tensor_count,
                                                              const lockstep_buffer_set_options* options,
                                                              lockstep_fresh_buffers** out_fresh);

/* The fresh tensor `index`, laid out as the set's: aligned to 256 bytes, and the caller's to write until it is destroyed.
 *   RETURNS  NULL for an index out of range */
LOCKSTEP_EXPORT void* lockstep_fresh_buffers_data(const lockstep_fresh_buffers* fresh, size_t index);
LOCKSTEP_EXPORT void lockstep_fresh_buffers_destroy(lockstep_fresh_buffers* fresh);

/* Batch normalisation over the elements of all ranks. Forward: combine; backward: sum_gradients. With the sums of dy and of
 * dy * (x - mean) over all ranks and N the whole count, by channel:
 *   dx = (dy - sum_dy / N - (x - mean) * inverse_std^2 * sum_dy_xmu / N) * inverse_std * weight */
typedef struct lockstep_batch_norm_options {
  size_t struct_size;
  int64_t timeout_ms;      /* as of a collective */
  double epsilon;          /* default 1e-5; finite, above 0 */
  double momentum;         /* share of this batch in the running statistics; default 0.1; finite */
  float* running_mean;     /* `channels` values, which combine updates; both or none */
  float* running_variance; /* unbiased */
} lockstep_batch_norm_options;

/* mean, variance (biased) and count are of this rank's elements of each channel, `channels` values each; with a count of 0 they
 * may be anything, but not NULL. Channels are equal on all ranks, counts need not be. One all-gather; combined in double by
 * Chan's formula, in rank order.
 *   RETURNS  those of all ranks' elements. Any output may be NULL, or the input of the same kind. Without any elements mean and
 *            variance are 0 and the running statistics stay as they are; with a single one, the running variance does. */
LOCKSTEP_EXPORT lockstep_error* lockstep_batch_norm_combine(lockstep_communicator* communicator, size_t channels,
                                                            const float* mean, const float* variance, int64_t count,
                                                            const lockstep_batch_norm_options* options, float* out_mean,
                                                            float* out_variance, float* out_inverse_std,
                                                            int64_t* out_count);

/* The two sums by channel, `channels` values each, become those over all ranks. One all-reduce, in double. */
LOCKSTEP_EXPORT lockstep_error* lockstep_batch_norm_sum_gradients(lockstep_communicator* communicator, size_t channels,
                                                                  float* sum_dy, float* sum_dy_xmu,
                                                                  const lockstep_batch_norm_options* options);

/* targets[i] = sources[i], converted between floats and rounded once: parameters into copies of lower precision, their gradients
 * into float32. Sends nothing. Of a pair, shapes are equal, and layouts too unless one is row-major and the other has gaps; they
 * share no memory.
 *   ERRORS  INVALID_ARGUMENT  a pair is not so: the message names the first, and nothing is written */
LOCKSTEP_EXPORT lockstep_error* lockstep_cast_tensors(const lockstep_tensor* sources, const lockstep_tensor* targets,
                                                      size_t tensor_count);

/* ---- Stores ------------------------------------------------------------------------------------------------------
 *
 * A small shared dictionary by which ranks find each other; used at set-up only. Pass one to a communicator instead of a URL to
 * set up over what the embedder already has. */

/* Each returns LOCKSTEP_OK or a code that the communicator's error then carries. Values are bytes, not strings. timeout_ms is what
 * is left; they return LOCKSTEP_DEADLINE_EXCEEDED after it.
 *   THREADS  On the thread that creates the communicator. */
typedef struct lockstep_store_callbacks {
  size_t struct_size;
  void* context;
  lockstep_release release;
  lockstep_code (*set)(void* context, const char* key, const void* value, size_t value_bytes, int64_t timeout_ms);
  /* LOCKSTEP_NOT_FOUND when there is none. Copies at most `capacity` bytes into `buffer` and says the value's whole size. */
  lockstep_code (*get)(void* context, const char* key, void* buffer, size_t capacity, size_t* out_value_bytes,
                       int64_t timeout_ms);
  /* May be NULL: keys of finished set-ups then stay behind. */
  lockstep_code (*remove)(void* context, const char* key, int64_t timeout_ms);
} lockstep_store_callbacks;

LOCKSTEP_EXPORT lockstep_error* lockstep_store_create(const lockstep_store_callbacks* callbacks,
                                                      lockstep_store** out_store);
LOCKSTEP_EXPORT void lockstep_store_destroy(lockstep_store* store);

/* ---- The library ------------------------------------------------------------------------------------------------- */

/* LOCKSTEP_VERSION of the library that was loaded, which may be newer than the header. */
LOCKSTEP_EXPORT int32_t lockstep_version(void);
/* The same for people, with the commit it was built from: "0.2.0 (commit 1a9d7a2f03be)". Never freed. */
LOCKSTEP_EXPORT const char* lockstep_version_text(void);

typedef int32_t lockstep_log_level;
enum {
  LOCKSTEP_LOG_ERROR = 0,
  LOCKSTEP_LOG_WARNING = 1, /* the level at first, unless the variable LOCKSTEP_LOG says another */
  LOCKSTEP_LOG_INFO = 2,
  LOCKSTEP_LOG_DEBUG = 3,
  LOCKSTEP_LOG_TRACE = 4
};

/* One line without its newline. It must not call into the library.
 *   THREADS  On whichever thread logged; several at once. */
typedef void (*lockstep_log_callback)(void* context, lockstep_log_level level, const char* line);

/* Replaces stderr; a NULL callback restores it. `release` is called once no thread is in the replaced callback any more. */
LOCKSTEP_EXPORT void lockstep_set_log_callback(lockstep_log_callback callback, void* context, lockstep_release release);
LOCKSTEP_EXPORT void lockstep_set_log_level(lockstep_log_level level);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* LOCKSTEP_H_ */
