/* See random_types.h. */
#include "random_types.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

enum { MANY = 5, EXTENT_MAX = 1 << 16, SIZE_MAX_BYTES = 1 << 14 };

uint64_t rng_next(struct rng *rng)
{
  uint64_t x = rng->state += UINT64_C(0x9e3779b97f4a7c15); /* splitmix64 */
  x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
  return x ^ (x >> 31);
}

int rng_below(struct rng *rng, int bound)
{
  return (int)(rng_next(rng) % (uint64_t)bound);
}

int rng_between(struct rng *rng, int low, int high)
{
  return low + rng_below(rng, high - low + 1);
}

static bool predefined(MPI_Datatype datatype)
{
  int integers, addresses, datatypes, combiner;
  MPI_Type_get_envelope(datatype, &integers, &addresses, &datatypes, &combiner);
  return combiner == MPI_COMBINER_NAMED;
}

void type_drop(MPI_Datatype *datatype)
{
  if (*datatype != MPI_DATATYPE_NULL && !predefined(*datatype))
    MPI_Type_free(datatype);
  *datatype = MPI_DATATYPE_NULL;
}

static const char *combiner_name(int combiner)
{
  const struct {
    int combiner;
    const char *name;
  } all[] = {{MPI_COMBINER_DUP, "dup"},
             {MPI_COMBINER_CONTIGUOUS, "contiguous"},
             {MPI_COMBINER_VECTOR, "vector"},
             {MPI_COMBINER_HVECTOR, "hvector"},
             {MPI_COMBINER_INDEXED, "indexed"},
             {MPI_COMBINER_HINDEXED, "hindexed"},
             {MPI_COMBINER_INDEXED_BLOCK, "indexed_block"},
             {MPI_COMBINER_HINDEXED_BLOCK, "hindexed_block"},
             {MPI_COMBINER_STRUCT, "struct"},
             {MPI_COMBINER_SUBARRAY, "subarray"},
             {MPI_COMBINER_DARRAY, "darray"},
             {MPI_COMBINER_RESIZED, "resized"}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (all[i].combiner == combiner)
      return all[i].name;
  return "another combiner";
}

void print_type(MPI_Datatype datatype, int indent)
{
  char name[MPI_MAX_OBJECT_NAME];
  int integers, addresses, datatypes, combiner, length;
  if (predefined(datatype)) {
    MPI_Type_get_name(datatype, name, &length);
    printf("%*s%s\n", indent, "", name);
    return;
  }
  MPI_Type_get_envelope(datatype, &integers, &addresses, &datatypes, &combiner);
  int *ints = calloc((size_t)integers + 1, sizeof *ints);
  MPI_Aint *bytes = calloc((size_t)addresses + 1, sizeof *bytes);
  MPI_Datatype *children = calloc((size_t)datatypes + 1, sizeof *children);
  MPI_Type_get_contents(datatype, integers, addresses, datatypes, ints, bytes, children);
  printf("%*s%s", indent, "", combiner_name(combiner));
  for (int i = 0; i < integers; i++)
    printf(" %d", ints[i]);
  for (int i = 0; i < addresses; i++)
    printf(" %ldB", (long)bytes[i]);
  printf("\n");
  for (int i = 0; i < datatypes; i++) {
    print_type(children[i], indent + 2);
    type_drop(&children[i]);
  }
  free(ints);
  free(bytes);
  free(children);
}

MPI_Datatype random_basic_type(struct rng *rng)
{
  /* Not among them: long double, of which MPICH packs 10 bytes only, and long, because the two
   * libraries disagree on its external32 size. */
  const MPI_Datatype all[] = {MPI_BYTE,   MPI_CHAR,      MPI_SHORT,     MPI_INT,        MPI_FLOAT,   MPI_DOUBLE,
                              MPI_INT8_T, MPI_INT16_T,   MPI_INT32_T,   MPI_INT64_T,    MPI_UINT64_T, MPI_LONG_LONG,
                              MPI_2INT,   MPI_SHORT_INT, MPI_FLOAT_INT, MPI_DOUBLE_INT, MPI_C_DOUBLE_COMPLEX};
  return all[rng_below(rng, (int)(sizeof all / sizeof *all))];
}

static MPI_Aint extent_of(MPI_Datatype datatype)
{
  MPI_Aint lb, extent;
  MPI_Type_get_extent(datatype, &lb, &extent);
  return extent;
}

/* Returns the bounds of a datatype's data. For one without data the libraries return various
 * values. */
static void data_bounds(MPI_Datatype datatype, MPI_Aint *low, MPI_Aint *length)
{
  int size = 0;
  MPI_Type_size(datatype, &size);
  MPI_Type_get_true_extent(datatype, low, length);
  if (size == 0)
    *low = *length = 0;
}

/* Chooses displacements of `n` blocks of the given lengths, in units, with gaps. */
static void scatter(struct rng *rng, int n, const int *lengths, int *displacements, bool negative)
{
  int at = negative ? rng_between(rng, -3, 3) : rng_below(rng, 3);
  for (int i = 0; i < n; i++) {
    displacements[i] = at;
    at += lengths[i] + rng_below(rng, 3);
  }
}

static MPI_Datatype make_subarray(struct rng *rng, MPI_Datatype child)
{
  MPI_Datatype made = MPI_DATATYPE_NULL;
  int n = rng_between(rng, 1, 3), sizes[3], subsizes[3], starts[3];
  for (int i = 0; i < n; i++) {
    sizes[i] = rng_between(rng, 1, MANY);
    subsizes[i] = rng_between(rng, 1, sizes[i]);
    starts[i] = rng_below(rng, sizes[i] - subsizes[i] + 1);
  }
  MPI_Type_create_subarray(n, sizes, subsizes, starts, rng_below(rng, 2) ? MPI_ORDER_C : MPI_ORDER_FORTRAN, child,
                           &made);
  return made;
}

static MPI_Datatype make_darray(struct rng *rng, MPI_Datatype child)
{
  MPI_Datatype made = MPI_DATATYPE_NULL;
  int n = rng_between(rng, 1, 3), sizes[3], distributions[3], arguments[3], grid[3], processes = 1;
  for (int i = 0; i < n; i++) {
    const int kinds[] = {MPI_DISTRIBUTE_BLOCK, MPI_DISTRIBUTE_CYCLIC, MPI_DISTRIBUTE_NONE};
    int kind = rng_below(rng, 3);
    grid[i] = kind == 2 ? 1 : rng_between(rng, 1, 3);
    sizes[i] = rng_between(rng, grid[i], 7); /* so that every process has something with the default blocks … */
    distributions[i] = kinds[kind];
    arguments[i] = MPI_DISTRIBUTE_DFLT_DARG;
    if (kind == 1 && rng_below(rng, 2))
      arguments[i] = rng_between(rng, 1, 3); /* … and maybe not with these */
    if (kind == 0 && rng_below(rng, 2))
      arguments[i] = (sizes[i] + grid[i] - 1) / grid[i] + rng_below(rng, 2);
    processes *= grid[i];
  }
  MPI_Type_create_darray(processes, rng_below(rng, processes), n, sizes, distributions, arguments, grid,
                         rng_below(rng, 2) ? MPI_ORDER_C : MPI_ORDER_FORTRAN, child, &made);
  return made;
}

static MPI_Datatype make_indexed(struct rng *rng, MPI_Datatype child, bool shuffle)
{
  MPI_Datatype made = MPI_DATATYPE_NULL;
  int n = rng_below(rng, MANY), lengths[MANY], displacements[MANY];
  MPI_Aint bytes[MANY];
  int way = rng_below(rng, 4), length = rng_below(rng, 3);
  for (int i = 0; i < n; i++)
    lengths[i] = way % 2 == 0 ? rng_below(rng, 4) : length;
  scatter(rng, n, lengths, displacements, shuffle);
  for (int i = n - 1; shuffle && i > 0; i--) {
    int j = rng_below(rng, i + 1);
    int displacement = displacements[i], other = lengths[i];
    displacements[i] = displacements[j], displacements[j] = displacement;
    lengths[i] = lengths[j], lengths[j] = other;
  }
  for (int i = 0; i < n; i++)
    bytes[i] = displacements[i] * extent_of(child);
  switch (way) {
  case 0:
    MPI_Type_indexed(n, lengths, displacements, child, &made);
    break;
  case 1:
    MPI_Type_create_indexed_block(n, length, displacements, child, &made);
    break;
  case 2:
    MPI_Type_create_hindexed(n, lengths, bytes, child, &made);
    break;
  default:
    MPI_Type_create_hindexed_block(n, length, bytes, child, &made);
  }
  return made;
}

/* Makes a structure of the child and of similar types, made by `another`. */
static MPI_Datatype make_struct(struct rng *rng, MPI_Datatype child, bool shuffle, MPI_Datatype unit)
{
  MPI_Datatype made = MPI_DATATYPE_NULL, children[MANY];
  int n = rng_between(rng, 1, MANY - 1), lengths[MANY];
  MPI_Aint displacements[MANY], at = shuffle ? rng_between(rng, -8, 8) : 0;
  for (int i = 0; i < n; i++) {
    MPI_Aint lb, extent;
    children[i] = rng_below(rng, 2) ? child : unit != MPI_DATATYPE_NULL ? unit : random_basic_type(rng);
    lengths[i] = rng_below(rng, 3);
    data_bounds(children[i], &lb, &extent);
    displacements[i] = at - (lb < 0 ? lb : 0);
    at = displacements[i] + (lb > 0 ? lb : 0) + lengths[i] * (extent_of(children[i]) + extent) + rng_below(rng, 9);
  }
  for (int i = n - 1; shuffle && i > 0; i--) {
    int j = rng_below(rng, i + 1), length = lengths[i];
    MPI_Aint displacement = displacements[i];
    MPI_Datatype type = children[i];
    lengths[i] = lengths[j], lengths[j] = length;
    displacements[i] = displacements[j], displacements[j] = displacement;
    children[i] = children[j], children[j] = type;
  }
  MPI_Type_create_struct(n, lengths, displacements, children, &made);
  return made;
}

static MPI_Datatype make_vector(struct rng *rng, MPI_Datatype child, bool shuffle)
{
  MPI_Datatype made = MPI_DATATYPE_NULL;
  int count = rng_below(rng, MANY), length = rng_below(rng, 4), stride = length + rng_below(rng, 3);
  if (shuffle && rng_below(rng, 4) == 0)
    stride = -stride - 1; /* Open MPI takes -1 with blocks of 1 for contiguous */
  if (rng_below(rng, 2))
    MPI_Type_vector(count, length, stride, child, &made);
  else
    MPI_Type_create_hvector(count, length, stride * extent_of(child) + (stride < 0 ? -8 : 8), child, &made);
  return made;
}

static MPI_Datatype make_resized(struct rng *rng, MPI_Datatype child, bool overlaps)
{
  MPI_Datatype made = MPI_DATATYPE_NULL;
  MPI_Aint lb, extent;
  data_bounds(child, &lb, &extent);
  MPI_Aint size = overlaps ? rng_between(rng, 1, (int)extent + 16) : extent + rng_below(rng, 17);
  MPI_Type_create_resized(child, lb - rng_below(rng, 9), size, &made);
  return made;
}

static MPI_Datatype derive(struct rng *rng, MPI_Datatype child, bool overlaps, MPI_Datatype unit)
{
  MPI_Datatype made = MPI_DATATYPE_NULL;
  switch (rng_below(rng, 8)) {
  case 0:
    MPI_Type_contiguous(rng_below(rng, MANY), child, &made);
    return made;
  case 1:
    return make_vector(rng, child, true);
  case 2:
    return make_indexed(rng, child, true);
  case 3:
    return make_struct(rng, child, true, unit);
  case 4:
    return make_subarray(rng, child);
  case 5:
    return make_darray(rng, child);
  case 6:
    return make_resized(rng, child, overlaps);
  default:
    MPI_Type_dup(child, &made);
    return made;
  }
}

static bool unwieldy(MPI_Datatype datatype)
{
  MPI_Count lb, extent, size;
  MPI_Type_get_extent_x(datatype, &lb, &extent);
  MPI_Type_size_x(datatype, &size);
  /* MPICH divides by an extent of 0. */
  return extent > EXTENT_MAX || extent <= 0 || lb < -EXTENT_MAX || size > SIZE_MAX_BYTES;
}

/* Returns whether some block has no byte. For such blocks as parts of another datatype, Open MPI
 * returns wrong bounds (distributed arrays of a process without elements), and MPICH's MPI_Pack
 * divides by 0. */
static bool no_part(MPI_Datatype datatype)
{
  int size, integers, addresses, datatypes, combiner;
  MPI_Type_size(datatype, &size);
  MPI_Type_get_envelope(datatype, &integers, &addresses, &datatypes, &combiner);
  return size == 0 && combiner != MPI_COMBINER_CONTIGUOUS;
}

/* Gives every level bounds that hold all its data, so that repetitions do not overlap. */
static MPI_Datatype spread(MPI_Datatype datatype)
{
  MPI_Datatype made = MPI_DATATYPE_NULL;
  MPI_Aint lb, extent, true_lb, true_extent;
  MPI_Type_get_extent(datatype, &lb, &extent);
  data_bounds(datatype, &true_lb, &true_extent);
  if (lb <= true_lb && lb + extent >= true_lb + true_extent)
    return datatype;
  MPI_Type_create_resized(datatype, true_lb, true_extent, &made);
  type_drop(&datatype);
  return made;
}

MPI_Datatype random_memory_type(struct rng *rng, int depth, int overlaps, MPI_Datatype unit)
{
  MPI_Datatype type = unit;
  if (unit == MPI_DATATYPE_NULL)
    type = random_basic_type(rng);
  else
    MPI_Type_dup(unit, &type);
  for (int i = 0; i < depth && !no_part(type); i++) {
    MPI_Datatype next = derive(rng, type, overlaps, unit);
    if (next == MPI_DATATYPE_NULL) /* Open MPI makes no distributed array of some */
      continue;
    if (!overlaps)
      next = spread(next);
    if (unwieldy(next)) {
      type_drop(&next);
      break;
    }
    type_drop(&type);
    type = next;
  }
  if (!predefined(type))
    MPI_Type_commit(&type);
  return type;
}

static MPI_Datatype derive_file(struct rng *rng, MPI_Datatype child)
{
  MPI_Datatype made = MPI_DATATYPE_NULL;
  switch (rng_below(rng, 6)) {
  case 0:
    MPI_Type_contiguous(rng_between(rng, 1, MANY), child, &made);
    return made;
  case 1:
    return make_vector(rng, child, false);
  case 2:
    return make_indexed(rng, child, false);
  case 3:
    return make_struct(rng, child, false, child);
  case 4:
    return make_subarray(rng, child);
  default:
    return make_darray(rng, child);
  }
}

/* Sets the lower bound to 0 and the upper bound not before the last byte. A structure gets
 * stated bounds: its padding in memory differs from that in external32. */
static MPI_Datatype bound(MPI_Datatype datatype, int64_t *end)
{
  MPI_Datatype made = MPI_DATATYPE_NULL;
  int integers, addresses, datatypes, combiner;
  MPI_Aint lb, extent, true_lb, true_extent;
  MPI_Type_get_extent(datatype, &lb, &extent);
  data_bounds(datatype, &true_lb, &true_extent);
  MPI_Aint last = lb + extent > true_lb + true_extent ? lb + extent : true_lb + true_extent;
  *end = last;
  MPI_Type_get_envelope(datatype, &integers, &addresses, &datatypes, &combiner);
  if (lb == 0 && last == extent && combiner != MPI_COMBINER_STRUCT)
    return datatype;
  MPI_Type_create_resized(datatype, 0, last, &made);
  type_drop(&datatype);
  return made;
}

MPI_Datatype random_file_type(struct rng *rng, int depth, MPI_Datatype etype, int64_t room)
{
  MPI_Datatype type, next;
  MPI_Type_dup(etype, &type);
  for (int i = 0; i < depth; i++) {
    int64_t end = 0;
    MPI_Count size = 0;
    next = derive_file(rng, type);
    if (next == MPI_DATATYPE_NULL)
      continue;
    next = bound(next, &end);
    MPI_Type_size_x(next, &size);
    if (size == 0 || end > room) {
      type_drop(&next);
      continue;
    }
    type_drop(&type);
    type = next;
  }
  MPI_Type_commit(&type);
  return type;
}
