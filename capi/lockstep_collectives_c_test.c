/* The collectives of lockstep.h from C99, of tensors and of lists of tensors: dtypes, ops and options, and what is refused. On a world of
 * one, and on two processes. And what the C ABI says of devices where nothing, or the wrong thing, is on one. Skips nothing: with a GPU a
 * communicator for it is made. communicator_results_conformance and pieces_test prove results. */

#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "capi/c_testing.h"
#include "capi/lockstep.h"

static lockstep_stream StreamOn(int32_t kind) {
  lockstep_stream stream;
  memset(&stream, 0, sizeof(stream));
  stream.device_kind = kind;
  return stream;
}

/* ---- Every dtype, and every op; of their combinations those that there are not. */

/* One and two, whose first bytes are the elements. */
static const struct {
  int32_t dtype;
  uint64_t one, two;
} dtypes[] = {{LOCKSTEP_BOOL, 1, 1},
              {LOCKSTEP_U8, 1, 2},
              {LOCKSTEP_I8, 1, 2},
              {LOCKSTEP_I32, 1, 2},
              {LOCKSTEP_U32, 1, 2},
              {LOCKSTEP_I64, 1, 2},
              {LOCKSTEP_U64, 1, 2},
              {LOCKSTEP_F16, 0x3c00, 0x4000},
              {LOCKSTEP_BF16, 0x3f80, 0x4000},
              {LOCKSTEP_F32, 0x3f800000, 0x40000000},
              {LOCKSTEP_F64, 0x3ff0000000000000, 0x4000000000000000}};

/* Of 6 on rank 0 and 3 on rank 1. */
static const struct {
  lockstep_reduce_op op;
  int32_t result;
} folds[] = {{LOCKSTEP_SUM, 9}, {LOCKSTEP_PROD, 18}, {LOCKSTEP_MIN, 3}, {LOCKSTEP_MAX, 6},
             {LOCKSTEP_AND, 2}, {LOCKSTEP_OR, 7},    {LOCKSTEP_XOR, 5}};

static void UseDTypesAndOps(lockstep_communicator* communicator) {
  const int64_t one = 1;
  const int is_alone = lockstep_communicator_size(communicator) == 1;
  for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); ++i) {
    const int is_float = dtypes[i].dtype >= LOCKSTEP_F16 && dtypes[i].dtype <= LOCKSTEP_F64;
    uint64_t value = dtypes[i].one;
    const lockstep_tensor tensor = Vector(&value, &one, dtypes[i].dtype);
    OK(lockstep_all_reduce(communicator, &tensor, &tensor, LOCKSTEP_SUM, NULL, NULL, NULL));
    CHECK(value == (is_alone ? dtypes[i].one : dtypes[i].two));
    for (lockstep_reduce_op op = LOCKSTEP_PREMUL_SUM; op <= LOCKSTEP_XOR; ++op) {
      if (is_float ? op < LOCKSTEP_AND : op != LOCKSTEP_PREMUL_SUM) continue;
      INVALID(lockstep_all_reduce(communicator, &tensor, &tensor, op, NULL, NULL, NULL), "is not defined");
    }
  }
  for (size_t i = 0; i < sizeof(folds) / sizeof(folds[0]); ++i) {
    int32_t number = lockstep_communicator_rank(communicator) == 0 ? 6 : 3;
    const lockstep_tensor tensor = Vector(&number, &one, LOCKSTEP_I32);
    OK(lockstep_all_reduce(communicator, &tensor, &tensor, folds[i].op, NULL, NULL, NULL));
    CHECK(number == (is_alone ? 6 : folds[i].result));
  }
}

/* ---- Tensors, and lists of tensors, that are refused. */

