/* Lockstep: gradient synchronisation for data-parallel training, embeddable by any framework.
 *
 * CONVENTIONS, which hold for everything below:
 *
 *   Errors      A call that can fail returns a lockstep_error*: NULL is success, anything else is owned by the caller, has
 *               a code and a message, and is freed by lockstep_error_free(). Nothing else reports an error. When a call
 *               fails, its outputs are not written.
 *   Handles     Opaque. ..._create makes one, ..._destroy ends it and takes NULL. A handle made before fork() answers
 *               FAILED_PRECONDITION in the child, where destroying it only forgets it; the child may make its own.
 *   Options     A struct that begins with struct_size, filled by its ..._init call. Zero in a field is the default. New
 *               fields are only ever appended; a caller built with an older header is understood by its struct_size. A
 *               NULL options pointer means all defaults.
 *   Outputs     Come last and are named out_*.
 *   Memory      What the library allocates, the library frees (lockstep_string_free, lockstep_error_free). Strings and
 *               arrays passed in are copied before the call returns unless the call says "borrowed".
 *   Threads     Handles are thread-safe unless their comment says otherwise. Loading the library starts no thread;
 *               creating a communicator starts its threads, which block all signals. docs/threading.md lists them.
 *   Callbacks   Carry a context pointer, run on a documented thread and outside our locks.
 *   Units       Bytes, milliseconds, elements: the name says which.
 *   Ranks       0 to world size - 1.
 *
 * The header is C99 and C++. It includes no framework's and no vendor's header; streams cross as void* with a device kind.
 */

#ifndef LOCKSTEP_H_
#define LOCKSTEP_H_

#include <stddef.h>
#include <stdint.h>

#define LOCKSTEP_VERSION_MAJOR 0
#define LOCKSTEP_VERSION_MINOR 1
#define LOCKSTEP_VERSION_PATCH 0
#define LOCKSTEP_VERSION (LOCKSTEP_VERSION_MAJOR * 10000 + LOCKSTEP_VERSION_MINOR * 100 + LOCKSTEP_VERSION_PATCH)

#if defined(__GNUC__)
#define LOCKSTEP_EXPORT __attribute__((visibility("default")))
#else
#define LOCKSTEP_EXPORT
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* LOCKSTEP_VERSION of the library that was loaded, which may be newer than the header. */
LOCKSTEP_EXPORT int32_t lockstep_version(void);

/* ---- Errors ------------------------------------------------------------------------------------------------------- */

/* What the caller should do is in brackets. */
typedef enum lockstep_code {
  LOCKSTEP_OK = 0,
  LOCKSTEP_CANCELLED = 1,           /* the handle was closed meanwhile                       [nothing] */
  LOCKSTEP_UNKNOWN = 2,             /* an embedder's callback failed without saying how */
  LOCKSTEP_INVALID_ARGUMENT = 3,    /*                                                       [fix the call] */
  LOCKSTEP_DEADLINE_EXCEEDED = 4,   /* of a wait: what is waited for goes on                 [wait again];
                                     * of a collective or message: the communicator is over  [make a new one];
                                     * of a creation: ranks did not appear in time           [fix the set-up] */
  LOCKSTEP_NOT_FOUND = 5,           /* no such host, key or interface                        [fix the set-up] */
  LOCKSTEP_ALREADY_EXISTS = 6,      /* rank claimed twice, port taken                        [fix the set-up] */
  LOCKSTEP_PERMISSION_DENIED = 7,   /*                                                       [fix the set-up] */
  LOCKSTEP_RESOURCE_EXHAUSTED = 8,  /* memory, descriptors, a full queue */
  LOCKSTEP_FAILED_PRECONDITION = 9, /* wrong order of calls, ranks that disagree             [fix the program] */
  LOCKSTEP_ABORTED = 10,            /* a peer failed; the communicator is over               [make a new one] */
  LOCKSTEP_OUT_OF_RANGE = 11,
  LOCKSTEP_UNIMPLEMENTED = 12, /* this back end cannot do it */
  LOCKSTEP_INTERNAL = 13,      /*                                                       [report a bug] */
  LOCKSTEP_UNAVAILABLE = 14,   /* not reachable, not installed                          [try again] */
  LOCKSTEP_DATA_LOSS = 15
} lockstep_code;

typedef struct lockstep_error lockstep_error;

/* LOCKSTEP_OK for NULL. */
LOCKSTEP_EXPORT lockstep_code lockstep_error_code(const lockstep_error* error);
/* Text for people, valid until the error is freed; "" for NULL. */
LOCKSTEP_EXPORT const char* lockstep_error_message(const lockstep_error* error);
LOCKSTEP_EXPORT void lockstep_error_free(lockstep_error* error);
/* For what a callback of the embedder's returns. NULL for LOCKSTEP_OK; a NULL message is "". */
LOCKSTEP_EXPORT lockstep_error* lockstep_error_create(lockstep_code code, const char* message);

LOCKSTEP_EXPORT void lockstep_string_free(char* string);

/* ---- Logging ------------------------------------------------------------------------------------------------------ */

typedef enum lockstep_log_level {
  LOCKSTEP_LOG_ERROR = 0,
  LOCKSTEP_LOG_WARNING = 1, /* the default; the variable LOCKSTEP_LOG sets another */
  LOCKSTEP_LOG_INFO = 2,
  LOCKSTEP_LOG_DEBUG = 3,
  LOCKSTEP_LOG_TRACE = 4
} lockstep_log_level;

/* One line without its newline, on whichever thread logged. It must not call into the library. */
typedef void (*lockstep_log_callback)(void* context, lockstep_log_level level, const char* line);

/* Replaces stderr; a NULL callback restores it. */
LOCKSTEP_EXPORT void lockstep_set_log_callback(lockstep_log_callback callback, void* context);
LOCKSTEP_EXPORT void lockstep_set_log_level(lockstep_log_level level);

/* ---- Tensors and streams ------------------------------------------------------------------------------------------ */

typedef enum lockstep_dtype {
  LOCKSTEP_BOOL = 0, /* one byte, 0 or 1 */
  LOCKSTEP_U8 = 1,
  LOCKSTEP_I8 = 2,
  LOCKSTEP_I32 = 3,
  LOCKSTEP_U32 = 4,
  LOCKSTEP_I64 = 5,
  LOCKSTEP_U64 = 6,
  LOCKSTEP_F16 = 7,
  LOCKSTEP_BF16 = 8,
  LOCKSTEP_F32 = 9,
  LOCKSTEP_F64 = 10,
  LOCKSTEP_F8E4M3 = 11,
  LOCKSTEP_F8E5M2 = 12,
  LOCKSTEP_COMPLEX64 = 13, /* two f32 */
  LOCKSTEP_COMPLEX128 = 14 /* two f64 */
} lockstep_dtype;

typedef enum lockstep_device_kind { LOCKSTEP_HOST = 0, LOCKSTEP_CUDA = 1 } lockstep_device_kind;

/* A view of the caller's memory; never owned. No two elements may overlap. */
typedef struct lockstep_tensor {
  void* data;             /* may be NULL when there are no elements */
  const int64_t* shape;   /* `dimensions` extents; may be NULL when dimensions is 0 */
  const int64_t* strides; /* in elements; NULL: row-major */
  int32_t dimensions;     /* 0: a scalar */
  int32_t dtype;          /* lockstep_dtype */
  int32_t device_kind;    /* lockstep_device_kind */
  int32_t device_index;
} lockstep_tensor;

/* Views a DLTensor (a `const DLTensor*` of dlpack.h, which this header does not include). *out_tensor borrows the shape and
 * strides arrays of the DLTensor. */
LOCKSTEP_EXPORT lockstep_error* lockstep_tensor_from_dlpack(const void* dl_tensor, lockstep_tensor* out_tensor);

/* A stream of the embedder's. A NULL lockstep_stream* means the host, inline: the data is ready when the call is made, and
 * what the call is to produce is there when it returns. The handle of a CUDA stream is a cudaStream_t; NULL in it is the legacy
 * default stream, and cudaStreamPerThread that of the calling thread. A stream must outlive the communicator or
 * reducer that it was passed to. */
typedef struct lockstep_stream {
  void* handle;
  int32_t device_kind;
  int32_t device_index;
} lockstep_stream;

/* ---- Stores ------------------------------------------------------------------------------------------------------- */

/* A small shared dictionary by which ranks find each other; used at set-up only. Pass one to a communicator instead of a URL
 * to bootstrap over what the embedder already has. */
