/* The collectives of lockstep.h from C99: dtypes and ops, no elements, in place by blocks, and what is refused. On a world of one, and
 * on two processes over shared memory and over TCP. And what the C ABI says of devices
 * where nothing, or the wrong thing, is on one. Skips nothing: with a GPU a communicator for it is made. */

#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "capi/c_testing.h"
#include "capi/lockstep.h"

/* Odd, and beyond what a small message carries. */
#define COUNT 12345

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

static void SumOnes(lockstep_communicator* communicator, size_t row) {
  static uint64_t given[COUNT], got[COUNT];
  const int64_t count = COUNT;
  const size_t size = lockstep_dtype_size(dtypes[row].dtype);
  const uint64_t sum = lockstep_communicator_size(communicator) == 2 ? dtypes[row].two : dtypes[row].one;
  const lockstep_tensor input = Vector(given, &count, dtypes[row].dtype);
  const lockstep_tensor output = Vector(got, &count, dtypes[row].dtype);
  for (size_t i = 0; i < COUNT; ++i) memcpy((char*)given + i * size, &dtypes[row].one, size);
  OK(lockstep_all_reduce(communicator, &input, &output, LOCKSTEP_SUM, NULL, NULL, NULL));
  OK(lockstep_all_reduce(communicator, &input, &input, LOCKSTEP_SUM, NULL, NULL, NULL));
  for (size_t i = 0; i < COUNT; ++i) CHECK(memcmp((char*)got + i * size, &sum, size) == 0);
  CHECK(memcmp(given, got, COUNT * size) == 0);
}

/* Of 6 on rank 0 and 3 on rank 1. */
static const struct {
  lockstep_reduce_op op;
  int32_t result;
} folds[] = {{LOCKSTEP_SUM, 9}, {LOCKSTEP_PROD, 18}, {LOCKSTEP_MIN, 3}, {LOCKSTEP_MAX, 6},
             {LOCKSTEP_AND, 2}, {LOCKSTEP_OR, 7},    {LOCKSTEP_XOR, 5}};

static void UseDTypesAndOps(lockstep_communicator* communicator) {
  const int64_t one = 1;
  double value = 1;
  lockstep_reduce_op op;
  for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); ++i) {
    const int is_float = dtypes[i].dtype >= LOCKSTEP_F16 && dtypes[i].dtype <= LOCKSTEP_F64;
    const lockstep_tensor tensor = Vector(&value, &one, dtypes[i].dtype);
    SumOnes(communicator, i);
    for (op = LOCKSTEP_PREMUL_SUM; op <= LOCKSTEP_XOR; ++op) {
      if (is_float ? op < LOCKSTEP_AND : op != LOCKSTEP_PREMUL_SUM) continue;
      INVALID(lockstep_all_reduce(communicator, &tensor, &tensor, op, NULL, NULL, NULL), "is not defined");
    }
  }
  for (size_t i = 0; i < sizeof(folds) / sizeof(folds[0]); ++i) {
    int32_t number = lockstep_communicator_rank(communicator) == 0 ? 6 : 3;
    const lockstep_tensor tensor = Vector(&number, &one, LOCKSTEP_I32);
    OK(lockstep_all_reduce(communicator, &tensor, &tensor, folds[i].op, NULL, NULL, NULL));
    CHECK(number == (lockstep_communicator_size(communicator) == 2 ? folds[i].result : 6));
  }
}

/* ---- No elements. */