/* Calls that need the result of a collective. */
static void RefuseInGroups(lockstep_communicator* communicator) {
  static const char* const name = "all";
  const int32_t size = lockstep_communicator_size(communicator);
  for (int call = 0; call < 5; ++call) {
    void* data = NULL;
    size_t bytes[4] = {0};
    lockstep_communicator* made = NULL;
    lockstep_memory* memory = NULL;
    OK(lockstep_group_start(communicator));
    if (call == 0) MISUSED(lockstep_broadcast_bytes(communicator, "x", 1, 0, &data, bytes), "inside a group");
    if (call == 1)
      MISUSED(lockstep_gather_bytes(communicator, "x", 1, LOCKSTEP_EVERY_RANK, &data, bytes), "inside a group");
    if (call == 2) MISUSED(lockstep_communicator_mesh(communicator, &name, &size, 1, &made), "inside a group");
    if (call == 3) MISUSED(lockstep_communicator_split(communicator, 0, 0, &made), "inside a group");
    if (call == 4) MISUSED(lockstep_memory_create(communicator, 1, LOCKSTEP_HOST, &memory), "inside a group");
    MISUSED(lockstep_group_end(communicator, NULL), "inside a group");
  }
}

static void UseWrongTensors(lockstep_communicator* communicator) {
  const int32_t rank = lockstep_communicator_rank(communicator);
  const int64_t none = 0, one = 1, two = 2, all = 2 * lockstep_communicator_size(communicator);
  float values[4] = {3, 3, 3, 3};
  const lockstep_tensor nothing = Vector(NULL, &none, LOCKSTEP_F32);
  const lockstep_tensor whole = Vector(values, &all, LOCKSTEP_F32);
  const lockstep_tensor block = Vector(values + 2 * rank, &two, LOCKSTEP_F32);
  const lockstep_tensor misplaced = Vector(values + 1, &two, LOCKSTEP_F32);
  const lockstep_tensor misaligned = Vector((char*)values + 1, &one, LOCKSTEP_F32);
  lockstep_tensor odd = Vector(values, &one, 0);
  /* Without elements a tensor needs no memory. */
  OK(lockstep_all_reduce(communicator, &nothing, &nothing, LOCKSTEP_SUM, NULL, NULL, NULL));
  /* What is refused keeps its group from being launched. */
  OK(lockstep_group_start(communicator));
  OK(lockstep_all_reduce(communicator, &whole, &whole, LOCKSTEP_SUM, NULL, NULL, NULL));
  INVALID(lockstep_all_reduce(communicator, &whole, NULL, LOCKSTEP_SUM, NULL, NULL, NULL), "output");
  INVALID(lockstep_group_end(communicator, NULL), "output");
  OK(lockstep_group_start(communicator));
  INVALID(lockstep_send(communicator, NULL, rank, 2, 0, NULL), "tensor");
  INVALID(lockstep_group_end(communicator, NULL), "tensor");
  CHECK(values[0] == 3);
  RefuseInGroups(communicator);

  INVALID(lockstep_broadcast(communicator, &odd, 0, NULL, NULL, NULL), "dtype is not set");
  odd.dtype = 16;
  INVALID(lockstep_broadcast(communicator, &odd, 0, NULL, NULL, NULL), "16 is no");
  INVALID(lockstep_all_reduce(communicator, &misaligned, &misaligned, LOCKSTEP_SUM, NULL, NULL, NULL), "aligned");
  INVALID(lockstep_all_gather(communicator, &misplaced, &whole, NULL, NULL, NULL),
          "input overlaps output elsewhere than at block");
  INVALID(lockstep_reduce_scatter(communicator, &whole, &misplaced, LOCKSTEP_SUM, NULL, NULL, NULL),
          "output overlaps input elsewhere than at block");
  INVALID(lockstep_all_reduce(communicator, &misplaced, &block, LOCKSTEP_SUM, NULL, NULL, NULL),
          "overlap without being the same memory");
  INVALID(lockstep_reduce(communicator, &block, &misplaced, LOCKSTEP_SUM, rank, NULL, NULL, NULL),
          "overlap without being the same memory");
}