typedef struct lockstep_store lockstep_store;

/* Each returns LOCKSTEP_OK or a code that the communicator's error then carries. Called on the thread that creates the
 * communicator. Values are bytes, not strings. timeout_ms is what is left; return LOCKSTEP_DEADLINE_EXCEEDED after it. */
typedef struct lockstep_store_callbacks {
  size_t struct_size;
  void* context;
  lockstep_code (*set)(void* context, const char* key, const void* value, size_t value_bytes, int64_t timeout_ms);
  /* LOCKSTEP_NOT_FOUND when there is none. Copies at most `capacity` bytes into `buffer` and says the value's whole size. */
  lockstep_code (*get)(void* context, const char* key, void* buffer, size_t capacity, size_t* out_value_bytes,
                       int64_t timeout_ms);
  /* May be NULL: keys of finished set-ups then stay behind. */
  lockstep_code (*remove)(void* context, const char* key, int64_t timeout_ms);
} lockstep_store_callbacks;

LOCKSTEP_EXPORT void lockstep_store_callbacks_init(lockstep_store_callbacks* callbacks);
/* The callbacks and what their context points to must outlive the store. */
LOCKSTEP_EXPORT lockstep_error* lockstep_store_create(const lockstep_store_callbacks* callbacks,
                                                      lockstep_store** out_store);
LOCKSTEP_EXPORT void lockstep_store_destroy(lockstep_store* store);

/* ---- Communicators ------------------------------------------------------------------------------------------------ */

/* A fixed group of ranks that call the same collectives in the same order; what MPI calls a communicator, NCCL an
 * ncclComm_t and PyTorch a ProcessGroup. */
typedef struct lockstep_communicator lockstep_communicator;

/* What is left at zero is read from the environment first (docs/environment.md), also where world_size is given. A switch that the
 * environment sets cannot be cleared here. */
typedef struct lockstep_communicator_options {
  size_t struct_size;
  /* Who we are. world_size 0: rank, size, local rank and size, store and job are read from the environment (LOCKSTEP_*, then
   * torchrun's, Open MPI's, PMI's, Slurm's; docs/environment.md), and with nothing set it is a world of one. */
  int32_t world_size;
  int32_t rank;
  /* Ranks on this host, and which of them this is; 0: LOCKSTEP_LOCAL_WORLD_SIZE and LOCKSTEP_LOCAL_RANK, else not known. A world that
   * is told to be on one host uses the loopback interface. local_rank counts only beside local_world_size. */
  int32_t local_world_size;
  int32_t local_rank;
  /* Where the ranks meet: a URL (tcp://host:port served by rank 0, file:///path), or a store. The store outlives the
   * creation only. */
  const char* store_url;
  lockstep_store* store;
  const char*
      job_id; /* keeps jobs apart that share a store or a port; at most 256 bytes; default LOCKSTEP_JOB_ID, or "" */
  const char* interface; /* local network interface: eth0, ^docker, 10.0.0.0/8; docs/environment.md has the grammar */
  int64_t setup_timeout_ms; /* for every rank to appear; default 300,000 */
  int64_t timeout_ms;       /* of one collective; default LOCKSTEP_TIMEOUT_MS or 1,800,000 */
  int64_t peer_timeout_ms;  /* a rank silent this long counts as failed; default LOCKSTEP_PEER_TIMEOUT_MS or 30,000 */
  /* The next three shape what goes over the wire: they must be equal on all ranks, and creation checks it. */
  const char* algorithm; /* "ring", "all_reduce:recursive_doubling;broadcast:binomial"; default: chosen by size */
  int64_t chunk_bytes;   /* pipelining unit; default 262,144, over libfabric 524,288 */
  int32_t checked;       /* 1: compare every collective's arguments across ranks before it starts (slower) */
  /* 1: every reduction folds in rank order, so that its bits depend on nothing but the inputs: not on the transport, chunks,
   * buckets or the choice of an algorithm (docs/numerics.md). Equal on all ranks, too. */
  int32_t deterministic;
  /* How the ranks reach each other: "auto" (default; or LOCKSTEP_TRANSPORT) is shared memory between ranks of one host, decided by
   * really connecting, and TCP between hosts; "tcp" and "shm" are one of them alone; "ofi" is libfabric between all ranks, which is
   * opened then (UNAVAILABLE without it, NOT_FOUND where no provider will do, FAILED_PRECONDITION where ranks differ in that;
   * docs/libfabric.md). Equal on all ranks. */
  const char* transport;
  const char* host_id; /* ranks with the same one are taken to share a host; default: derived from the machine */
  const char* tcp_congestion_control; /* default: reno between ranks of one host, else the system's */
  int32_t tcp_sockets;                /* over which each connection's bytes are spread; default 1; equal on all ranks */
  int32_t tcp_send_buffer_bytes;      /* default: the kernel's, which grow as needed */
  int32_t tcp_receive_buffer_bytes;
  /* 1: algorithms are chosen by what the links cost as creation measures it, in some tenths of a second, rather than by costs
   * that are built in; lockstep_communicator_describe has the numbers. Another run may choose others. Equal on all ranks. */
  int32_t measure_links;
  /* 1: long messages are sent over TCP from where they lie, where the kernel can (MSG_ZEROCOPY). After an abort, what was under way
   * may still leave as the memory is then. */
  int32_t tcp_zero_copy;
  int32_t reserved; /* 0 */
  /* This rank's device, whose tensors and streams the communicator takes beside the host's. LOCKSTEP_HOST (0): none. The kind is the same
   * on all ranks. UNAVAILABLE where there is no driver or no such device. */
  int32_t device_kind;
  int32_t device_index;
  /* How its tensors travel: "nccl", "ipc" (ranks of one host read each other's memory), "fabric" (with the transport "ofi", where the
   * provider reads and writes the device's memory), "staged" (through memory of the host, and then as `transport` says), or "auto"
   * (default; or LOCKSTEP_DEVICE_BACKEND): the first of these that all ranks can use.
   * lockstep_communicator_describe tells which, and why. Equal on all ranks. */
  const char* device_backend;
  /* With the transport "ofi": the provider of libfabric, "tcp;ofi_rxm"; default LOCKSTEP_OFI_PROVIDER, or the best that there is.
   * lockstep_communicator_describe tells which, and why none of the others. Equal on all ranks. Which of the provider's devices this rank
   * uses, only LOCKSTEP_OFI_DOMAIN tells. */
  const char* ofi_provider;
  /* With the back end "nccl": how many thread blocks its kernels may have at least and at most (from NCCL 2.17 on; 0: its choice), and 1
   * for parts of the communicator that share its resources (from 2.18 on): they take less memory, and must not be used at the same time as
   * it or as each other. Equal on all ranks. */
  int32_t nccl_ctas_min;
  int32_t nccl_ctas_max;
  int32_t nccl_split_share;
  int32_t reserved_2; /* 0 */
} lockstep_communicator_options;

LOCKSTEP_EXPORT void lockstep_communicator_options_init(lockstep_communicator_options* options);

/* Every rank calls it; returns when all have met and agreed, or with the reason. */
LOCKSTEP_EXPORT lockstep_error* lockstep_communicator_create(const lockstep_communicator_options* options,
                                                             lockstep_communicator** out_communicator);

/* Ends operations in flight with CANCELLED, tells the peers, and returns without waiting for them. Parts made of it go on. */
LOCKSTEP_EXPORT void lockstep_communicator_destroy(lockstep_communicator* communicator);

/* Parts of a communicator, which are communicators of their own: they share its connections and nothing else, may be used at
 * the same time from other threads and in another order on each rank, and fail on their own. These calls are collective.
 *
 * split: one for each color, of the ranks that gave it, in the order of their keys and then of their ranks. A negative color
 * is in none: *out_communicator is NULL. duplicate: the same ranks again.
 *
 * mesh: the ranks as a grid of named dimensions, the last changing fastest from rank to rank, whose sizes multiply to the
 * number of ranks. out_communicators has room for one for each dimension: that of this rank's line along it, in which its
 * rank is its coordinate. {"dp", "tp"} and {2, 4}: ranks 0-3 are one line along tp, ranks 0 and 4 one along dp. */
LOCKSTEP_EXPORT lockstep_error* lockstep_communicator_split(lockstep_communicator* communicator, int32_t color,
                                                            int32_t key, lockstep_communicator** out_communicator);