static void UseNothing(lockstep_communicator* communicator) {
  const int32_t rank = lockstep_communicator_rank(communicator);
  const int32_t size = lockstep_communicator_size(communicator);
  const int64_t none = 0, one = 1;
  int64_t counts[2] = {0, 0};
  float value = 7, got = -1;
  lockstep_message message;
  const lockstep_tensor nothing = Vector(NULL, &none, LOCKSTEP_F32);
  const lockstep_tensor all = Vector(&value, &one, LOCKSTEP_F32);
  const lockstep_tensor output = Vector(&got, &one, LOCKSTEP_F32);
  /* Of blocks, only the last rank's has an element. */
  const lockstep_tensor* const mine = rank == size - 1 ? &all : &nothing;
  OK(lockstep_all_reduce(communicator, &nothing, &nothing, LOCKSTEP_SUM, NULL, NULL, NULL));
  OK(lockstep_reduce(communicator, &nothing, &nothing, LOCKSTEP_SUM, 0, NULL, NULL, NULL));
  OK(lockstep_broadcast(communicator, &nothing, 0, NULL, NULL, NULL));
  OK(lockstep_all_gather(communicator, &nothing, &nothing, NULL, NULL, NULL));
  OK(lockstep_reduce_scatter(communicator, &nothing, &nothing, LOCKSTEP_SUM, NULL, NULL, NULL));
  OK(lockstep_gather(communicator, &nothing, &nothing, NULL, 0, NULL, NULL, NULL));
  OK(lockstep_scatter(communicator, &nothing, &nothing, NULL, 0, NULL, NULL, NULL));
  OK(lockstep_all_to_all(communicator, &nothing, &nothing, NULL, NULL, NULL));
  OK(lockstep_all_gather_v(communicator, &nothing, &nothing, counts, NULL, NULL, NULL));
  OK(lockstep_all_to_all_v(communicator, &nothing, &nothing, counts, counts, NULL, NULL, NULL));

  counts[size - 1] = 1;
  OK(lockstep_all_gather_v(communicator, mine, &output, counts, NULL, NULL, NULL));
  CHECK(got == 7);
  got = -1;
  OK(lockstep_reduce_scatter_v(communicator, &all, rank == size - 1 ? &output : &nothing, counts, LOCKSTEP_SUM, NULL,
                               NULL, NULL));
  CHECK(got == (rank == size - 1 ? (float)(7 * size) : -1));
  got = -1;
  OK(lockstep_gather(communicator, mine, &output, counts, 0, NULL, NULL, NULL));
  CHECK(got == (rank == 0 ? 7 : -1));

  OK(lockstep_group_start(communicator));
  OK(lockstep_send(communicator, &nothing, (rank + 1) % size, 1, 0, NULL));
  OK(lockstep_receive(communicator, &output, LOCKSTEP_ANY_SOURCE, 1, 0, NULL, NULL));
  OK(lockstep_group_end(communicator, NULL));
  /* What is refused keeps its group from being launched. */
  got = 3;
  OK(lockstep_group_start(communicator));
  OK(lockstep_all_reduce(communicator, &output, &output, LOCKSTEP_SUM, NULL, NULL, NULL));
  INVALID(lockstep_all_reduce(communicator, &output, NULL, LOCKSTEP_SUM, NULL, NULL, NULL), "output");
  INVALID(lockstep_group_end(communicator, NULL), "output");
  OK(lockstep_group_start(communicator));
  INVALID(lockstep_send(communicator, NULL, rank, 2, 0, NULL), "tensor");
  INVALID(lockstep_group_end(communicator, NULL), "tensor");
  CHECK(got == 3);
  const lockstep_tensor misaligned = Vector((char*)&got + 1, &one, LOCKSTEP_F32);
  INVALID(lockstep_all_reduce(communicator, &misaligned, &misaligned, LOCKSTEP_SUM, NULL, NULL, NULL), "aligned");
  OK(lockstep_send(communicator, &nothing, rank, 2, 0, NULL));
  OK(lockstep_receive(communicator, &nothing, rank, 2, 0, &message, NULL));
  CHECK(message.bytes == 0 && message.source == rank && message.tag == 2);
}

/* ---- In place: this rank's block of the whole. */

static void UseBlocksInPlace(lockstep_communicator* communicator) {
  const int32_t rank = lockstep_communicator_rank(communicator);
  const int32_t size = lockstep_communicator_size(communicator);
  static int64_t values[2 * COUNT];
  const int64_t each = COUNT, all = (int64_t)COUNT * size;
  const lockstep_tensor whole = Vector(values, &all, LOCKSTEP_I64);
  const lockstep_tensor block = Vector(values + (int64_t)COUNT * rank, &each, LOCKSTEP_I64);
  const lockstep_tensor misplaced = Vector(values + 1, &each, LOCKSTEP_I64);

  INVALID(lockstep_all_gather(communicator, &misplaced, &whole, NULL, NULL, NULL),
          "input overlaps output elsewhere than at block");
  INVALID(lockstep_reduce_scatter(communicator, &whole, &misplaced, LOCKSTEP_SUM, NULL, NULL, NULL),
          "output overlaps input elsewhere than at block");
  INVALID(lockstep_all_reduce(communicator, &misplaced, &block, LOCKSTEP_SUM, NULL, NULL, NULL),
          "overlap without being the same memory");
  INVALID(lockstep_reduce(communicator, &block, &misplaced, LOCKSTEP_SUM, rank, NULL, NULL, NULL),
          "overlap without being the same memory");
}

