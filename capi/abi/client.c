/* A client of the C ABI, built against the header of any version from 0.3 on and run with today's library. It passes every struct
 * that states its size, in both directions, with guards around those that the library writes; two ranks, as threads.
 *
 * LOCKSTEP_HEADER names the header. Only fields of the first 0.3 header but the last of each struct are used. */

#define _POSIX_C_SOURCE 200809L

#include LOCKSTEP_HEADER

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                               \
  do {                                                                 \
    if (!(condition)) {                                                \
      fprintf(stderr, "line %d: %s is false\n", __LINE__, #condition); \
      exit(1);                                                         \
    }                                                                  \
  } while (0)

static void Ok(lockstep_error* error, int line) {
  if (error == NULL) return;
  fprintf(stderr, "line %d: %s\n", line, lockstep_error_message(error));
  exit(1);
}
#define OK(call) Ok(call, __LINE__)

/* A struct that the library fills in, between bytes that it must leave alone. */
#define GUARD 256
#define GUARDED(type)            \
  struct {                       \
    unsigned char before[GUARD]; \
    type value;                  \
    unsigned char after[GUARD];  \
  }
#define ARM(guarded) (memset(&(guarded), 0x5a, sizeof(guarded)), LOCKSTEP_INIT((guarded).value))
#define CHECK_GUARDS(guarded) (CheckGuard((guarded).before), CheckGuard((guarded).after))

static void CheckGuard(const unsigned char* guard) {
  for (int i = 0; i < GUARD; ++i) CHECK(guard[i] == 0x5a);
}

/* The embedder's store: a few keys in memory. */
typedef struct Entry {
  char key[512];
  char value[4096];
  size_t bytes;
} Entry;

static struct {
  pthread_mutex_t mutex;
  Entry entries[64];
  int count;
} dictionary = {PTHREAD_MUTEX_INITIALIZER, {{{0}, {0}, 0}}, 0};

static Entry* Find(const char* key) {
  for (int i = 0; i < dictionary.count; ++i) {
    if (strcmp(dictionary.entries[i].key, key) == 0) return &dictionary.entries[i];
  }
  return NULL;
}

static lockstep_code Set(void* context, const char* key, const void* value, size_t value_bytes, int64_t timeout_ms) {
  Entry* entry;
  (void)context;
  (void)timeout_ms;
  pthread_mutex_lock(&dictionary.mutex);
  entry = Find(key);
  if (entry == NULL) {
    CHECK(dictionary.count < 64 && strlen(key) < sizeof(entry->key));
    entry = &dictionary.entries[dictionary.count++];
    strcpy(entry->key, key);
  }
  CHECK(value_bytes <= sizeof(entry->value));
  memcpy(entry->value, value, value_bytes);
  entry->bytes = value_bytes;
  pthread_mutex_unlock(&dictionary.mutex);
  return LOCKSTEP_OK;
}

static lockstep_code Get(void* context, const char* key, void* buffer, size_t capacity, size_t* out_value_bytes,
                         int64_t timeout_ms) {
  lockstep_code code = LOCKSTEP_NOT_FOUND;
  const Entry* entry;
  (void)context;
  (void)timeout_ms;
  pthread_mutex_lock(&dictionary.mutex);
  entry = Find(key);
  if (entry != NULL) {
    memcpy(buffer, entry->value, entry->bytes < capacity ? entry->bytes : capacity);
    *out_value_bytes = entry->bytes;
    code = LOCKSTEP_OK;
  }
  pthread_mutex_unlock(&dictionary.mutex);
  return code;
}

/* Counts the releases of a context. */
static void Release(void* context) { ++*(int*)context; }

static lockstep_tensor Vector(float* data, const int64_t* count) {
  lockstep_tensor tensor;
  memset(&tensor, 0, sizeof(tensor));
  tensor.data = data;
  tensor.shape = count;
  tensor.dimensions = 1;
  tensor.dtype = LOCKSTEP_F32;
  return tensor;
}

static lockstep_communicator* Connect(int32_t rank) {
  lockstep_store_callbacks callbacks;
  lockstep_store* store = NULL;
  lockstep_communicator_options options;
  lockstep_communicator* communicator = NULL;
  int released = 0;
  LOCKSTEP_INIT(callbacks);
  callbacks.context = &released;
  callbacks.release = Release;
  callbacks.set = Set;
  callbacks.get = Get;
  OK(lockstep_store_create(&callbacks, &store));
  LOCKSTEP_INIT(options);
  options.world_size = 2;
  options.rank = rank;
  options.store = store;
  options.setup_timeout_ms = 60000;
  options.chunk_bytes = 65536;
  options.transport = "tcp";
  OK(lockstep_communicator_create(&options, &communicator));
  CHECK(released == 0);
  lockstep_store_destroy(store);
  CHECK(released == 1);
  return communicator;
}

static void UseCollectives(lockstep_communicator* communicator, float mine) {
  const int64_t one = 1;
  const double twice = 2;
  float sum = 0;
  const lockstep_tensor input = Vector(&mine, &one), output = Vector(&sum, &one);
  lockstep_collective_options options;
  lockstep_collective collective;
  lockstep_prepared* prepared = NULL;
  LOCKSTEP_INIT(options);
  options.timeout_ms = 60000;
  options.factor = &twice;
  OK(lockstep_all_reduce(communicator, &input, &output, LOCKSTEP_PREMUL_SUM, &options, NULL, NULL));
  CHECK(sum == 6);
  LOCKSTEP_INIT(collective);
  collective.kind = LOCKSTEP_COLLECTIVE_ALL_REDUCE;
  collective.input = &input;
  collective.output = &output;
  OK(lockstep_prepared_create(communicator, &collective, NULL, &prepared));
  OK(lockstep_prepared_start(prepared));
  OK(lockstep_prepared_wait(prepared, 60000));
  CHECK(sum == 3);
  lockstep_prepared_destroy(prepared);
}

static void UseBuffers(lockstep_communicator* communicator, float mine) {
  const int64_t one = 1;
  float mean = mine, variance = 0, running_mean = 0, running_variance = 1;
  const lockstep_tensor buffer = Vector(&mine, &one);
  lockstep_buffer_set_options set_options;
  lockstep_batch_norm_options norm;
  lockstep_buffer_set* set = NULL;
  int64_t count = 0;
  OK(lockstep_buffer_set_create(communicator, &buffer, 1, &set));
  LOCKSTEP_INIT(set_options);
  set_options.root = 1;
  OK(lockstep_buffer_set_broadcast(set, &buffer, 1, &set_options, NULL));
  CHECK(mine == 2);
  lockstep_buffer_set_destroy(set);
  LOCKSTEP_INIT(norm);
  norm.momentum = 1;
  (void)running_mean;
  (void)running_variance;
  OK(lockstep_batch_norm_combine(communicator, 1, &mean, &variance, 1, &norm, &mean, NULL, NULL, &count));
  CHECK(mean == 1.5F && count == 2);
}

#define PARAMETERS 3

static lockstep_error* See(void* context, const lockstep_reduced_bucket* bucket) {
  (void)context;
  CHECK(bucket->struct_size >= sizeof(*bucket) && (bucket->parameter_count == 0 || bucket->gradients != NULL));
  return NULL;
}

static void UseReducer(lockstep_communicator* communicator, float mine) {
  static const char* const names[PARAMETERS] = {"a", "b", "c"};
  const int64_t one = 1;
  float values[PARAMETERS], buffer = mine;
  const lockstep_tensor buffers = Vector(&buffer, &one);
  lockstep_parameter table[PARAMETERS];
  lockstep_reducer_options options;
  lockstep_reducer_buffer_options buffer_options;
  lockstep_forward_options forward;
  lockstep_backward_options backward;
  lockstep_reducer* reducer = NULL;
  GUARDED(lockstep_reducer_statistics) statistics;
  GUARDED(lockstep_bucket_statistics) bucket;
  int i, released = 0;
  size_t unused = 1;
  for (i = 0; i < PARAMETERS; ++i) {
    LOCKSTEP_INIT(table[i]);
    table[i].name = names[i];
    table[i].shape = &one;
    table[i].dimensions = 1;
    table[i].dtype = LOCKSTEP_F32;
  }
  LOCKSTEP_INIT(options);
  options.find_unused_parameters = 1;
  options.bucket_cap_bytes = 1;
  options.optimizer_step = See;
  options.optimizer_context = &released;
  options.optimizer_release = Release;
  OK(lockstep_reducer_create(communicator, table, PARAMETERS, &options, &reducer));

  LOCKSTEP_INIT(forward);
  OK(lockstep_reducer_begin_forward(reducer, &forward, NULL));
  LOCKSTEP_INIT(buffer_options);
  buffer_options.root = 1;
  buffer_options.in_place = 1;
  OK(lockstep_reducer_set_buffers(reducer, &buffers, 1, &buffer_options));
#ifndef LOCKSTEP_CUT_HEADER
  forward.buffers = &buffers;
  forward.buffer_count = 1; /* the last field */
  OK(lockstep_reducer_begin_forward(reducer, &forward, NULL));
  CHECK(buffer == 2);
#endif

  LOCKSTEP_INIT(backward);
  backward.unused_given = 1;
  backward.unused = &unused;
  backward.unused_count = 1;
  OK(lockstep_reducer_begin_backward(reducer, &backward));
  for (i = PARAMETERS; i-- > 0;) {
    lockstep_tensor gradient = Vector(&values[i], &one);
    if (i == 1) continue;
    values[i] = mine * (float)(i + 1);
    OK(lockstep_reducer_mark_ready(reducer, (size_t)i, &gradient, NULL));
  }
  OK(lockstep_reducer_end_backward(reducer, NULL));
  CHECK(values[0] == 1.5F && values[2] == 4.5F);

  ARM(statistics);
  OK(lockstep_reducer_get_statistics(reducer, &statistics.value));
  CHECK_GUARDS(statistics);
  CHECK(statistics.value.struct_size == sizeof(statistics.value) && statistics.value.steps == 1);
  CHECK(statistics.value.bytes_reduced > 0);
  ARM(bucket);
  OK(lockstep_reducer_get_bucket_statistics(reducer, 0, &bucket.value));
  CHECK_GUARDS(bucket);
  CHECK(bucket.value.struct_size == sizeof(bucket.value) && bucket.value.done_ms >= bucket.value.ready_ms);
  CHECK(released == 0);
  lockstep_reducer_destroy(reducer);
  CHECK(released == 1);
}

static void* RunRank(void* context) {
  const int32_t rank = *(const int32_t*)context;
  lockstep_communicator* communicator = Connect(rank);
  UseCollectives(communicator, (float)(rank + 1));
  UseBuffers(communicator, (float)(rank + 1));
  UseReducer(communicator, (float)(rank + 1));
  lockstep_communicator_destroy(communicator);
  return NULL;
}

int main(void) {
  static int32_t ranks[2] = {0, 1};
  pthread_t other;
  CHECK(lockstep_version() >= LOCKSTEP_VERSION);
  CHECK(pthread_create(&other, NULL, RunRank, &ranks[1]) == 0);
  RunRank(&ranks[0]);
  CHECK(pthread_join(other, NULL) == 0);
  printf("passed\n");
  return 0;
}
