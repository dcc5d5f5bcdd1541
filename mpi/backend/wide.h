/*
 * Calls of the MPI library's own functions with large counts, for files of the library. MPI-3
 * libraries have no such functions, but a program may still find the front's. Then a large count
 * becomes one element of a large datatype.
 */
#ifndef TATAMI_WIDE_H
#define TATAMI_WIDE_H

#include "backend.h"

/* A count as the MPI library's int and datatype; free `made` with narrow_free. */
struct narrow {
  int count;
  MPI_Datatype datatype;
  bool made;
};
int narrow_make(MPI_Count count, MPI_Datatype datatype, struct narrow *narrow);
void narrow_free(struct narrow *narrow);

/* `call` with the leading arguments in parentheses, the count and datatype, and the trailing
 * ones. `wide` and `usual` are function pointer types. */
#define CALL_WIDE(wide, usual, name, count, datatype, leading, trailing)                                               \
  do {                                                                                                                 \
    if (tatami_real[CALL_##name##_c] != NULL)                                                                          \
      return ((wide)tatami_real[CALL_##name##_c])(UNPACK leading, count, datatype UNPACK trailing);                    \
    struct narrow narrow;                                                                                              \
    int error_ = narrow_make(count, datatype, &narrow);                                                                \
    if (error_ == MPI_SUCCESS)                                                                                         \
      error_ = ((usual)tatami_real[CALL_##name])(UNPACK leading, narrow.count, narrow.datatype UNPACK trailing);       \
    narrow_free(&narrow);                                                                                              \
    return error_;                                                                                                     \
  } while (0)
#define UNPACK(...) __VA_ARGS__

#endif