static void UseWrongLists(lockstep_communicator* communicator) {
  static float values[64];
  static const int64_t two = 2, five = 5;
  const int64_t all = 5 * lockstep_communicator_size(communicator), wide = 15;
  const int64_t rows[2] = {5, 1}, strides[2] = {2, 1};
  const lockstep_tensor first = Vector(values, &five, LOCKSTEP_F32);
  const lockstep_stream on_gpu = StreamOn(LOCKSTEP_CUDA);
  lockstep_work* work = NULL;
  lockstep_tensor list[2], others[2];
  list[0] = others[0] = first;
  others[1] = Vector(values + 40, &five, LOCKSTEP_F32);

  list[1] = Vector(values + 10, &five, LOCKSTEP_I32);
  INVALID(lockstep_broadcast_coalesced(communicator, list, 2, 0, NULL, NULL, NULL),
          "tensor 0 is f32 and tensor 1 is i32: a list has one dtype");
  list[1] = Vector(values + 4, &five, LOCKSTEP_F32);
  INVALID(lockstep_broadcast_coalesced(communicator, list, 2, 0, NULL, NULL, NULL),
          "tensor 0 and tensor 1 of the list overlap");
  INVALID(lockstep_all_reduce_coalesced(communicator, list, others, 2, LOCKSTEP_SUM, NULL, NULL, NULL),
          "tensor 0 and input 1 of the list overlap");
  list[1] = Vector(values + 10, &five, LOCKSTEP_F32);
  list[1].device_kind = LOCKSTEP_CUDA;
  INVALID(lockstep_broadcast_coalesced(communicator, list, 2, 0, NULL, NULL, NULL),
          "tensor 0 is on host and tensor 1 is on cuda:0: a list is in one place");
  list[0].device_kind = LOCKSTEP_CUDA;
  INVALID(lockstep_broadcast_coalesced(communicator, list, 2, 0, NULL, NULL, NULL), "cuda:0");
  INVALID(lockstep_broadcast_coalesced(communicator, list, 2, 0, NULL, NULL, &work), "cuda:0");

  /* What is refused of one tensor, with its index. */
  list[0] = first;
  list[1] = Vector(values + 10, &two, LOCKSTEP_F32);
  INVALID(lockstep_all_reduce_coalesced(communicator, list, others, 2, LOCKSTEP_SUM, NULL, NULL, NULL),
          "tensor 1: input has 2 elements and output has 5");
  list[1] = Vector(values + 10, rows, LOCKSTEP_F32);
  list[1].dimensions = 2;
  list[1].strides = strides;
  INVALID(lockstep_broadcast_coalesced(communicator, list, 2, 0, NULL, NULL, NULL), "tensor 1: tensor f32[5, 1]");
  list[1].shape = NULL;
  INVALID(lockstep_broadcast_coalesced(communicator, list, 2, 0, NULL, NULL, NULL), "tensor 1: tensor 'tensor'");
  list[0] = Vector(values + 1, &five, LOCKSTEP_F32);
  others[0] = Vector(values, &all, LOCKSTEP_F32);
  INVALID(lockstep_all_gather_coalesced(communicator, list, others, 1, NULL, NULL, NULL),
          "tensor 0: input overlaps output elsewhere than at block");
  INVALID(lockstep_reduce_scatter_coalesced(communicator, others, list, 1, LOCKSTEP_SUM, NULL, NULL, NULL),
          "tensor 0: output overlaps input elsewhere than at block");
  others[0] = Vector(values + 20, &wide, LOCKSTEP_F32);
  INVALID(lockstep_all_gather_coalesced(communicator, list, others, 1, NULL, NULL, NULL), "output has 15 elements");

  INVALID(lockstep_all_reduce_coalesced(communicator, list, list, 1, LOCKSTEP_XOR, NULL, NULL, NULL), "xor");
  INVALID(lockstep_all_reduce_coalesced(communicator, list, list, 1, LOCKSTEP_PREMUL_SUM, NULL, NULL, NULL), "factor");
  INVALID(lockstep_broadcast_coalesced(communicator, list, 1, 77, NULL, NULL, NULL), "root 77");
  INVALID(lockstep_broadcast_coalesced(communicator, NULL, 0, 77, NULL, NULL, NULL), "root 77");
  INVALID(lockstep_broadcast_coalesced(communicator, NULL, 1, 0, NULL, NULL, NULL), "'tensors'");
  INVALID(lockstep_all_gather_coalesced(communicator, NULL, list, 1, NULL, NULL, NULL), "'inputs'");
  INVALID(lockstep_all_gather_coalesced(communicator, list, NULL, 1, NULL, NULL, NULL), "'outputs'");
  INVALID(lockstep_broadcast_coalesced(NULL, list, 1, 0, NULL, NULL, NULL), "'communicator'");
  INVALID(lockstep_broadcast_coalesced(communicator, list, 1, 0, NULL, &on_gpu, NULL), "cuda:0");
  INVALID(lockstep_broadcast_coalesced(communicator, list, 1, 0, NULL, &on_gpu, &work), "no work");
  OK(lockstep_broadcast_coalesced(communicator, list, 1, 0, NULL, NULL, NULL));
  OK(lockstep_broadcast_coalesced(communicator, NULL, 0, 0, NULL, NULL, NULL));
  OK(lockstep_all_reduce_coalesced(communicator, NULL, NULL, 0, LOCKSTEP_SUM, NULL, NULL, NULL));
}

