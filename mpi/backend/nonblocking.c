/*
 * The nonblocking calls. The bytes are moved at once, to or from the page cache; the request is a
 * generalized one that is already complete. A thread of the layer would compete with the program
 * for its cores.
 */
#include "ours.h"
#include "wide.h"

#include <stdlib.h>

struct outcome {
  int64_t bytes;
  int error;
};

static int query(void *state, MPI_Status *status)
{
  const struct outcome *outcome = state;
  status_set(status, outcome->bytes);
  status->MPI_SOURCE = MPI_UNDEFINED;
  status->MPI_TAG = MPI_UNDEFINED;
  return outcome->error;
}

static int release(void *state)
{
  free(state);
  return MPI_SUCCESS;
}

static int cancel(void *state, int complete)
{
  (void)state;
  (void)complete;
  return MPI_SUCCESS;
}

static int nonblocking(struct file *file, struct access access, MPI_Request *request)
{
  struct outcome *outcome = calloc(1, sizeof *outcome);
  if (outcome == NULL || request == NULL) {
    free(outcome);
    return fail(file, request == NULL ? MPI_ERR_ARG : MPI_ERR_NO_MEM);
  }
  int error = access_run(file, &access, &outcome->bytes);
  if (error != MPI_SUCCESS || PMPI_Grequest_start(query, release, cancel, outcome, request) != MPI_SUCCESS) {
    free(outcome);
    return fail(file, error != MPI_SUCCESS ? error : MPI_ERR_OTHER);
  }
  return fail(file, PMPI_Grequest_complete(*request) == MPI_SUCCESS ? MPI_SUCCESS : MPI_ERR_OTHER);
}

typedef int (*usual_at)(MPI_File, MPI_Offset, void *, int, MPI_Datatype, MPI_Request *);
typedef int (*wide_at)(MPI_File, MPI_Offset, void *, MPI_Count, MPI_Datatype, MPI_Request *);
typedef int (*usual_here)(MPI_File, void *, int, MPI_Datatype, MPI_Request *);
typedef int (*wide_here)(MPI_File, void *, MPI_Count, MPI_Datatype, MPI_Request *);

#define DEFINE_AT(name, qualifier, pointer, writes)                                                                    \
  int our_File_##name(MPI_File handle, MPI_Offset offset, qualifier void *buffer, int count, MPI_Datatype datatype,    \
                      MPI_Request *request)                                                                            \
  {                                                                                                                    \
    struct file *file = file_of(handle);                                                                               \
    if (file == NULL)                                                                                                  \
      return REAL(File_##name)(handle, offset, buffer, count, datatype, request);                                      \
    return nonblocking(file, (struct access){pointer, writes, offset, (void *)buffer, count, datatype}, request);      \
  }                                                                                                                    \
  int our_File_##name##_c(MPI_File handle, MPI_Offset offset, qualifier void *buffer, MPI_Count count,                 \
                          MPI_Datatype datatype, MPI_Request *request)                                                 \
  {                                                                                                                    \
    struct file *file = file_of(handle);                                                                               \
    if (file == NULL)                                                                                                  \
      CALL_WIDE(wide_at, usual_at, File_##name, count, datatype, (handle, offset, (void *)buffer), (, request));       \
    return nonblocking(file, (struct access){pointer, writes, offset, (void *)buffer, count, datatype}, request);      \
  }

#define DEFINE(name, qualifier, pointer, writes)                                                                       \
  int our_File_##name(MPI_File handle, qualifier void *buffer, int count, MPI_Datatype datatype, MPI_Request *request) \
  {                                                                                                                    \
    struct file *file = file_of(handle);                                                                               \
    if (file == NULL)                                                                                                  \
      return REAL(File_##name)(handle, buffer, count, datatype, request);                                              \
    return nonblocking(file, (struct access){pointer, writes, 0, (void *)buffer, count, datatype}, request);           \
  }                                                                                                                    \
  int our_File_##name##_c(MPI_File handle, qualifier void *buffer, MPI_Count count, MPI_Datatype datatype,             \
                          MPI_Request *request)                                                                        \
  {                                                                                                                    \
    struct file *file = file_of(handle);                                                                               \
    if (file == NULL)                                                                                                  \
      CALL_WIDE(wide_here, usual_here, File_##name, count, datatype, (handle, (void *)buffer), (, request));           \
    return nonblocking(file, (struct access){pointer, writes, 0, (void *)buffer, count, datatype}, request);           \
  }

NONBLOCKING_AT(DEFINE_AT)
NONBLOCKING(DEFINE)
