/* The smallest complete embedding: two processes average the gradients of a model of two parameters.
 *
 *   cc -std=c99 two_ranks.c $(pkg-config --cflags --libs lockstep) -o two_ranks && ./two_ranks
 *
 * The program forks its second rank before it makes any handle; they meet in a file. */

#define _POSIX_C_SOURCE 200809L

#include <lockstep.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void Require(lockstep_error* error) {
  if (error == NULL) return;
  fprintf(stderr, "%s\n", lockstep_error_message(error));
  lockstep_error_free(error);
  exit(1);
}

static lockstep_tensor Gradient(float* data, const int64_t* count) {
  lockstep_tensor tensor;
  memset(&tensor, 0, sizeof(tensor));
  tensor.data = data;
  tensor.shape = count;
  tensor.dimensions = 1;
  tensor.dtype = LOCKSTEP_F32;
  return tensor;
}

static int Train(int32_t rank, const char* store) {
  const int64_t weights = 4, biases = 1;
  const int64_t* shapes[2];
  const char* names[2] = {"weight", "bias"};
  float weight[4], bias[1];
  lockstep_tensor gradients[2];
  lockstep_parameter parameters[2];
  lockstep_communicator_options options;
  lockstep_communicator* communicator = NULL;
  lockstep_reducer* reducer = NULL;
  int i;

  LOCKSTEP_INIT(options);
  options.world_size = 2;
  options.rank = rank;
  options.store_url = store;
  options.setup_timeout_ms = 30000;
  Require(lockstep_communicator_create(&options, &communicator));

  shapes[0] = &weights;
  shapes[1] = &biases;
  for (i = 0; i < 2; ++i) {
    LOCKSTEP_INIT(parameters[i]);
    parameters[i].name = names[i];
    parameters[i].shape = shapes[i];
    parameters[i].dimensions = 1;
    parameters[i].dtype = LOCKSTEP_F32;
  }
  Require(lockstep_reducer_create(communicator, parameters, 2, NULL, &reducer));

  /* One step: the backward pass reports each gradient as it appears, the last layer's first. */
  Require(lockstep_reducer_begin_backward(reducer, NULL));
  bias[0] = (float)(10 * (rank + 1));
  gradients[1] = Gradient(bias, &biases);
  Require(lockstep_reducer_mark_ready(reducer, 1, &gradients[1], NULL));
  for (i = 0; i < 4; ++i) weight[i] = (float)(rank + 1);
  gradients[0] = Gradient(weight, &weights);
  Require(lockstep_reducer_mark_ready(reducer, 0, &gradients[0], NULL));
  Require(lockstep_reducer_end_backward(reducer, NULL));

  printf("rank %d of %d: weight gradient %g, bias gradient %g\n", (int)rank,
         (int)lockstep_communicator_size(communicator), weight[0], bias[0]);
  lockstep_reducer_destroy(reducer);
  lockstep_communicator_destroy(communicator);
  return weight[3] == 1.5f && bias[0] == 15.0f ? 0 : 1;
}

int main(void) {
  char folder[] = "/tmp/lockstep-example-XXXXXX";
  char path[64], url[96];
  pid_t child;
  int result, status = 0;
  if (mkdtemp(folder) == NULL) return 1;
  snprintf(path, sizeof(path), "%s/store", folder);
  snprintf(url, sizeof(url), "file://%s", path);
  child = fork();
  if (child == 0) return Train(1, url);
  result = Train(0, url);
  waitpid(child, &status, 0);
  unlink(path);
  rmdir(folder);
  return result != 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}