static void UseCollectives(lockstep_communicator* communicator) {
  UseDTypesAndOps(communicator);
  UseWrongTensors(communicator);
  UseWrongLists(communicator);
  OK(lockstep_communicator_status(communicator));
}

/* ---- Ranks that disagree. */

static void CheckNamesBoth(lockstep_error* error) {
  const char* const text = lockstep_error_message(error);
  CHECK(strstr(text, "rank 0 called all_reduce #") != NULL && strstr(text, "(3 f32 max,") != NULL);
  CHECK(strstr(text, "rank 1 called all_reduce #") != NULL && strstr(text, "(5 f32 max,") != NULL);
  CHECK(lockstep_error_failed_rank(error) == 1 && lockstep_error_parameter(error) == -1);
  MISUSED(error, "the ranks' collectives differ: ");
}

static lockstep_error* DifferInCounts(lockstep_communicator* communicator) {
  float values[5] = {0};
  const int64_t count = lockstep_communicator_rank(communicator) == 0 ? 3 : 5;
  const lockstep_tensor tensor = Vector(values, &count, LOCKSTEP_F32);
  return lockstep_all_reduce(communicator, &tensor, &tensor, LOCKSTEP_MAX, NULL, NULL, NULL);
}

/* In checked mode the communicator stays usable. A list is one collective, of all its elements. */
static void DisagreeChecked(lockstep_communicator* communicator) {
  const int32_t rank = lockstep_communicator_rank(communicator);
  const int64_t counts[2] = {1, 2 + rank};
  float values[2][3];
  lockstep_tensor list[2];
  for (int i = 0; i < 2; ++i) list[i] = Vector(values[i], &counts[i], LOCKSTEP_F32);
  CheckNamesBoth(DifferInCounts(communicator));
  MISUSED(lockstep_broadcast_coalesced(communicator, list, 2, 0, NULL, NULL, NULL), "(4 f32");
  MISUSED(lockstep_broadcast_coalesced(communicator, list, rank == 0 ? 2 : 0, 0, NULL, NULL, NULL),
          "the ranks' collectives differ: rank 0 called broadcast");
  OK(lockstep_communicator_status(communicator));
}