LOCKSTEP_EXPORT lockstep_error* lockstep_communicator_duplicate(lockstep_communicator* communicator,
                                                                lockstep_communicator** out_communicator);
LOCKSTEP_EXPORT lockstep_error* lockstep_communicator_mesh(lockstep_communicator* communicator,
                                                           const char* const* names, const int32_t* sizes,
                                                           size_t dimensions,
                                                           lockstep_communicator** out_communicators);

LOCKSTEP_EXPORT int32_t lockstep_communicator_rank(const lockstep_communicator* communicator);
LOCKSTEP_EXPORT int32_t lockstep_communicator_size(const lockstep_communicator* communicator);

/* NULL while the communicator is usable, else why it is not. */
LOCKSTEP_EXPORT lockstep_error* lockstep_communicator_status(const lockstep_communicator* communicator);

/* Fails all operations in flight and all later ones, on every rank, with ABORTED and this reason. */
LOCKSTEP_EXPORT lockstep_error* lockstep_communicator_abort(lockstep_communicator* communicator, const char* reason);

/* The last collectives, one line each, newest last: sequence, operation, sizes, state, times, bytes per peer. One
 * that was over sooner than it takes to read the clock is "done at once". lockstep_string_free it. */
LOCKSTEP_EXPORT lockstep_error* lockstep_communicator_flight_records(const lockstep_communicator* communicator,
                                                                     char** out_text);

/* The communicator of NCCL's, an ncclComm_t, that collectives on the device go over: borrowed, for calls of NCCL's that this header has
 * not. All ranks make them in the same order beside their collectives here, and none aborts or destroys it. FAILED_PRECONDITION where the
 * device's tensors do not travel by NCCL. */
LOCKSTEP_EXPORT lockstep_error* lockstep_communicator_nccl(const lockstep_communicator* communicator, void** out_comm);

/* How ranks are connected and why. lockstep_string_free it. */
LOCKSTEP_EXPORT lockstep_error* lockstep_communicator_describe(const lockstep_communicator* communicator,
                                                               char** out_text);

/* Memory for collectives. Between ranks that share a host's memory, a collective whose tensors all lie in it moves nothing
 * through a third place: each rank reads its peers' inputs and writes their outputs, in one pass. Whether they lie in it is part
 * of the call: on all ranks or on none. Elsewhere it is memory like any other, and so it is for a premultiplied reduce and reduce-scatter,
 * for an all-to-all in place or with counts of its own, and for gather and scatter with a block that is empty.
 *
 * create is collective, with the same size on every rank: INVALID_ARGUMENT where sizes differ or are 0, RESOURCE_EXHAUSTED where a
 * limit does not allow it and UNAVAILABLE, naming that rank, on the other ranks; the communicator stays usable. (Limits are the
 * process's and its container's, memory.max: how much of that is in use, by the ranks there together, is not asked.) data is aligned
 * to pages and zero at first. A buffer may outlive its communicator; a forked child has none of it. After a failure of the
 * communicator a rank that was stopped may still write into it: make a new one for the next communicator. */
typedef struct lockstep_buffer lockstep_buffer;

LOCKSTEP_EXPORT lockstep_error* lockstep_buffer_create(lockstep_communicator* communicator, size_t bytes,
                                                       lockstep_buffer** out_buffer);
/* The same on the communicator's device, in memory that its back end likes best; contents are undefined at first. UNIMPLEMENTED where the
 * communicator has no device. */
LOCKSTEP_EXPORT lockstep_error* lockstep_buffer_create_on_device(lockstep_communicator* communicator, size_t bytes,
                                                                 lockstep_buffer** out_buffer);
LOCKSTEP_EXPORT void lockstep_buffer_destroy(lockstep_buffer* buffer);
/* NULL in a forked child. */
LOCKSTEP_EXPORT void* lockstep_buffer_data(const lockstep_buffer* buffer);
LOCKSTEP_EXPORT size_t lockstep_buffer_bytes(const lockstep_buffer* buffer);
/* 1 where the other ranks have it before them, else 0. */
LOCKSTEP_EXPORT int32_t lockstep_buffer_is_shared(const lockstep_buffer* buffer);

/* ---- Collectives --------------------------------------------------------------------------------------------------
 *
 * Called by every rank of the communicator, in the same order, with equal counts, dtypes and ops. A difference is the same
 * FAILED_PRECONDITION on every rank that has not finished, telling which rank called what, and at the next call on the
 * others; the communicator is over then (in checked mode it stays usable).
 *
 * Tensors are contiguous and on the host, or all of a call on the communicator's device. In place: input and output are the same
 * memory as each call says; any other overlap is INVALID_ARGUMENT. out_work NULL: the call returns when the collective is done.
 * Otherwise it returns at once, in checked mode once all ranks have called, and the tensors' memory stays borrowed until the work
 * is done. That handle is the one thing that such a call allocates once its like has been carried out; a prepared collective (below) has it
 * already. */

typedef enum lockstep_reduce_op {
  LOCKSTEP_SUM = 0,        /* bool: or */
  LOCKSTEP_AVG = 1,        /* floats: inputs times 1/n, then the sum; integers: the sum, divided toward zero */
  LOCKSTEP_PREMUL_SUM = 2, /* inputs times options->factor, then the sum; floats and complex */
  LOCKSTEP_PROD = 3,
  LOCKSTEP_MIN = 4, /* IEEE 754-2019: NaN propagates, -0 < +0 */
  LOCKSTEP_MAX = 5,
  LOCKSTEP_AND = 6, /* integers and bool */
  LOCKSTEP_OR = 7,
  LOCKSTEP_XOR = 8
} lockstep_reduce_op;

typedef struct lockstep_collective_options {
  size_t struct_size;
  int64_t
      timeout_ms; /* the whole collective's; after it the communicator is aborted on every rank. 0: the communicator's */
  double
      factor; /* of LOCKSTEP_PREMUL_SUM; each rank may have its own. To be set: 0 is 0, and takes the rank out of the sum */
  const char* algorithm; /* overrides the communicator's choice; equal on all ranks */
  /* NULL: inline on the host; a call on a device waits for nothing of the caller's. Else a stream of the communicator's device: the call
   * returns once the collective is enqueued there, out_work and prepare must be NULL and 0, and what goes wrong after that is told by
   * lockstep_communicator_status. */
  const lockstep_stream* stream;
  /* 1: only prepare. Nothing starts; *out_work is a collective that lockstep_work_start starts, as often as wanted and without
   * an allocation. The tensors' memory is borrowed while it is under way; the communicator outlives the work. */
  int32_t prepare;
  int32_t reserved;
} lockstep_collective_options;

LOCKSTEP_EXPORT void lockstep_collective_options_init(lockstep_collective_options* options);

/* A collective in flight, or prepared: one of these is used by one thread at a time. */
typedef struct lockstep_work lockstep_work;

/* Starts a prepared collective. FAILED_PRECONDITION while its last start is not done. */
LOCKSTEP_EXPORT lockstep_error* lockstep_work_start(lockstep_work* work);
/* Waits at most timeout_ms (0: only looks). DEADLINE_EXCEEDED when it is not done yet: the operation goes on and the memory
 * stays borrowed. Otherwise the collective's own result, as often as asked. Where that is DEADLINE_EXCEEDED, too, because its own
 * time has run out, lockstep_work_done says 1, and the communicator is over. */
LOCKSTEP_EXPORT lockstep_error* lockstep_work_wait(lockstep_work* work, int64_t timeout_ms);
/* 1 when it is over, well or not. */
LOCKSTEP_EXPORT int32_t lockstep_work_done(const lockstep_work* work);
/* Does not wait and does not cancel: an unfinished collective goes on. */
LOCKSTEP_EXPORT void lockstep_work_destroy(lockstep_work* work);

/* output on every rank = reduction of all inputs; same shape. In place: the same tensor. */
LOCKSTEP_EXPORT lockstep_error* lockstep_all_reduce(lockstep_communicator* communicator, const lockstep_tensor* input,
                                                    const lockstep_tensor* output, lockstep_reduce_op op,
                                                    const lockstep_collective_options* options,
                                                    lockstep_work** out_work);

/* tensor on every rank = tensor on the root. */
LOCKSTEP_EXPORT lockstep_error* lockstep_broadcast(lockstep_communicator* communicator, const lockstep_tensor* tensor,
                                                   int32_t root, const lockstep_collective_options* options,
                                                   lockstep_work** out_work);

