/* See contents.h. */
#include "contents.h"

#include <stdlib.h>

int64_t take_integer(struct contents *c)
{
  if (c->integers_left-- > 0)
    return *c->integers++;
  c->broken = true;
  return 0;
}

static int64_t take_large(struct contents *c)
{
  if (c->counts_left-- > 0)
    return *c->counts++;
  c->broken = true;
  return 0;
}

int64_t take_count(struct contents *c)
{
  return c->large ? take_large(c) : take_integer(c);
}

int64_t take_address(struct contents *c)
{
  if (c->large)
    return take_large(c);
  if (c->addresses_left-- > 0)
    return *c->addresses++;
  c->broken = true;
  return 0;
}

bool contents_predefined(const struct contents *c)
{
  int combiner = c->combiner;
  return combiner == MPI_COMBINER_NAMED || combiner == MPI_COMBINER_F90_REAL ||
         combiner == MPI_COMBINER_F90_COMPLEX || combiner == MPI_COMBINER_F90_INTEGER;
}

void contents_free(struct contents *c)
{
  for (MPI_Count i = 0; c->types != NULL && i < c->datatypes; i++)
    if (c->types[i] != MPI_DATATYPE_NULL && !type_is_predefined(c->types[i]))
      PMPI_Type_free(&c->types[i]);
  free(c->integers_start);
  free(c->addresses_start);
  free(c->counts_start);
  free(c->types);
}

static bool contents_allocate(struct contents *c)
{
  c->integers = c->integers_start = calloc((size_t)c->integers_left + 1, sizeof *c->integers);
  c->addresses = c->addresses_start = calloc((size_t)c->addresses_left + 1, sizeof *c->addresses);
  c->counts = c->counts_start = calloc((size_t)c->counts_left + 1, sizeof *c->counts);
  c->types = malloc(((size_t)c->datatypes + 1) * sizeof *c->types);
  for (MPI_Count i = 0; c->types != NULL && i < c->datatypes; i++)
    c->types[i] = MPI_DATATYPE_NULL;
  return c->integers != NULL && c->addresses != NULL && c->counts != NULL && c->types != NULL;
}

#if HAVE_LARGE_COUNTS

static int envelope(MPI_Datatype datatype, struct contents *c)
{
  int error = PMPI_Type_get_envelope_c(datatype, &c->integers_left, &c->addresses_left, &c->counts_left,
                                       &c->datatypes, &c->combiner);
  c->large = c->counts_left > 0;
  return error;
}

static int contents(MPI_Datatype datatype, struct contents *c)
{
  return PMPI_Type_get_contents_c(datatype, c->integers_left, c->addresses_left, c->counts_left, c->datatypes,
                                  c->integers, c->addresses, c->counts, c->types);
}

#else

static int envelope(MPI_Datatype datatype, struct contents *c)
{
  int integers, addresses, datatypes;
  int error = PMPI_Type_get_envelope(datatype, &integers, &addresses, &datatypes, &c->combiner);
  c->integers_left = integers;
  c->addresses_left = addresses;
  c->datatypes = datatypes;
  return error;
}

static int contents(MPI_Datatype datatype, struct contents *c)
{
  return PMPI_Type_get_contents(datatype, (int)c->integers_left, (int)c->addresses_left, (int)c->datatypes,
                                c->integers, c->addresses, c->types);
}

#endif

int contents_open(MPI_Datatype datatype, struct contents *c)
{
  *c = (struct contents){0};
  if (datatype == MPI_DATATYPE_NULL || envelope(datatype, c) != MPI_SUCCESS)
    return MPI_ERR_TYPE;
  if (contents_predefined(c))
    return MPI_SUCCESS;
  if (!contents_allocate(c))
    return MPI_ERR_NO_MEM;
  return contents(datatype, c) == MPI_SUCCESS ? MPI_SUCCESS : MPI_ERR_TYPE;
}

bool type_is_predefined(MPI_Datatype datatype)
{
  struct contents c = {0};
  return envelope(datatype, &c) == MPI_SUCCESS && contents_predefined(&c);
}
