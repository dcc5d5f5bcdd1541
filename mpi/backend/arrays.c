/*
 * Subarrays and distributed arrays (MPI-4.1, 5.1.3 and 5.1.4) as nested strided runs: each
 * dimension selects blocks of the one below it and has the extent of all of them.
 */
#include "backend.h"

/* `blocks` blocks of `length`, `stride` apart, and a last one of `last`. `first`, `all`: their
 * start, and the size of the whole. Units are children; the result replaces the child. */
struct selection {
  int64_t first, blocks, length, stride, last, all;
};

static int select_dimension(tio_shape **shape, const struct selection *s)
{
  const tio_shape *child = *shape;
  int64_t extent = tio_shape_extent(child), first, stride, end, all;
  if (s->all < 0 || s->blocks < 0 || s->last < 0 || __builtin_mul_overflow(s->first, extent, &first) ||
      __builtin_mul_overflow(s->stride, extent, &stride) || __builtin_mul_overflow(s->all, extent, &all) ||
      __builtin_mul_overflow(s->blocks, stride, &end) || __builtin_add_overflow(end, first, &end))
    return MPI_ERR_TYPE;
  tio_shape *whole = tio_hvector((uint64_t)s->blocks, (uint64_t)s->length, stride, child);
  tio_shape *rest = tio_contiguous((uint64_t)s->last, child);
  tio_shape *both = NULL, *sized = NULL;
  if (whole != NULL && rest != NULL)
    both = tio_struct(2, (uint64_t[]){1, 1}, (int64_t[]){first, end}, (const tio_shape *const[]){whole, rest});
  if (both != NULL)
    sized = tio_resized(0, all, both);
  tio_shape_release(whole);
  tio_shape_release(rest);
  tio_shape_release(both);
  if (sized == NULL)
    return MPI_ERR_TYPE;
  tio_shape_release(*shape);
  *shape = sized;
  return MPI_SUCCESS;
}

/* Returns the number of dimension `i`, counted from the fastest. */
static int dimension_at(int order, int dimensions, int i)
{
  return order == MPI_ORDER_FORTRAN ? i : dimensions - 1 - i;
}

static int finished(int error, tio_shape *shape, tio_shape **out)
{
  if (error != MPI_SUCCESS) {
    tio_shape_release(shape);
    shape = NULL;
  }
  *out = shape;
  return error;
}

int flatten_subarray(const tio_shape *child, int dimensions, const int64_t *sizes, const int64_t *subsizes,
                     const int64_t *starts, int order, tio_shape **out)
{
  tio_shape *shape = tio_shape_retain(child);
  int error = MPI_SUCCESS;
  for (int i = 0; i < dimensions && error == MPI_SUCCESS; i++) {
    int d = dimension_at(order, dimensions, i);
    error = select_dimension(&shape, &(struct selection){.first = starts[d],
                                                         .blocks = 1,
                                                         .length = subsizes[d],
                                                         .stride = subsizes[d],
                                                         .all = sizes[d]});
  }
  return finished(error, shape, out);
}

/* Returns the elements of process `at` of `processes` in a dimension of `all` elements,
 * distributed in blocks of `block`. */
static struct selection dealt(int64_t all, int64_t block, int64_t at, int64_t processes)
{
  struct selection s = {.first = at * block, .length = block, .stride = block * processes, .all = all};
  if (s.first >= all)
    return (struct selection){.all = all};
  int64_t left = all - s.first;
  s.blocks = left / s.stride;
  int64_t beyond = left - s.blocks * s.stride; /* of the last, incomplete round */
  if (beyond >= block)
    s.blocks++;
  else
    s.last = beyond;
  return s;
}

static int distribute(tio_shape **shape, int64_t all, int distribution, int argument, int at, int processes)
{
  if (processes < 1 || all < 0)
    return MPI_ERR_TYPE;
  int64_t block = argument;
  if (distribution == MPI_DISTRIBUTE_NONE)
    return select_dimension(shape, &(struct selection){.blocks = 1, .length = all, .stride = all, .all = all});
  if (argument == MPI_DISTRIBUTE_DFLT_DARG)
    block = distribution == MPI_DISTRIBUTE_BLOCK ? (all + processes - 1) / processes : 1;
  if (block < 1)
    return all == 0 ? select_dimension(shape, &(struct selection){0}) : MPI_ERR_TYPE;
  struct selection s = dealt(all, block, at, processes);
  return select_dimension(shape, &s);
}

int flatten_darray(const tio_shape *child, int size, int rank, int dimensions, const int64_t *sizes,
                   const int *distributions, const int *arguments, const int *grid, int order, tio_shape **out)
{
  tio_shape *shape = tio_shape_retain(child);
  int error = size > 0 ? MPI_SUCCESS : MPI_ERR_TYPE;
  for (int i = 0; i < dimensions && error == MPI_SUCCESS; i++) {
    int d = dimension_at(order, dimensions, i);
    /* Ranks lie in the grid in row-major order, for both orders of the array. */
    int64_t below = 1;
    for (int j = d + 1; j < dimensions; j++)
      below *= grid[j];
    int at = grid[d] > 0 && below > 0 ? (int)(rank / below % grid[d]) : 0;
    error = distribute(&shape, sizes[d], distributions[d], arguments[d], at, grid[d]);
  }
  return finished(error, shape, out);
}
