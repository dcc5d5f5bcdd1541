/* What a datatype was made from: MPI_Type_get_envelope and MPI_Type_get_contents of either width. */
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
  bool broken; /* more was asked for than there is */
};

/* Fills `c` for a datatype; an error class. Of a predefined one only the combiner. Give it to contents_free. */
int contents_open(MPI_Datatype datatype, struct contents *c);
void contents_free(struct contents *c);
bool contents_predefined(const struct contents *c);

/* The next of each kind, in the order of the constructor's arguments. */
int64_t take_integer(struct contents *c);
int64_t take_count(struct contents *c);
int64_t take_address(struct contents *c);

#endif
