/* "Buffers and normalisation" of lockstep.h from C99, on two processes. */

#include <string.h>

#include "capi/c_testing.h"

static void TestNulls(void) {
  lockstep_buffer_set_destroy(NULL);
  lockstep_fresh_buffers_destroy(NULL);
  CHECK(lockstep_fresh_buffers_data(NULL, 0) == NULL);
  INVALID(lockstep_buffer_set_broadcast(NULL, NULL, 0, NULL, NULL), "set");
  INVALID(lockstep_buffer_set_create(NULL, NULL, 0, NULL), "communicator");
  INVALID(lockstep_batch_norm_combine(NULL, 0, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL), "communicator");
  INVALID(lockstep_batch_norm_sum_gradients(NULL, 0, NULL, NULL, NULL), "communicator");
}

/* Needs no ranks. 1 + 2^-10 is a float16 and no bfloat16. */
static void TestCast(void) {
  const int64_t two = 2, three = 3;
  float weights[3] = {1.0009765625F, -2, 0};
  uint16_t halves[2] = {0, 0}, brains[2] = {0, 0};
  lockstep_tensor sources[2], targets[2];
  sources[0] = sources[1] = Vector(weights, &two, LOCKSTEP_F32);
  targets[0] = Vector(halves, &two, LOCKSTEP_F16);
  targets[1] = Vector(brains, &two, LOCKSTEP_BF16);
  OK(lockstep_cast_tensors(sources, targets, 2));
  CHECK(halves[0] == 0x3C01 && halves[1] == 0xC000);
  CHECK(brains[0] == 0x3F80 && brains[1] == 0xC000);
  OK(lockstep_cast_tensors(NULL, NULL, 0));
  INVALID(lockstep_cast_tensors(NULL, targets, 1), "sources");
  INVALID(lockstep_cast_tensors(sources, NULL, 1), "targets");
  sources[1] = Vector(weights, &three, LOCKSTEP_F32);
  INVALID(lockstep_cast_tensors(targets, sources, 2), "tensor 1 from bf16[2]");
  sources[1].dtype = 99;
  INVALID(lockstep_cast_tensors(sources, targets, 2), "'sources[1]'");
}

/* A running mean of two channels and a count of batches. */
static void UseBufferSet(lockstep_communicator* communicator) {
  const int32_t rank = lockstep_communicator_rank(communicator);
  const int64_t one = 1, two = 2;
  float means[2] = {(float)rank, (float)(10 * rank)};
  int64_t batches = 100 + rank;
  lockstep_tensor tensors[2];
  lockstep_buffer_set_options options;
  lockstep_buffer_set* set = NULL;
  lockstep_fresh_buffers *fresh = NULL, *later = NULL;
  tensors[0] = Vector(means, &two, LOCKSTEP_F32);
  tensors[1] = Vector(&batches, &one, LOCKSTEP_I64);
  INVALID(lockstep_buffer_set_create(communicator, tensors, 2, NULL), "out_set");
  INVALID(lockstep_buffer_set_create(communicator, NULL, 2, &set), "tensors");
  /* A tensor that only one rank has wrong is an error on all of them. */
  if (rank == 1) tensors[1].dtype = 99;
  FAILS(lockstep_buffer_set_create(communicator, tensors, 2, &set), CodeOfRefusal(rank == 1),
        rank == 1 ? "'tensors[1]': 99" : "cannot take part");
  CHECK(set == NULL);
  tensors[1].dtype = LOCKSTEP_I64;
  OK(lockstep_buffer_set_create(communicator, tensors, 2, &set));

  /* From rank 1 into fresh memory. */
  LOCKSTEP_INIT(options);
  options.root = 1;
  OK(lockstep_buffer_set_broadcast(set, tensors, 2, &options, &fresh));
  const float* fresh_means = (const float*)lockstep_fresh_buffers_data(fresh, 0);
  CHECK(fresh_means[0] == 1 && *(const int64_t*)lockstep_fresh_buffers_data(fresh, 1) == 101);
  CHECK(lockstep_fresh_buffers_data(fresh, 2) == NULL);
  CHECK(means[0] == (float)rank && batches == 100 + rank);

  /* Rank 0 has something else to give. */
  FAILS(lockstep_buffer_set_broadcast(set, tensors, rank == 0 ? 1 : 2, NULL, &later), CodeOfRefusal(rank == 0),
        rank == 0 ? "2 were agreed on" : "rank 0, the root");
  CHECK(later == NULL && batches == 100 + rank);
  if (rank == 0) tensors[0].data = NULL;
  FAILS(lockstep_buffer_set_broadcast(set, tensors, 2, NULL, &later), CodeOfRefusal(rank == 0),
        rank == 0 ? "null data" : "rank 0, the root");
  tensors[0].data = means;
  options.root = 2;
  INVALID(lockstep_buffer_set_broadcast(set, tensors, 2, &options, NULL), "root");
  options.root = 0;
  options.timeout_ms = -1;
  INVALID(lockstep_buffer_set_broadcast(set, tensors, 2, &options, NULL), "timeout_ms");

  /* In place. */
  options.timeout_ms = 60000;
  OK(lockstep_buffer_set_broadcast(set, tensors, 2, &options, NULL));
  CHECK(means[0] == 0 && means[1] == 0 && batches == 100);
  lockstep_buffer_set_destroy(set);
  CHECK(fresh_means[1] == 10);
  lockstep_fresh_buffers_destroy(fresh);
}

