/* The blocking calls that move bytes. Collective ones exchange nothing: each rank's bytes go to
 * its own piece. */
#include "ours.h"
#include "wide.h"

static int blocking(struct file *file, struct access access, MPI_Status *status)
{
  int64_t bytes = 0;
  int error = access_run(file, &access, &bytes);
  if (error == MPI_SUCCESS)
    status_set(status, bytes);
  return fail(file, error);
}

typedef int (*usual_at)(MPI_File, MPI_Offset, void *, int, MPI_Datatype, MPI_Status *);
typedef int (*wide_at)(MPI_File, MPI_Offset, void *, MPI_Count, MPI_Datatype, MPI_Status *);
typedef int (*usual_here)(MPI_File, void *, int, MPI_Datatype, MPI_Status *);
typedef int (*wide_here)(MPI_File, void *, MPI_Count, MPI_Datatype, MPI_Status *);

#define DEFINE_AT(name, qualifier, pointer, writes)                                                                    \
  int our_File_##name(MPI_File handle, MPI_Offset offset, qualifier void *buffer, int count, MPI_Datatype datatype,    \
                      MPI_Status *status)                                                                              \
  {                                                                                                                    \
    struct file *file = file_of(handle);                                                                               \
    if (file == NULL)                                                                                                  \
      return REAL(File_##name)(handle, offset, buffer, count, datatype, status);                                       \
    return blocking(file, (struct access){pointer, writes, offset, (void *)buffer, count, datatype}, status);          \
  }                                                                                                                    \
  int our_File_##name##_c(MPI_File handle, MPI_Offset offset, qualifier void *buffer, MPI_Count count,                 \
                          MPI_Datatype datatype, MPI_Status *status)                                                   \
  {                                                                                                                    \
    struct file *file = file_of(handle);                                                                               \
    if (file == NULL)                                                                                                  \
      CALL_WIDE(wide_at, usual_at, File_##name, count, datatype, (handle, offset, (void *)buffer), (, status));        \
    return blocking(file, (struct access){pointer, writes, offset, (void *)buffer, count, datatype}, status);          \
  }

#define DEFINE(name, qualifier, pointer, writes)                                                                       \
  int our_File_##name(MPI_File handle, qualifier void *buffer, int count, MPI_Datatype datatype, MPI_Status *status)   \
  {                                                                                                                    \
    struct file *file = file_of(handle);                                                                               \
    if (file == NULL)                                                                                                  \
      return REAL(File_##name)(handle, buffer, count, datatype, status);                                               \
    return blocking(file, (struct access){pointer, writes, 0, (void *)buffer, count, datatype}, status);               \
  }                                                                                                                    \
  int our_File_##name##_c(MPI_File handle, qualifier void *buffer, MPI_Count count, MPI_Datatype datatype,             \
                          MPI_Status *status)                                                                          \
  {                                                                                                                    \
    struct file *file = file_of(handle);                                                                               \
    if (file == NULL)                                                                                                  \
      CALL_WIDE(wide_here, usual_here, File_##name, count, datatype, (handle, (void *)buffer), (, status));            \
    return blocking(file, (struct access){pointer, writes, 0, (void *)buffer, count, datatype}, status);               \
  }

BLOCKING_AT(DEFINE_AT)
BLOCKING(DEFINE)
