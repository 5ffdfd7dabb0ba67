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
  LOCKSTEP_DEADLINE_EXCEEDED = 4,   /*                                                       [decide] */
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
 * what the call is to produce is there when it returns. CUDA streams answer UNIMPLEMENTED in this version. */
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

typedef struct lockstep_communicator_options {
  size_t struct_size;
  /* Who we are. world_size 0: rank, size, local rank and size, store and job are read from the environment (LOCKSTEP_*, then
   * torchrun's, Open MPI's, PMI's, Slurm's; docs/environment.md), and with nothing set it is a world of one. */
  int32_t world_size;
  int32_t rank;
  int32_t local_world_size; /* ranks on this host; 0: found out */
  int32_t local_rank;
  /* Where the ranks meet: a URL (tcp://host:port served by rank 0, file:///path), or a store. The store outlives the
   * creation only. */
  const char* store_url;
  lockstep_store* store;
  const char* job_id;    /* keeps jobs apart that share a store or a port; default "default" */
  const char* interface; /* local network interface: eth0, ^docker, 10.0.0.0/8; docs/environment.md has the grammar */
  int64_t setup_timeout_ms; /* for every rank to appear; default 300,000 */
  int64_t timeout_ms;       /* of one collective; default LOCKSTEP_TIMEOUT_MS or 1,800,000 */
  int64_t peer_timeout_ms;  /* a rank silent this long counts as failed; default LOCKSTEP_PEER_TIMEOUT_MS or 30,000 */
  /* The next three shape what goes over the wire: they must be equal on all ranks, and creation checks it. */
  const char* algorithm; /* "ring", "all_reduce:recursive_doubling;broadcast:binomial"; default: chosen by size */
  int64_t chunk_bytes;   /* pipelining unit; default 262,144 */
  int32_t checked;       /* 1: compare every collective's arguments across ranks before it starts (slower) */
  int32_t reserved;
} lockstep_communicator_options;

LOCKSTEP_EXPORT void lockstep_communicator_options_init(lockstep_communicator_options* options);

/* Every rank calls it; returns when all have met and agreed, or with the reason. */
LOCKSTEP_EXPORT lockstep_error* lockstep_communicator_create(const lockstep_communicator_options* options,
                                                             lockstep_communicator** out_communicator);

/* Ends operations in flight with CANCELLED, tells the peers, and returns without waiting for them. */
LOCKSTEP_EXPORT void lockstep_communicator_destroy(lockstep_communicator* communicator);

LOCKSTEP_EXPORT int32_t lockstep_communicator_rank(const lockstep_communicator* communicator);
LOCKSTEP_EXPORT int32_t lockstep_communicator_size(const lockstep_communicator* communicator);

/* NULL while the communicator is usable, else why it is not. */
LOCKSTEP_EXPORT lockstep_error* lockstep_communicator_status(const lockstep_communicator* communicator);

/* Fails all operations in flight and all later ones, on every rank, with ABORTED and this reason. */
LOCKSTEP_EXPORT lockstep_error* lockstep_communicator_abort(lockstep_communicator* communicator, const char* reason);

/* The last collectives, one line each, newest last: sequence, operation, sizes, state, times, bytes per peer.
 * lockstep_string_free it. */
LOCKSTEP_EXPORT lockstep_error* lockstep_communicator_flight_records(const lockstep_communicator* communicator,
                                                                     char** out_text);

/* How ranks are connected and why. lockstep_string_free it. */
LOCKSTEP_EXPORT lockstep_error* lockstep_communicator_describe(const lockstep_communicator* communicator,
                                                               char** out_text);