static void UseCollectives(lockstep_communicator* communicator) {
  UseDTypesAndOps(communicator);
  UseNothing(communicator);
  UseBlocksInPlace(communicator);
  OK(lockstep_communicator_status(communicator));
}

/* ---- Ranks that disagree. */

static void CheckNamesBoth(lockstep_error* error) {
  const char* const text = lockstep_error_message(error);
  CHECK(strstr(text, "rank 0 called all_reduce #") != NULL && strstr(text, "(3 f32 max,") != NULL);
  CHECK(strstr(text, "rank 1 called all_reduce #") != NULL && strstr(text, "(5 f32 max,") != NULL);
  MISUSED(error, "the ranks' collectives differ: ");
}

static lockstep_error* DifferInCounts(lockstep_communicator* communicator) {
  float values[5] = {0};
  const int64_t count = lockstep_communicator_rank(communicator) == 0 ? 3 : 5;
  const lockstep_tensor tensor = Vector(values, &count, LOCKSTEP_F32);
  return lockstep_all_reduce(communicator, &tensor, &tensor, LOCKSTEP_MAX, NULL, NULL, NULL);
}

/* In checked mode the communicator stays usable. */
static void DisagreeChecked(lockstep_communicator* communicator) {
  CheckNamesBoth(DifferInCounts(communicator));
  OK(lockstep_communicator_status(communicator));
  UseNothing(communicator);
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
  static const char* const text = "rank 1 sends 2 elements";
  float values[4] = {0}, blocks[4];
  const int32_t rank = lockstep_communicator_rank(communicator);
  const int64_t to[2] = {rank + 1, 1}, from[2] = {1, 1}, sum = rank + 2, two = 2;
  const lockstep_tensor input = Vector(values, &sum, LOCKSTEP_F32);
  const lockstep_tensor output = Vector(blocks, &two, LOCKSTEP_F32);
  lockstep_error* error = lockstep_all_to_all_v(communicator, &input, &output, to, from, NULL, NULL, NULL);
  if (error == NULL) error = lockstep_barrier(communicator, NULL, NULL, NULL);
  MISUSED(error, text);
}

/* wait_ms: a call that need not wait longer has a work that is done, and another goes on by itself. */
static void WaitInCall(lockstep_communicator* communicator) {
  const int32_t rank = lockstep_communicator_rank(communicator), other = 1 - rank;
  const int64_t count = 5, none = 0;
  int32_t given[5] = {3, 3, 3, 3, 3};
  const lockstep_tensor values = Vector(given, &count, LOCKSTEP_I32), nothing = Vector(given, &none, LOCKSTEP_I32);
  lockstep_collective_options options;
  lockstep_work* work = NULL;
  LOCKSTEP_INIT(options);
  options.wait_ms = -1;
  INVALID(lockstep_all_reduce(communicator, &values, &values, LOCKSTEP_SUM, &options, NULL, &work),
          "wait_ms is negative");
  options.wait_ms = INT64_MAX;
  OK(lockstep_all_reduce(communicator, &values, &values, LOCKSTEP_SUM, &options, NULL, &work));
  CHECK(lockstep_work_done(work) && given[4] == 6);
  lockstep_work_destroy(work);
  OK(lockstep_group_start(communicator));
  OK(lockstep_all_reduce(communicator, &values, &values, LOCKSTEP_SUM, &options, NULL, NULL));
  OK(lockstep_group_end(communicator, NULL));
  CHECK(given[4] == 12);
  options.wait_ms = 1;
  if (rank == 1) OK(lockstep_receive(communicator, &nothing, other, 0, 0, NULL, NULL));
  OK(lockstep_all_reduce(communicator, &values, &values, LOCKSTEP_AVG, &options, NULL, &work));
  if (rank == 0) CHECK(!lockstep_work_done(work));
  if (rank == 0) OK(lockstep_send(communicator, &nothing, other, 0, 0, NULL));
  while (!lockstep_work_done(work)) sched_yield();
  OK(lockstep_work_wait(work, 0));
  CHECK(given[4] == 12);
  lockstep_work_destroy(work);
}

