#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "capi/c_testing.h"

/* The collectives with a block for each rank: rank r's has r + 1 elements where they differ. */
static void UseBlocks(lockstep_communicator* communicator) {
  const int32_t rank = lockstep_communicator_rank(communicator);
  const int32_t size = lockstep_communicator_size(communicator);
  int32_t values[160], blocks[160];
  int64_t counts[16], same[16], one = 1, mine = rank + 1, sum = 0, all = size, to_all = (int64_t)size * (rank + 1);
  lockstep_tensor input = Vector(values, &one, LOCKSTEP_I32);
  lockstep_tensor output = Vector(blocks, &all, LOCKSTEP_I32);
  CHECK(size <= 16);
  for (int i = 0; i < size; ++i) {
    counts[i] = i + 1;
    same[i] = rank + 1;
    sum += counts[i];
  }

  values[0] = rank;
  OK(lockstep_gather(communicator, &input, rank == 0 ? &output : NULL, NULL, 0, NULL, NULL, NULL));
  for (int i = 0; rank == 0 && i < size; ++i) CHECK(blocks[i] == i);
  for (int i = 0; i < size; ++i) blocks[i] = 10 * i;
  OK(lockstep_scatter(communicator, rank == 0 ? &output : NULL, &input, NULL, 0, NULL, NULL, NULL));
  CHECK(values[0] == 10 * rank);

  /* Unequal blocks. */
  for (int i = 0; i < rank + 1; ++i) values[i] = 100 * rank + i;
  input.shape = &mine;
  output.shape = &sum;
  OK(lockstep_all_gather_v(communicator, &input, &output, counts, NULL, NULL, NULL));
  for (int i = 0, k = 0; i < size; k += ++i) CHECK(blocks[k] == 100 * i && blocks[k + i] == 100 * i + i);
  blocks[0] = -1;
  OK(lockstep_gather(communicator, &input, rank == 0 ? &output : NULL, counts, 0, NULL, NULL, NULL));
  CHECK(blocks[0] == (rank == 0 ? 0 : -1));
  blocks[0] = 0;
  OK(lockstep_reduce_scatter_v(communicator, &output, &input, counts, LOCKSTEP_SUM, NULL, NULL, NULL));
  CHECK(values[rank] == size * (100 * rank + rank));
  OK(lockstep_scatter(communicator, &output, &input, counts, size - 1, NULL, NULL, NULL));
  CHECK(values[rank] == 100 * rank + rank);

  /* Rank r sends r + 1 elements to everybody. */
  for (int i = 0; i < size * (rank + 1); ++i) values[i] = rank;
  input.shape = &to_all;
  OK(lockstep_all_to_all_v(communicator, &input, &output, same, counts, NULL, NULL, NULL));
  for (int i = 0, k = 0; i < size; k += ++i) CHECK(blocks[k] == i && blocks[k + i] == i);
  for (int i = 0; i < size; ++i) blocks[i] = 100 * rank + i;
  output.shape = &all;
  OK(lockstep_all_to_all(communicator, &output, &output, NULL, NULL, NULL));
  for (int i = 0; i < size; ++i) CHECK(blocks[i] == 100 * i + rank);

  counts[0] = 77;
  INVALID(lockstep_all_gather_v(communicator, &output, &input, counts, NULL, NULL, NULL), "counts");
  counts[0] = -1;
  INVALID(lockstep_all_gather_v(communicator, &output, &input, counts, NULL, NULL, NULL), "negative");
  INVALID(lockstep_all_to_all_v(communicator, &output, &output, same, NULL, NULL, NULL, NULL), "output_counts");
}

/* Calls the function for lists that does what `given`, with a list of two tensors, describes. */
static lockstep_error* CallList(lockstep_communicator* communicator, const lockstep_collective* given,
                                const lockstep_collective_options* options, lockstep_work** work) {
  const lockstep_tensor *inputs = given->input, *outputs = given->output;
  switch (given->kind) {
    case LOCKSTEP_COLLECTIVE_ALL_REDUCE:
      return lockstep_all_reduce_coalesced(communicator, inputs, outputs, 2, given->op, options, NULL, work);
    case LOCKSTEP_COLLECTIVE_BROADCAST:
      return lockstep_broadcast_coalesced(communicator, inputs, 2, given->root, options, NULL, work);
    case LOCKSTEP_COLLECTIVE_ALL_GATHER:
      return lockstep_all_gather_coalesced(communicator, inputs, outputs, 2, options, NULL, work);
    default:
      return lockstep_reduce_scatter_coalesced(communicator, inputs, outputs, 2, given->op, options, NULL, work);
  }
}

