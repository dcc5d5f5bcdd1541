/*
 * Datatypes as shapes: MPI_Type_get_envelope and MPI_Type_get_contents, recursively. The library's
 * own lower bound and extent win where they differ from the constructors' (it chooses the padding
 * of structures).
 */
#include "contents.h"

#include <stdlib.h>

static int made(tio_shape *shape, tio_shape **out)
{
  *out = shape;
  return shape != NULL ? MPI_SUCCESS : MPI_ERR_TYPE;
}

/* A basic type. The pairs of MPI_MINLOC have a gap: a value, then an int at the next multiple of
 * its size. */
static int leaf(MPI_Datatype datatype, enum representation rep, tio_shape **out)
{
  MPI_Count size = 0, lb = 0, extent = 0;
  if (rep == EXTERNAL32) {
    int64_t dense = 0;
    int error = external32_dense(datatype, &dense);
    return error != MPI_SUCCESS ? error : made(tio_bytes((uint64_t)dense), out);
  }
  if (PMPI_Type_size_x(datatype, &size) != MPI_SUCCESS ||
      PMPI_Type_get_extent_x(datatype, &lb, &extent) != MPI_SUCCESS || size < 0)
    return MPI_ERR_TYPE;
  tio_shape *bytes = tio_bytes(1);
  int64_t aligned = (size - (int64_t)sizeof(int) + (int64_t)sizeof(int) - 1) / (int64_t)sizeof(int) *
                    (int64_t)sizeof(int);
  if (size == extent || size < (int64_t)sizeof(int))
    made(tio_contiguous((uint64_t)size, bytes), out);
  else
    made(tio_hindexed(2, (uint64_t[]){(uint64_t)size - sizeof(int), sizeof(int)}, (int64_t[]){0, aligned}, bytes),
         out);
  tio_shape_release(bytes);
  return *out != NULL ? MPI_SUCCESS : MPI_ERR_TYPE;
}

/* The three arrays of indexed types and structures. */
struct blocks {
  size_t count;
  uint64_t *lengths;
  int64_t *displacements;
};

static bool blocks_make(struct contents *c, struct blocks *blocks)
{
  int64_t count = take_count(c);
  if (c->broken || count < 0)
    return false;
  blocks->count = (size_t)count;
  blocks->lengths = calloc(blocks->count + 1, sizeof *blocks->lengths);
  blocks->displacements = calloc(blocks->count + 1, sizeof *blocks->displacements);
  return blocks->lengths != NULL && blocks->displacements != NULL;
}

static void blocks_free(struct blocks *blocks)
{
  free(blocks->lengths);
  free(blocks->displacements);
}

/* indexed and indexed_block (displacements in extents of the child), hindexed and hindexed_block
 * (in bytes). */
static int indexed(struct contents *c, const tio_shape *child, bool one_length, bool in_bytes, tio_shape **out)
{
  int64_t extent = tio_shape_extent(child);
  struct blocks blocks = {0};
  bool good = blocks_make(c, &blocks);
  uint64_t length = good && one_length ? (uint64_t)take_count(c) : 0;
  for (size_t i = 0; good && i < blocks.count; i++)
    blocks.lengths[i] = one_length ? length : (uint64_t)take_count(c);
  for (size_t i = 0; good && i < blocks.count; i++)
    if (in_bytes)
      blocks.displacements[i] = take_address(c);
    else
      good = !__builtin_mul_overflow(take_count(c), extent, &blocks.displacements[i]);
  *out = good && !c->broken ? tio_hindexed(blocks.count, blocks.lengths, blocks.displacements, child) : NULL;
  blocks_free(&blocks);
  return *out != NULL ? MPI_SUCCESS : MPI_ERR_TYPE;
}

static int structure(struct contents *c, enum representation rep, tio_shape **out)
{
  struct blocks blocks = {0};
  bool good = blocks_make(c, &blocks) && (int64_t)blocks.count <= c->datatypes;
  int error = good ? MPI_SUCCESS : MPI_ERR_TYPE;
  tio_shape **children = calloc(blocks.count + 1, sizeof *children);
  for (size_t i = 0; good && i < blocks.count; i++)
    blocks.lengths[i] = (uint64_t)take_count(c);
  for (size_t i = 0; good && i < blocks.count; i++)
    blocks.displacements[i] = take_address(c);
  for (size_t i = 0; error == MPI_SUCCESS && i < blocks.count; i++)
    error = children != NULL ? flatten(c->types[i], rep, &children[i]) : MPI_ERR_NO_MEM;
  if (error == MPI_SUCCESS && !c->broken)
    *out = tio_struct(blocks.count, blocks.lengths, blocks.displacements, (const tio_shape *const *)children);
  for (size_t i = 0; children != NULL && i < blocks.count; i++)
    tio_shape_release(children[i]);
  free(children);
  blocks_free(&blocks);
  return error != MPI_SUCCESS ? error : *out != NULL ? MPI_SUCCESS : MPI_ERR_TYPE;
}

static int vector(struct contents *c, const tio_shape *child, bool in_bytes, tio_shape **out)
{
  int64_t count = take_count(c), length = take_count(c);
  int64_t stride = in_bytes ? take_address(c) : take_count(c);
  if (c->broken || (!in_bytes && __builtin_mul_overflow(stride, tio_shape_extent(child), &stride)))
    return MPI_ERR_TYPE;
  return made(tio_hvector((uint64_t)count, (uint64_t)length, stride, child), out);
}