/* output on the root = reduction of all inputs; output is ignored elsewhere and may be NULL. In place at the root. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reduce(lockstep_communicator* communicator, const lockstep_tensor* input,
                                                const lockstep_tensor* output, lockstep_reduce_op op, int32_t root,
                                                const lockstep_collective_options* options, lockstep_work** out_work);

/* output (world size x input's elements) on every rank = the inputs in rank order. In place: input is block `rank` of output. */
LOCKSTEP_EXPORT lockstep_error* lockstep_all_gather(lockstep_communicator* communicator, const lockstep_tensor* input,
                                                    const lockstep_tensor* output,
                                                    const lockstep_collective_options* options,
                                                    lockstep_work** out_work);

/* output = block `rank` (input's elements / world size) of the reduction of all inputs. In place: output is block `rank` of
 * input, and the rest of input is left as it was. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reduce_scatter(lockstep_communicator* communicator,
                                                        const lockstep_tensor* input, const lockstep_tensor* output,
                                                        lockstep_reduce_op op,
                                                        const lockstep_collective_options* options,
                                                        lockstep_work** out_work);

/* The next have a block for each rank. Where they take counts, there is one for each rank, equal on all: block r has counts[r]
 * elements, and blocks lie one behind the other in rank order. Counts that do not add up are INVALID_ARGUMENT before anything
 * starts; counts that differ between ranks are a difference as above. Arrays of counts are copied. */

/* As lockstep_all_gather and lockstep_reduce_scatter, with blocks of their own sizes. */
LOCKSTEP_EXPORT lockstep_error* lockstep_all_gather_v(lockstep_communicator* communicator, const lockstep_tensor* input,
                                                      const lockstep_tensor* output, const int64_t* counts,
                                                      const lockstep_collective_options* options,
                                                      lockstep_work** out_work);
LOCKSTEP_EXPORT lockstep_error* lockstep_reduce_scatter_v(lockstep_communicator* communicator,
                                                          const lockstep_tensor* input, const lockstep_tensor* output,
                                                          const int64_t* counts, lockstep_reduce_op op,
                                                          const lockstep_collective_options* options,
                                                          lockstep_work** out_work);

/* output on the root = the inputs in rank order; ignored elsewhere and may be NULL there. counts NULL: equal blocks. In place
 * at the root: input is block `root` of output. */
LOCKSTEP_EXPORT lockstep_error* lockstep_gather(lockstep_communicator* communicator, const lockstep_tensor* input,
                                                const lockstep_tensor* output, const int64_t* counts, int32_t root,
                                                const lockstep_collective_options* options, lockstep_work** out_work);

/* output = block `rank` of the root's input, which is ignored elsewhere and may be NULL there. counts NULL: equal blocks. In
 * place at the root: output is block `root` of input. */
LOCKSTEP_EXPORT lockstep_error* lockstep_scatter(lockstep_communicator* communicator, const lockstep_tensor* input,
                                                 const lockstep_tensor* output, const int64_t* counts, int32_t root,
                                                 const lockstep_collective_options* options, lockstep_work** out_work);

/* Block r of input goes to rank r; block r of output comes from rank r. In place: the same tensor (the input is then copied
 * aside first). */
LOCKSTEP_EXPORT lockstep_error* lockstep_all_to_all(lockstep_communicator* communicator, const lockstep_tensor* input,
                                                    const lockstep_tensor* output,
                                                    const lockstep_collective_options* options,
                                                    lockstep_work** out_work);

/* The same with input_counts[r] elements to rank r and output_counts[r] from it; each rank has its own arrays. Where a sender and
 * a receiver disagree, the error says which two ranks and what each expected. */
LOCKSTEP_EXPORT lockstep_error* lockstep_all_to_all_v(lockstep_communicator* communicator, const lockstep_tensor* input,
                                                      const lockstep_tensor* output, const int64_t* input_counts,
                                                      const int64_t* output_counts,
                                                      const lockstep_collective_options* options,
                                                      lockstep_work** out_work);

/* Done on no rank before every rank has called it. */
LOCKSTEP_EXPORT lockstep_error* lockstep_barrier(lockstep_communicator* communicator,
                                                 const lockstep_collective_options* options, lockstep_work** out_work);

/* ---- Groups -------------------------------------------------------------------------------------------------------
 *
 * The calls that this thread makes on a communicator between start and end are collected and launched together at the end, so
 * that none of them waits for another of them: blocking sends and receives in any order cannot deadlock inside. Calls
 * without out_work return at once. Groups nest, and the outermost end launches. A call that is refused says so, the end
 * says it again, and nothing is launched. Waiting inside for a work of the group is FAILED_PRECONDITION; destroying the
 * communicator with a group open gives its works that error, and so is starting one while another thread has one open. */
LOCKSTEP_EXPORT lockstep_error* lockstep_group_start(lockstep_communicator* communicator);

/* out_work NULL: returns when all calls of the group are done, with the first error of any. Otherwise *out_work is all of
 * them. FAILED_PRECONDITION when this thread has no group open. */
LOCKSTEP_EXPORT lockstep_error* lockstep_group_end(lockstep_communicator* communicator, lockstep_work** out_work);

/* ---- Messages -----------------------------------------------------------------------------------------------------
 *
 * From one rank to another, beside the collectives: neither waits for the other. Messages from one rank with one tag are
 * received in the order in which they were sent. Up to 64 KiB a send is done whether or not anybody receives, until a MiB from
 * this rank waits there; beyond that it is done once it is received. Rank and target may be the same. Of the options only
 * timeout_ms may be set: stream, algorithm and prepare are INVALID_ARGUMENT, so a device's tensor has to be ready. */

#define LOCKSTEP_ANY_SOURCE (-1)
#define LOCKSTEP_ANY_TAG (-1)
#define LOCKSTEP_EVERY_RANK (-1)

/* What a receive got. */
typedef struct lockstep_message {
  int64_t tag;
  size_t bytes;
  int32_t source;
  int32_t reserved;
} lockstep_message;

/* The tensor's dtype and shape are not sent, only its bytes. Tags are not negative. */
LOCKSTEP_EXPORT lockstep_error* lockstep_send(lockstep_communicator* communicator, const lockstep_tensor* tensor,
                                              int32_t target, int64_t tag, const lockstep_collective_options* options,
                                              lockstep_work** out_work);

/* The tensor may be larger than the message. One that does not fit is FAILED_PRECONDITION, and is lost. out_message may be
 * NULL; it is written when the call waits, and lockstep_work_message tells it otherwise. */
LOCKSTEP_EXPORT lockstep_error* lockstep_receive(lockstep_communicator* communicator, const lockstep_tensor* tensor,
                                                 int32_t source, int64_t tag,
                                                 const lockstep_collective_options* options,
                                                 lockstep_message* out_message, lockstep_work** out_work);

/* Of a receive that is done well. */
LOCKSTEP_EXPORT lockstep_error* lockstep_work_message(const lockstep_work* work, lockstep_message* out_message);

/* Byte objects, for set-up: collectives of bytes whose number the ranks need not know. Blocking; at most 1 GiB each.
 *
 * broadcast: *out_data is a copy of the root's bytes, on every rank; data and bytes are looked at on the root alone.
 * gather: *out_data has the bytes of all ranks in rank order, and out_sizes (one entry for each rank) their sizes; on the
 * root alone, or, with LOCKSTEP_EVERY_RANK for it, everywhere. Elsewhere both may be NULL.
 * lockstep_bytes_free what is given out; it takes NULL. */
LOCKSTEP_EXPORT lockstep_error* lockstep_broadcast_bytes(lockstep_communicator* communicator, const void* data,
                                                         size_t bytes, int32_t root, void** out_data,
                                                         size_t* out_bytes);
LOCKSTEP_EXPORT lockstep_error* lockstep_gather_bytes(lockstep_communicator* communicator, const void* data,
                                                      size_t bytes, int32_t root, void** out_data, size_t* out_sizes);
LOCKSTEP_EXPORT void lockstep_bytes_free(void* data);

/* ---- The reducer --------------------------------------------------------------------------------------------------
 *
 * Averages the gradients of a replicated model, bucket by bucket, while the backward pass still computes. In a step:
 *
 *   lockstep_reducer_begin_backward(reducer, NULL);
 *   ... as each gradient appears:  lockstep_reducer_mark_ready(reducer, index, &gradient, NULL);
 *   lockstep_reducer_end_backward(reducer, NULL);        the gradients now hold the averages; step the optimiser
 *
 * A reducer is used by one thread at a time, except that mark_ready may be called by several at once. Between
 * begin_backward and end_backward its communicator belongs to it. */