/* Executes a collective on lists of two tensors: in a group or, if `prepares`, prepared. A call copies the caller's arrays, so they are
 * overwritten before the group is launched. */
static void UseList(lockstep_communicator* communicator, lockstep_collective_kind kind, lockstep_reduce_op op,
                    int prepares, const lockstep_tensor* input, const lockstep_tensor* output) {
  lockstep_tensor inputs[2], outputs[2];
  lockstep_collective collective;
  lockstep_collective_options options;
  lockstep_prepared* prepared = NULL;
  lockstep_work* work = NULL;
  memcpy(inputs, input, sizeof(inputs));
  memcpy(outputs, output, sizeof(outputs));
  LOCKSTEP_INIT(collective);
  collective.kind = kind;
  collective.op = op;
  collective.root = lockstep_communicator_size(communicator) - 1;
  collective.input = inputs;
  collective.output = outputs;
  collective.tensor_count = 2;
  LOCKSTEP_INIT(options);
  options.timeout_ms = -1;
  INVALID(CallList(communicator, &collective, &options, NULL), "timeout_ms is negative");
  if (prepares) {
    OK(lockstep_prepared_create(communicator, &collective, NULL, &prepared));
    OK(lockstep_prepared_run(prepared));
    lockstep_prepared_destroy(prepared);
    return;
  }
  OK(lockstep_group_start(communicator));
  OK(CallList(communicator, &collective, NULL, &work));
  memset(inputs, 0x7f, sizeof(inputs));
  memset(outputs, 0x7f, sizeof(outputs));
  MISUSED(lockstep_work_wait(work, 60000), "end the group first");
  OK(lockstep_group_end(communicator, NULL));
  OK(lockstep_work_wait(work, 60000));
  lockstep_work_destroy(work);
}

/* Lists of two tensors, the second of which lies before the first. */
static void UseLists(lockstep_communicator* communicator, int prepares) {
  const int32_t rank = lockstep_communicator_rank(communicator);
  const int32_t size = lockstep_communicator_size(communicator);
  const int64_t one = 1, all = size;
  int32_t values[2] = {10 * rank, rank}, blocks[32];
  lockstep_tensor parts[2], wholes[2];
  for (int i = 0; i < 2; ++i) {
    parts[i] = Vector(values + 1 - i, &one, LOCKSTEP_I32);
    wholes[i] = Vector(blocks + 16 * (1 - i), &all, LOCKSTEP_I32);
  }
  UseList(communicator, LOCKSTEP_COLLECTIVE_ALL_GATHER, LOCKSTEP_SUM, prepares, parts, wholes);
  for (int r = 0; r < size; ++r) CHECK(blocks[16 + r] == r && blocks[r] == 10 * r);
  UseList(communicator, LOCKSTEP_COLLECTIVE_REDUCE_SCATTER, LOCKSTEP_SUM, prepares, wholes, parts);
  CHECK(values[1] == size * rank && values[0] == 10 * size * rank);
  UseList(communicator, LOCKSTEP_COLLECTIVE_ALL_REDUCE, LOCKSTEP_MAX, prepares, parts, parts);
  CHECK(values[1] == size * (size - 1) && values[0] == 10 * size * (size - 1));
  values[0] = values[1] = rank;
  UseList(communicator, LOCKSTEP_COLLECTIVE_BROADCAST, LOCKSTEP_SUM, prepares, parts, parts);
  CHECK(values[0] == size - 1 && values[1] == size - 1);
}

/* What a completion callback was told. */
typedef struct Told {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  int count;
  lockstep_code code;
} Told;

static void Tell(void* context, const lockstep_error* error) {
  Told* told = (Told*)context;
  pthread_mutex_lock(&told->mutex);
  ++told->count;
  told->code = lockstep_error_code(error);
  pthread_cond_signal(&told->changed);
  pthread_mutex_unlock(&told->mutex);
}

