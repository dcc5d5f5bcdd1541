/* File pointers, and the offsets and extents of a view. */
#include "ours.h"

static bool sequential(const struct file *file)
{
  return (file->amode & MPI_MODE_SEQUENTIAL) != 0;
}

/* Returns the target of a seek, in etypes. `current` is the pointer's position. */
static int seek_target(struct file *file, MPI_Offset offset, int whence, int64_t current, int64_t *target)
{
  uint64_t end = 0;
  int64_t base = 0;
  int error = MPI_SUCCESS;
  if (whence == MPI_SEEK_CUR) {
    base = current;
  } else if (whence == MPI_SEEK_END) {
    error = class_of(tio_stream_at_end(file->io, &end));
    base = (int64_t)end / file->etype_size;
  } else if (whence != MPI_SEEK_SET) {
    return MPI_ERR_ARG;
  }
  if (error == MPI_SUCCESS && (__builtin_add_overflow(base, (int64_t)offset, target) || *target < 0))
    error = MPI_ERR_ARG;
  return error;
}

int our_File_seek(MPI_File handle, MPI_Offset offset, int whence)
{
  struct file *file = file_of(handle);
  int64_t target = 0;
  if (file == NULL)
    return REAL(File_seek)(handle, offset, whence);
  if (sequential(file))
    return fail(file, MPI_ERR_UNSUPPORTED_OPERATION);
  int error = seek_target(file, offset, whence, atomic_load(&file->position), &target);
  if (error == MPI_SUCCESS)
    atomic_store(&file->position, target);
  return fail(file, error);
}

int our_File_get_position(MPI_File handle, MPI_Offset *offset)
{
  struct file *file = file_of(handle);
  if (file == NULL)
    return REAL(File_get_position)(handle, offset);
  if (sequential(file))
    return fail(file, MPI_ERR_UNSUPPORTED_OPERATION);
  if (offset == NULL)
    return fail(file, MPI_ERR_ARG);
  *offset = atomic_load(&file->position);
  return MPI_SUCCESS;
}

int our_File_get_byte_offset(MPI_File handle, MPI_Offset offset, MPI_Offset *displacement)
{
  struct file *file = file_of(handle);
  uint64_t stream, byte = 0;
  if (file == NULL)
    return REAL(File_get_byte_offset)(handle, offset, displacement);
  if (sequential(file))
    return fail(file, MPI_ERR_UNSUPPORTED_OPERATION);
  if (displacement == NULL || offset < 0 ||
      __builtin_mul_overflow((uint64_t)offset, (uint64_t)file->etype_size, &stream))
    return fail(file, MPI_ERR_ARG);
  int error = class_of(tio_offset_of(file->io, stream, &byte));
  if (error == MPI_SUCCESS)
    *displacement = (MPI_Offset)byte;
  return fail(file, error);
}

/* Rank 0 finds the target; all ranks must have the same arguments. */
int our_File_seek_shared(MPI_File handle, MPI_Offset offset, int whence)
{
  enum { FAILED, OFFSET, OFFSET_NEGATED, WHENCE, WHENCE_NEGATED, FIELDS };
  struct file *file = file_of(handle);
  int64_t target = 0, current = 0;
  if (file == NULL)
    return REAL(File_seek_shared)(handle, offset, whence);
  int error = sequential(file) ? MPI_ERR_UNSUPPORTED_OPERATION : MPI_SUCCESS;
  if (error == MPI_SUCCESS && file->rank == 0) {
    error = class_of(tio_shared_add(file->io, 0, &current));
    if (error == MPI_SUCCESS)
      error = seek_target(file, offset, whence, current, &target);
  }
  int64_t own[FIELDS] = {error, offset, -offset, whence, -(int64_t)whence}, all[FIELDS];
  atomic_store(&file->shared_used, true);
  if (maxima(file, own, all, FIELDS) != MPI_SUCCESS)
    return fail(file, MPI_ERR_OTHER);
  if (all[FAILED] != MPI_SUCCESS)
    return fail(file, (int)all[FAILED]);
  if (all[OFFSET] != -all[OFFSET_NEGATED] || all[WHENCE] != -all[WHENCE_NEGATED])
    return fail(file, MPI_ERR_NOT_SAME);
  if (file->rank == 0)
    error = class_of(tio_shared_set(file->io, target));
  return fail(file, agree(file, error));
}

int our_File_get_position_shared(MPI_File handle, MPI_Offset *offset)
{
  struct file *file = file_of(handle);
  int64_t position = 0;
  if (file == NULL)
    return REAL(File_get_position_shared)(handle, offset);
  if (sequential(file))
    return fail(file, MPI_ERR_UNSUPPORTED_OPERATION);
  if (offset == NULL)
    return fail(file, MPI_ERR_ARG);
  int error = class_of(tio_shared_add(file->io, 0, &position));
  if (error == MPI_SUCCESS)
    *offset = position;
  return fail(file, error);
}

static int type_extent(struct file *file, MPI_Datatype datatype, int64_t *extent)
{
  tio_shape *shape = NULL;
  int error = flatten(datatype, file->rep, &shape);
  if (error == MPI_SUCCESS)
    *extent = tio_shape_extent(shape);
  tio_shape_release(shape);
  return fail(file, error);
}

int our_File_get_type_extent(MPI_File handle, MPI_Datatype datatype, MPI_Aint *extent)
{
  struct file *file = file_of(handle);
  int64_t found = 0;
  if (file == NULL)
    return REAL(File_get_type_extent)(handle, datatype, extent);
  if (extent == NULL)
    return fail(file, MPI_ERR_ARG);
  int error = type_extent(file, datatype, &found);
  if (error == MPI_SUCCESS)
    *extent = (MPI_Aint)found;
  return error;
}

int our_File_get_type_extent_c(MPI_File handle, MPI_Datatype datatype, MPI_Count *extent)
{
  struct file *file = file_of(handle);
  int64_t found = 0;
  if (file == NULL) {
    MPI_Aint narrow = 0;
    int error = REAL(File_get_type_extent)(handle, datatype, &narrow);
    *extent = narrow;
    return error;
  }
  if (extent == NULL)
    return fail(file, MPI_ERR_ARG);
  int error = type_extent(file, datatype, &found);
  if (error == MPI_SUCCESS)
    *extent = found;
  return error;
}