typedef struct lockstep_reducer lockstep_reducer;

/* One row of the parameter table, equal on all ranks. The array's stride is parameters[0].struct_size. */
typedef struct lockstep_parameter {
  size_t struct_size;
  const char* name;       /* for messages; compared across ranks */
  const int64_t* shape;   /* `dimensions` extents; zero elements are allowed */
  const int64_t* strides; /* of the gradient, in elements; NULL: row-major */
  int32_t dimensions;
  int32_t dtype; /* lockstep_parameter_init says LOCKSTEP_F32 */
  int32_t device_kind;
  int32_t device_index;
  int32_t ignored; /* 1: it keeps its index but has no bucket: no gradient, or one that stays this rank's own */
  int32_t sparse;  /* 1: its gradient is rows of the first dimension: lockstep_reducer_mark_ready_sparse; row-major */
} lockstep_parameter;

LOCKSTEP_EXPORT void lockstep_parameter_init(lockstep_parameter* parameter);

typedef enum lockstep_average {
  LOCKSTEP_AVERAGE_BEFORE = 0,        /* gradients times 1/n while they are copied into the bucket, then the sum */
  LOCKSTEP_AVERAGE_AFTER = 1,         /* the sum, then times 1/n while it is copied out */
  LOCKSTEP_AVERAGE_NONE = 2,          /* the sum */
  LOCKSTEP_AVERAGE_IN_COLLECTIVE = 3, /* by the all-reduce, as LOCKSTEP_AVG */
  LOCKSTEP_AVERAGE_PREDIVIDE = 4      /* times 1/predivide_factor on the way in, predivide_factor/n on the way out */
} lockstep_average;

/* What is sent of a gradient. Of f32 that is half the bytes; what it costs in precision is in docs/embedding.md. */
typedef enum lockstep_compress {
  LOCKSTEP_COMPRESS_NONE = 0,
  LOCKSTEP_COMPRESS_F16 = 1, /* what is beyond 65504 becomes an infinity */
  LOCKSTEP_COMPRESS_BF16 = 2
} lockstep_compress;

/* What is done with a bucket once its gradients are in it. */
typedef enum lockstep_hook {
  LOCKSTEP_HOOK_NONE = 0,          /* averaged by an all-reduce, as `average` says */
  LOCKSTEP_HOOK_ALL_REDUCE = 1,    /* the same */
  LOCKSTEP_HOOK_FP16_COMPRESS = 2, /* the same, with LOCKSTEP_COMPRESS_F16 */
  LOCKSTEP_HOOK_BF16_COMPRESS = 3, /* the same, with LOCKSTEP_COMPRESS_BF16 */
  LOCKSTEP_HOOK_NOOP = 4,          /* nothing: this rank's gradients come back; for comparison of speed */
  LOCKSTEP_HOOK_CALLBACK = 5       /* hook_issue or hook_start; `average` is theirs to do */
} lockstep_hook;

/* A bucket as a hook of the embedder's sees it, from the hook's call until the backward has ended. See "Hooks" below. */
typedef struct lockstep_hook_bucket lockstep_hook_bucket;
typedef struct lockstep_hook_completion lockstep_hook_completion;

/* hook_issue: enqueues what is to be done with the bucket, by lockstep_hook_all_reduce and its like, and returns without waiting
 * for it, on a thread that called mark_ready, begin_backward or end_backward. Or a function of lockstep_hook_run's. An error is
 * taken over and means that the hook failed. */
typedef lockstep_error* (*lockstep_hook_function)(void* context, lockstep_hook_bucket* bucket);

/* hook_start: does with the bucket what is to be done, or has another thread do it, by whatever means. On the thread lockstep-coll, which
 * goes on when lockstep_hook_complete is called. */
typedef void (*lockstep_hook_start)(void* context, lockstep_hook_bucket* bucket, lockstep_hook_completion* completion);

/* What an optimizer gets of a bucket: the parameters in it that some rank used, and their averages. Borrowed until it returns. */
typedef struct lockstep_reduced_bucket {
  size_t struct_size; /* set by the library */
  size_t index;       /* of `count` buckets of the step, in the order of launch */
  size_t count;
  size_t parameter_count;
  const size_t* parameters; /* indexes into the parameter table */
  const lockstep_tensor* gradients;
  /* Of a sparse parameter, which has a bucket of its own, instead of gradients, of which there is none then: as of
   * lockstep_reducer_sparse_average. */
  const int64_t* rows;
  size_t row_count;
  const void* row_values;
  /* Of gradients on a device: the stream (a cudaStream_t) on which the step is to be enqueued, where the averages are there; the call may
   * be made before they are. Else NULL: the step is to be taken now. */
  void* stream;
} lockstep_reduced_bucket;

/* Steps these parameters, on the thread lockstep-opt, while later buckets are still under way. An error is taken over, and
 * end_backward fails with it here; on the other ranks where a bucket launched later could still tell them. */
typedef lockstep_error* (*lockstep_optimizer_step)(void* context, const lockstep_reduced_bucket* bucket);

typedef struct lockstep_reducer_options {
  size_t struct_size;
  /* A bucket is full when its bytes reach the cap, so a cap is a lower bound but for the last bucket. */
  int64_t bucket_cap_bytes;       /* default 26,214,400 (25 MiB) */
  int64_t first_bucket_cap_bytes; /* default 1,048,576 (1 MiB), or bucket_cap_bytes where that was given */
  int32_t average;                /* lockstep_average */
  int32_t no_overlap;             /* 1: launch every bucket at end_backward; for comparison */
  /* Instead of the two caps above: a cap for each bucket of a dtype and device, the last one for all that follow. */
  const int64_t* bucket_caps_bytes;
  size_t bucket_cap_count;
  /* 1: the first cap is that of the bucket that is launched last, and so on backwards: a small last bucket leaves little to wait
   * for when backward ends. */
  int32_t caps_from_last;
  /* How many buckets have memory at a time, taking turns; 0: all. The gradients of the others stay where they are for longer. */
  int32_t buckets_in_memory_max;
  double predivide_factor; /* of LOCKSTEP_AVERAGE_PREDIVIDE; from 2^-10 to 2^15 */
  /* 1: not every parameter is used in every backward, on every rank. One that no rank used keeps its gradient as it is; for one
   * that this rank did not use see lockstep_reducer_average. Gradients of backwards without sync then stay borrowed until
   * the next one with sync ends, in which they count as used. */
  int32_t find_unused;
  /* 1: every backward marks the same parameters, each as often as in the first one, which may be several times (shared weights,
   * checkpointing). Only the last mark of each counts; unused ones are known from the first backward. */
  int32_t static_graph;
  /* 1: gradients live in the buckets, where lockstep_reducer_gradient_view says, and are not copied. Not with
   * buckets_in_memory_max. */
  int32_t gradient_as_bucket_view;
  /* 1: buckets are planned anew only after lockstep_reducer_request_replan. Otherwise also once, by the order in which rank 0's
   * gradients appeared; not in bucket views, which would move. */
  int32_t no_replan;
  /* Of an earlier run, from lockstep_reducer_export_plan: buckets as they were then. Equal on all ranks. */
  const char* plan;
  int32_t compress; /* lockstep_compress */
  int32_t hook;     /* lockstep_hook */
  /* Of LOCKSTEP_HOOK_CALLBACK: either of the two functions. They and what the context points to must outlive the reducer. */
  const char* hook_name; /* for messages, and compared across ranks; default "callback" */
  void* hook_context;
  lockstep_hook_function hook_issue;
  lockstep_hook_start hook_start;
  int64_t hook_timeout_ms; /* from hook_start to lockstep_hook_complete; default 1,800,000 */
  /* Called for each bucket as soon as its averages are there; NULL: none. Its gradients are not borrowed any more afterwards. */
  lockstep_optimizer_step optimizer_step;
  void* optimizer_context;
  /* Parameters whose gradients are reduced when that of the trigger is ready, with what has been marked of them by then, in
   * whichever backward; those that were not marked are unused. */
  const size_t* delayed;
  size_t delayed_count;
  size_t delayed_trigger;
  /* 1: ranks may run out of inputs at different times; those that have call lockstep_reducer_join. With it:
   * divide_by_live 1: averages are those of the ranks that have inputs, rather than of all with zeros for the others. Not with
   * hooks, nor with LOCKSTEP_AVERAGE_NONE. throw_on_early_end 1: as soon as a rank has joined, the step is FAILED_PRECONDITION on all
   * ranks, and so is join. */
  int32_t uneven_inputs;
  int32_t divide_by_live;
  int32_t throw_on_early_end;
  int32_t reserved;
  /* Where this rank's trace of every step goes: a folder, or the beginning of a file's name. NULL: where LOCKSTEP_TRACE says, if it
   * does. */
  const char* trace_path;
} lockstep_reducer_options;

