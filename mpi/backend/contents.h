/* The constructor of a datatype: MPI_Type_get_envelope and MPI_Type_get_contents of either
 * width. */
#ifndef TATAMI_CONTENTS_H
#define TATAMI_CONTENTS_H

#include "backend.h"

/* In the form with large counts, counts and displacements stand in one array. */
struct contents {
  int combiner;
  bool large;
  MPI_Count integers_left, addresses_left, datatypes, counts_left;
  int *integers;
  MPI_Aint *addresses;
  MPI_Count *counts;
  MPI_Datatype *types;
  int *integers_start;
  MPI_Aint *addresses_start;
  MPI_Count *counts_start;
  bool broken; /* more values were taken than exist */
};

/* Fills `c` for a datatype; returns an error class. For a predefined type, only the combiner.
 * The caller passes it to contents_free. */
int contents_open(MPI_Datatype datatype, struct contents *c);
void contents_free(struct contents *c);
bool contents_predefined(const struct contents *c);

/* Each returns the next value of its kind, in the order of the constructor's arguments. */
int64_t take_integer(struct contents *c);
int64_t take_count(struct contents *c);
int64_t take_address(struct contents *c);

#endif
