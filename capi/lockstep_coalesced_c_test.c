/* Lists of tensors as one collective, from C99: the four calls over dtypes, lists, places and ways to wait for them, and what is refused.
 * Ranks cut the same vector into different tensors. On a world of one, and on three processes over shared memory and over TCP. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "capi/c_testing.h"
#include "capi/lockstep.h"

#define RANKS 3
#define TENSORS 161
/* Elements of a block of the vector: what 160 tensors of at most 60 do not fill. */
#define BLOCK 6007
#define GAPS (2 * 3 * TENSORS)

enum { ALL_REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, KINDS };
enum { RETURNS_WHEN_DONE, HAS_WORK, IS_IN_GROUP, IS_PREPARED, IS_PREPARED_AND_RUN, WAYS };

typedef struct Case {
  int kind;
  int32_t dtype;
  size_t count; /* of tensors */
  int in_place; /* 0: none of them, 1: all, 2: every second one */
  int gap;      /* elements between tensors */
  int factor;   /* not 1: a premultiplied sum */
  int way;
} Case;

static lockstep_tensor inputs[TENSORS], outputs[TENSORS];
static int64_t shapes[2][TENSORS];

static void Put(void* memory, int32_t dtype, size_t index, int value) {
  const float number = (float)value;
  uint32_t bits;
  memcpy(&bits, &number, sizeof(bits));
  if (dtype == LOCKSTEP_BF16) {
    ((uint16_t*)memory)[index] = (uint16_t)(bits >> 16);
  } else if (dtype == LOCKSTEP_F32) {
    ((uint32_t*)memory)[index] = bits;
  } else {
    ((int32_t*)memory)[index] = value;
  }
}

/* An element of a rank's input. */
static int Value(int rank, int block, int64_t position) {
  return (int)((3 * position + 7 * block + 5 * rank) % 11) - 4;
}

/* An element of this rank's output. */
static int Result(const Case* c, int rank, int size, int block, int64_t position) {
  int sum = 0;
  if (c->kind == BROADCAST) return Value(size - 1, 0, position);
  if (c->kind == ALL_GATHER) return Value(block, 0, position);
  for (int r = 0; r < size; ++r) sum += Value(r, c->kind == REDUCE_SCATTER ? rank : 0, position);
  return sum * c->factor;
}

static lockstep_error* Call(lockstep_communicator* communicator, int kind, size_t count, lockstep_reduce_op op,
                            const lockstep_collective_options* options, lockstep_work** work) {
  const int32_t size = lockstep_communicator_size(communicator);
  switch (kind) {
    case ALL_REDUCE:
      return lockstep_all_reduce_coalesced(communicator, inputs, outputs, count, op, options, NULL, work);
    case BROADCAST:
      return lockstep_broadcast_coalesced(communicator, outputs, count, size - 1, options, NULL, work);
    case ALL_GATHER:
      return lockstep_all_gather_coalesced(communicator, inputs, outputs, count, options, NULL, work);
    default:
      return lockstep_reduce_scatter_coalesced(communicator, inputs, outputs, count, op, options, NULL, work);
  }
}

static void ExecutePrepared(lockstep_communicator* communicator, const Case* c, lockstep_reduce_op op,
                            const lockstep_collective_options* options) {
  static const lockstep_collective_kind kinds[] = {LOCKSTEP_COLLECTIVE_ALL_REDUCE, LOCKSTEP_COLLECTIVE_BROADCAST,
                                                   LOCKSTEP_COLLECTIVE_ALL_GATHER, LOCKSTEP_COLLECTIVE_REDUCE_SCATTER};
  lockstep_collective collective;
  lockstep_prepared* prepared = NULL;
  LOCKSTEP_INIT(collective);
  collective.kind = kinds[c->kind];
  collective.op = op;
  collective.root = lockstep_communicator_size(communicator) - 1;
  collective.input = c->kind == BROADCAST ? outputs : inputs;
  collective.output = outputs;
  collective.tensor_count = c->count;
  OK(lockstep_prepared_create(communicator, &collective, options, &prepared));
  if (c->way == IS_PREPARED_AND_RUN) {
    OK(lockstep_prepared_run(prepared));
  } else {
    OK(lockstep_prepared_start(prepared));
    OK(lockstep_prepared_wait(prepared, 60000));
  }
  lockstep_prepared_destroy(prepared);
}

