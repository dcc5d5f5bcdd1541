/*
 * Type signatures: the basic elements of a datatype in their order, without displacements.
 * Conversion between representations needs them.
 */
#ifndef TATAMI_SIGNATURE_H
#define TATAMI_SIGNATURE_H

#include "backend.h"

enum element_kind { BYTES, SIGNED, UNSIGNED, LONG_DOUBLE };

/* `repeat` times either one basic element or the parts, one behind the other. */
struct signature {
  int64_t repeat;
  enum element_kind kind; /* of a basic element, with parts == NULL */
  int memory, file;       /* its bytes in memory, and in external32 */
  size_t count;
  struct signature *parts;
};

/* Returns an error class. The caller passes `out` to signature_free. */
int signature_of(MPI_Datatype datatype, struct signature *out);
void signature_free(struct signature *signature);
int64_t signature_memory(const struct signature *signature); /* bytes of all elements, dense */
int64_t signature_file(const struct signature *signature);

/* Converts one datatype's elements between dense buffers, and advances them. MPI_ERR_CONVERSION
 * if a number does not fit. */
int signature_to_file(const struct signature *signature, const unsigned char **memory, unsigned char **file);
int signature_to_memory(const struct signature *signature, const unsigned char **file, unsigned char **memory);

#endif