/* Otherwise a rank may have finished before the difference is found, and is told at its next call. */
static void Disagree(lockstep_communicator* communicator) {
  lockstep_error* error = DifferInCounts(communicator);
  if (error == NULL) error = lockstep_barrier(communicator, NULL, NULL, NULL);
  CheckNamesBoth(error);
  CheckNamesBoth(lockstep_barrier(communicator, NULL, NULL, NULL));
  CheckNamesBoth(lockstep_communicator_status(communicator));
}

/* Of a pair, the sender and the receiver. */
static void DisagreeInPair(lockstep_communicator* communicator) {
  float values[4] = {0}, blocks[4];
  const int32_t rank = lockstep_communicator_rank(communicator);
  const int64_t to[2] = {rank + 1, 1}, from[2] = {1, 1}, sum = rank + 2, two = 2;
  const lockstep_tensor input = Vector(values, &sum, LOCKSTEP_F32);
  const lockstep_tensor output = Vector(blocks, &two, LOCKSTEP_F32);
  lockstep_error* error = lockstep_all_to_all_v(communicator, &input, &output, to, from, NULL, NULL, NULL);
  if (error == NULL) error = lockstep_barrier(communicator, NULL, NULL, NULL);
  MISUSED(error, "rank 1 sends 2 elements");
}

/* wait_ms: a call that need not wait longer has a work that is done, and another goes on by itself. */
static void WaitInCall(lockstep_communicator* communicator) {
  const int32_t rank = lockstep_communicator_rank(communicator), other = 1 - rank;
  const int64_t one = 1, none = 0;
  int32_t value = 3;
  const lockstep_tensor values = Vector(&value, &one, LOCKSTEP_I32), nothing = Vector(NULL, &none, LOCKSTEP_I32);
  lockstep_collective_options options;
  lockstep_work* work = NULL;
  LOCKSTEP_INIT(options);
  options.wait_ms = -1;
  INVALID(lockstep_all_reduce(communicator, &values, &values, LOCKSTEP_SUM, &options, NULL, &work),
          "wait_ms is negative");
  options.wait_ms = INT64_MAX;
  OK(lockstep_all_reduce(communicator, &values, &values, LOCKSTEP_SUM, &options, NULL, &work));
  CHECK(lockstep_work_done(work) && value == 6);
  lockstep_work_destroy(work);
  OK(lockstep_group_start(communicator));
  OK(lockstep_all_reduce(communicator, &values, &values, LOCKSTEP_SUM, &options, NULL, NULL));
  OK(lockstep_group_end(communicator, NULL));
  CHECK(value == 12);
  options.wait_ms = 1;
  if (rank == 1) OK(lockstep_receive(communicator, &nothing, other, 0, 0, NULL, NULL));
  OK(lockstep_all_reduce(communicator, &values, &values, LOCKSTEP_AVG, &options, NULL, &work));
  if (rank == 0) CHECK(!lockstep_work_done(work));
  if (rank == 0) OK(lockstep_send(communicator, &nothing, other, 0, 0, NULL));
  while (!lockstep_work_done(work)) sched_yield();
  OK(lockstep_work_wait(work, 0));
  CHECK(value == 12);
  lockstep_work_destroy(work);
}

static void RunRank(int32_t rank, int32_t size, const char* folder) {
  lockstep_communicator_options options;
  lockstep_communicator* communicator = Meet(rank, size, folder, "use");
  UseCollectives(communicator);
  WaitInCall(communicator);
  Disagree(communicator);
  lockstep_communicator_destroy(communicator);
  communicator = Meet(rank, size, folder, "pair");
  DisagreeInPair(communicator);
  lockstep_communicator_destroy(communicator);
  LOCKSTEP_INIT(options);
  options.checked = 1;
  communicator = MeetWith(rank, size, folder, "checked", &options);
  DisagreeChecked(communicator);
  OK(lockstep_barrier(communicator, NULL, NULL, NULL));
  lockstep_communicator_destroy(communicator);
}