enum { DIMENSIONS_MAX = 256 };

static int subarray(struct contents *c, const tio_shape *child, tio_shape **out)
{
  int64_t sizes[DIMENSIONS_MAX], subsizes[DIMENSIONS_MAX], starts[DIMENSIONS_MAX];
  int64_t dimensions = take_integer(c);
  if (dimensions < 0 || dimensions > DIMENSIONS_MAX)
    return MPI_ERR_TYPE;
  for (int64_t i = 0; i < dimensions; i++)
    sizes[i] = take_count(c);
  for (int64_t i = 0; i < dimensions; i++)
    subsizes[i] = take_count(c);
  for (int64_t i = 0; i < dimensions; i++)
    starts[i] = take_count(c);
  int order = (int)take_integer(c);
  return c->broken ? MPI_ERR_TYPE
                   : flatten_subarray(child, (int)dimensions, sizes, subsizes, starts, order, out);
}

static int darray(struct contents *c, const tio_shape *child, tio_shape **out)
{
  int64_t sizes[DIMENSIONS_MAX];
  int distributions[DIMENSIONS_MAX], arguments[DIMENSIONS_MAX], grid[DIMENSIONS_MAX];
  int size = (int)take_integer(c), rank = (int)take_integer(c);
  int64_t dimensions = take_integer(c);
  if (dimensions < 0 || dimensions > DIMENSIONS_MAX)
    return MPI_ERR_TYPE;
  for (int64_t i = 0; i < dimensions; i++)
    sizes[i] = take_count(c);
  for (int64_t i = 0; i < dimensions; i++)
    distributions[i] = (int)take_integer(c);
  for (int64_t i = 0; i < dimensions; i++)
    arguments[i] = (int)take_integer(c);
  for (int64_t i = 0; i < dimensions; i++)
    grid[i] = (int)take_integer(c);
  int order = (int)take_integer(c);
  return c->broken ? MPI_ERR_TYPE
                   : flatten_darray(child, size, rank, (int)dimensions, sizes, distributions, arguments, grid, order,
                                    out);
}

static int resized(struct contents *c, const tio_shape *child, tio_shape **out)
{
  int64_t lb = take_address(c), extent = take_address(c);
  return c->broken ? MPI_ERR_TYPE : made(tio_resized(lb, extent, child), out);
}

/* Converts constructors of one child. */
static int derived(struct contents *c, const tio_shape *child, tio_shape **out)
{
  switch (c->combiner) {
  case MPI_COMBINER_DUP:
    return made(tio_shape_retain(child), out);
  case MPI_COMBINER_CONTIGUOUS:
    return made(tio_contiguous((uint64_t)take_count(c), child), out);
  case MPI_COMBINER_VECTOR:
    return vector(c, child, false, out);
  case MPI_COMBINER_HVECTOR:
    return vector(c, child, true, out);
  case MPI_COMBINER_INDEXED:
    return indexed(c, child, false, false, out);
  case MPI_COMBINER_INDEXED_BLOCK:
    return indexed(c, child, true, false, out);
  case MPI_COMBINER_HINDEXED:
    return indexed(c, child, false, true, out);
  case MPI_COMBINER_HINDEXED_BLOCK:
    return indexed(c, child, true, true, out);
  case MPI_COMBINER_SUBARRAY:
    return subarray(c, child, out);
  case MPI_COMBINER_DARRAY:
    return darray(c, child, out);
  case MPI_COMBINER_RESIZED:
    return resized(c, child, out);
  default:
    return MPI_ERR_TYPE;
  }
}

/* Sets the library's bounds where they differ from those of the shape. */
static int bounded(MPI_Datatype datatype, tio_shape **shape)
{
  MPI_Count lb = 0, extent = 0;
  if (PMPI_Type_get_extent_x(datatype, &lb, &extent) != MPI_SUCCESS)
    return MPI_ERR_TYPE;
  if (tio_shape_lb(*shape) == lb && tio_shape_extent(*shape) == extent)
    return MPI_SUCCESS;
  tio_shape *right = tio_resized(lb, extent, *shape);
  tio_shape_release(*shape);
  return made(right, shape);
}

static int construct(struct contents *c, enum representation rep, tio_shape **out)
{
  if (c->combiner == MPI_COMBINER_STRUCT)
    return structure(c, rep, out);
  tio_shape *child = NULL;
  int error = c->datatypes >= 1 ? flatten(c->types[0], rep, &child) : MPI_ERR_TYPE;
  if (error == MPI_SUCCESS)
    error = derived(c, child, out);
  tio_shape_release(child);
  return error;
}

int flatten(MPI_Datatype datatype, enum representation rep, tio_shape **out)
{
  struct contents c;
  *out = NULL;
  int error = contents_open(datatype, &c);
  if (error == MPI_SUCCESS)
    error = contents_predefined(&c) ? leaf(datatype, rep, out) : construct(&c, rep, out);
  contents_free(&c);
  if (error == MPI_SUCCESS && rep != EXTERNAL32)
    error = bounded(datatype, out);
  if (error != MPI_SUCCESS) {
    tio_shape_release(*out);
    *out = NULL;
  }
  return error;
}