static void RunRank(int32_t rank, int32_t size, const char* folder) {
  static const char* const transports[2] = {"shm", "tcp"};
  static const char* const names[2][3] = {{"shm-use", "shm-pair", "shm-checked"},
                                          {"tcp-use", "tcp-pair", "tcp-checked"}};
  lockstep_communicator_options options;
  lockstep_communicator* communicator;
  LOCKSTEP_INIT(options);
  for (int i = 0; i < 2; ++i) {
    options.transport = transports[i];
    options.checked = 0;
    communicator = MeetWith(rank, size, folder, names[i][0], &options);
    UseCollectives(communicator);
    WaitInCall(communicator);
    Disagree(communicator);
    lockstep_communicator_destroy(communicator);
    communicator = MeetWith(rank, size, folder, names[i][1], &options);
    DisagreeInPair(communicator);
    lockstep_communicator_destroy(communicator);
    options.checked = 1;
    communicator = MeetWith(rank, size, folder, names[i][2], &options);
    DisagreeChecked(communicator);
    OK(lockstep_barrier(communicator, NULL, NULL, NULL));
    lockstep_communicator_destroy(communicator);
  }
}

/* ---- Devices. */

static lockstep_stream StreamOn(int32_t kind, int32_t index) {
  lockstep_stream stream;
  memset(&stream, 0, sizeof(stream));
  stream.device_kind = kind;
  stream.device_index = index;
  return stream;
}

/* On a communicator for the host alone. */
static void TestRefusals(void) {
  lockstep_communicator* communicator = NULL;
  lockstep_reducer* reducer = NULL;
  lockstep_memory* buffer = NULL;
  lockstep_backward_options backward;
  lockstep_stream on_gpu = StreamOn(LOCKSTEP_CUDA, 0);
  lockstep_stream on_host = StreamOn(LOCKSTEP_HOST, 0);
  const int64_t shape[1] = {4};
  float values[4] = {1, 2, 3, 4};
  lockstep_tensor tensor = Vector(values, shape, LOCKSTEP_F32);
  lockstep_parameter parameter = Parameter("w", shape, 1, LOCKSTEP_F32);
  OK(lockstep_communicator_create(NULL, &communicator));

  INVALID(lockstep_barrier(communicator, NULL, &on_gpu, NULL), "cuda:0");
  FAILS(lockstep_barrier(communicator, NULL, &on_host, NULL), LOCKSTEP_UNIMPLEMENTED, "NULL");
  FAILS(lockstep_memory_create(communicator, 64, LOCKSTEP_CUDA, &buffer), LOCKSTEP_UNIMPLEMENTED, "device");

  tensor.device_kind = LOCKSTEP_CUDA;
  INVALID(lockstep_broadcast(communicator, &tensor, 0, NULL, NULL, NULL), "cuda:0");
  INVALID(lockstep_send(communicator, &tensor, 0, 0, 0, NULL), "cuda:0");
  tensor.device_kind = LOCKSTEP_HOST;
  OK(lockstep_broadcast(communicator, &tensor, 0, NULL, NULL, NULL));

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
  CHECK(values[3] == 4);
  /* Nothing was captured, so nothing was replayed. */
  OK(lockstep_reducer_check_replays(reducer));
  INVALID(lockstep_reducer_check_replays(NULL), "reducer");
  lockstep_reducer_destroy(reducer);
  lockstep_communicator_destroy(communicator);
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
    CHECK(lockstep_error_code(error) == LOCKSTEP_UNAVAILABLE);
    lockstep_error_free(error);
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
  TestRefusals();
  TestCreation();
  return 0;
}
