/*
 * Split collective calls: the operation moves the bytes when it begins, and returns its status when
 * it ends. One operation may be under way on a handle at a time; independent accesses may go on
 * meanwhile.
 */
#include "ours.h"
#include "wide.h"

/* No operation is under way before File_open. */
_Static_assert(CALL_File_open == 0, "split.end 0 means none");

static int begin(struct file *file, enum tatami_call end, struct access access)
{
  int64_t bytes = 0;
  if (file->split.end != 0)
    return fail(file, MPI_ERR_OTHER);
  int error = access_run(file, &access, &bytes);
  file->split = (struct split){end, bytes, error};
  return MPI_SUCCESS;
}

static int end(struct file *file, enum tatami_call end, MPI_Status *status)
{
  struct split split = file->split;
  if (split.end != end)
    return fail(file, MPI_ERR_OTHER);
  file->split = (struct split){0};
  if (split.error == MPI_SUCCESS)
    status_set(status, split.bytes);
  return fail(file, split.error);
}

typedef int (*usual_at)(MPI_File, MPI_Offset, void *, int, MPI_Datatype);
typedef int (*wide_at)(MPI_File, MPI_Offset, void *, MPI_Count, MPI_Datatype);
typedef int (*usual_here)(MPI_File, void *, int, MPI_Datatype);
typedef int (*wide_here)(MPI_File, void *, MPI_Count, MPI_Datatype);

#define DEFINE_END(name, qualifier)                                                                                    \
  int our_File_##name##_end(MPI_File handle, qualifier void *buffer, MPI_Status *status)                               \
  {                                                                                                                    \
    struct file *file = file_of(handle);                                                                               \
    if (file == NULL)                                                                                                  \
      return REAL(File_##name##_end)(handle, buffer, status);                                                          \
    return end(file, CALL_File_##name##_end, status);                                                                  \
  }

#define DEFINE_AT(name, qualifier, pointer, writes)                                                                    \
  int our_File_##name##_begin(MPI_File handle, MPI_Offset offset, qualifier void *buffer, int count,                   \
                              MPI_Datatype datatype)                                                                   \
  {                                                                                                                    \
    struct file *file = file_of(handle);                                                                               \
    if (file == NULL)                                                                                                  \
      return REAL(File_##name##_begin)(handle, offset, buffer, count, datatype);                                       \
    return begin(file, CALL_File_##name##_end,                                                                         \
                 (struct access){pointer, writes, offset, (void *)buffer, count, datatype});                           \
  }                                                                                                                    \
  int our_File_##name##_begin_c(MPI_File handle, MPI_Offset offset, qualifier void *buffer, MPI_Count count,           \
                                MPI_Datatype datatype)                                                                 \
  {                                                                                                                    \
    struct file *file = file_of(handle);                                                                               \
    if (file == NULL)                                                                                                  \
      CALL_WIDE(wide_at, usual_at, File_##name##_begin, count, datatype, (handle, offset, (void *)buffer), ());        \
    return begin(file, CALL_File_##name##_end,                                                                         \
                 (struct access){pointer, writes, offset, (void *)buffer, count, datatype});                           \
  }                                                                                                                    \
  DEFINE_END(name, qualifier)

#define DEFINE(name, qualifier, pointer, writes)                                                                       \
  int our_File_##name##_begin(MPI_File handle, qualifier void *buffer, int count, MPI_Datatype datatype)               \
  {                                                                                                                    \
    struct file *file = file_of(handle);                                                                               \
    if (file == NULL)                                                                                                  \
      return REAL(File_##name##_begin)(handle, buffer, count, datatype);                                               \
    return begin(file, CALL_File_##name##_end,                                                                         \
                 (struct access){pointer, writes, 0, (void *)buffer, count, datatype});                                \
  }                                                                                                                    \
  int our_File_##name##_begin_c(MPI_File handle, qualifier void *buffer, MPI_Count count, MPI_Datatype datatype)       \
  {                                                                                                                    \
    struct file *file = file_of(handle);                                                                               \
    if (file == NULL)                                                                                                  \
      CALL_WIDE(wide_here, usual_here, File_##name##_begin, count, datatype, (handle, (void *)buffer), ());            \
    return begin(file, CALL_File_##name##_end,                                                                         \
                 (struct access){pointer, writes, 0, (void *)buffer, count, datatype});                                \
  }                                                                                                                    \
  DEFINE_END(name, qualifier)

SPLIT_AT(DEFINE_AT)
SPLIT(DEFINE)