LOCKSTEP_EXPORT void lockstep_reducer_options_init(lockstep_reducer_options* options);

/* Every rank calls it with its parameter table in the order of definition; tables and options are compared and a difference is the
 * same error on every rank, naming the rank, the parameter and what differs. The communicator must outlive the reducer. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_create(lockstep_communicator* communicator,
                                                        const lockstep_parameter* parameters, size_t parameter_count,
                                                        const lockstep_reducer_options* options,
                                                        lockstep_reducer** out_reducer);
LOCKSTEP_EXPORT void lockstep_reducer_destroy(lockstep_reducer* reducer);

/* Copies the root's tensors (parameters, buffers) to every rank, coalesced. Blocks until done. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_broadcast(lockstep_reducer* reducer, const lockstep_tensor* tensors,
                                                           size_t tensor_count, int32_t root);

typedef struct lockstep_backward_options {
  size_t struct_size;
  int32_t no_sync; /* 1: gradients only accumulate in the embedder's memory; nothing is sent, marks are only checked */
  /* With find_unused. 0: what was not marked by the end is unused. 1: exactly the next are, which may be none; buckets need not
   * wait for the end then, and a gradient that is neither marked nor named is an error. */
  int32_t unused_given;
  const size_t* unused; /* indexes of parameters */
  size_t unused_count;
  /* Of the device that gradients are on: where the backward begins; may be NULL. While it is being captured into a CUDA graph, so
   * is the step: see lockstep_reducer_check_replays. */
  const lockstep_stream* stream;
} lockstep_backward_options;

LOCKSTEP_EXPORT void lockstep_backward_options_init(lockstep_backward_options* options);

/* FAILED_PRECONDITION when the last backward was not ended, for unused parameters without find_unused, and for a step that is to be
 * captured and cannot be; INVALID_ARGUMENT for an unused parameter that there is not. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_begin_backward(lockstep_reducer* reducer,
                                                                const lockstep_backward_options* options);

/* The gradient of parameter `index` is final. Its memory stays borrowed until end_backward and is overwritten with the average.
 * With a stream, the gradient is ready once the stream reaches this point. INVALID_ARGUMENT for an index out of range or a
 * gradient that does not match the table; FAILED_PRECONDITION outside a backward, when marked before, named as unused or not
 * as in the first backward of a static graph. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_mark_ready(lockstep_reducer* reducer, size_t index,
                                                            const lockstep_tensor* gradient,
                                                            const lockstep_stream* stream);

/* The same, but the average goes to `target`, of the gradient's shape and strides and of any float dtype (for complex: the
 * same), and the gradient is only read. In a backward without sync the target counts for nothing. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_mark_ready_into(lockstep_reducer* reducer, size_t index,
                                                                 const lockstep_tensor* gradient,
                                                                 const lockstep_tensor* target,
                                                                 const lockstep_stream* stream);

/* Waits for the averages (with a stream: makes the stream wait for them). A gradient that never came, on any rank, is the same
 * FAILED_PRECONDITION on every rank, naming rank and parameters, and the next step may be tried. With a stream it is told, once, by a
 * later call: the next begin_backward, or, where steps run ahead on a device, that of the step behind the next one. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_end_backward(lockstep_reducer* reducer, const lockstep_stream* stream);

/* Steps in CUDA graphs. A backward that begins on a stream which is being captured (lockstep_backward_options.stream), with its
 * gradients and its end on streams of the same capture, becomes part of the graph; all ranks capture the same steps. Nothing of it is
 * done before the graph is launched, and then all of it: gradients at the same addresses are averaged over the ranks again. Only over
 * NCCL. begin_backward refuses what a graph cannot repeat, FAILED_PRECONDITION, saying why and what to do; nothing was issued then, and
 * other steps may follow: hooks, optimizers, buffers, uneven inputs, unused and delayed parameters, the first step of a static graph,
 * and any before buckets are planned anew, unless replanning is off. docs/gpu.md has the whole of it.
 *
 * What is known of replays: nothing, until it is asked for here. Of each graph it is told what the last replay has told that is done:
 * synchronise with the stream that it was launched in first. FAILED_PRECONDITION, on every rank, when gradients were missing as a step
 * was captured: it names the rank and the parameters, and averages were not written. The communicator's error if it is over. A replay
 * that hangs has no deadline. Graphs are destroyed before the reducer. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_check_replays(lockstep_reducer* reducer);

/* After a synchronised backward and until the next one begins: *out_used is 1 and *out_tensor the average of the parameter,
 * where some rank used it; else *out_used is 0 and *out_tensor all zero. Where another rank used it and this one did not, the
 * average lies in memory of the reducer's. out_used may be NULL. The tensor's shape and strides are borrowed until the
 * next call for the same parameter. FAILED_PRECONDITION at other times; INVALID_ARGUMENT for an ignored parameter. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_average(lockstep_reducer* reducer, size_t index,
                                                         lockstep_tensor* out_tensor, int32_t* out_used);

/* With gradient_as_bucket_view: where the gradient of a parameter lives, with the table's strides (row-major where those leave
 * gaps). The data are kept until plan_version grows; then gradients have been moved, and views must be asked for again. A
 * gradient elsewhere may be marked too: it is copied there and back. Shape and strides are borrowed as above. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_gradient_view(lockstep_reducer* reducer, size_t index,
                                                               lockstep_tensor* out_tensor);

/* Every rank calls it: buckets are planned anew, by the order in which rank 0's gradients appear in the next synchronised
 * backward, and used once all ranks have the plan. Nobody waits. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_request_replan(lockstep_reducer* reducer);
/* 1 for the first plan. Grows in begin_backward only. 0 for NULL. */
LOCKSTEP_EXPORT int64_t lockstep_reducer_plan_version(const lockstep_reducer* reducer);
/* The plan in use, as text for lockstep_reducer_options.plan: a run that starts again adds up in the same order.
 * lockstep_string_free it. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_export_plan(const lockstep_reducer* reducer, char** out_text);

/* 0 for NULL. */
LOCKSTEP_EXPORT size_t lockstep_reducer_bucket_count(const lockstep_reducer* reducer);

/* Hooks. With LOCKSTEP_HOOK_CALLBACK every bucket goes through hook_issue or hook_start, in the order of launch, which is the same
 * on all ranks; also where this rank has only zeros to give. Gradients come as they are, cast to what `compress` says, and
 * what the hook leaves is taken for the average.
 *
 * hook_issue is stream-ordered: it enqueues collectives and host functions, which run one after the other on the thread
 * lockstep-coll (of gradients on a device: in the order of a stream of it), from when the gradients are in the bucket until the averages
 * are taken out. hook_start is host-completed: it is called when the gradients are in the bucket, on a thread where it may use every call
 * of this header on the bucket's communicator.
 *
 * That communicator is the hook's own, so the reducer's stays good whatever happens to it. A hook that fails on one rank ends it
 * on all of them; every rank's end_backward says so, and the next backward begins with a new one. A hook calls nothing of its
 * reducer. */

/* 0 to count - 1, in the order of launch; how many buckets; synchronised backwards begun so far, from 1. 0 for NULL. */
LOCKSTEP_EXPORT size_t lockstep_hook_bucket_index(const lockstep_hook_bucket* bucket);
LOCKSTEP_EXPORT size_t lockstep_hook_bucket_count(const lockstep_hook_bucket* bucket);
LOCKSTEP_EXPORT int64_t lockstep_hook_bucket_step(const lockstep_hook_bucket* bucket);
/* How many gradients are in the bucket. 0 for NULL. */
LOCKSTEP_EXPORT size_t lockstep_hook_bucket_gradient_count(const lockstep_hook_bucket* bucket);

/* All of the bucket, as one vector of a multiple of 256 bytes. Each gradient in it begins at one, too; what lies in the gaps means
 * nothing, and may be reduced along. The shape is borrowed like the bucket. */
LOCKSTEP_EXPORT lockstep_error* lockstep_hook_bucket_tensor(const lockstep_hook_bucket* bucket,
                                                            lockstep_tensor* out_tensor);