static void Execute(lockstep_communicator* communicator, const Case* c) {
  const double factor = c->factor;
  const lockstep_reduce_op op = c->factor == 1 ? LOCKSTEP_SUM : LOCKSTEP_PREMUL_SUM;
  const int64_t one = 1;
  const int32_t size = lockstep_communicator_size(communicator);
  float single = 1;
  lockstep_tensor other = Vector(&single, &one, LOCKSTEP_F32);
  lockstep_collective_options options;
  lockstep_work* work = NULL;
  LOCKSTEP_INIT(options);
  if (c->factor != 1) options.factor = &factor;
  if (c->way == RETURNS_WHEN_DONE) {
    OK(Call(communicator, c->kind, c->count, op, &options, NULL));
    return;
  }
  if (c->way == IS_PREPARED || c->way == IS_PREPARED_AND_RUN) {
    ExecutePrepared(communicator, c, op, &options);
    return;
  }
  if (c->way == IS_IN_GROUP) OK(lockstep_group_start(communicator));
  OK(Call(communicator, c->kind, c->count, op, &options, &work));
  /* The caller's arrays have been copied. */
  memset(inputs, 0x7f, sizeof(inputs));
  memset(outputs, 0x7f, sizeof(outputs));
  memset(shapes, 0x7f, sizeof(shapes));
  if (c->way == IS_IN_GROUP) {
    OK(lockstep_all_reduce(communicator, &other, &other, LOCKSTEP_SUM, NULL, NULL, NULL));
    MISUSED(lockstep_work_wait(work, 60000), "end the group first");
    OK(lockstep_group_end(communicator, NULL));
    CHECK(single == (float)size);
  }
  OK(lockstep_work_wait(work, 60000));
  lockstep_work_destroy(work);
}

/* Compares all memory around the tensors too: nothing is written but outputs. */
static void RunCase(lockstep_communicator* communicator, const Case* c) {
  static uint64_t memory[((RANKS + 1) * BLOCK + GAPS) / 2], expected[sizeof(memory) / sizeof(memory[0])];
  static char* targets[TENSORS];
  const int rank = lockstep_communicator_rank(communicator), size = lockstep_communicator_size(communicator);
  const int in_blocks = c->kind == REDUCE_SCATTER ? size : 1, out_blocks = c->kind == ALL_GATHER ? size : 1;
  const int by_rank = c->kind == ALL_GATHER || c->kind == REDUCE_SCATTER;
  const size_t element = lockstep_dtype_size(c->dtype);
  int64_t lengths[TENSORS], position = 0;
  char* next = (char*)memory;
  memset(memory, 0x5a, sizeof(memory));
  for (size_t i = 0; i < c->count; ++i) {
    const int64_t length = i + 1 < c->count ? (int64_t)(31 * i + 17 * (size_t)rank) % 61 : BLOCK - position;
    const int here = c->kind == BROADCAST || (c->in_place > 0 && i % (size_t)c->in_place == 0);
    const int whole_blocks = by_rank ? size : 1;
    char* const whole = next;
    char* part = whole + (by_rank ? (size_t)(rank * length) * element : 0);
    next += (size_t)(whole_blocks * length + c->gap) * element;
    if (!here) {
      part = next;
      next += (size_t)(length + c->gap) * element;
    }
    char* const source = c->kind == ALL_GATHER ? part : whole;
    targets[i] = c->kind == ALL_GATHER ? whole : part;
    lengths[i] = length;
    shapes[0][i] = in_blocks * length;
    shapes[1][i] = out_blocks * length;
    inputs[i] = Vector(source, &shapes[0][i], c->dtype);
    outputs[i] = Vector(targets[i], &shapes[1][i], c->dtype);
    for (int b = 0; b < in_blocks; ++b) {
      for (int64_t k = 0; k < length; ++k) {
        Put(source, c->dtype, (size_t)(b * length + k), Value(rank, b, position + k));
      }
    }
    position += length;
  }
  CHECK(next <= (char*)memory + sizeof(memory));
  memcpy(expected, memory, sizeof(memory));
  Execute(communicator, c);
  position = 0;
  for (size_t i = 0; i < c->count; position += lengths[i++]) {
    char* const target = (char*)expected + (targets[i] - (char*)memory);
    for (int b = 0; b < out_blocks; ++b) {
      for (int64_t k = 0; k < lengths[i]; ++k) {
        Put(target, c->dtype, (size_t)(b * lengths[i] + k), Result(c, rank, size, b, position + k));
      }
    }
  }
  if (memcmp(memory, expected, sizeof(memory)) == 0) return;
  fprintf(stderr, "kind %d, dtype %d, %d tensors, in place %d, gap %d, factor %d, way %d\n", c->kind, (int)c->dtype,
          (int)c->count, c->in_place, c->gap, c->factor, c->way);
  exit(1);
}