/* Prepared collectives, groups, messages, callbacks and byte objects. */
static void UseCalls(lockstep_communicator* communicator) {
  const int32_t rank = lockstep_communicator_rank(communicator);
  const int32_t size = lockstep_communicator_size(communicator);
  const int32_t next = (rank + 1) % size, previous = (rank + size - 1) % size;
  static float long_out[50000], long_in[50000];
  float value = (float)(rank + 1), sum = 0;
  const int64_t one = 1, many = 50000;
  size_t bytes = 0, sizes[16];
  char text[32];
  void* data = NULL;
  lockstep_tensor input = Vector(&value, &one, LOCKSTEP_F32);
  lockstep_tensor output = Vector(&sum, &one, LOCKSTEP_F32);
  lockstep_tensor out = Vector(long_out, &many, LOCKSTEP_F32);
  lockstep_tensor in = Vector(long_in, &many, LOCKSTEP_F32);
  lockstep_collective collective;
  lockstep_prepared* prepared = NULL;
  Told told;
  lockstep_message message;
  lockstep_work *work = NULL, *member = NULL;

  LOCKSTEP_INIT(collective);
  INVALID(lockstep_prepared_create(communicator, &collective, NULL, &prepared), "0 is no lockstep_collective_kind");
  collective.kind = LOCKSTEP_COLLECTIVE_ALL_REDUCE;
  collective.op = LOCKSTEP_MAX;
  collective.input = &input;
  INVALID(lockstep_prepared_create(communicator, &collective, NULL, &prepared), "output");
  collective.output = &output;
  OK(lockstep_prepared_create(communicator, &collective, NULL, &prepared));
  CHECK(lockstep_prepared_done(prepared) == 1 && sum == 0);
  for (int i = 1; i <= 3; ++i) {
    value = (float)(i * (rank + 1));
    if (i == 2) {
      OK(lockstep_prepared_run(prepared));
    } else {
      OK(lockstep_prepared_start(prepared));
      OK(lockstep_prepared_wait(prepared, 60000));
    }
    CHECK(sum == (float)(i * size));
  }
  lockstep_prepared_destroy(prepared);

  /* Everybody sends first: fine in a group. */
  for (int i = 0; i < 50000; ++i) long_out[i] = (float)(rank + i);
  OK(lockstep_group_start(communicator));
  OK(lockstep_send(communicator, &out, next, 7, 0, NULL));
  OK(lockstep_receive(communicator, &in, previous, 7, 0, NULL, &member));
  MISUSED(lockstep_work_wait(member, 60000), "end the group first");
  OK(lockstep_group_end(communicator, NULL));
  OK(lockstep_work_wait(member, 60000));
  OK(lockstep_work_message(member, &message));
  CHECK(message.source == previous && message.tag == 7 && message.bytes == sizeof(long_in));
  for (int i = 0; i < 50000; ++i) CHECK(long_in[i] == (float)(previous + i));
  lockstep_work_destroy(member);
  MISUSED(lockstep_group_end(communicator, NULL), "no group");

  OK(lockstep_send(communicator, &input, next, 3, 0, &work));
  OK(lockstep_receive(communicator, &in, LOCKSTEP_ANY_SOURCE, LOCKSTEP_ANY_TAG, 0, &message, NULL));
  CHECK(message.source == previous && message.tag == 3 && message.bytes == sizeof(float));
  OK(lockstep_work_wait(work, 60000));
  lockstep_work_destroy(work);
  INVALID(lockstep_send(communicator, &input, size, 3, 0, NULL), "target");

  /* Told when it is over, though nobody waits; and at once when it is over already. */
  pthread_mutex_init(&told.mutex, NULL);
  pthread_cond_init(&told.changed, NULL);
  told.count = told.code = 0;
  OK(lockstep_all_reduce(communicator, &input, &output, LOCKSTEP_MAX, NULL, NULL, &work));
  OK(lockstep_work_on_complete(work, Tell, &told));
  pthread_mutex_lock(&told.mutex);
  while (told.count == 0) pthread_cond_wait(&told.changed, &told.mutex);
  pthread_mutex_unlock(&told.mutex);
  CHECK(lockstep_work_done(work) == 1 && told.code == LOCKSTEP_OK);
  OK(lockstep_work_on_complete(work, Tell, &told));
  CHECK(told.count == 2);
  INVALID(lockstep_work_on_complete(work, NULL, NULL), "callback");
  lockstep_work_destroy(work);

  OK(lockstep_monitored_barrier(communicator, 60000));
  INVALID(lockstep_monitored_barrier(communicator, -1), "timeout_ms");

  OK(lockstep_broadcast_bytes(communicator, rank == 0 ? "configuration" : NULL, rank == 0 ? 13 : 0, 0, &data, &bytes));
  CHECK(bytes == 13 && memcmp(data, "configuration", 13) == 0);
  lockstep_bytes_free(data);
  snprintf(text, sizeof(text), "rank %d%.*s", rank, rank, "!!!!!!!!!!!!!!!!");
  OK(lockstep_gather_bytes(communicator, text, strlen(text), LOCKSTEP_EVERY_RANK, &data, sizes));
  CHECK(memcmp(data, "rank 0", 6) == 0 && sizes[rank] == strlen(text));
  lockstep_bytes_free(data);
  OK(lockstep_gather_bytes(communicator, text, strlen(text), 0, rank == 0 ? &data : NULL, rank == 0 ? sizes : NULL));
  if (rank == 0) lockstep_bytes_free(data);
  lockstep_bytes_free(NULL);
}