/* Gradient `slot` of the bucket, as a vector at its place in it, and its index in the parameter table; either may be NULL. */
LOCKSTEP_EXPORT lockstep_error* lockstep_hook_bucket_gradient(const lockstep_hook_bucket* bucket, size_t slot,
                                                              size_t* out_parameter, lockstep_tensor* out_tensor);

/* Of a sparse parameter, whose bucket is a vector of no elements: *out_sparse is 1, and the rest this rank's rows and values as they
 * were marked, or none; the values are there in the order of the stream. Else all are 0 and NULL. */
LOCKSTEP_EXPORT lockstep_error* lockstep_hook_bucket_rows(const lockstep_hook_bucket* bucket, const int64_t** out_rows,
                                                          const void** out_values, size_t* out_row_count,
                                                          int32_t* out_sparse);
/* The average of a sparse bucket, instead of this rank's rows: values of row_count rows, in any order, those of repeated ones to be
 * summed. Copied. FAILED_PRECONDITION for another bucket. To be called before the hook is done. */
LOCKSTEP_EXPORT lockstep_error* lockstep_hook_set_rows(lockstep_hook_bucket* bucket, const int64_t* rows,
                                                       const void* values, size_t row_count);

/* The hook's communicator, of the ranks of the reducer's. It belongs to the reducer: never destroy it. A stream-ordered hook must not
 * call collectives on it directly. NULL for NULL. */
LOCKSTEP_EXPORT lockstep_communicator* lockstep_hook_bucket_communicator(const lockstep_hook_bucket* bucket);

/* The averages are there rather than in the bucket: contiguous, as many elements as the bucket, of a float dtype (for complex:
 * the same). The memory stays borrowed until the next backward begins. To be called before the hook is done. */
LOCKSTEP_EXPORT lockstep_error* lockstep_hook_set_result(lockstep_hook_bucket* bucket, const lockstep_tensor* result);

/* Enqueue on the bucket's stream, in hook_issue only (FAILED_PRECONDITION elsewhere). As the collectives of these names, but they
 * always return at once; the tensors' memory is borrowed until the backward has ended. Of the options timeout_ms, factor and
 * algorithm are used; prepare is INVALID_ARGUMENT, and the stream is the bucket's whatever they say. A collective that fails later
 * fails the hook. */
LOCKSTEP_EXPORT lockstep_error* lockstep_hook_all_reduce(lockstep_hook_bucket* bucket, const lockstep_tensor* input,
                                                         const lockstep_tensor* output, lockstep_reduce_op op,
                                                         const lockstep_collective_options* options);
LOCKSTEP_EXPORT lockstep_error* lockstep_hook_broadcast(lockstep_hook_bucket* bucket, const lockstep_tensor* tensor,
                                                        int32_t root, const lockstep_collective_options* options);
LOCKSTEP_EXPORT lockstep_error* lockstep_hook_all_gather(lockstep_hook_bucket* bucket, const lockstep_tensor* input,
                                                         const lockstep_tensor* output,
                                                         const lockstep_collective_options* options);
LOCKSTEP_EXPORT lockstep_error* lockstep_hook_reduce_scatter(lockstep_hook_bucket* bucket, const lockstep_tensor* input,
                                                             const lockstep_tensor* output, lockstep_reduce_op op,
                                                             const lockstep_collective_options* options);
LOCKSTEP_EXPORT lockstep_error* lockstep_hook_all_to_all(lockstep_hook_bucket* bucket, const lockstep_tensor* input,
                                                         const lockstep_tensor* output,
                                                         const lockstep_collective_options* options);
/* Runs the function in the stream's order, on the thread lockstep-coll; not when something enqueued before it for this bucket has
 * failed. Its error is taken over and fails the hook. Of gradients on a device CUDA runs it, on a thread of the driver's, where neither
 * CUDA nor what uses it may be called (cudaLaunchHostFunc). */
LOCKSTEP_EXPORT lockstep_error* lockstep_hook_run(lockstep_hook_bucket* bucket, lockstep_hook_function function,
                                                  void* context);

/* A host-completed hook is done with its bucket, by success (NULL) or with an error, which is taken over. From any thread, exactly
 * once: it frees the completion. After hook_timeout_ms the hook has failed with DEADLINE_EXCEEDED, the bucket must not be
 * touched any more, and this call does nothing else. */
LOCKSTEP_EXPORT void lockstep_hook_complete(lockstep_hook_completion* completion, lockstep_error* error);

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

LOCKSTEP_EXPORT void lockstep_reducer_statistics_init(lockstep_reducer_statistics* statistics);
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_get_statistics(const lockstep_reducer* reducer,
                                                                lockstep_reducer_statistics* out_statistics);

/* ---- The reducer beside dense gradients ---------------------------------------------------------------------------
 *
 * Sparse gradients, a model's buffers around its forward pass, ranks that run out of inputs or come and go, and what a reducer
 * tells about its steps. All of it is called by the thread that uses the reducer, but mark_ready_sparse, which is like mark_ready. */

/* Sparse gradients, of parameters whose `sparse` is 1. The gradient of row rows[i] is values[i]; rows come in any order, and the
 * values of repeated ones are summed. `values` has the parameter's shape but for the first dimension, which is row_count (0 is fine),
 * row-major. Both are only read, and borrowed like a gradient. INVALID_ARGUMENT for what does not match the table, naming the first
 * row that there is not; otherwise as lockstep_reducer_mark_ready. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_mark_ready_sparse(lockstep_reducer* reducer, size_t index,
                                                                   const int64_t* rows, size_t row_count,
                                                                   const lockstep_tensor* values,
                                                                   const lockstep_stream* stream);

/* After a synchronised backward: the rows for which any rank had values, ascending and each once, and their averages, one row of the
 * parameter's dtype behind the other. The same bits on every rank, borrowed until the next begin_backward. *out_used is 0, and the
 * rest NULL and 0, where no rank used the parameter. FAILED_PRECONDITION before the first such backward has ended, and inside one;
 * INVALID_ARGUMENT for a parameter that is not sparse. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_sparse_average(lockstep_reducer* reducer, size_t index,
                                                                const int64_t** out_rows, const void** out_values,
                                                                size_t* out_row_count, int32_t* out_used);

/* A model's buffers (running statistics and the like), brought from one rank to the others once for each synchronised step: before
 * its first forward pass, or after. They go over a communicator of their own, so the reducer's order of calls is not disturbed. */

/* Instead of a broadcast: changes the buffers in place, by calls on `communicator`, which has the ranks that take part. It and the
 * tensors are valid until the callback returns, and are never destroyed by it. On the thread that called begin_forward, end_forward
 * or join; it calls nothing of its reducer. An error is taken over, and fails that call on this rank alone. */
typedef lockstep_error* (*lockstep_buffer_hook)(void* context, lockstep_communicator* communicator,
                                                const lockstep_tensor* buffers, size_t buffer_count);

typedef struct lockstep_reducer_buffer_options {
  size_t struct_size;
  int32_t root;
  /* 1: the other ranks' buffers are overwritten. Otherwise they come in fresh memory, and a backward pass to come still finds
   * those of its own forward pass. After the forward pass, and by a hook, always in place. */
  int32_t in_place;
  int32_t after_forward; /* 1: by end_forward rather than begin_forward */
  int32_t reserved;
  lockstep_buffer_hook hook; /* NULL: a broadcast. It and its context must outlive the reducer */
  void* hook_context;
} lockstep_reducer_buffer_options;

LOCKSTEP_EXPORT void lockstep_reducer_buffer_options_init(lockstep_reducer_buffer_options* options);

/* Every rank calls it, with equal options, between backwards; again after lockstep_reducer_change_communicator. What the buffers must
 * be, what of them is remembered, and the errors are those of lockstep_buffer_set_create. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_set_buffers(lockstep_reducer* reducer, const lockstep_tensor* buffers,
                                                             size_t buffer_count,
                                                             const lockstep_reducer_buffer_options* options);

typedef struct lockstep_forward_options {
  size_t struct_size;
  int32_t no_sync; /* 1: a forward whose backward only accumulates, or that has none: no buffers are brought */
  int32_t reserved;
  const lockstep_tensor* buffers; /* those of set_buffers, wherever they lie now */
  size_t buffer_count;
} lockstep_forward_options;

LOCKSTEP_EXPORT void lockstep_forward_options_init(lockstep_forward_options* options);

