/* Random numbers and random datatypes, the same for one seed on every rank, MPI library and
 * machine. */
#ifndef RANDOM_TYPES_H
#define RANDOM_TYPES_H

#include <mpi.h>
#include <stdint.h>

struct rng {
  uint64_t state;
};
uint64_t rng_next(struct rng *rng);
/* 0 … bound - 1; bound > 0 */
int rng_below(struct rng *rng, int bound);
/* low … high */
int rng_between(struct rng *rng, int low, int high);

/* Returns any datatype, also with negative and decreasing displacements, gaps, resized bounds,
 * zero lengths; committed. With `overlaps` 0, no byte of memory belongs to two of its elements,
 * also when it is repeated. `unit`: a datatype of which it consists (MPI_DATATYPE_NULL:
 * anything). */
MPI_Datatype random_memory_type(struct rng *rng, int depth, int overlaps, MPI_Datatype unit);
/* Returns a datatype that is legal as a filetype over `etype`: displacements that do not
 * decrease, no overlap, and an extent of at most `room` bytes, lower bound 0. Committed. */
MPI_Datatype random_file_type(struct rng *rng, int depth, MPI_Datatype etype, int64_t room);
MPI_Datatype random_basic_type(struct rng *rng);
void type_drop(MPI_Datatype *datatype); /* frees it unless it is predefined */

/* Prints the constructors of a datatype: combiner and arguments, its children indented below it. */
void print_type(MPI_Datatype datatype, int indent);

#endif
