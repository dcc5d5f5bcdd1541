/*
 * The functions that replace the MPI library's. Those that move bytes have a list with their
 * differences: X(name, const or nothing, pointer that is used, whether it writes).
 */
#ifndef TATAMI_OURS_H
#define TATAMI_OURS_H

#include "backend.h"

#define BLOCKING_AT(X)                                                                                                 \
  X(read_at, , EXPLICIT, false)                                                                                        \
  X(write_at, const, EXPLICIT, true)                                                                                   \
  X(read_at_all, , EXPLICIT, false)                                                                                    \
  X(write_at_all, const, EXPLICIT, true)
#define BLOCKING(X)                                                                                                    \
  X(read, , INDIVIDUAL, false)                                                                                         \
  X(write, const, INDIVIDUAL, true)                                                                                    \
  X(read_all, , INDIVIDUAL, false)                                                                                     \
  X(write_all, const, INDIVIDUAL, true)                                                                                \
  X(read_shared, , SHARED, false)                                                                                      \
  X(write_shared, const, SHARED, true)                                                                                 \
  X(read_ordered, , ORDERED, false)                                                                                    \
  X(write_ordered, const, ORDERED, true)
#define NONBLOCKING_AT(X)                                                                                              \
  X(iread_at, , EXPLICIT, false)                                                                                       \
  X(iwrite_at, const, EXPLICIT, true)                                                                                  \
  X(iread_at_all, , EXPLICIT, false)                                                                                   \
  X(iwrite_at_all, const, EXPLICIT, true)
#define NONBLOCKING(X)                                                                                                 \
  X(iread, , INDIVIDUAL, false)                                                                                        \
  X(iwrite, const, INDIVIDUAL, true)                                                                                   \
  X(iread_all, , INDIVIDUAL, false)                                                                                    \
  X(iwrite_all, const, INDIVIDUAL, true)                                                                               \
  X(iread_shared, , SHARED, false)                                                                                     \
  X(iwrite_shared, const, SHARED, true)
#define SPLIT_AT(X)                                                                                                    \
  X(read_at_all, , EXPLICIT, false)                                                                                    \
  X(write_at_all, const, EXPLICIT, true)
#define SPLIT(X)                                                                                                       \
  X(read_all, , INDIVIDUAL, false)                                                                                     \
  X(write_all, const, INDIVIDUAL, true)                                                                                \
  X(read_ordered, , ORDERED, false)                                                                                    \
  X(write_ordered, const, ORDERED, true)

#define DECLARE(name) extern __typeof__(PMPI_##name) our_##name;
TATAMI_PLAIN_CALLS(DECLARE)
TATAMI_COUNT_CALLS(DECLARE)
#undef DECLARE

/* The forms with large counts, which the mpi.h of an MPI-3 library does not declare. */
int our_File_get_type_extent_c(MPI_File handle, MPI_Datatype datatype, MPI_Count *extent);
#define AT(name, qualifier, last)                                                                                      \
  int our_File_##name##_c(MPI_File, MPI_Offset, qualifier void *, MPI_Count, MPI_Datatype, last);
#define HERE(name, qualifier, last) int our_File_##name##_c(MPI_File, qualifier void *, MPI_Count, MPI_Datatype, last);
#define AT_STATUS(name, qualifier, pointer, writes) AT(name, qualifier, MPI_Status *)
#define STATUS(name, qualifier, pointer, writes) HERE(name, qualifier, MPI_Status *)
#define AT_REQUEST(name, qualifier, pointer, writes) AT(name, qualifier, MPI_Request *)
#define REQUEST(name, qualifier, pointer, writes) HERE(name, qualifier, MPI_Request *)
#define AT_BEGIN(name, qualifier, pointer, writes)                                                                     \
  int our_File_##name##_begin_c(MPI_File, MPI_Offset, qualifier void *, MPI_Count, MPI_Datatype);
#define BEGIN(name, qualifier, pointer, writes)                                                                        \
  int our_File_##name##_begin_c(MPI_File, qualifier void *, MPI_Count, MPI_Datatype);
BLOCKING_AT(AT_STATUS)
BLOCKING(STATUS)
NONBLOCKING_AT(AT_REQUEST)
NONBLOCKING(REQUEST)
SPLIT_AT(AT_BEGIN)
SPLIT(BEGIN)
#undef AT
#undef HERE
#undef AT_STATUS
#undef STATUS
#undef AT_REQUEST
#undef REQUEST
#undef AT_BEGIN
#undef BEGIN

#endif