/* Communicators made of a communicator. */
static void UseParts(lockstep_communicator* communicator) {
  const int32_t rank = lockstep_communicator_rank(communicator);
  const int32_t size = lockstep_communicator_size(communicator);
  const char* const names[2] = {"dp", "tp"};
  int32_t sizes[2];
  lockstep_communicator *part = NULL, *lines[2] = {NULL, NULL};
  sizes[0] = 1;
  sizes[1] = size;
  OK(lockstep_communicator_split(communicator, 0, -rank, &part));
  CHECK(lockstep_communicator_size(part) == size && lockstep_communicator_rank(part) == size - 1 - rank);
  UseBlocks(part);
  lockstep_communicator_destroy(part);
  OK(lockstep_communicator_split(communicator, -1, 0, &part));
  CHECK(part == NULL);
  OK(lockstep_communicator_duplicate(communicator, &part));
  OK(lockstep_barrier(part, NULL, NULL, NULL));
  OK(lockstep_communicator_mesh(part, names, sizes, 2, lines));
  lockstep_communicator_destroy(part);
  CHECK(lockstep_communicator_size(lines[0]) == 1 && lockstep_communicator_rank(lines[1]) == rank);
  OK(lockstep_barrier(lines[0], NULL, NULL, NULL));
  OK(lockstep_barrier(lines[1], NULL, NULL, NULL));
  lockstep_communicator_destroy(lines[0]);
  lockstep_communicator_destroy(lines[1]);
  sizes[0] = 3;
  INVALID(lockstep_communicator_mesh(communicator, names, sizes, 2, lines), "dp=3");
}

/* Memory of the communicator's allocator, in which every rank may be the first to write. */
static void UseBuffer(lockstep_communicator* communicator, int32_t shared) {
  const int32_t rank = lockstep_communicator_rank(communicator);
  const int32_t size = lockstep_communicator_size(communicator);
  const int64_t count = 10000;
  const size_t bytes = 2 * (size_t)count * sizeof(float);
  lockstep_memory* buffer = NULL;
  lockstep_tensor input, output;
  INVALID(lockstep_memory_create(communicator, 0, LOCKSTEP_HOST, &buffer), "0 bytes");
  INVALID(lockstep_memory_create(NULL, bytes, LOCKSTEP_HOST, &buffer), "communicator");
  INVALID(lockstep_memory_create(communicator, bytes, LOCKSTEP_HOST, NULL), "out_memory");
  OK(lockstep_memory_create(communicator, bytes, LOCKSTEP_HOST, &buffer));
  CHECK(lockstep_memory_bytes(buffer) == bytes);
  CHECK(lockstep_memory_is_shared(buffer) == shared);
  float* values = (float*)lockstep_memory_data(buffer);
  for (int i = 0; i < 2 * count; ++i) CHECK(values[i] == 0);
  input = Vector(values, &count, LOCKSTEP_F32);
  output = Vector(values + count, &count, LOCKSTEP_F32);
  for (int k = 1; k <= 3; ++k) {
    for (int i = 0; i < count; ++i) values[i] = (float)(k * (rank + 1) + i % 7);
    OK(lockstep_all_reduce(communicator, &input, &output, LOCKSTEP_SUM, NULL, NULL, NULL));
    OK(lockstep_all_reduce(communicator, &input, &input, LOCKSTEP_SUM, NULL, NULL, NULL));
    for (int i = 0; i < count; ++i) {
      CHECK(values[i] == (float)(k * size * (size + 1) / 2 + size * (i % 7)));
      CHECK(values[count + i] == values[i]);
    }
  }
  lockstep_memory_destroy(buffer);
  CHECK(lockstep_memory_data(NULL) == NULL && lockstep_memory_bytes(NULL) == 0 && !lockstep_memory_is_shared(NULL));
  lockstep_memory_destroy(NULL);
}