/* ---- Devices. */

/* On a communicator for the host alone. */
static void UseDevices(lockstep_communicator* communicator) {
  lockstep_reducer* reducer = NULL;
  lockstep_memory* buffer = NULL;
  lockstep_backward_options backward;
  lockstep_stream on_gpu = StreamOn(LOCKSTEP_CUDA);
  lockstep_stream on_host = StreamOn(LOCKSTEP_HOST);
  const int64_t shape[1] = {4};
  float values[4] = {0};
  lockstep_tensor tensor = Vector(values, shape, LOCKSTEP_F32);
  lockstep_parameter parameter = Parameter("w", shape, 1, LOCKSTEP_F32);

  INVALID(lockstep_barrier(communicator, NULL, &on_gpu, NULL), "cuda:0");
  FAILS(lockstep_barrier(communicator, NULL, &on_host, NULL), LOCKSTEP_UNIMPLEMENTED, "NULL");
  FAILS(lockstep_memory_create(communicator, 64, LOCKSTEP_CUDA, &buffer), LOCKSTEP_UNIMPLEMENTED, "device");

  tensor.device_kind = LOCKSTEP_CUDA;
  INVALID(lockstep_broadcast(communicator, &tensor, 0, NULL, NULL, NULL), "cuda:0");
  INVALID(lockstep_send(communicator, &tensor, 0, 0, 0, NULL), "cuda:0");
  tensor.device_kind = LOCKSTEP_HOST;

  parameter.device_kind = LOCKSTEP_CUDA;
  INVALID(lockstep_reducer_create(communicator, &parameter, 1, NULL, &reducer), "cuda:0");
  parameter.device_kind = LOCKSTEP_HOST;
  OK(lockstep_reducer_create(communicator, &parameter, 1, NULL, &reducer));
  LOCKSTEP_INIT(backward);
  backward.stream = &on_gpu;
  INVALID(lockstep_reducer_begin_backward(reducer, &backward), "cuda:0");
  backward.stream = &on_host;
  FAILS(lockstep_reducer_begin_backward(reducer, &backward), LOCKSTEP_UNIMPLEMENTED, "NULL");
  backward.stream = NULL;
  OK(lockstep_reducer_begin_backward(reducer, &backward));
  INVALID(lockstep_reducer_mark_ready(reducer, 0, &tensor, &on_gpu), "cuda:0");
  OK(lockstep_reducer_mark_ready(reducer, 0, &tensor, NULL));
  INVALID(lockstep_reducer_end_backward(reducer, &on_gpu), "cuda:0");
  OK(lockstep_reducer_end_backward(reducer, NULL));
  /* Nothing was captured, so nothing was replayed. */
  OK(lockstep_reducer_check_replays(reducer));
  INVALID(lockstep_reducer_check_replays(NULL), "reducer");
  lockstep_reducer_destroy(reducer);
}

static void TestCreation(void) {
  lockstep_communicator* communicator = NULL;
  lockstep_communicator_options options;
  char* text = NULL;
  LOCKSTEP_INIT(options);
  options.world_size = 1;
  options.device_kind = 7;
  INVALID(lockstep_communicator_create(&options, &communicator), "7");
  options.device_kind = LOCKSTEP_CUDA;
  lockstep_error* error = lockstep_communicator_create(&options, &communicator);
  if (error != NULL) {
    /* No driver, no device, or a build without CUDA. */
    FAILS(error, LOCKSTEP_UNAVAILABLE, "");
    return;
  }
  OK(lockstep_communicator_describe(communicator, &text));
  CHECK(strstr(text, "cuda:0") != NULL);
  lockstep_string_free(text);
  lockstep_communicator_destroy(communicator);
}

int main(void) {
  RunAlone(UseCollectives);
  RunRanks(2, RunRank);
  RunAlone(UseDevices);
  TestCreation();
  return 0;
}
