/* Lockstep: gradient synchronisation for data-parallel training, embeddable by any framework.
 *
 * THE SMALLEST PROGRAM (complete in examples/c99/two_ranks.c):
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
 * CONVENTIONS for everything below:
 *
 *   Errors      A call that can fail returns a lockstep_error*. NULL is success. An error has a code and a message and belongs
 *               to the caller, who frees it by lockstep_error_free(). A call that fails does not write its outputs.
 *   Handles     Opaque. ..._create makes a handle, ..._destroy ends it. ..._destroy takes NULL. Handles may be destroyed in any
 *               order, for example by a garbage collector: see lockstep_communicator_destroy. In the child of a fork(), calls on a
 *               handle made before return FAILED_PRECONDITION, and destroying it only frees its memory. The child may make its
 *               own handles.
 *   Structs     Before use, the caller zeroes a struct that begins with struct_size, and sets struct_size to its sizeof.
 *               LOCKSTEP_INIT(options) does both. So the library knows the size in the header that the caller was compiled with.
 *               Zero in any field is the default. New fields are only appended. In an array of such structs all struct_size are
 *               equal; it is the stride. A NULL options pointer means all defaults. The structs without struct_size
 *               (lockstep_tensor, lockstep_stream, lockstep_message) never change.
 *   Enums       An int32_t and named constants. Constants keep their values; new ones are appended.
 *   Outputs     Come last and are named out_*. Where one may be NULL, the comment says so.
 *   Memory      What the library allocates, the library frees (lockstep_string_free, lockstep_bytes_free). Strings and
 *               arrays passed in are copied before the call returns, unless the comment says "borrowed".
 *   Threads     Handles are thread-safe unless their comment says otherwise. A handle is not destroyed while another thread
 *               is inside a call on it. Loading the library starts no thread. Creating a communicator starts its threads,
 *               which block all signals. docs/threading.md lists them.
 *   Callbacks   Take a context pointer, and run on a documented thread and outside our locks. Some contexts have a `release`
 *               function beside them, which may be NULL. The library calls it once with the context, after its last callback.
 *               If the call that was given the context fails, the context stays the caller's.
 *   Units       Bytes, milliseconds, elements: the name says which.
 *   Ranks       0 to world size - 1.
 *
 * A function's comment says what it does; then, where there is something to say, REQUIRES, RETURNS, ERRORS, THREADS, COST. Three errors
 * are not repeated: INVALID_ARGUMENT for a NULL or malformed argument, FAILED_PRECONDITION for a handle from before fork(), and the
 * communicator's own error once it has failed.
 *
 * The header is C99 and C++, and includes no framework's and no vendor's header. Preprocessed, it has only declarations. Define
 * LOCKSTEP_EXPORT as nothing for parsers that do not know attributes (cffi, bindgen). For cffi, also preprocess with
 * -D'__attribute__(x)=': the system's headers, which this header includes, have attributes too.
 */

#ifndef LOCKSTEP_H_
#define LOCKSTEP_H_

#include <stddef.h>
#include <stdint.h>

#define LOCKSTEP_VERSION_MAJOR 0
#define LOCKSTEP_VERSION_MINOR 3
#define LOCKSTEP_VERSION_PATCH 0
#define LOCKSTEP_VERSION (LOCKSTEP_VERSION_MAJOR * 10000 + LOCKSTEP_VERSION_MINOR * 100 + LOCKSTEP_VERSION_PATCH)

#ifndef LOCKSTEP_EXPORT
#if defined(__GNUC__)
#define LOCKSTEP_EXPORT __attribute__((visibility("default")))
#else
#define LOCKSTEP_EXPORT
#endif
#endif

/* Zeroes a struct variable that begins with struct_size, and sets its struct_size. Needs <string.h>. */
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

/* Frees a callback's context: see "Callbacks" above. */
typedef void (*lockstep_release)(void* context);

/* ---- Errors ------------------------------------------------------------------------------------------------------ */

/* In brackets: what the caller should do. */
typedef int32_t lockstep_code;
enum {
  LOCKSTEP_OK = 0,
  LOCKSTEP_CANCELLED = 1,           /* the handle, or its communicator, was closed meanwhile  [nothing] */
  LOCKSTEP_UNKNOWN = 2,             /* an embedder's callback failed without saying how */
  LOCKSTEP_INVALID_ARGUMENT = 3,    /*                                                        [fix the call] */
  LOCKSTEP_DEADLINE_EXCEEDED = 4,   /* of a wait: the operation goes on                       [wait again];
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
  LOCKSTEP_DATA_LOSS = 15      /* the ranks' replicas differ                             [go back to a checkpoint] */
};

/* LOCKSTEP_OK for NULL. */
LOCKSTEP_EXPORT lockstep_code lockstep_error_code(const lockstep_error* error);
/* Text for people, valid until the error is freed. "" for NULL. */
LOCKSTEP_EXPORT const char* lockstep_error_message(const lockstep_error* error);

/* The facts in the message, as data.
 *   failed_rank  the rank of the world that died, stopped answering, exited, aborted or differed. If the message names several, the
 *                first. On a communicator without a coordinator, the rank whose connection broke. If ranks differ in their calls,
 *                options, tables or world sizes: of three or more that were compared the one that differs from all others, if there
 *                is one, else the lowest that differs from the lowest.
 *   collective   the operation that returned the error, named like the calls below: "all_reduce", "send", "receive", ...
 *   sequence     the operation's number in the flight records. Messages and calls that did not start have none.
 *   bucket       the reducer's bucket
 *   parameter    the index in the reducer's parameter table; of different lists of tensors, in the list
 *   RETURNS      -1, or "" for the collective, if the error does not have the fact or is NULL. The text is valid until the error
 *                is freed. */
LOCKSTEP_EXPORT int32_t lockstep_error_failed_rank(const lockstep_error* error);
LOCKSTEP_EXPORT const char* lockstep_error_collective(const lockstep_error* error);
LOCKSTEP_EXPORT int64_t lockstep_error_sequence(const lockstep_error* error);
LOCKSTEP_EXPORT int64_t lockstep_error_bucket(const lockstep_error* error);
LOCKSTEP_EXPORT int64_t lockstep_error_parameter(const lockstep_error* error);

/* Takes NULL. */
LOCKSTEP_EXPORT void lockstep_error_free(lockstep_error* error);

/* Makes an error for a callback of the embedder to return. A NULL message is "".
 *   RETURNS  NULL for LOCKSTEP_OK */
LOCKSTEP_EXPORT lockstep_error* lockstep_error_create(lockstep_code code, const char* message);

/* Frees a text that a call returned. Takes NULL. */
LOCKSTEP_EXPORT void lockstep_string_free(char* string);

/* ---- Tensors and streams ----------------------------------------------------------------------------------------- */