static void UseCases(lockstep_communicator* communicator) {
  static const int32_t dtypes[3] = {LOCKSTEP_F32, LOCKSTEP_BF16, LOCKSTEP_I32};
  static const size_t counts[3] = {1, 2, TENSORS};
  Case c;
  for (c.kind = 0; c.kind < KINDS; ++c.kind) {
    for (int d = 0; d < 3; ++d) {
      c.dtype = dtypes[d];
      const int multiplies = (c.kind == ALL_REDUCE || c.kind == REDUCE_SCATTER) && c.dtype != LOCKSTEP_I32;
      for (int n = 0; n < 3; ++n) {
        c.count = counts[n];
        for (c.in_place = 0; c.in_place < (c.kind == BROADCAST ? 1 : 3); ++c.in_place) {
          /* Without gaps, inputs and outputs are one range each where all are in place. */
          const int without_gaps = c.in_place == 1 || c.kind == BROADCAST;
          for (c.gap = without_gaps ? 0 : 3; c.gap <= 3; c.gap += 3) {
            for (c.factor = 1; c.factor <= 1 + multiplies; ++c.factor) {
              for (c.way = 0; c.way < WAYS; ++c.way) RunCase(communicator, &c);
            }
          }
        }
      }
    }
  }
}

/* The newest record's number. */
static int LastRecord(lockstep_communicator* communicator, const char* part) {
  char* text = NULL;
  OK(lockstep_communicator_flight_records(communicator, &text));
  const char* const last = strrchr(text, '#');
  CHECK(last != NULL && strstr(last, part) != NULL);
  const int number = atoi(last + 1);
  lockstep_string_free(text);
  return number;
}

static void UseOneRecord(lockstep_communicator* communicator) {
  const Case c = {ALL_REDUCE, LOCKSTEP_F32, TENSORS, 0, 3, 1, RETURNS_WHEN_DONE};
  OK(lockstep_barrier(communicator, NULL, NULL, NULL));
  const int before = LastRecord(communicator, "");
  RunCase(communicator, &c);
  CHECK(LastRecord(communicator, "6007 f32 sum") == before + 1);
}

static void UseNoElements(lockstep_communicator* communicator) {
  static const int64_t none = 0;
  lockstep_work* work = NULL;
  for (int kind = 0; kind < KINDS; ++kind) {
    for (int i = 0; i < 3; ++i) inputs[i] = outputs[i] = Vector(NULL, &none, LOCKSTEP_I32);
    for (size_t count = 0; count <= 3; count += 3) {
      OK(Call(communicator, kind, count, LOCKSTEP_XOR, NULL, NULL));
      OK(Call(communicator, kind, count, LOCKSTEP_XOR, NULL, &work));
      OK(lockstep_work_wait(work, 60000));
      lockstep_work_destroy(work);
    }
  }
  OK(lockstep_all_reduce_coalesced(communicator, NULL, NULL, 0, LOCKSTEP_SUM, NULL, NULL, NULL));
  OK(lockstep_broadcast_coalesced(communicator, NULL, 0, 0, NULL, NULL, NULL));
}