/* Buffers as they came from the root, on the root as they were there. On its own: it may outlive what they came by.
 * lockstep_fresh_buffers_data and _destroy are below, at the buffer sets. */
typedef struct lockstep_fresh_buffers lockstep_fresh_buffers;

/* A forward pass begins; ends. Without buffers both may be left out; begin_forward is then for the times in the logging data. They
 * block while buffers are brought, as every rank must call them then. *out_fresh is NULL unless buffers came in fresh memory;
 * out_fresh may be NULL where they never do. On tensors that are not as agreed see lockstep_buffer_set_broadcast; a hook gets none
 * where they cannot be read. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_begin_forward(lockstep_reducer* reducer,
                                                               const lockstep_forward_options* options,
                                                               lockstep_fresh_buffers** out_fresh);
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_end_forward(lockstep_reducer* reducer,
                                                             const lockstep_forward_options* options);

/* For a rank that has no more inputs, where others have: takes part in their steps with zeros, for as long as that takes (its
 * operations have no deadline), and returns when all ranks have joined. By then `model` is, on every rank, that of the rank which
 * joined last (of several the highest). `buffers` are those of set_buffers, or none: each rank that has inputs brings them for each of
 * its synchronised steps, a joining one once more, and then without it. INVALID_ARGUMENT for tensors that cannot be read, before
 * anything has begun; FAILED_PRECONDITION without uneven_inputs, or as throw_on_early_end says. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_join(lockstep_reducer* reducer, const lockstep_tensor* model,
                                                      size_t model_count, const lockstep_tensor* buffers,
                                                      size_t buffer_count);

/* The same reducer over another communicator, as after a failure or when ranks come and go: every rank of the new one calls it, or
 * lockstep_reducer_create with an equal table, equal options and the plan that the others export. Ends what was under way, whether or
 * not it failed. Keeps the plan if all ranks have the same, else begins with the first one; bucket views move, with what is in them,
 * and buffers are to be set again. The old communicator may be destroyed afterwards. Errors are those of lockstep_reducer_create;
 * then the reducer can only be given another communicator, or destroyed. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_change_communicator(lockstep_reducer* reducer,
                                                                     lockstep_communicator* communicator);

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

LOCKSTEP_EXPORT void lockstep_bucket_statistics_init(lockstep_bucket_statistics* statistics);
/* INVALID_ARGUMENT for a bucket that the step did not have. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_get_bucket_statistics(const lockstep_reducer* reducer, size_t bucket,
                                                                       lockstep_bucket_statistics* out_statistics);

/* The last synchronised backward as a text of one screen, for people. lockstep_string_free it. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_summary(const lockstep_reducer* reducer, char** out_text);

/* A JSON object under the names of DDP's logging data (world_size, bucket_sizes, avg_backward_comm_time, ...), times in nanoseconds. Of
 * steps it has what begin_forward, or else begin_backward, published: each of the first ten, and then every `sample_rate`-th (100;
 * INVALID_ARGUMENT below 1). lockstep_string_free it. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_logging_data(const lockstep_reducer* reducer, char** out_json);
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_set_logging_sample_rate(lockstep_reducer* reducer,
                                                                         int64_t sample_rate);

/* ---- Buffers and normalisation ------------------------------------------------------------------------------------
 *
 * What a model keeps beside its parameters (running statistics and the like: its buffers, which have nothing to do with
 * lockstep_buffer), normalisation over the whole batch, and casts for mixed precision. These are collectives of the
 * communicator unless they say otherwise, and keep its order of calls: use the reducer's communicator between
 * end_backward and begin_backward, or a duplicate of it at any time. They block.
 *
 * A buffer set brings a model's buffers from one rank to all, coalesced, as before each forward pass. They land in
 * fresh memory, so that a backward pass which is yet to come still finds those of its own forward pass. That the ranks'
 * buffers are alike is compared once, at creation. A set is used by one thread at a time. */
typedef struct lockstep_buffer_set lockstep_buffer_set;

/* Every rank calls it. Buffers are on the host and without gaps, in any order of dimensions; the errors are those of
 * lockstep_reducer_create, a difference being the same error on every rank. Only the tensors' dtypes, shapes and
 * strides are remembered. The communicator must outlive the set. */
LOCKSTEP_EXPORT lockstep_error* lockstep_buffer_set_create(lockstep_communicator* communicator,
                                                           const lockstep_tensor* tensors, size_t tensor_count,
                                                           lockstep_buffer_set** out_set);
LOCKSTEP_EXPORT void lockstep_buffer_set_destroy(lockstep_buffer_set* set);

typedef struct lockstep_buffer_set_options {
  size_t struct_size;
  int64_t timeout_ms; /* as of a collective */
  int32_t root;       /* equal on all ranks */
  int32_t reserved;
} lockstep_buffer_set_options;

LOCKSTEP_EXPORT void lockstep_buffer_set_options_init(lockstep_buffer_set_options* options);

/* The tensors are the buffers of now, wherever they lie; only the root's are read. out_fresh NULL: the other ranks'
 * tensors are overwritten instead. INVALID_ARGUMENT for tensors that are not like those of the creation: on that rank
 * alone, and FAILED_PRECONDITION on the others if it is the root. Nothing is written then, and the communicator stays
 * usable. */
LOCKSTEP_EXPORT lockstep_error* lockstep_buffer_set_broadcast(lockstep_buffer_set* set, const lockstep_tensor* tensors,
                                                              size_t tensor_count,
                                                              const lockstep_buffer_set_options* options,
                                                              lockstep_fresh_buffers** out_fresh);

/* The fresh tensor `index`, laid out as the set's: aligned to 256 bytes, and the caller's to write until it is
 * destroyed. NULL for an index that there is not. */
LOCKSTEP_EXPORT void* lockstep_fresh_buffers_data(const lockstep_fresh_buffers* fresh, size_t index);
LOCKSTEP_EXPORT void lockstep_fresh_buffers_destroy(lockstep_fresh_buffers* fresh);

/* Batch normalisation over the elements of all ranks. Forward: combine; backward: sum_gradients. With the sums of dy
 * and of dy * (x - mean) over all ranks and N the whole count, by channel:
 *   dx = (dy - sum_dy / N - (x - mean) * inverse_std^2 * sum_dy_xmu / N) * inverse_std * weight */
typedef struct lockstep_batch_norm_options {
  size_t struct_size;
  int64_t timeout_ms;      /* as of a collective */
  double epsilon;          /* default 1e-5; finite, above 0 */
  double momentum;         /* share of this batch in the running statistics; default 0.1; finite */
  float* running_mean;     /* `channels` values, which combine updates; both or none */
  float* running_variance; /* unbiased */
} lockstep_batch_norm_options;

LOCKSTEP_EXPORT void lockstep_batch_norm_options_init(lockstep_batch_norm_options* options);

/* mean, variance (biased) and count: of this rank's elements of each channel, `channels` values each; with a count of 0
 * they may be anything, but not NULL. The outputs are those of all ranks' elements; any may be NULL, or the input of
 * the same kind. Channels are equal on all ranks, counts need not be. One all-gather; combined in double by Chan's
 * formula, in rank order. Without any elements mean and variance are 0 and the running statistics stay as they are; with
 * a single one, the running variance does. */
LOCKSTEP_EXPORT lockstep_error* lockstep_batch_norm_combine(lockstep_communicator* communicator, size_t channels,
                                                            const float* mean, const float* variance, int64_t count,
                                                            const lockstep_batch_norm_options* options, float* out_mean,
                                                            float* out_variance, float* out_inverse_std,
                                                            int64_t* out_count);

/* The two sums by channel, `channels` values each, become those over all ranks. One all-reduce, in double. */
LOCKSTEP_EXPORT lockstep_error* lockstep_batch_norm_sum_gradients(lockstep_communicator* communicator, size_t channels,
                                                                  float* sum_dy, float* sum_dy_xmu,
                                                                  const lockstep_batch_norm_options* options);

/* targets[i] = sources[i], converted between floats and rounded once: parameters into copies of lower precision, their
 * gradients into float32. Sends nothing. Of a pair, shapes are equal, and layouts too unless one is row-major and the
 * other has gaps; they share no memory. Nothing is written if a pair is not so: INVALID_ARGUMENT names the first. */
LOCKSTEP_EXPORT lockstep_error* lockstep_cast_tensors(const lockstep_tensor* sources, const lockstep_tensor* targets,
                                                      size_t tensor_count);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* LOCKSTEP_H_ */