/* Two channels. Rank r has r + 1 elements: of channel 0 all of them r, of channel 1 all of them 1. So channel 0 is {0, 1, 1}: mean 2/3,
 * variance 2/9, unbiased 1/3. */
static void UseBatchNorm(lockstep_communicator* communicator) {
  const int32_t rank = lockstep_communicator_rank(communicator);
  float mean[2] = {(float)rank, 1}, variance[2] = {0, 0}, inverse_std[2];
  float sum_dy[2] = {(float)(rank + 1), 10}, sum_dy_xmu[2] = {-1, (float)(100 * rank)};
  float running_mean[2] = {3, 1}, running_variance[2] = {3, 1};
  int64_t count = 0;
  lockstep_batch_norm_options options;
  LOCKSTEP_INIT(options);
  options.running_mean = running_mean;
  INVALID(lockstep_batch_norm_combine(communicator, 2, mean, variance, rank + 1, &options, NULL, NULL, NULL, NULL),
          "running_variance");
  options.running_variance = running_variance;
  options.momentum = 0.5;
  options.epsilon = 0.25;
  /* In place. */
  OK(lockstep_batch_norm_combine(communicator, 2, mean, variance, rank + 1, &options, mean, variance, inverse_std,
                                 &count));
  CHECK(mean[0] == (float)(2.0 / 3) && variance[0] == (float)(2.0 / 9) && inverse_std[1] == 2 && count == 3);
  CHECK(running_mean[0] == (float)(1.5 + 1.0 / 3) && running_variance[0] == (float)(1.5 + 1.0 / 6));
  INVALID(lockstep_batch_norm_combine(communicator, 2, NULL, variance, 0, NULL, NULL, NULL, NULL, NULL), "mean");
  INVALID(lockstep_batch_norm_combine(communicator, 2, mean, NULL, 0, NULL, NULL, NULL, NULL, NULL), "variance");
  INVALID(lockstep_batch_norm_combine(communicator, 2, mean, variance, -1, NULL, NULL, NULL, NULL, NULL), "count");
  options.epsilon = -1;
  INVALID(lockstep_batch_norm_combine(communicator, 2, mean, variance, 1, &options, NULL, NULL, NULL, NULL), "epsilon");
  /* Defaults: epsilon 1e-5. */
  OK(lockstep_batch_norm_combine(communicator, 2, mean, variance, 0, NULL, NULL, NULL, inverse_std, &count));
  CHECK(count == 0 && inverse_std[0] > 316.2F && inverse_std[0] < 316.3F);

  OK(lockstep_batch_norm_sum_gradients(communicator, 2, sum_dy, sum_dy_xmu, NULL));
  CHECK(sum_dy[0] == 3 && sum_dy[1] == 20 && sum_dy_xmu[0] == -2 && sum_dy_xmu[1] == 100);
  INVALID(lockstep_batch_norm_sum_gradients(communicator, 2, NULL, sum_dy_xmu, NULL), "sum_dy");
  INVALID(lockstep_batch_norm_sum_gradients(communicator, 2, sum_dy, NULL, NULL), "sum_dy_xmu");
}

static void UseAll(lockstep_communicator* communicator) {
  UseBufferSet(communicator);
  UseBatchNorm(communicator);
}

int main(void) {
  TestNulls();
  TestCast();
  RunWorld(2, UseAll);
  return 0;
}