void UseEverything(lockstep_communicator* communicator, int32_t shared) {
  const int32_t rank = lockstep_communicator_rank(communicator);
  const int32_t size = lockstep_communicator_size(communicator);
  const int64_t one = 1, two = 2;
  const int64_t all = size;
  float mine = (float)(rank + 1), out = 0, sum = 0;
  float gathered[16] = {0};
  float values[2];
  const double twice = 2;
  char* text = NULL;
  lockstep_tensor input = Vector(&mine, &one, LOCKSTEP_F32);
  lockstep_tensor output = Vector(&out, &one, LOCKSTEP_F32);
  lockstep_tensor whole = Vector(gathered, &all, LOCKSTEP_F32);
  lockstep_tensor pair = Vector(values, &two, LOCKSTEP_F32);
  lockstep_collective_options options;
  lockstep_work* work = NULL;
  CHECK(size <= 16);

  for (int i = 1; i <= size; ++i) sum += (float)i;
  OK(lockstep_all_reduce(communicator, &input, &output, LOCKSTEP_SUM, NULL, NULL, NULL));
  CHECK(out == sum && mine == (float)(rank + 1));
  OK(lockstep_all_reduce(communicator, &input, &output, LOCKSTEP_AVG, NULL, NULL, NULL));
  CHECK(out == sum / (float)size);
  LOCKSTEP_INIT(options);
  INVALID(lockstep_all_reduce(communicator, &input, &output, LOCKSTEP_PREMUL_SUM, NULL, NULL, NULL), "factor");
  options.factor = &twice;
  INVALID(lockstep_all_reduce(communicator, &input, &output, LOCKSTEP_SUM, &options, NULL, NULL), "factor");
  options.algorithm = size > 1 ? "chain" : NULL; /* folds in rank order */
  OK(lockstep_all_reduce(communicator, &input, &output, LOCKSTEP_PREMUL_SUM, &options, NULL, NULL));
  CHECK(out == 2 * sum);
  OK(lockstep_all_gather(communicator, &input, &whole, NULL, NULL, NULL));
  for (int i = 0; i < size; ++i) CHECK(gathered[i] == (float)(i + 1));
  OK(lockstep_reduce_scatter(communicator, &whole, &output, LOCKSTEP_SUM, NULL, NULL, NULL));
  CHECK(out == (float)((rank + 1) * size));
  out = -1;
  OK(lockstep_reduce(communicator, &input, rank == size - 1 ? &output : NULL, LOCKSTEP_MAX, size - 1, NULL, NULL,
                     NULL));
  CHECK(out == (rank == size - 1 ? (float)size : -1));
  out = mine;
  OK(lockstep_broadcast(communicator, &output, size - 1, NULL, NULL, NULL));
  CHECK(out == (float)size);
  OK(lockstep_barrier(communicator, NULL, NULL, NULL));

  OK(lockstep_all_reduce(communicator, &input, &output, LOCKSTEP_SUM, NULL, NULL, &work));
  /* Longer than nanoseconds can tell. */
  OK(lockstep_work_wait(work, INT64_MAX));
  CHECK(lockstep_work_done(work) == 1 && out == sum);
  lockstep_work_destroy(work);

  INVALID(lockstep_all_reduce(communicator, &input, &pair, LOCKSTEP_SUM, NULL, NULL, NULL), "2");
  INVALID(lockstep_all_reduce(communicator, &input, &output, LOCKSTEP_XOR, NULL, NULL, NULL), "xor");
  INVALID(lockstep_broadcast(communicator, &output, size, NULL, NULL, NULL), "root");

  UseBuffer(communicator, shared);
  UseBlocks(communicator);
  UseLists(communicator, 0);
  UseLists(communicator, 1);
  UseCalls(communicator);
  UseParts(communicator);

  OK(lockstep_communicator_describe(communicator, &text));
  CHECK(strstr(text, "rank") != NULL);
  lockstep_string_free(text);
  OK(lockstep_communicator_flight_records(communicator, &text));
  CHECK(strstr(text, "all_reduce") != NULL && strstr(text, "barrier") != NULL);
  lockstep_string_free(text);
  OK(lockstep_communicator_status(communicator));
}