typedef int32_t lockstep_dtype;
enum {
  /* 0 is not a dtype: INVALID_ARGUMENT */
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

/* Bytes of one element. 0 if `dtype` is not a dtype. */
LOCKSTEP_EXPORT size_t lockstep_dtype_size(lockstep_dtype dtype);

typedef int32_t lockstep_device_kind;
enum { LOCKSTEP_HOST = 0, LOCKSTEP_CUDA = 1 };

/* A view of memory. It owns nothing. No two elements may overlap. In an output, all fields zero means no tensor. */
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

/* An ordered queue of work. A NULL lockstep_stream* means the host, inline: the input is ready when the call is made, and the output
 * is there when the call returns. The handle of a CUDA stream is a cudaStream_t. A NULL handle is the legacy default stream, and
 * cudaStreamPerThread is the calling thread's. A CUDA stream must outlive every communicator and reducer that it was passed to.
 * A stream of the host exists only in hook_issue, which the library passes one. */
typedef struct lockstep_stream {
  void* handle;
  lockstep_device_kind device_kind;
  int32_t device_index;
} lockstep_stream;

/* ---- Communicators ----------------------------------------------------------------------------------------------- */

/* A lockstep_communicator is a fixed group of ranks that call the same collectives in the same order: what MPI calls a
 * communicator, NCCL an ncclComm_t and PyTorch a ProcessGroup.
 *
 * A field that is zero is read from the environment (docs/environment.md), even if world_size is given. A switch that the
 * environment sets cannot be cleared here. */
typedef struct lockstep_communicator_options {
  size_t struct_size;
  /* Who we are. world_size 0: rank, size, local rank and size, store and job come from the environment: LOCKSTEP_*, then the
   * variables of torchrun, Kubeflow, Open MPI, PMIx, PMI or Slurm. If none is set, the world has one rank. */
  int32_t world_size;
  int32_t rank;
  /* How many ranks this host has, and which of them this is. 0: LOCKSTEP_LOCAL_WORLD_SIZE and LOCKSTEP_LOCAL_RANK, unless
   * LOCKSTEP_WORLD_SIZE and LOCKSTEP_RANK differ from world_size and rank; else unknown.
   * local_rank is ignored without local_world_size. If local_world_size is world_size, ranks use the loopback interface. */
  int32_t local_world_size;
  int32_t local_rank;
  /* How the ranks find each other: a URL (tcp://host:port, which rank 0 serves, or file:///path), or a store. The store is used
   * only during creation. */
  const char* store_url;
  lockstep_store* store;
  /* Separates jobs that share a store or a port. At most 256 bytes; default LOCKSTEP_JOB_ID, or "". */
  const char* job_id;
  const char* network_interface; /* of this host: eth0, ^docker, 10.0.0.0/8; docs/environment.md has the grammar */
  const char* host_id;           /* ranks with the same one share a host; default: derived from the machine */
  int64_t setup_timeout_ms;      /* for every rank to appear; default 300,000 */
  int64_t timeout_ms;            /* of one collective; default LOCKSTEP_TIMEOUT_MS or 1,800,000 */
  int64_t peer_timeout_ms; /* a rank silent this long counts as failed; default LOCKSTEP_PEER_TIMEOUT_MS or 30,000 */
  /* The fields below must be equal on all ranks, unless they say otherwise. Creation compares them. */

  /* How the ranks are connected. Default LOCKSTEP_TRANSPORT, or "auto": shared memory between ranks of one host that can connect
   * by it, TCP between all others. "tcp" and "shm": only that. "ofi": libfabric between all ranks (docs/libfabric.md). */
  const char* transport;
  const char* algorithm; /* "ring", "all_reduce:recursive_doubling;broadcast:binomial"; default: chosen by size */
  int64_t chunk_bytes;   /* pipelining unit; default 262,144, over TCP alone 261,696, over libfabric 524,288 */
  /* 1: every reduction adds up in rank order. Its bits then depend only on the inputs, not on transport, chunks, buckets or
   * algorithm (docs/numerics.md). */
  int32_t deterministic;
  int32_t checked; /* 1: compare every collective's arguments across ranks before it starts (slower) */
  /* This rank's device. The communicator takes its tensors and streams as well as the host's. LOCKSTEP_HOST: none. The kind must be
   * equal on all ranks; the index is this rank's own. */
  lockstep_device_kind device_kind;
  int32_t device_index;
  /* How the device's tensors travel. "nccl": by NCCL. "staged": through host memory, then by `transport`. "auto": the first of these
   * that all ranks can use; lockstep_communicator_describe tells which, and why. Default LOCKSTEP_DEVICE_BACKEND, or "auto". */
  const char* device_backend;
  const char* tcp_congestion_control; /* default: reno between ranks of one host, else the system's; this rank's own */
  int32_t tcp_send_buffer_bytes;      /* default: the kernel's, which grows as needed; this rank's own, like the next */
  int32_t tcp_receive_buffer_bytes;
  int32_t tcp_sockets; /* per connection, which spreads its bytes over them; default 1 */
  /* 1: the kernel sends long messages without a copy, if it can (MSG_ZEROCOPY). After an abort a message under way may still be
   * sent, with whatever its memory then holds. This rank's own. */
  int32_t tcp_zero_copy;
  /* For the back end "nccl". The fewest and the most thread blocks of its kernels (NCCL 2.17; 0: NCCL chooses). split_share 1:
   * subgroups share the communicator's resources (NCCL 2.18). They take less memory. But of the communicator and its subgroups, only
   * one may be used at a time. */
  int32_t nccl_ctas_min;
  int32_t nccl_ctas_max;
  int32_t nccl_split_share;
  /* For the transport "ofi": libfabric's provider, such as "tcp"; default LOCKSTEP_OFI_PROVIDER, or the best available. The
   * variable LOCKSTEP_OFI_DOMAIN names the provider's device for this rank; it has no field here. */
  const char* ofi_provider;
  /* How connections are protected (docs/security.md): "none", "authenticate" or "encrypt". Default LOCKSTEP_SECURITY, or
   * "authenticate". */
  const char* security;
  /* A file with the job's secret in 64 hex digits, which its owner alone may read (0600 or 0400); this rank's own path. Default
   * LOCKSTEP_SECRET_FILE; without one the ranks find a secret as docs/security.md says. */
  const char* secret_file;
} lockstep_communicator_options;

/* Connects all ranks, each of which must call it, and compares their options.
 *   REQUIRES  the store, if one is given, lives until the call returns
 *   ERRORS    DEADLINE_EXCEEDED    some rank did not appear within setup_timeout_ms; the message names the missing ranks, unless
 *                                  ranks meet by PMIx or PMI, and another job at the store
 *             FAILED_PRECONDITION  ranks differ in size or options, or one announced a loopback address to another host; every
 *                                  rank gets the same text. Or ranks on several hosts have no secret
 *             PERMISSION_DENIED    another rank, or rank 0's store, has another secret or level, or secret_file is not to be trusted
 *             UNAVAILABLE          the device, its driver or libfabric is missing
 *             RESOURCE_EXHAUSTED   descriptors, threads or memory
 *             any code             another rank failed with it; the message names that rank */
LOCKSTEP_EXPORT lockstep_error* lockstep_communicator_create(const lockstep_communicator_options* options,
                                                             lockstep_communicator** out_communicator);

/* Ends the operations in flight, with CANCELLED here and ABORTED on the peers. A synchronised backward between begin_backward and
 * end_backward is in flight, with its hooks. Does not wait for the peers.
 *
 * If nothing is in flight here, peers can still finish what this rank has finished. Their later calls return ABORTED after a second or
 * two, with a message that names this rank. Subgroups stay usable. The communicator's works are done. Its reducers, prepared collectives
 * and buffer sets then return FAILED_PRECONDITION or CANCELLED; each is destroyed by its own call, earlier or later. On a hook's
 * communicator the call has no effect.
 *   THREADS  No other thread is in a call on this handle. Others may be in calls on what was made from it; those calls return. */
LOCKSTEP_EXPORT void lockstep_communicator_destroy(lockstep_communicator* communicator);

/* -1 for NULL. */
LOCKSTEP_EXPORT int32_t lockstep_communicator_rank(const lockstep_communicator* communicator);
LOCKSTEP_EXPORT int32_t lockstep_communicator_size(const lockstep_communicator* communicator);

/* Why the communicator is unusable.
 *   RETURNS  NULL while it is usable; else the cause, the same on all ranks. The errors of operations add which operation it was and
 *            how far it had come. */
LOCKSTEP_EXPORT lockstep_error* lockstep_communicator_status(const lockstep_communicator* communicator);

/* Fails all operations in flight and all later ones, on every rank, with ABORTED and this reason. Does not wait. If a reducer of this
 * communicator has a hook, the hook's communicator ends too, at the latest when a call waits for the backward. */
LOCKSTEP_EXPORT lockstep_error* lockstep_communicator_abort(lockstep_communicator* communicator, const char* reason);

/* Changes the timeout of this rank's later operations that name none: timeout_ms of its options. Communicators that are made from this
 * one later inherit it. So do the hooks of its reducers, from their next backward on.
 *   ERRORS   INVALID_ARGUMENT  timeout_ms is less than 1
 *   THREADS  any */
LOCKSTEP_EXPORT lockstep_error* lockstep_communicator_set_timeout(lockstep_communicator* communicator,
                                                                  int64_t timeout_ms);

/* Describes how ranks are connected, and why. Free the text by lockstep_string_free. */
LOCKSTEP_EXPORT lockstep_error* lockstep_communicator_describe(const lockstep_communicator* communicator,
                                                               char** out_text);

/* Lists the last collectives, a line each, newest last: sequence, operation, sizes, state, times, bytes per peer. "done at once": it
 * ended before the clock could be read. Free the text by lockstep_string_free. */
LOCKSTEP_EXPORT lockstep_error* lockstep_communicator_flight_records(const lockstep_communicator* communicator,
                                                                     char** out_text);

/* ---- Collectives -------------------------------------------------------------------------------------------------
 *
 * Every rank of the communicator calls them in the same order, with equal counts, dtypes and ops. If ranks differ, all return the same
 * FAILED_PRECONDITION, which tells which rank called what. A rank whose call has finished already returns it from its next call. The
 * communicator is over then, except in checked mode.
 *
 * Tensors are contiguous. All tensors of a call are on the host, or all on the communicator's device. "In place" says how a call's
 * input and output may be the same memory. Any other overlap is INVALID_ARGUMENT.
 *
 * Each call takes `options` (NULL: defaults), `stream` and `out_work`, which say when it returns:
 *
 *   stream NULL, out_work NULL    when the collective is done
 *   stream NULL, out_work given   at once, or as wait_ms says; in checked mode, once all ranks have called. The tensors' memory is
 *                                 borrowed until the work is done. A call on a device does not wait for the caller's streams.
 *   stream given, out_work NULL   when the collective is enqueued on the stream, which must be of the communicator's device. Its
 *                                 result is there in the stream's order. Later errors: lockstep_communicator_status.
 *   stream given, out_work given  INVALID_ARGUMENT
 *
 * COST  A call with out_work allocates only the handle, if a call like it was made before. */

/* Collectives without an op copy any dtype. Those with one take the dtypes below: else INVALID_ARGUMENT. */
typedef int32_t lockstep_reduce_op;
enum {
  LOCKSTEP_SUM = 0, /* all dtypes; bool: or */
  LOCKSTEP_AVG = 1, /* floats and complex: inputs times 1/n, then the sum; integers: the sum, divided toward zero */
  LOCKSTEP_PREMUL_SUM = 2, /* inputs times *options->factor, then the sum; floats and complex */
  LOCKSTEP_PROD = 3,       /* all dtypes; bool: and */
  LOCKSTEP_MIN = 4,        /* floats, integers and bool. IEEE 754-2019: NaN propagates, -0 < +0 */
  LOCKSTEP_MAX = 5,
  LOCKSTEP_AND = 6, /* integers and bool */
  LOCKSTEP_OR = 7,
  LOCKSTEP_XOR = 8
};

typedef struct lockstep_collective_options {
  size_t struct_size;
  /* For the whole collective. 0: the communicator's. When it expires, the communicator is aborted on every rank. */
  int64_t timeout_ms;
  const double* factor;  /* required by LOCKSTEP_PREMUL_SUM, refused with other ops; each rank may have its own */
  const char* algorithm; /* overrides the communicator's choice; equal on all ranks */
  /* With out_work, on the host: returns when the operation is done, or after so many milliseconds. Until then no thread is woken for it, as
   * without out_work. The work has the result. No effect in a group, or on a prepared collective. */
  int64_t wait_ms;
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

/* Is done on no rank before every rank has called it. */
LOCKSTEP_EXPORT lockstep_error* lockstep_barrier(lockstep_communicator* communicator,
                                                 const lockstep_collective_options* options,
                                                 const lockstep_stream* stream, lockstep_work** out_work);

/* In the next calls each rank has a block. An array of counts has an entry for each rank: block r has counts[r] elements, and blocks
 * are consecutive in rank order. Arrays of counts are copied, and equal on all ranks except in lockstep_all_to_all_v. Counts that do
 * not add up to the tensor are INVALID_ARGUMENT, before anything starts. */

/* lockstep_all_gather and lockstep_reduce_scatter with a size for each block. */
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
 *   ERRORS  FAILED_PRECONDITION  a sender and a receiver disagree; the message names both, and the counts */
LOCKSTEP_EXPORT lockstep_error* lockstep_all_to_all_v(lockstep_communicator* communicator, const lockstep_tensor* input,
                                                      const lockstep_tensor* output, const int64_t* input_counts,
                                                      const int64_t* output_counts,
                                                      const lockstep_collective_options* options,
                                                      const lockstep_stream* stream, lockstep_work** out_work);

/* The next calls take lists of `count` tensors. Their results are those of a call for each tensor, but each is one collective, with one
 * set of messages and one flight record. PyTorch says coalesced.
 *
 * inputs[i] and outputs[i] are as in the call for one tensor, also in place: some may be in place and others not. Tensors without
 * elements are allowed, and so are lists without tensors. Both arrays are copied.
 *
 * On the host the list is one vector: the tensors, one behind the other. In lockstep_all_gather_coalesced and
 * lockstep_reduce_scatter_coalesced each block is such a vector. Ranks may cut it into different tensors, if dtypes and totals are equal.
 * Where it is one range of memory, it is exactly the call for one tensor. On a device the list is a call for each tensor, in a group or
 * on `stream`, so the lists of all ranks are alike.
 *   ERRORS  INVALID_ARGUMENT  also: tensors of different dtypes or in different places; two tensors of the call that overlap, except in
 *                             place, whether or not they are written. The message has their indexes.
 *   COST    also allocates lists of the tensors */
LOCKSTEP_EXPORT lockstep_error* lockstep_all_reduce_coalesced(lockstep_communicator* communicator,
                                                              const lockstep_tensor* inputs,
                                                              const lockstep_tensor* outputs, size_t count,
                                                              lockstep_reduce_op op,
                                                              const lockstep_collective_options* options,
                                                              const lockstep_stream* stream, lockstep_work** out_work);
LOCKSTEP_EXPORT lockstep_error* lockstep_broadcast_coalesced(lockstep_communicator* communicator,
                                                             const lockstep_tensor* tensors, size_t count, int32_t root,
                                                             const lockstep_collective_options* options,
                                                             const lockstep_stream* stream, lockstep_work** out_work);
/* outputs[i] = inputs[i] of all ranks, in rank order: world size x the elements of inputs[i]. */
LOCKSTEP_EXPORT lockstep_error* lockstep_all_gather_coalesced(lockstep_communicator* communicator,
                                                              const lockstep_tensor* inputs,
                                                              const lockstep_tensor* outputs, size_t count,
                                                              const lockstep_collective_options* options,
                                                              const lockstep_stream* stream, lockstep_work** out_work);
/* outputs[i] = block `rank` (elements of inputs[i] / world size) of the reduction of all ranks' inputs[i]. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reduce_scatter_coalesced(
    lockstep_communicator* communicator, const lockstep_tensor* inputs, const lockstep_tensor* outputs, size_t count,
    lockstep_reduce_op op, const lockstep_collective_options* options, const lockstep_stream* stream,
    lockstep_work** out_work);

/* A lockstep_work is one operation in flight: a collective, a message or a group. The communicator may be destroyed first. */

/* Waits until the operation is done, at most timeout_ms. 0 does not wait.
 *   RETURNS  the operation's own result, in every call
 *   ERRORS   DEADLINE_EXCEEDED    not done yet: the operation goes on, and the memory stays borrowed. If lockstep_work_done is 1, the
 *                                 operation's own timeout has expired.
 *            FAILED_PRECONDITION  it belongs to a group that is still open on this thread */
LOCKSTEP_EXPORT lockstep_error* lockstep_work_wait(lockstep_work* work, int64_t timeout_ms);

/* 1 if the operation has ended, in success or failure, and for NULL; else 0. Does not wait. */
LOCKSTEP_EXPORT int32_t lockstep_work_done(const lockstep_work* work);

/* `error` is the work's result, borrowed until the callback returns. */
typedef void (*lockstep_work_callback)(void* context, const lockstep_error* error);

/* Calls `callback` once when the work ends, in success or failure. Nobody needs to wait for the work. A work may have several
 * callbacks, which are called in the order of these calls.
 *   ERRORS   FAILED_PRECONDITION  the work belongs to a group that is still open
 *            RESOURCE_EXHAUSTED   the thread could not be started; the callback is not called
 *   THREADS  If the work has ended already, the callback runs on this thread before the call returns; else on the thread
 *            lockstep-done, one callback of the process at a time. So it should be short, and must not wait for operations. It may
 *            start operations and destroy handles, also this one. */
LOCKSTEP_EXPORT lockstep_error* lockstep_work_on_complete(lockstep_work* work, lockstep_work_callback callback,
                                                          void* context);

/* Does not wait and does not cancel: an unfinished operation goes on, and its memory stays borrowed. */
LOCKSTEP_EXPORT void lockstep_work_destroy(lockstep_work* work);

/* ---- The reducer -------------------------------------------------------------------------------------------------
 *
 * Averages the gradients of a replicated model over the ranks, bucket by bucket, while the backward pass still computes. PyTorch's
 * DistributedDataParallel does the same; docs/embedding.md lists its options and their names here.
 *
 * One thread at a time uses a reducer, except that several may mark gradients at once. From begin_backward to end_backward the
 * communicator belongs to the reducer: other collectives on it, creating subgroups or memory, and another reducer's backward return
 * FAILED_PRECONDITION. Messages are allowed, and so is everything on a duplicate made before.
 *
 * Gradient memory has one owner at a time. While the library owns a gradient or a target, nothing else writes it, and nothing else reads
 * what the library writes. A mark of memory that the library owns already, for another parameter of this or another reducer, is
 * INVALID_ARGUMENT, unless both only read it. Tensors with gaps are compared by their first elements.
 *
 *   gradient                      owned from the mark until
 *   of a synchronised backward    end_backward has returned, with or without an error; with a stream: the stream has passed that point
 *   marked with a target          the same, for both: the gradient is only read, the target is written
 *   of a backward with no_sync    never owned: the mark is only checked, and a target is ignored
 *     with find_unused_parameters,
 *     or first of a static_graph  the next synchronised backward has ended, also with an error
 *   of a delayed parameter        the synchronised backward that averages it has ended
 *   in a bucket view              as above. A view without a mark is owned from the call that says it is unused: begin_backward,
 *                                 mark_unused or end_backward
 *   with compression or a hook    as above
 *   with optimizer_step, on host  the call of optimizer_step for its bucket; with preserve_gradients: as above
 *   of a captured step            each launch of the graph owns it until it is complete; marks are not compared with launches
 *   of a step that is not ended   lockstep_reducer_destroy or lockstep_reducer_change_communicator has returned
 * lockstep_reducer_join has no gradients. A refused mark owns nothing.
 *
 * After a failure lockstep_reducer_gradient_state returns the contents of each gradient; preserve_gradients keeps them as they were. */

/* One row of the parameter table, which must be equal on all ranks. */
typedef struct lockstep_parameter {
  size_t struct_size;
  const char* name;       /* for messages; compared across ranks; unique, or NULL or "" for none */
  const int64_t* shape;   /* `dimensions` extents; zero elements are allowed */
  const int64_t* strides; /* of the gradient, in elements; NULL: row-major */
  int32_t dimensions;
  lockstep_dtype dtype;
  lockstep_device_kind device_kind;
  int32_t device_index;
  int32_t ignored; /* 1: has an index but no bucket: it has no gradient, or one that is not averaged */
  int32_t sparse;  /* 1: its gradient is some of its rows (lockstep_reducer_mark_ready_sparse); row-major */
} lockstep_parameter;

typedef int32_t lockstep_averaging;
enum {
  LOCKSTEP_AVERAGING_BEFORE = 0,        /* gradients times 1/n, then the sum */
  LOCKSTEP_AVERAGING_AFTER = 1,         /* the sum, then times 1/n */
  LOCKSTEP_AVERAGING_NONE = 2,          /* the sum */
  LOCKSTEP_AVERAGING_IN_COLLECTIVE = 3, /* by the all-reduce, as LOCKSTEP_AVG */
  LOCKSTEP_AVERAGING_PREDIVIDE = 4      /* times 1/predivide_factor on the way in, predivide_factor/n on the way out */
};

/* The dtype in which gradients are sent. For f32 that halves the bytes. docs/embedding.md tells the cost in precision. */
typedef int32_t lockstep_compression;
enum {
  LOCKSTEP_COMPRESSION_NONE = 0,
  LOCKSTEP_COMPRESSION_F16 = 1, /* values beyond 65504 become infinite */
  LOCKSTEP_COMPRESSION_BF16 = 2
};

/* What happens to a bucket once its gradients are in it. */
typedef int32_t lockstep_hook;
enum {
  LOCKSTEP_HOOK_NONE = 0,          /* averaged by an all-reduce, as `averaging` says */
  LOCKSTEP_HOOK_ALL_REDUCE = 1,    /* the same */
  LOCKSTEP_HOOK_FP16_COMPRESS = 2, /* the same, with LOCKSTEP_COMPRESSION_F16 */
  LOCKSTEP_HOOK_BF16_COMPRESS = 3, /* the same, with LOCKSTEP_COMPRESSION_BF16 */
  LOCKSTEP_HOOK_NOOP = 4,          /* nothing: gradients stay this rank's own; to compare speed */
  LOCKSTEP_HOOK_CALLBACK = 5       /* hook_issue or hook_start, which also averages */
};

/* A bucket, as an embedder's hook sees it. Valid from the hook's call until the backward has ended. */
typedef struct lockstep_hook_bucket lockstep_hook_bucket;
typedef struct lockstep_hook_completion lockstep_hook_completion;

/* hook_issue: enqueues the work on a bucket, by collectives on this communicator and stream and by lockstep_hook_bucket_run, and
 * returns without waiting. If it returns an error, the hook has failed; the library frees the error.
 *   THREADS  Runs on a thread that called begin_backward, join, end_backward or one of the marks. */
typedef lockstep_error* (*lockstep_hook_issue)(void* context, lockstep_hook_bucket* bucket,
                                               lockstep_communicator* communicator, const lockstep_stream* stream);

/* hook_start: does the work on a bucket by any means, here or on another thread. It may use any call of this header on this
 * communicator. Whoever finishes the work calls lockstep_hook_complete.
 *   THREADS  Runs on the thread lockstep-coll, for gradients on a device lockstep-hook. It then waits for lockstep_hook_complete, but no
 *            longer than hook_timeout_ms, or than the reducer's communicator and this one are usable. */
typedef void (*lockstep_hook_start)(void* context, lockstep_hook_bucket* bucket, lockstep_communicator* communicator,
                                    lockstep_hook_completion* completion);

/* For an optimizer: those parameters of a bucket that some rank used, and their averages. Borrowed until the step returns. */
typedef struct lockstep_reduced_bucket {
  size_t struct_size; /* set by the library */
  size_t index;       /* 0 to count - 1, in the order of launch */
  size_t count;       /* buckets of the step */
  size_t parameter_count;
  const size_t* parameters; /* indexes into the parameter table */
  const lockstep_tensor* gradients;
  /* For a sparse parameter, which has its own bucket: as from lockstep_reducer_averaged_rows. `gradients` is NULL then. */
  const int64_t* rows;
  size_t row_count;
  const void* row_values;
  /* If gradients are on a device: enqueue the step here. The averages are ready in this stream's order, perhaps after this call.
   * NULL: take the step now. */
  const lockstep_stream* stream;
} lockstep_reduced_bucket;

/* Updates these parameters while later buckets are still under way. If it returns an error, this rank's end_backward fails with it, and
 * so does the other ranks' if a later bucket can still tell them. The library frees the error.
 *   THREADS  Runs on the thread lockstep-opt, for gradients on a device lockstep-watch. It must not call a reducer. */
typedef lockstep_error* (*lockstep_optimizer_step)(void* context, const lockstep_reduced_bucket* bucket);

/* Gets a difference between the ranks' replicas: the error of lockstep_check_replicas. Owns it: frees it and returns NULL to go on, or
 * returns an error, with which begin_backward fails. It is called on every rank. If it fails on one, begin_backward fails on all of them:
 * nothing has begun then, and the next step may be tried.
 *   THREADS  Runs on the thread that called begin_backward or join. It must not call a reducer. */
typedef lockstep_error* (*lockstep_on_drift)(void* context, lockstep_error* drift);

/* All fields must be equal on all ranks, except callbacks, contexts, hook_timeout_ms, no_overlap and trace_path. Creation compares
 * them. */
typedef struct lockstep_reducer_options {
  size_t struct_size;
  /* A bucket is full when its bytes reach the cap. So a bucket has at least these bytes, except the last. */
  int64_t bucket_cap_bytes;       /* default 26,214,400 (25 MiB) */
  int64_t first_bucket_cap_bytes; /* default bucket_cap_bytes if that is given, else 1,048,576 (1 MiB) */
  /* 1: a rank may leave parameters unused in a backward. A parameter that no rank used keeps its gradient. If only other ranks used
   * it, see lockstep_reducer_averaged_gradient. A gradient marked in a backward without sync stays borrowed until the next backward
   * with sync has ended. In that backward the parameter counts as used. */
  int32_t find_unused_parameters;
  /* 1: every backward marks the same parameters, each as often as the first backward did. That may be several times (shared weights,
   * checkpointing): only the last mark counts. The first backward tells which parameters are unused. With gradient_as_bucket_view,
   * end_backward launches the buckets that have one. */
  int32_t static_graph;
  /* 1: gradients live in the buckets (lockstep_reducer_gradient_view), and are not copied. Excludes buckets_in_memory_max. */
  int32_t gradient_as_bucket_view;
  lockstep_averaging averaging;
  double predivide_factor; /* required by LOCKSTEP_AVERAGING_PREDIVIDE; from 2^-10 to 2^15 */
  lockstep_compression compression;
  lockstep_hook hook;
  /* For LOCKSTEP_HOOK_CALLBACK, with one of hook_issue and hook_start. */
  const char* hook_name; /* for messages; compared across ranks; default "callback" */
  lockstep_hook_issue hook_issue;
  lockstep_hook_start hook_start;
  void* hook_context;
  lockstep_release hook_release;
  int64_t hook_timeout_ms; /* from hook_start to lockstep_hook_complete; default 1,800,000 */
  /* Called for each bucket as soon as it is averaged. Its gradients are no longer borrowed then. NULL: none. */
  lockstep_optimizer_step optimizer_step;
  void* optimizer_context;
  lockstep_release optimizer_release;
  /* Replace the two caps above: for each dtype and device, the caps of its buckets in order. The last cap holds for all further ones. */
  const int64_t* bucket_caps_bytes;
  size_t bucket_cap_count;
  /* 1: caps count from the bucket that is launched last. A small last bucket leaves little to wait for when the backward ends. */
  int32_t caps_from_last;
  /* How many buckets have memory at a time; 0: all. They take turns. The library reads the gradients of a bucket once it has its turn. */
  int32_t buckets_in_memory_max;
  int32_t no_overlap; /* 1: end_backward launches every bucket; to compare speed */
  /* 1: buckets are planned again only after lockstep_reducer_request_replan. 0: they are also planned again once without a request, in
   * the order in which rank 0's gradients appeared; but not with gradient_as_bucket_view, since the views would move. */
  int32_t no_replan;
  const char* plan; /* from lockstep_reducer_export_plan of an earlier run: the same buckets as then */
  /* These parameters are reduced when the gradient of parameter delayed_trigger is ready. Marks of any backward until then count. In the
   * rest of that backward, marks of those that have been marked are refused, and marks of others count for the next one. Those without a
   * mark are unused. */
  const size_t* delayed;
  size_t delayed_count;
  size_t delayed_trigger;
  /* uneven_inputs 1: ranks may run out of inputs at different times. A rank without inputs calls lockstep_reducer_join. Only with it:
   * divide_by_live_ranks 1: averages are over the ranks that have inputs. 0: over all, with zeros for those that have none.
   *   Excludes hooks and LOCKSTEP_AVERAGING_NONE.
   * throw_on_early_termination 1: once a rank has joined, the step is FAILED_PRECONDITION on all ranks, and so is join. */
  int32_t uneven_inputs;
  int32_t divide_by_live_ranks;
  int32_t throw_on_early_termination;
  /* Where this rank writes a trace of every step: a folder, or a prefix of a file name. NULL: LOCKSTEP_TRACE, or no trace. */
  const char* trace_path;
  /* "in_place", the default: gradients are reduced where they lie, which takes no memory and no copies. "copied": they are copied into
   * buckets and back, as they also are on a device and for a hook: see copied_because in lockstep_reducer_statistics. If the communicator
   * fails in the middle of a bucket's all-reduce, gradients that are reduced where they lie hold parts of sums; copied ones are as they
   * were. See lockstep_reducer_gradient_state. */
  const char* gradient_memory;
  /* 1: if a step fails, in whatever way, this rank's gradients, targets and views are as they were when they were marked. That takes
   * memory for one more copy of the gradients, and the time to copy each gradient once as it is marked, and back after a failure.
   * end_backward waits for the step then, also with a stream, and steps cannot be captured. With an optimizer_step, gradients stay
   * borrowed until end_backward, and parameters that it has updated stay updated. On a device, strides leave no gaps. */
  int32_t preserve_gradients;
  /* Tensors that stay equal on all ranks if training goes well, such as the parameters; copied, and equal on all ranks. They are on the
   * device of the gradients; on a GPU they have no gaps. Each step hashes a part of them, where `replicas` of
   * lockstep_backward_options says they are, and the ranks compare the hashes in the last bucket, with no further message. 61 steps
   * cover every byte. If hashes differ, a later begin_backward finds out where, and calls on_drift. NULL: no check. */
  const lockstep_parameter* replicas;
  size_t replica_count;
  lockstep_on_drift on_drift; /* NULL: rank 0 logs a warning, once */
  void* drift_context;
  lockstep_release drift_release;
} lockstep_reducer_options;

/* Makes a reducer. Every rank calls it with the parameter table, in the order of definition. Compares tables and options.
 *   ERRORS  FAILED_PRECONDITION  tables or options differ, or another rank's arguments are bad: the same text on every rank, which
 *                                names rank, parameter and difference
 *           RESOURCE_EXHAUSTED   the buckets of this host's ranks do not fit in its memory; the message has the bytes needed and
 *                                left. Ranks of other hosts get FAILED_PRECONDITION.
 *           INVALID_ARGUMENT     also options that exclude each other; the message names them
 *           UNIMPLEMENTED        the communicator or the device cannot do what an option asks */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_create(lockstep_communicator* communicator,
                                                        const lockstep_parameter* parameters, size_t parameter_count,
                                                        const lockstep_reducer_options* options,
                                                        lockstep_reducer** out_reducer);

/* If a step is under way, waits for its launched buckets, at most until their deadline. If end_backward was not called and a bucket was
 * not launched, the step fails on the other ranks: their end_backward returns FAILED_PRECONDITION, which names this rank. This call waits
 * for them, at most 30 s, then aborts the communicator. Without preserve_gradients, buckets that were launched before are averages. Calls
 * no hook. Does not wait if the communicator was destroyed or aborted, nor for a backward without sync. Has no effect, but logs an error,
 * in a callback of a reducer. */
LOCKSTEP_EXPORT void lockstep_reducer_destroy(lockstep_reducer* reducer);

/* Copies the root's tensors (parameters, buffers) to every rank, for the start of training. Every rank calls it. Blocks until done.
 *   REQUIRES  tensors are dense: elements in any order of dimensions, without gaps
 *   COST      the tensors are coalesced into few messages */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_broadcast(lockstep_reducer* reducer, const lockstep_tensor* tensors,
                                                           size_t tensor_count, int32_t root);

typedef struct lockstep_backward_options {
  size_t struct_size;
  int32_t no_sync; /* 1: nothing is sent, marks are only checked; gradients accumulate in the embedder's memory */
  /* For find_unused_parameters. 0: a parameter without a mark at the end is unused. 1: the parameters in `unused`, perhaps none, are
   * unused. Then buckets need not wait for the end, and a parameter that is neither there nor marked, ready or unused, is an error. That
   * holds for a parameter with a gradient from a backward without sync, too: if this backward does not mark it, it is in `unused`, and
   * counts as used. */
  int32_t unused_given;
  const size_t* unused; /* indexes of parameters */
  size_t unused_count;
  /* The stream of the gradients' device on which the backward begins; may be NULL. With bucket views, writes to the views of `unused`
   * parameters come before this point in the stream. If the stream is being captured into a CUDA graph, the step is captured too:
   * see lockstep_reducer_check_replays. */
  const lockstep_stream* stream;
  /* For the option `replicas`: the address of each of those tensors, whose values stay as they are during this call. On a device they
   * are read in the order of `stream`, which is required. An address of NULL leaves a tensor out of this step, for example one that is
   * frozen; leave it out on all ranks. NULL instead of the list leaves all of them out. */
  const void* const* replicas;
} lockstep_backward_options;

/* Begins a step. Also returns, once, an error of another rank in an earlier step that came too late for that step's end_backward.
 *   ERRORS  FAILED_PRECONDITION  the last backward was not ended; another reducer's backward is under way on this communicator;
 *                                `unused` without find_unused_parameters; the step cannot be captured
 *           INVALID_ARGUMENT     `unused` holds an index that is not in the table; `replicas` on a device without a stream
 *           DATA_LOSS            the replicas differ, and on_drift returned that error */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_begin_backward(lockstep_reducer* reducer,
                                                                const lockstep_backward_options* options);

/* Compares tensors that should be equal on all ranks, such as parameters and the state of an optimizer, byte by byte. Every rank calls it
 * with the same table; tensors[i] is at data[i], on the host or on the communicator's device, and not written meanwhile. Blocks until
 * done. A NULL address says that this rank does not have the tensor: it is compared between the others. Elements are compared as bits,
 * so NaN equals NaN and -0 does not equal 0.
 *   ERRORS  DATA_LOSS            tensors differ: the same text on every rank. It says how many, which ranks differ from the majority, and
 *                                of the first such tensor the first element that differs and its value on each rank. As data, the error
 *                                has the tensor's index as parameter, and the lowest of those ranks as failed rank.
 *           FAILED_PRECONDITION  the tables differ
 *   COST    one pass over the tensors, and 8 bytes per tensor and rank */
LOCKSTEP_EXPORT lockstep_error* lockstep_check_replicas(lockstep_communicator* communicator,
                                                        const lockstep_parameter* tensors, const void* const* data,
                                                        size_t count);

/* Tells that the gradient of parameter `index` is final (with a stream: once the stream reaches this point). The library owns the
 * gradient's memory from here on (see above), and overwrites it with the average.
 *   ERRORS   INVALID_ARGUMENT     the index is out of range; the gradient does not match the table, or shares memory that the library owns
 *                                 for another parameter, of this reducer or of any other one of the process. The message names both.
 *            FAILED_PRECONDITION  no backward was begun; the parameter was marked before, or named as unused; the first backward of a
 *                                 static graph differs
 *            A refused mark does not count. Unless another mark of the parameter is accepted, the step fails on every rank, with
 *            this error in the message; on this rank alone if the mark was refused after everything had been sent; on none if the index
 *            has no gradient.
 *   THREADS  Several threads may mark at once. A mark on cudaStreamPerThread blocks until the stream reaches it if the gradient is not read
 *            in this backward's order: without sync, of a delayed parameter, and in the first backward of a static graph. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_mark_ready(lockstep_reducer* reducer, size_t index,
                                                            const lockstep_tensor* gradient,
                                                            const lockstep_stream* stream);

/* lockstep_reducer_mark_ready, but only reads the gradient: the average goes to `target`, which has the gradient's shape and strides
 * and any float dtype (a complex gradient's own). In a backward without sync the target is ignored. If the next synchronised backward does
 * not mark the parameter, its average is in the reducer's memory. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_mark_ready_into(lockstep_reducer* reducer, size_t index,
                                                                 const lockstep_tensor* gradient,
                                                                 const lockstep_tensor* target,
                                                                 const lockstep_stream* stream);

/* Tells that this backward has no gradient for parameter `index`, as if `unused` of begin_backward had named it. With bucket views, writes
 * to its view come before this call, or before this point of `stream`, which may be NULL. Does nothing for a delayed parameter.
 *   ERRORS   FAILED_PRECONDITION  no backward was begun; find_unused_parameters is not set, or static_graph is; the parameter was marked
 *                                 before, or a mark was refused; the step is being captured
 *            INVALID_ARGUMENT     the index is out of range, or the parameter is ignored
 *   THREADS  as lockstep_reducer_mark_ready */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_mark_unused(lockstep_reducer* reducer, size_t index,
                                                             const lockstep_stream* stream);

/* Tells why gradients of this backward will be missing, such as an exception that has stopped it. If some are missing in end_backward, its
 * error has `reason` on every rank, or their names if `reason` is empty. After this call a parameter without a mark is missing, unless it
 * was named as unused. In the backward that counts the marks of a static graph all parameters are missing, and the next backward counts
 * them. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_explain_missing(lockstep_reducer* reducer, const char* reason);

/* Ends a step: waits for the averages (with a stream: makes the stream wait for them).
 *   ERRORS  FAILED_PRECONDITION  a gradient is missing or was refused on some rank: the same text on every rank, which names rank,
 *                                parameters and reason. lockstep_reducer_gradient_state tells which gradients are averages. The next step
 *                                may be tried.
 *           With a stream, a later call returns the errors, once: the next begin_backward, or the one after it where steps run
 *           ahead on a device. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_end_backward(lockstep_reducer* reducer, const lockstep_stream* stream);

/* lockstep_reducer_end_backward, but waits for at most timeout_ms: for callers that look at signals meanwhile.
 *   RETURNS  *out_ended 1, or 0: the step has not ended and goes on. Then call this again, and nothing else but
 *            lockstep_reducer_destroy before. After an error the step has ended. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_try_end_backward(lockstep_reducer* reducer,
                                                                  const lockstep_stream* stream, int64_t timeout_ms,
                                                                  int32_t* out_ended);

/* What the memory of a parameter's gradient has after a step; if a target was marked, what the target has. */
typedef int32_t lockstep_gradient_state;
enum {
  LOCKSTEP_GRADIENT_UNCHANGED = 0, /* what it had when it was marked */
  LOCKSTEP_GRADIENT_AVERAGED = 1,  /* the average */
  LOCKSTEP_GRADIENT_UNDEFINED = 2  /* perhaps parts of sums */
};

/* Gets what the last synchronised backward left of a gradient, above all if it failed. Buckets whose exchange was over before the failure
 * have averages. After a failure of the communicator a device's gradients are undefined. With preserve_gradients all are unchanged
 * after a failure.
 *   REQUIRES  a synchronised backward has ended, and none has begun since
 *   ERRORS    as lockstep_reducer_averaged_gradient. If the step ended with a stream, the first call returns its error instead. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_gradient_state(lockstep_reducer* reducer, size_t index,
                                                                lockstep_gradient_state* out_state);

/* Gets the average of a parameter. If only other ranks used the parameter, the average is in the reducer's memory.
 *   REQUIRES  a synchronised backward has ended, and none has begun since
 *   RETURNS   *out_used 1 and the average; or, if no rank used the parameter, 0 and a zero tensor. out_used may be NULL. Shape and
 *             strides are borrowed until the next call for the same parameter.
 *   ERRORS    FAILED_PRECONDITION  at other times
 *             INVALID_ARGUMENT     the parameter is ignored or sparse */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_averaged_gradient(lockstep_reducer* reducer, size_t index,
                                                                   lockstep_tensor* out_tensor, int32_t* out_used);

/* Gets the gradient of a parameter in its bucket, with the table's strides (row-major if those leave gaps). The view is valid until
 * plan_version grows: then gradients have moved, and the caller gets the views again. A gradient elsewhere may still be marked: it
 * is copied into the bucket and back. Shape and strides are borrowed until the next call for the same parameter.
 *
 * A view changes only if the parameter's average goes there. If the gradient was marked elsewhere, or with another target, it stays
 * as it was, also if the step fails: it is copied aside meanwhile, so nothing writes it from the mark to the end of the backward.
 *   REQUIRES  gradient_as_bucket_view
 *
 * If this rank did not use a parameter in a synchronised backward, its view holds afterwards the average if another rank used it, and its
 * old contents if none did. The library copies the old contents aside for this. So writes to such a view must be complete when
 * begin_backward (with `unused_given`), mark_unused or else end_backward is called, or be in the stream given to it. For a delayed
 * parameter they must be complete when the trigger is marked; from then to the end of the backward nothing writes its view. On a rank
 * that has joined, views have no meaning. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_gradient_view(lockstep_reducer* reducer, size_t index,
                                                               lockstep_tensor* out_tensor);

/* 0 for NULL. */
LOCKSTEP_EXPORT size_t lockstep_reducer_bucket_count(const lockstep_reducer* reducer);

/* ---- The reducer: hooks ------------------------------------------------------------------------------------------
 *
 * With LOCKSTEP_HOOK_CALLBACK every bucket goes through hook_issue or hook_start, in the order of launch, which is equal on all ranks.
 * That includes buckets for which this rank has only zeros. The hook gets gradients without averaging, cast as `compression` says, and
 * leaves the averages in the bucket.
 *
 * hook_issue is stream-ordered. It calls the collectives of this header with the communicator and the stream that it was given, and
 * out_work NULL. They return at once, and run in order: after the gradients are in the bucket, and before the averages are taken out.
 * They run on the thread lockstep-coll or, for gradients on a device, on one of its streams. The tensors' memory is borrowed until the
 * backward has ended. A collective that fails later fails the hook. A collective without the stream, or after hook_issue has returned,
 * is FAILED_PRECONDITION.
 *
 * hook_start is host-completed: it is called when the gradients are in the bucket.
 *
 * The hook has a communicator of its own. The reducer owns it, so the hook never destroys it. If a hook fails on one rank, the hook's
 * communicator ends on all ranks, and every rank's end_backward returns that error. The reducer's communicator is not affected, and the
 * next backward has a new one for the hook. A hook must not call a reducer. */

/* The bucket's number, 0 to count - 1 in the order of launch; the number of buckets; the number of synchronised backwards begun, this
 * one included; the number of gradients in the bucket. 0 for NULL. */
LOCKSTEP_EXPORT size_t lockstep_hook_bucket_index(const lockstep_hook_bucket* bucket);
LOCKSTEP_EXPORT size_t lockstep_hook_bucket_count(const lockstep_hook_bucket* bucket);
LOCKSTEP_EXPORT int64_t lockstep_hook_bucket_step(const lockstep_hook_bucket* bucket);
LOCKSTEP_EXPORT size_t lockstep_hook_bucket_gradient_count(const lockstep_hook_bucket* bucket);

/* Gets the whole bucket as one vector. Its bytes and the offset of each gradient in it are multiples of 256. The gaps between have no
 * meaning, and may be reduced too. The shape is borrowed like the bucket. */
LOCKSTEP_EXPORT lockstep_error* lockstep_hook_bucket_tensor(const lockstep_hook_bucket* bucket,
                                                            lockstep_tensor* out_tensor);

/* Gets gradient `slot` of the bucket, as a vector inside it, and its index in the parameter table. Either output may be NULL. */
LOCKSTEP_EXPORT lockstep_error* lockstep_hook_bucket_gradient(const lockstep_hook_bucket* bucket, size_t slot,
                                                              size_t* out_parameter, lockstep_tensor* out_tensor);

/* Gets this rank's rows and values of a sparse parameter, as they were marked. (Its bucket is a vector without elements.) The values
 * are ready in the stream's order.
 *   RETURNS  *out_sparse 1, the rows and the values; 0 and NULL in all outputs for other buckets. out_sparse may be NULL. */
LOCKSTEP_EXPORT lockstep_error* lockstep_hook_bucket_rows(const lockstep_hook_bucket* bucket, const int64_t** out_rows,
                                                          const void** out_values, size_t* out_row_count,
                                                          int32_t* out_sparse);

/* Sets the average of a sparse bucket: values of row_count rows, in any order. Values of repeated rows are summed. Copies both.
 *   REQUIRES  the hook is not done
 *   ERRORS    FAILED_PRECONDITION  the bucket is not sparse */
LOCKSTEP_EXPORT lockstep_error* lockstep_hook_bucket_set_rows(lockstep_hook_bucket* bucket, const int64_t* rows,
                                                              const void* values, size_t row_count);

/* Tells that the averages are in `result`, not in the bucket. It is contiguous, has as many elements as the bucket, and a float dtype
 * (a complex bucket's own). Its memory is borrowed until the next backward begins.
 *   REQUIRES  the hook is not done
 *   ERRORS    FAILED_PRECONDITION  the bucket is on a device, and this is not inside hook_issue */
LOCKSTEP_EXPORT lockstep_error* lockstep_hook_bucket_set_result(lockstep_hook_bucket* bucket,
                                                                const lockstep_tensor* result);

/* Runs in the stream's order. If it returns an error, the hook has failed; the library frees the error. */
typedef lockstep_error* (*lockstep_hook_function)(void* context, lockstep_hook_bucket* bucket);

/* Enqueues a function of the embedder on the bucket's stream. It is not called if something enqueued earlier for this bucket fails.
 *   ERRORS   FAILED_PRECONDITION  not inside hook_issue
 *   THREADS  The function runs on the thread lockstep-coll. For gradients on a device it runs on a thread of the CUDA driver, where it
 *            must not call CUDA, directly or indirectly (cudaLaunchHostFunc). */
LOCKSTEP_EXPORT lockstep_error* lockstep_hook_bucket_run(lockstep_hook_bucket* bucket, lockstep_hook_function function,
                                                         void* context);

/* Tells that a host-completed hook is done with its bucket: NULL for success, or an error, which the library frees. Frees the
 * completion, so it is called exactly once. After hook_timeout_ms the hook has failed with DEADLINE_EXCEEDED, and once the reducer's
 * communicator has ended, with its error. Then the bucket must not be touched, calls on the hook's communicator fail, and this call only
 * frees completion, communicator and error.
 *   THREADS  Any thread may call it. */
LOCKSTEP_EXPORT void lockstep_hook_complete(lockstep_hook_completion* completion, lockstep_error* error);

/* ---- The reducer: plans, reports --------------------------------------------------------------------------------- */

/* Plans buckets again. Every rank calls it. Let s be the number of the first synchronised backward that succeeds and that every rank began
 * after its call. The plan has the order in which rank 0's gradients appeared in s. It is used from backward s + 3 on, which waits for
 * it in the rare case that it has not arrived by then. A call before that has no effect. Does not wait. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_request_replan(lockstep_reducer* reducer);

/* The number of the plan in use. 1 for the first. Grows only in begin_backward. 0 for NULL. */
LOCKSTEP_EXPORT int64_t lockstep_reducer_plan_version(const lockstep_reducer* reducer);

/* Gets the plan in use, as text for lockstep_reducer_options.plan: a later run with it adds up in the same order. Free the text by
 * lockstep_string_free. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_export_plan(const lockstep_reducer* reducer, char** out_text);

/* Counts the synchronised backwards in which this rank used (marked) the parameter, and those in which some rank did. Counts only
 * backwards that gave averages. Use in a backward without sync counts in the next one with sync. Either output may be NULL.
 *   REQUIRES  no other call on the reducer at the same time */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_parameter_uses(const lockstep_reducer* reducer, size_t index,
                                                                int64_t* out_here, int64_t* out_anywhere);

/* Times of the last synchronised backward, by the host's clock. */
typedef struct lockstep_reducer_statistics {
  size_t struct_size;
  int64_t steps;           /* synchronised backwards so far */
  double backward_ms;      /* begin_backward to the call of end_backward */
  double communication_ms; /* while some bucket was being all-reduced */
  double exposed_ms;       /* the part of it after end_backward was called, which the backward did not hide */
  double hidden_ms;        /* communication_ms - exposed_ms */
  int64_t bytes_reduced;   /* payload of the buckets */
  int32_t buckets;
  int32_t buckets_launched_in_backward; /* before end_backward was called */
  /* Why gradients are copied into buckets and back. NULL: they are reduced where they lie, or live in the buckets. Borrowed until the
   * reducer is given another communicator or destroyed. */
  const char* copied_because;
  double replicas_ms; /* in begin_backward, to check a part of the replicas */
} lockstep_reducer_statistics;

/* REQUIRES  out_statistics->struct_size is set: that many bytes are written */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_get_statistics(const lockstep_reducer* reducer,
                                                                lockstep_reducer_statistics* out_statistics);

/* One bucket of the last synchronised backward. Times are milliseconds since its begin_backward, by the host's clock. A negative time
 * was not recorded. */
typedef struct lockstep_bucket_statistics {
  size_t struct_size;
  double ready_ms;    /* its last gradient was marked */
  double launched_ms; /* all before it were launched too */
  double wire_begin_ms;
  double wire_end_ms;
  double done_ms;          /* averages are in the gradients, and optimizer_step has returned */
  double communication_ms; /* between wire_begin_ms and wire_end_ms */
  double exposed_ms;       /* the part of it after end_backward was called */
  double hidden_ms;        /* communication_ms - exposed_ms */
  int64_t bytes;           /* of this rank's input to the bucket's collectives */
} lockstep_bucket_statistics;

/* REQUIRES  out_statistics->struct_size is set: that many bytes are written
 * ERRORS    INVALID_ARGUMENT  the step did not have this bucket */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_get_bucket_statistics(const lockstep_reducer* reducer, size_t bucket,
                                                                       lockstep_bucket_statistics* out_statistics);

typedef int32_t lockstep_report;
enum {
  /* The last synchronised backward, for people, on one screen. */
  LOCKSTEP_REPORT_SUMMARY = 0,
  /* A JSON object with the names of DDP's logging data (world_size, bucket_sizes, avg_backward_comm_time, ...), times in nanoseconds.
   * begin_forward, or else begin_backward, updates it after each of the first ten steps, then after every hundredth, or at the rate of
   * lockstep_reducer_set_logging_sample_rate. */
  LOCKSTEP_REPORT_LOGGING_DATA = 1
};

/* Gets a report. Free the text by lockstep_string_free. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_report(const lockstep_reducer* reducer, lockstep_report report,
                                                        char** out_text);

/* Sets that every sample_rate-th step updates the logging data, after the first ten.
 *   ERRORS  INVALID_ARGUMENT  the rate is below 1 */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_set_logging_sample_rate(lockstep_reducer* reducer,
                                                                         int64_t sample_rate);

/* ---- The reducer: sparse gradients, buffers, ranks that come and go, CUDA graphs --------------------------------- */

/* Marks the gradient of a sparse parameter as final: values[i] is the gradient of row rows[i]. Rows come in any order. Values of repeated
 * rows are summed. `values` is row-major and has the parameter's shape, except that its first dimension is row_count, which may be 0. Both
 * arrays are only read, and borrowed like a gradient.
 *   ERRORS   INVALID_ARGUMENT  an argument does not match the table; the message names the first row out of range
 *            others            as lockstep_reducer_mark_ready
 *   THREADS  as lockstep_reducer_mark_ready */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_mark_ready_sparse(lockstep_reducer* reducer, size_t index,
                                                                   const int64_t* rows, size_t row_count,
                                                                   const lockstep_tensor* values,
                                                                   const lockstep_stream* stream);

/* Gets the average of a sparse parameter after a synchronised backward: the rows for which some rank had values, in ascending order
 * without repetition, and their averages, consecutive rows of the parameter's dtype. The bits are equal on all ranks.
 *   RETURNS  *out_used 1 and the rows, borrowed until the next begin_backward; or, if no rank used the parameter, 0 and NULL in all
 *            outputs. out_used may be NULL.
 *   ERRORS   FAILED_PRECONDITION  before the first synchronised backward has ended, and inside a backward
 *            INVALID_ARGUMENT     the parameter is not sparse */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_averaged_rows(lockstep_reducer* reducer, size_t index,
                                                               const int64_t** out_rows, const void** out_values,
                                                               size_t* out_row_count, int32_t* out_used);

/* A reducer can copy a model's buffers (running statistics; PyTorch's term) from one rank to the others around each forward pass. It
 * uses a separate communicator for them, so they do not change the order of its other calls. */

/* Replaces the broadcast: changes the buffers in place, by calls on `communicator`, which has the ranks that take part. It and the
 * tensors are valid until the callback returns; the callback does not destroy them. If it returns an error, begin_forward, end_forward
 * or join fails with it, on this rank alone. The library frees the error. The callback must not call its reducer.
 *   THREADS  Runs on the thread that called begin_forward, end_forward or join. */
typedef lockstep_error* (*lockstep_buffer_hook)(void* context, lockstep_communicator* communicator,
                                                const lockstep_tensor* buffers, size_t buffer_count);

typedef struct lockstep_reducer_buffer_options {
  size_t struct_size;
  int32_t root; /* ignored with uneven_inputs: then it is the highest rank that has inputs */
  /* 1: overwrites the other ranks' buffers. 0: the root's buffers arrive in fresh memory, so that a later backward pass still finds the
   * buffers of its own forward pass. A hook, and end_forward, always overwrite. */
  int32_t in_place;
  int32_t after_forward;     /* 1: in end_forward, not in begin_forward */
  lockstep_buffer_hook hook; /* NULL: a broadcast */
  void* hook_context;
  lockstep_release hook_release;
} lockstep_reducer_buffer_options;

/* Tells which buffers to copy. Every rank calls it, with equal options, between backwards, and again after
 * lockstep_reducer_change_communicator. Buffers and errors are as of lockstep_buffer_set_create. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_set_buffers(lockstep_reducer* reducer, const lockstep_tensor* buffers,
                                                             size_t buffer_count,
                                                             const lockstep_reducer_buffer_options* options);

typedef struct lockstep_forward_options {
  size_t struct_size;
  const lockstep_tensor* buffers; /* those of set_buffers; their memory may be other */
  size_t buffer_count;
} lockstep_forward_options;

/* Memory with a copy of the root's buffers. It may outlive the reducer and the communicator. Its calls are with the buffer sets below. */
typedef struct lockstep_fresh_buffers lockstep_fresh_buffers;

/* Tell that a forward pass begins, and ends. The first forward since the last synchronised backward copies the buffers, even if its own
 * backward is without sync. For that every rank makes these calls, and they block. Without buffers both calls are optional; begin_forward
 * then only gives the logging data its times. A forward without a backward (evaluation) needs no call.
 *   RETURNS  *out_fresh NULL, unless buffers came in fresh memory. out_fresh may be NULL if they never do.
 *   ERRORS   as lockstep_buffer_set_broadcast. A hook is not called if this rank's tensors cannot be read. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_begin_forward(lockstep_reducer* reducer,
                                                               const lockstep_forward_options* options,
                                                               lockstep_fresh_buffers** out_fresh);
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_end_forward(lockstep_reducer* reducer,
                                                             const lockstep_forward_options* options);

/* Takes part with zeros in the steps of the ranks that still have inputs, and returns when all ranks have joined. Its operations have no
 * deadline. At the end `model` (pass parameters and buffers) is copied to every rank from the rank that joined last. If several did, it
 * is the highest of them. `buffers` are those of set_buffers, or none: a joining rank still takes part in one copy of the buffers.
 *   ERRORS  INVALID_ARGUMENT     a tensor cannot be read; nothing has begun
 *           FAILED_PRECONDITION  without uneven_inputs, or by throw_on_early_termination */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_join(lockstep_reducer* reducer, const lockstep_tensor* model,
                                                      size_t model_count, const lockstep_tensor* buffers,
                                                      size_t buffer_count);

/* Moves the reducer to another communicator, after a failure or when ranks come and go. The old one may be destroyed already. Every rank
 * of the new one calls this, or lockstep_reducer_create with an equal table, equal options and the plan that the others export. Ends a
 * step under way. Keeps the plan if all ranks have the same one, else starts with the first plan. Bucket views move, with their
 * contents. Buffers must be set again.
 *   ERRORS  as lockstep_reducer_create. Then the reducer can only be moved to another communicator, or destroyed. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_change_communicator(lockstep_reducer* reducer,
                                                                     lockstep_communicator* communicator);

/* Returns the error of the last complete replay of each CUDA graph with steps in it. Synchronise with the stream of the launch first. A
 * replay that hangs has no deadline.
 *   REQUIRES  graphs are destroyed before the reducer
 *   ERRORS    FAILED_PRECONDITION  some rank's gradients were missing when the step was captured. Every rank returns it; the message
 *                                  names rank and parameters. Averages were not written.
 *
 * If a backward begins on a stream that is being captured (lockstep_backward_options.stream), and its gradients and its end are on streams
 * of the same capture, the step becomes part of the graph (docs/gpu.md). Nothing of it is done during the capture. Each launch of the graph
 * then averages the gradients at the same addresses again. Only over NCCL. All ranks capture the same steps.
 *
 * begin_backward refuses a step that a graph cannot repeat, with FAILED_PRECONDITION and a message that tells why and what to do. Nothing
 * was issued then, and other steps may follow. Refused are: hooks, optimizers, buffers, uneven inputs, preserve_gradients, unused and
 * delayed parameters, the first step of a static graph, and any step before buckets are planned again, unless no_replan is set. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_check_replays(lockstep_reducer* reducer);

/* ---- Subgroups --------------------------------------------------------------------------------------------------
 *
 * Communicators made from another one, by collective calls. They share only its connections. Several may be used at the same time, by
 * several threads, and in a different order on each rank. Each fails on its own. */

/* Makes a communicator for each color, of the ranks that passed it, ordered by key, then by rank. A rank with a negative color is in
 * none: *out_communicator is NULL. */
LOCKSTEP_EXPORT lockstep_error* lockstep_communicator_split(lockstep_communicator* communicator, int32_t color,
                                                            int32_t key, lockstep_communicator** out_communicator);

/* Makes a communicator of the same ranks. */
LOCKSTEP_EXPORT lockstep_error* lockstep_communicator_duplicate(lockstep_communicator* communicator,
                                                                lockstep_communicator** out_communicator);

/* Arranges the ranks in a grid of named dimensions. Sizes multiply to the number of ranks, and the last dimension changes fastest.
 * Example: {"dp", "tp"} and {2, 4}: ranks 0 to 3 are a line along tp, ranks 0 and 4 a line along dp.
 *   RETURNS  for each dimension the communicator of this rank's line along it, in which its rank is its coordinate.
 *            out_communicators has room for `dimensions`. */
LOCKSTEP_EXPORT lockstep_error* lockstep_communicator_mesh(lockstep_communicator* communicator,
                                                           const char* const* names, const int32_t* sizes,
                                                           size_t dimensions,
                                                           lockstep_communicator** out_communicators);

/* Gets the ncclComm_t that collectives on the device use, for NCCL calls that this header does not have. It is borrowed.
 *   REQUIRES  all ranks make these NCCL calls and their collectives here in one order; no rank aborts or destroys the ncclComm_t
 *   ERRORS    FAILED_PRECONDITION  the device's back end is not NCCL */
LOCKSTEP_EXPORT lockstep_error* lockstep_communicator_nccl(const lockstep_communicator* communicator, void** out_comm);

/* A barrier that tells which ranks have not called it. It is not in the order of collectives, and may be called while some are in flight.
 * timeout_ms 0: the communicator's.
 *   ERRORS  DEADLINE_EXCEEDED  the timeout of a waiting rank expired before all ranks had called. Every rank, even one that calls later,
 *                              gets a message with the missing ranks; lockstep_error_failed_rank is the first of them. The
 *                              communicator stays usable, and the next monitored barrier starts afresh.
 *   COST    tens of microseconds: it goes through the coordinator */
LOCKSTEP_EXPORT lockstep_error* lockstep_monitored_barrier(lockstep_communicator* communicator, int64_t timeout_ms);

/* ---- Prepared collectives ----------------------------------------------------------------------------------------
 *
 * Set up once, and started any number of times without an allocation: MPI calls them persistent. Some ranks may prepare a collective
 * that others call directly. One thread at a time uses a prepared collective. */
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

/* The arguments of a collective. Those that it does not take are zero. */
typedef struct lockstep_collective {
  size_t struct_size;
  lockstep_collective_kind kind;
  lockstep_reduce_op op;
  int32_t root;
  const lockstep_tensor* input; /* of a broadcast: the tensor */
  const lockstep_tensor* output;
  const int64_t* counts;        /* NULL: equal blocks; of an all-to-all the input's */
  const int64_t* output_counts; /* of an all-to-all with counts */
  /* Not 0: `input` and `output` are arrays of that many tensors, as of the collectives of lists (..._coalesced), which carry out their four
   * kinds. On the host only: UNIMPLEMENTED on a device. Starting it again costs no more than one tensor does. */
  size_t tensor_count;
} lockstep_collective;

/* Prepares a collective on the communicator. Not a collective call. Copies descriptions and options. The tensors' memory is borrowed
 * only while the collective is under way. */
LOCKSTEP_EXPORT lockstep_error* lockstep_prepared_create(lockstep_communicator* communicator,
                                                         const lockstep_collective* collective,
                                                         const lockstep_collective_options* options,
                                                         lockstep_prepared** out_prepared);

/* Starts the collective. Does not wait.
 *   ERRORS  FAILED_PRECONDITION  its last start is not done */
LOCKSTEP_EXPORT lockstep_error* lockstep_prepared_start(lockstep_prepared* prepared);

/* Starts the collective and returns when it is done: faster than starting it and waiting, as nothing of it is left to a thread. In a
 * group it is lockstep_prepared_start.
 *   ERRORS  of the collective; FAILED_PRECONDITION  its last start is not done */
LOCKSTEP_EXPORT lockstep_error* lockstep_prepared_run(lockstep_prepared* prepared);

/* lockstep_work_wait and lockstep_work_done for the last start. Before the first start it is done. */
LOCKSTEP_EXPORT lockstep_error* lockstep_prepared_wait(lockstep_prepared* prepared, int64_t timeout_ms);
LOCKSTEP_EXPORT int32_t lockstep_prepared_done(const lockstep_prepared* prepared);

/* Does not wait and does not cancel. */
LOCKSTEP_EXPORT void lockstep_prepared_destroy(lockstep_prepared* prepared);

/* ---- Groups of calls ---------------------------------------------------------------------------------------------
 *
 * Collect the calls that this thread makes on a communicator between start and end, and launch them together at the end. Inside a group
 * blocking sends and receives in any order cannot deadlock, since calls without out_work return at once. Groups nest; the outermost
 * end launches. If a call is refused, the end returns its error again, and nothing is launched. Calls that need the result of a collective
 * are refused, such as lockstep_reducer_create, lockstep_check_replicas and lockstep_batch_norm_combine.
 *   ERRORS  FAILED_PRECONDITION  another thread has a group open. A wait inside the group for one of its works returns it, too. So do
 *                                its works if the communicator is destroyed with the group open. */
LOCKSTEP_EXPORT lockstep_error* lockstep_group_start(lockstep_communicator* communicator);

/* Launches the group. out_work NULL: returns when all its calls are done, with the first error of any. Else *out_work is the group.
 *   ERRORS  FAILED_PRECONDITION  this thread has no group open */
LOCKSTEP_EXPORT lockstep_error* lockstep_group_end(lockstep_communicator* communicator, lockstep_work** out_work);

/* ---- Messages ----------------------------------------------------------------------------------------------------
 *
 * From one rank to another. Messages and collectives do not wait for each other. Messages from one rank with one tag are received in the
 * order in which they were sent. A send of up to 64 KiB is done without a receive, as long as less than 1 MiB from this rank waits at
 * the target. Any other send is done once it is received. A rank may send to itself. A tensor on a device must be ready when the call
 * is made. timeout_ms 0: the communicator's. out_work is as of a collective. */

enum { LOCKSTEP_ANY_SOURCE = -1, LOCKSTEP_ANY_TAG = -1, LOCKSTEP_EVERY_RANK = -1 };

/* A message that was received. */
typedef struct lockstep_message {
  int64_t tag;
  size_t bytes;
  int32_t source;
} lockstep_message;

/* Sends the tensor's bytes, without dtype and shape. Tags are not negative. */
LOCKSTEP_EXPORT lockstep_error* lockstep_send(lockstep_communicator* communicator, const lockstep_tensor* tensor,
                                              int32_t target, int64_t tag, int64_t timeout_ms,
                                              lockstep_work** out_work);

/* Receives a message. The tensor may be larger.
 *   RETURNS  *out_message without out_work; with out_work, lockstep_work_message tells it later. out_message may be NULL.
 *   ERRORS   FAILED_PRECONDITION  the message does not fit, and is lost */
LOCKSTEP_EXPORT lockstep_error* lockstep_receive(lockstep_communicator* communicator, const lockstep_tensor* tensor,
                                                 int32_t source, int64_t tag, int64_t timeout_ms,
                                                 lockstep_message* out_message, lockstep_work** out_work);

/* Gets the message of a receive.
 *   ERRORS  FAILED_PRECONDITION  the work is not a receive, or has not succeeded */
LOCKSTEP_EXPORT lockstep_error* lockstep_work_message(const lockstep_work* work, lockstep_message* out_message);

/* Byte objects, for set-up: collectives of bytes whose number other ranks do not know. They block. At most 1 GiB each. Free the outputs
 * by lockstep_bytes_free. */

/* *out_data on every rank is a copy of the root's bytes. Other ranks' data and bytes are ignored. */
LOCKSTEP_EXPORT lockstep_error* lockstep_broadcast_bytes(lockstep_communicator* communicator, const void* data,
                                                         size_t bytes, int32_t root, void** out_data,
                                                         size_t* out_bytes);

/* *out_data on the root has the bytes of all ranks, in rank order, and out_sizes (an entry for each rank) their sizes. root
 * LOCKSTEP_EVERY_RANK: on every rank. Both may be NULL on other ranks. */
LOCKSTEP_EXPORT lockstep_error* lockstep_gather_bytes(lockstep_communicator* communicator, const void* data,
                                                      size_t bytes, int32_t root, void** out_data, size_t* out_sizes);

/* Takes NULL. */
LOCKSTEP_EXPORT void lockstep_bytes_free(void* data);

/* ---- Memory for collectives --------------------------------------------------------------------------------------
 *
 * If all tensors of a collective are in such memory, ranks of one host read their peers' inputs and write their outputs directly, in one
 * pass, without a bounce buffer. Whether they are in it must be equal on all ranks. Between hosts it is used like other memory; libfabric
 * registers it once. These collectives use it like other memory on one host, too: a premultiplied reduce or reduce-scatter, an all-to-all
 * in place or with counts, a gather or scatter with an empty block, and a list of more than 8000 tensors (..._coalesced). */
typedef struct lockstep_memory lockstep_memory;

/* Makes memory for collectives. Every rank calls it, with the same size and kind. On LOCKSTEP_HOST it is page-aligned and zeroed. On the
 * communicator's kind of device it is the back end's preferred kind, and not initialised. It may outlive the communicator. A forked
 * child does not have it. If the communicator fails, a stopped rank may write into it later, also over gradients that a reducer has put
 * back: make new memory for the next communicator.
 *   ERRORS  INVALID_ARGUMENT    sizes differ, or are 0
 *           RESOURCE_EXHAUSTED  this host's ranks together ask for more than the machine or its control group has left; the message has
 *                               both figures. Other ranks get UNAVAILABLE, with this rank's name. The communicator stays usable.
 *           UNIMPLEMENTED       the communicator has no such device */
LOCKSTEP_EXPORT lockstep_error* lockstep_memory_create(lockstep_communicator* communicator, size_t bytes,
                                                       lockstep_device_kind device_kind, lockstep_memory** out_memory);
LOCKSTEP_EXPORT void lockstep_memory_destroy(lockstep_memory* memory);

/* NULL for NULL, and in a forked child. */
LOCKSTEP_EXPORT void* lockstep_memory_data(const lockstep_memory* memory);
LOCKSTEP_EXPORT size_t lockstep_memory_bytes(const lockstep_memory* memory);
/* 1 if the other ranks have mapped it, else 0. */
LOCKSTEP_EXPORT int32_t lockstep_memory_is_shared(const lockstep_memory* memory);

/* ---- Buffer sets, batch normalisation, casts ---------------------------------------------------------------------
 *
 * For embedders that copy a model's buffers without the reducer, and for mixed precision. They are blocking collectives, unless they say
 * otherwise, and in the communicator's order of calls: use the reducer's communicator between end_backward and begin_backward, or a
 * duplicate at any time. */

/* Copies a model's buffers from one rank to all, for example before each forward pass. They arrive in fresh memory, so that a later
 * backward pass still finds the buffers of its own forward pass. Only creation compares the ranks' buffers. One thread at a time uses a
 * set. */
typedef struct lockstep_buffer_set lockstep_buffer_set;

/* Makes a set. Every rank calls it. Buffers are on the host, dense, in any order of dimensions. The set keeps only their dtypes, shapes
 * and strides.
 *   ERRORS  as lockstep_reducer_create */
LOCKSTEP_EXPORT lockstep_error* lockstep_buffer_set_create(lockstep_communicator* communicator,
                                                           const lockstep_tensor* tensors, size_t tensor_count,
                                                           lockstep_buffer_set** out_set);
LOCKSTEP_EXPORT void lockstep_buffer_set_destroy(lockstep_buffer_set* set);

typedef struct lockstep_buffer_set_options {
  size_t struct_size;
  int32_t root;       /* equal on all ranks */
  int64_t timeout_ms; /* as of a collective */
} lockstep_buffer_set_options;

/* Copies the root's tensors to every rank. They are the set's buffers; their memory may be other than at creation. out_fresh NULL:
 * overwrites the other ranks' tensors.
 *   ERRORS  INVALID_ARGUMENT     this rank's tensors differ from those of the creation
 *           FAILED_PRECONDITION  the root's do. In both cases nothing is written, and the communicator stays usable. */
LOCKSTEP_EXPORT lockstep_error* lockstep_buffer_set_broadcast(lockstep_buffer_set* set, const lockstep_tensor* tensors,
                                                              size_t tensor_count,
                                                              const lockstep_buffer_set_options* options,
                                                              lockstep_fresh_buffers** out_fresh);

/* The memory of tensor `index`, with the set's strides, aligned to 256 bytes. The caller may write it until it is destroyed.
 *   RETURNS  NULL if the index is out of range */
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

/* Combines the ranks' statistics. mean and variance (biased) have a value for each of `channels` channels, from this rank's `count`
 * elements of each. With count 0 the values are ignored, but not NULL. Channels are equal on all ranks; counts may differ. Combines in
 * double by Chan's formula, in rank order.
 *   RETURNS  the statistics of all ranks' elements. An output may be NULL, or the input of the same kind. If there is no element at all,
 *            mean and variance are 0, and the running statistics stay. If there is only one, the running variance stays.
 *   COST     one all-gather */
LOCKSTEP_EXPORT lockstep_error* lockstep_batch_norm_combine(lockstep_communicator* communicator, size_t channels,
                                                            const float* mean, const float* variance, int64_t count,
                                                            const lockstep_batch_norm_options* options, float* out_mean,
                                                            float* out_variance, float* out_inverse_std,
                                                            int64_t* out_count);

/* Replaces the two sums, a value for each channel, by their sums over all ranks. One all-reduce, in double. */
LOCKSTEP_EXPORT lockstep_error* lockstep_batch_norm_sum_gradients(lockstep_communicator* communicator, size_t channels,
                                                                  float* sum_dy, float* sum_dy_xmu,
                                                                  const lockstep_batch_norm_options* options);

/* targets[i] = sources[i], converted between float dtypes and rounded once. For parameters in lower precision, or gradients in float32.
 * Not a collective.
 *   REQUIRES  a pair has equal shapes, and equal strides unless one tensor is row-major and the other has gaps; it shares no memory
 *   ERRORS    INVALID_ARGUMENT  a pair does not meet that; the message names the first such pair, and nothing is written */
LOCKSTEP_EXPORT lockstep_error* lockstep_cast_tensors(const lockstep_tensor* sources, const lockstep_tensor* targets,
                                                      size_t tensor_count);

/* ---- Stores ------------------------------------------------------------------------------------------------------
 *
 * A small shared dictionary by which ranks find each other. Only set-up uses it. An embedder that has one passes it to a communicator
 * instead of a URL. */

/* Each callback returns LOCKSTEP_OK, or a code, which becomes the communicator's error. Values are bytes, not strings. After timeout_ms
 * a callback returns LOCKSTEP_DEADLINE_EXCEEDED. One that returns neither by then nor within 1 s, for example because a server is stopped,
 * counts as if it had; until it returns, which may be after the communicator was created, further calls fail in the same way. `release` is
 * called after that.
 *   THREADS  They run on threads of the library, one at a time. */
typedef struct lockstep_store_callbacks {
  size_t struct_size;
  void* context;
  lockstep_release release;
  lockstep_code (*set)(void* context, const char* key, const void* value, size_t value_bytes, int64_t timeout_ms);
  /* Copies at most `capacity` bytes into `buffer`, and sets the value's whole size. LOCKSTEP_NOT_FOUND if the key is not there. */
  lockstep_code (*get)(void* context, const char* key, void* buffer, size_t capacity, size_t* out_value_bytes,
                       int64_t timeout_ms);
  /* May be NULL, or fail: then keys of finished set-ups stay, with empty values. */
  lockstep_code (*remove)(void* context, const char* key, int64_t timeout_ms);
} lockstep_store_callbacks;

LOCKSTEP_EXPORT lockstep_error* lockstep_store_create(const lockstep_store_callbacks* callbacks,
                                                      lockstep_store** out_store);
LOCKSTEP_EXPORT void lockstep_store_destroy(lockstep_store* store);

/* ---- The library ------------------------------------------------------------------------------------------------- */

/* LOCKSTEP_VERSION of the loaded library, which may be newer than the header. */
LOCKSTEP_EXPORT int32_t lockstep_version(void);
/* The same for people, with the commit of the build and the OpenSSL inside: "0.3.0 (commit c72e67a1f03b, OpenSSL 3.0.19)". The
 * caller does not free it. */
LOCKSTEP_EXPORT const char* lockstep_version_text(void);

typedef int32_t lockstep_log_level;
enum {
  LOCKSTEP_LOG_ERROR = 0,
  LOCKSTEP_LOG_WARNING = 1, /* the default, unless the variable LOCKSTEP_LOG is set */
  LOCKSTEP_LOG_INFO = 2,
  LOCKSTEP_LOG_DEBUG = 3,
  LOCKSTEP_LOG_TRACE = 4
};

/* Takes one line, without newline. It must not call the library.
 *   THREADS  Runs on the thread that logs, several at once. */
typedef void (*lockstep_log_callback)(void* context, lockstep_log_level level, const char* line);

/* Sends log lines to the callback instead of stderr. NULL restores stderr. The replaced callback's `release` is called once no thread is
 * in it. */
LOCKSTEP_EXPORT void lockstep_set_log_callback(lockstep_log_callback callback, void* context, lockstep_release release);
LOCKSTEP_EXPORT void lockstep_set_log_level(lockstep_log_level level);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* LOCKSTEP_H_ */
