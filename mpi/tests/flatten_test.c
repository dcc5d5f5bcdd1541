/*
 * Random datatypes: the layer's shape of each has the MPI library's size and bounds, and takes the
 * bytes that MPI_Pack takes, in its order. Usage: flatten_test SEED COUNT
 */
#include "../backend/backend.h"
#include "random_types.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPETITIONS = 3 };

static int same_bounds(MPI_Datatype type, const tio_shape *shape)
{
  MPI_Count size, lb, extent, true_lb, true_extent;
  MPI_Type_size_x(type, &size);
  MPI_Type_get_extent_x(type, &lb, &extent);
  MPI_Type_get_true_extent_x(type, &true_lb, &true_extent);
  if ((int64_t)tio_shape_size(shape) != size || tio_shape_lb(shape) != lb || tio_shape_extent(shape) != extent) {
    printf("size %lld lb %lld extent %lld, but shape %lld %lld %lld\n", (long long)size, (long long)lb,
           (long long)extent, (long long)tio_shape_size(shape), (long long)tio_shape_lb(shape),
           (long long)tio_shape_extent(shape));
    return 0;
  }
  /* MPICH counts empty blocks, too. */
  int64_t low = tio_shape_true_lb(shape), high = low + tio_shape_true_extent(shape);
  if (size > 0 && (low < true_lb || high > true_lb + true_extent)) {
    printf("true lb %lld extent %lld, but shape %lld %lld\n", (long long)true_lb, (long long)true_extent,
           (long long)tio_shape_true_lb(shape), (long long)tio_shape_true_extent(shape));
    return 0;
  }
  return 1;
}

static int same_bytes(MPI_Datatype type, const tio_shape *shape)
{
  int64_t size = (int64_t)tio_shape_size(shape), extent = tio_shape_extent(shape);
  int64_t low = tio_shape_true_lb(shape), high = low + tio_shape_true_extent(shape);
  if (size == 0)
    return 1;
  if (extent < 0)
    low += (REPETITIONS - 1) * extent;
  else
    high += (REPETITIONS - 1) * extent;
  if (low > 0)
    low = 0;
  unsigned char *memory = malloc((size_t)(high - low) + 1);
  unsigned char *ours = malloc((size_t)(REPETITIONS * size) + 64), *theirs = calloc(1, (size_t)(REPETITIONS * size) + 64);
  struct rng filler = {(uint64_t)size};
  for (int64_t i = 0; i < high - low; i++)
    memory[i] = (unsigned char)rng_next(&filler);
  int at = 0;
  MPI_Pack(memory - low, REPETITIONS, type, theirs, (int)(REPETITIONS * size) + 64, &at, MPI_COMM_SELF);
  int64_t packed = tio_pack(memory - low, REPETITIONS, shape, ours, (size_t)(REPETITIONS * size));
  int good = packed == at && at == REPETITIONS * size && memcmp(ours, theirs, (size_t)at) == 0;
  if (!good)
    printf("MPI_Pack made %d bytes, the shape %lld, of %lld; same: %d\n", at, (long long)packed,
           (long long)(REPETITIONS * size), memcmp(ours, theirs, (size_t)at) == 0);
  free(memory);
  free(ours);
  free(theirs);
  return good;
}

int main(int argc, char **argv)
{
  MPI_Init(&argc, &argv);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
  uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
  int count = argc > 2 ? atoi(argv[2]) : 1000, wrong = 0;
  for (int i = 0; i < count; i++) {
    struct rng rng = {seed + (uint64_t)i};
    MPI_Datatype type = random_memory_type(&rng, rng_below(&rng, 5), 1, MPI_DATATYPE_NULL);
    const struct type *first = NULL, *second = NULL;
    int good = type_of(type, &first) == MPI_SUCCESS && type_of(type, &second) == MPI_SUCCESS && first == second;
    good = good && (same_bounds(type, first->shape) & same_bytes(type, first->shape));
    if (!good) {
      printf("seed %llu is wrong:\n", (unsigned long long)(seed + (uint64_t)i));
      print_type(type, 2);
      wrong++;
    }
    type_drop(&type);
  }
  printf("%d of %d right\n", count - wrong, count);
  MPI_Finalize();
  return wrong != 0;
}