/* ---- Collectives --------------------------------------------------------------------------------------------------
 *
 * Called by every rank of the communicator, in the same order, with equal counts, dtypes and ops. A difference is the same
 * FAILED_PRECONDITION on every rank that has not finished, telling which rank called what, and at the next call on the
 * others; the communicator is over then (in checked mode it stays usable).
 *
 * Tensors are contiguous and on the host. In place: input and output are the same memory as each call says; any other overlap is
 * INVALID_ARGUMENT. out_work NULL: the call returns when the collective is done. Otherwise it returns at once, and the
 * tensors' memory stays borrowed until the work is done. */

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
  double factor;  /* of LOCKSTEP_PREMUL_SUM; each rank may have its own */
  const char* algorithm;         /* overrides the communicator's choice; equal on all ranks */
  const lockstep_stream* stream; /* NULL: inline on the host */
} lockstep_collective_options;

LOCKSTEP_EXPORT void lockstep_collective_options_init(lockstep_collective_options* options);

/* A collective in flight. */
typedef struct lockstep_work lockstep_work;

/* Waits at most timeout_ms (0: only looks). DEADLINE_EXCEEDED when it is not done yet: the operation goes on and the memory
 * stays borrowed. Otherwise the collective's own result, as often as asked. */
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

/* Done on no rank before every rank has called it. */
LOCKSTEP_EXPORT lockstep_error* lockstep_barrier(lockstep_communicator* communicator,
                                                 const lockstep_collective_options* options, lockstep_work** out_work);

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
  int32_t dtype;
  int32_t device_kind;
  int32_t device_index;
} lockstep_parameter;

LOCKSTEP_EXPORT void lockstep_parameter_init(lockstep_parameter* parameter);

typedef enum lockstep_average {
  LOCKSTEP_AVERAGE_BEFORE = 0, /* gradients times 1/n while they are copied into the bucket, then the sum */
  LOCKSTEP_AVERAGE_AFTER = 1,  /* the sum, then times 1/n while it is copied out */
  LOCKSTEP_AVERAGE_NONE = 2    /* the sum */
} lockstep_average;

typedef struct lockstep_reducer_options {
  size_t struct_size;
  /* A bucket is full when its bytes reach the cap, so a cap is a lower bound but for the last bucket. */
  int64_t bucket_cap_bytes;       /* default 26,214,400 (25 MiB) */
  int64_t first_bucket_cap_bytes; /* default 1,048,576 (1 MiB), or bucket_cap_bytes where that was given */
  int32_t average;                /* lockstep_average */
  int32_t no_overlap;             /* 1: launch every bucket at end_backward; for comparison */
} lockstep_reducer_options;

LOCKSTEP_EXPORT void lockstep_reducer_options_init(lockstep_reducer_options* options);

/* Every rank calls it with its parameter table in the order of definition; the tables are compared and a difference is the
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
  int32_t reserved;
} lockstep_backward_options;

LOCKSTEP_EXPORT void lockstep_backward_options_init(lockstep_backward_options* options);

/* FAILED_PRECONDITION when the last backward was not ended. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_begin_backward(lockstep_reducer* reducer,
                                                                const lockstep_backward_options* options);

/* The gradient of parameter `index` is final. Its memory stays borrowed until end_backward and is overwritten with the average.
 * With a stream, the gradient is ready once the stream reaches this point. INVALID_ARGUMENT for an index out of range or a
 * gradient that does not match the table; FAILED_PRECONDITION outside a backward or when marked before. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_mark_ready(lockstep_reducer* reducer, size_t index,
                                                            const lockstep_tensor* gradient,
                                                            const lockstep_stream* stream);

/* Waits for the averages (with a stream: makes the stream wait for them). A gradient that never came, on any rank, is the same
 * FAILED_PRECONDITION on every rank, naming rank and parameters, and the next step may be tried. */
LOCKSTEP_EXPORT lockstep_error* lockstep_reducer_end_backward(lockstep_reducer* reducer, const lockstep_stream* stream);

LOCKSTEP_EXPORT size_t lockstep_reducer_bucket_count(const lockstep_reducer* reducer);

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

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* LOCKSTEP_H_ */
