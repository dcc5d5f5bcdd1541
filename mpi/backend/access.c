/*
 * One access: checks the arguments, moves the file pointer, and moves the bytes by one call into
 * the library. Only ordered accesses communicate with other ranks.
 */
#include "backend.h"

/* The sizes of an access, computed from its arguments. */
struct extent {
  const struct type *type;
  int64_t bytes;  /* in the buffer */
  int64_t dense;  /* in the file */
  int64_t etypes; /* the unit of pointers */
};

static int check_mode(const struct file *file, const struct access *access)
{
  bool own_pointer = access->pointer == EXPLICIT || access->pointer == INDIVIDUAL;
  if (file->split.end != 0 && access->pointer == ORDERED)
    return MPI_ERR_OTHER;
  if ((file->amode & MPI_MODE_SEQUENTIAL) && own_pointer)
    return MPI_ERR_UNSUPPORTED_OPERATION;
  if (access->writes && (file->amode & MPI_MODE_RDONLY))
    return MPI_ERR_READ_ONLY;
  if (!access->writes && (file->amode & MPI_MODE_WRONLY))
    return MPI_ERR_ACCESS;
  return MPI_SUCCESS;
}

static int measure(const struct file *file, const struct access *access, struct extent *extent)
{
  if (access->count < 0)
    return MPI_ERR_COUNT;
  if (access->pointer == EXPLICIT && access->offset < 0)
    return MPI_ERR_ARG;
  int error = type_of(access->datatype, &extent->type);
  if (error != MPI_SUCCESS)
    return error;
  int64_t element = extent->type->size;
  if (file->rep == EXTERNAL32)
    error = external32_dense(access->datatype, &element);
  if (error != MPI_SUCCESS)
    return error;
  if (__builtin_mul_overflow((int64_t)access->count, extent->type->size, &extent->bytes) ||
      __builtin_mul_overflow((int64_t)access->count, element, &extent->dense))
    return MPI_ERR_COUNT;
  if (extent->dense % file->etype_size != 0)
    return MPI_ERR_IO; /* not a whole number of etypes */
  extent->etypes = extent->dense / file->etype_size;
  return MPI_SUCCESS;
}

/* Moves the pointer and returns its old position. With an ordered access all ranks take part,
 * also those with an `error`. */
static int position(struct file *file, const struct access *access, int64_t etypes, int error, int64_t *offset)
{
  if (access->pointer == ORDERED)
    return ordered_offset(file, etypes, error, offset);
  if (error != MPI_SUCCESS)
    return error;
  switch (access->pointer) {
  case EXPLICIT:
    *offset = access->offset;
    return MPI_SUCCESS;
  case INDIVIDUAL:
    *offset = atomic_fetch_add(&file->position, etypes);
    return MPI_SUCCESS;
  default:
    atomic_store(&file->shared_used, true);
    return class_of(tio_shared_add(file->io, etypes, offset));
  }
}

static int transfer(struct file *file, const struct access *access, const struct extent *extent, int64_t stream,
                    int64_t *bytes)
{
  if (file->rep == EXTERNAL32)
    return access->writes ? external32_write(file, stream, access, extent->dense, bytes)
                          : external32_read(file, stream, access, extent->dense, bytes);
  int64_t moved = access->writes ? tio_write(file->io, (uint64_t)stream, access->buffer, (uint64_t)access->count,
                                             extent->type->shape)
                                 : tio_read(file->io, (uint64_t)stream, access->buffer, (uint64_t)access->count,
                                            extent->type->shape);
  if (moved >= 0)
    *bytes = moved;
  return class_of(moved);
}

int access_run(struct file *file, const struct access *access, int64_t *bytes)
{
  struct extent extent = {0};
  int64_t offset = 0, stream = 0;
  *bytes = 0;
  int error = check_mode(file, access);
  if (error == MPI_SUCCESS)
    error = measure(file, access, &extent);
  error = position(file, access, extent.etypes, error, &offset);
  if (error != MPI_SUCCESS || extent.bytes == 0)
    return error;
  if (__builtin_mul_overflow(offset, file->etype_size, &stream))
    return MPI_ERR_ARG;
  if (!file->atomic)
    return transfer(file, access, &extent, stream, bytes);
  error = class_of(tio_lock(file->io));
  if (error != MPI_SUCCESS)
    return error;
  error = transfer(file, access, &extent, stream, bytes);
  int unlocked = class_of(tio_unlock(file->io));
  return error != MPI_SUCCESS ? error : unlocked;
}

void status_set(MPI_Status *status, int64_t bytes)
{
  if (status == MPI_STATUS_IGNORE)
    return;
  PMPI_Status_set_elements_x(status, MPI_BYTE, bytes);
  PMPI_Status_set_cancelled(status, 0);
}