static void UseWrongLists(lockstep_communicator* communicator) {
  static float values[64];
  static const int64_t two = 2, five = 5;
  const int64_t all = 5 * lockstep_communicator_size(communicator), wide = 10;
  const int64_t rows[2] = {5, 1}, strides[2] = {2, 1};
  const lockstep_tensor first = Vector(values, &five, LOCKSTEP_F32);
  lockstep_stream on_gpu;
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
  if (all != wide) {
    INVALID(lockstep_all_gather_coalesced(communicator, list, others, 1, NULL, NULL, NULL), "output has 10 elements");
  }

  INVALID(lockstep_all_reduce_coalesced(communicator, list, list, 1, LOCKSTEP_XOR, NULL, NULL, NULL), "xor");
  INVALID(lockstep_all_reduce_coalesced(communicator, list, list, 1, LOCKSTEP_PREMUL_SUM, NULL, NULL, NULL), "factor");
  INVALID(lockstep_broadcast_coalesced(communicator, list, 1, 77, NULL, NULL, NULL), "root 77");
  INVALID(lockstep_broadcast_coalesced(communicator, NULL, 0, 77, NULL, NULL, NULL), "root 77");
  INVALID(lockstep_broadcast_coalesced(communicator, NULL, 1, 0, NULL, NULL, NULL), "'tensors'");
  INVALID(lockstep_all_gather_coalesced(communicator, NULL, list, 1, NULL, NULL, NULL), "'inputs'");
  INVALID(lockstep_all_gather_coalesced(communicator, list, NULL, 1, NULL, NULL, NULL), "'outputs'");
  INVALID(lockstep_broadcast_coalesced(NULL, list, 1, 0, NULL, NULL, NULL), "'communicator'");
  memset(&on_gpu, 0, sizeof(on_gpu));
  on_gpu.device_kind = LOCKSTEP_CUDA;
  INVALID(lockstep_broadcast_coalesced(communicator, list, 1, 0, NULL, &on_gpu, NULL), "cuda:0");
  INVALID(lockstep_broadcast_coalesced(communicator, list, 1, 0, NULL, &on_gpu, &work), "no work");
  OK(lockstep_broadcast_coalesced(communicator, list, 1, 0, NULL, NULL, NULL));
}

static void UseLists(lockstep_communicator* communicator) {
  UseCases(communicator);
  UseOneRecord(communicator);
  UseNoElements(communicator);
  UseWrongLists(communicator);
  OK(lockstep_communicator_status(communicator));
}

/* In checked mode the communicator stays usable. */
static void Differ(lockstep_communicator* communicator) {
  static float values[2][3];
  const int64_t count = lockstep_communicator_rank(communicator) == 0 ? 2 : 3;
  const Case c = {REDUCE_SCATTER, LOCKSTEP_BF16, TENSORS, 2, 3, 2, HAS_WORK};
  for (int i = 0; i < 2; ++i) outputs[i] = Vector(values[i], &count, LOCKSTEP_F32);
  MISUSED(Call(communicator, BROADCAST, 2, LOCKSTEP_SUM, NULL, NULL), "the ranks' collectives differ: ");
  MISUSED(Call(communicator, BROADCAST, count == 2 ? 2 : 0, LOCKSTEP_SUM, NULL, NULL),
          "the ranks' collectives differ: ");
  RunCase(communicator, &c);
}

static void RunRank(int32_t rank, int32_t size, const char* folder) {
  static const char* const transports[2] = {"shm", "tcp"};
  lockstep_communicator_options options;
  char name[2][8] = {"shm", "tcp"};
  LOCKSTEP_INIT(options);
  for (int i = 0; i < 2; ++i) {
    options.transport = transports[i];
    for (options.checked = 0; options.checked <= 1; ++options.checked) {
      strcat(name[i], "!");
      lockstep_communicator* communicator = MeetWith(rank, size, folder, name[i], &options);
      (options.checked ? Differ : UseLists)(communicator);
      OK(lockstep_barrier(communicator, NULL, NULL, NULL));
      lockstep_communicator_destroy(communicator);
    }
  }
}

int main(void) {
  RunAlone(UseLists);
  RunRanks(RANKS, RunRank);
  return 0;
}
