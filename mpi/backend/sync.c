/* What begins a view epoch: sync, and changes of size and atomicity. All of it is collective. */
#include "ours.h"

#include <stdlib.h>

/* One message of MPI_Gatherv has at most this many bytes of all ranks together. */
enum { GATHER_MAX = 1 << 30 };

/* Tiles of all ranks at rank 0. */
struct gathered {
  uint64_t *lengths;
  unsigned char *bytes;
  const void **parts;
  size_t *sizes;
};

static void gathered_free(struct gathered *all)
{
  free(all->lengths);
  free(all->bytes);
  free(all->parts);
  free(all->sizes);
}

/* Bytes of all ranks to rank 0, each in messages of at most GATHER_MAX: what one Gatherv cannot express. */
static int gather_large(struct file *file, const void *bytes, uint64_t length, struct gathered *all)
{
  uint64_t done = 0;
  if (file->rank != 0) {
    for (; done < length; done += GATHER_MAX) {
      uint64_t left = length - done;
      int now = left < GATHER_MAX ? (int)left : GATHER_MAX;
      if (PMPI_Send((const char *)bytes + done, now, MPI_BYTE, 0, 0, file->comm) != MPI_SUCCESS)
        return MPI_ERR_OTHER;
    }
    return MPI_SUCCESS;
  }
  uint64_t at = all->lengths[0];
  for (int rank = 1; rank < file->ranks; rank++) {
    for (done = 0; done < all->lengths[rank]; done += GATHER_MAX) {
      uint64_t left = all->lengths[rank] - done;
      int now = left < GATHER_MAX ? (int)left : GATHER_MAX;
      if (PMPI_Recv(all->bytes + at + done, now, MPI_BYTE, rank, 0, file->comm, MPI_STATUS_IGNORE) != MPI_SUCCESS)
        return MPI_ERR_OTHER;
    }
    at += all->lengths[rank];
  }
  return MPI_SUCCESS;
}

static int gather_small(struct file *file, const void *bytes, uint64_t length, struct gathered *all)
{
  int *counts = NULL, *starts = NULL;
  if (file->rank == 0) {
    counts = calloc((unsigned)file->ranks, sizeof *counts);
    starts = calloc((unsigned)file->ranks, sizeof *starts);
    if (counts == NULL || starts == NULL)
      PMPI_Abort(file->comm, MPI_ERR_NO_MEM);
    for (int rank = 0, at = 0; rank < file->ranks; rank++) {
      counts[rank] = (int)all->lengths[rank];
      starts[rank] = at;
      at += counts[rank];
    }
  }
  int result = PMPI_Gatherv(bytes, (int)length, MPI_BYTE, all->bytes, counts, starts, MPI_BYTE, 0, file->comm);
  free(counts);
  free(starts);
  return result == MPI_SUCCESS ? MPI_SUCCESS : MPI_ERR_OTHER;
}

/* Room for what is to come; the number of bytes in it. A rank 0 without memory can't tell anybody: it ends the job,
 * whose files are whole by their journals. */
static uint64_t gathered_prepare(struct file *file, struct gathered *all, const void *own)
{
  uint64_t total = 0;
  for (int rank = 0; rank < file->ranks; rank++)
    total += all->lengths[rank];
  all->bytes = malloc(total + 1);
  all->parts = calloc((unsigned)file->ranks, sizeof *all->parts);
  all->sizes = calloc((unsigned)file->ranks, sizeof *all->sizes);
  if (all->bytes == NULL || all->parts == NULL || all->sizes == NULL)
    PMPI_Abort(file->comm, MPI_ERR_NO_MEM);
  uint64_t at = 0;
  for (int rank = 0; rank < file->ranks; rank++) {
    all->parts[rank] = all->bytes + at;
    all->sizes[rank] = (size_t)all->lengths[rank];
    at += all->lengths[rank];
  }
  for (uint64_t i = 0; i < all->lengths[0]; i++)
    all->bytes[i] = ((const unsigned char *)own)[i];
  return total;
}

static int gather(struct file *file, const void *bytes, uint64_t length, struct gathered *all)
{
  uint64_t total = 0;
  if (file->rank == 0 && (all->lengths = calloc((unsigned)file->ranks, sizeof *all->lengths)) == NULL)
    PMPI_Abort(file->comm, MPI_ERR_NO_MEM);
  if (PMPI_Gather(&length, 1, MPI_UINT64_T, all->lengths, 1, MPI_UINT64_T, 0, file->comm) != MPI_SUCCESS)
    return MPI_ERR_OTHER;
  if (file->rank == 0)
    total = gathered_prepare(file, all, bytes);
  if (PMPI_Bcast(&total, 1, MPI_UINT64_T, 0, file->comm) != MPI_SUCCESS)
    return MPI_ERR_OTHER;
  if (total == 0)
    return MPI_SUCCESS;
  return total > GATHER_MAX ? gather_large(file, bytes, length, all) : gather_small(file, bytes, length, all);
}

int publish(struct file *file, bool durable, bool closing, int error)
{
  const void *bytes = NULL;
  size_t length = 0;
  struct gathered all = {0};
  int sealed = tio_seal(file->io, durable, &bytes, &length);
  if (sealed < 0)
    length = 0;
  /* The address of nothing may be any; MPI takes some for MPI_IN_PLACE. */
  if (length == 0)
    bytes = "";
  if (error == MPI_SUCCESS)
    error = class_of(sealed);
  int gathering = gather(file, bytes, length, &all);
  if (error == MPI_SUCCESS)
    error = gathering;
  int result = 0;
  if (file->rank == 0) {
    result = tio_publish(file->io, (uint32_t)file->ranks, all.parts, all.sizes, durable, closing);
    if (error == MPI_SUCCESS)
      error = class_of(result);
  }
  gathered_free(&all);
  if (file->ranks > 1)
    PMPI_Bcast(&result, 1, MPI_INT, 0, file->comm);
  int settled = class_of(tio_sealed(file->io, result));
  return agree(file, error != MPI_SUCCESS ? error : settled);
}

int new_epoch(struct file *file, int error)
{
  int64_t own[2] = {error, 0}, all[2];
  if (file->rank == 0)
    own[1] = (int64_t)tio_stamp(file->io);
  all[0] = own[0];
  all[1] = own[1];
  if (file->ranks > 1 && PMPI_Allreduce(own, all, 2, MPI_INT64_T, MPI_MAX, file->comm) != MPI_SUCCESS)
    return MPI_ERR_OTHER;
  int begun = class_of(tio_epoch(file->io, (uint64_t)all[1]));
  return all[0] != MPI_SUCCESS ? (int)all[0] : begun;
}

int our_File_sync(MPI_File handle)
{
  struct file *file = file_of(handle);
  if (file == NULL)
    return REAL(File_sync)(handle);
  return fail(file, new_epoch(file, publish(file, true, false, MPI_SUCCESS)));
}

/* Collective: have all ranks given the same number? */
static int same(struct file *file, int64_t value, int error)
{
  int64_t own[3] = {value, -value, error}, all[3] = {value, -value, error};
  if (file->ranks > 1 && PMPI_Allreduce(own, all, 3, MPI_INT64_T, MPI_MAX, file->comm) != MPI_SUCCESS)
    return MPI_ERR_OTHER;
  return all[2] != MPI_SUCCESS ? (int)all[2] : all[0] != -all[1] ? MPI_ERR_NOT_SAME : MPI_SUCCESS;
}

static int change_size(struct file *file, MPI_Offset size, int (*change)(tio_file *, uint64_t))
{
  int error = MPI_SUCCESS;
  if (size < 0)
    error = MPI_ERR_ARG;
  else if (file->amode & MPI_MODE_RDONLY)
    error = MPI_ERR_READ_ONLY;
  else if (file->amode & MPI_MODE_SEQUENTIAL)
    error = MPI_ERR_UNSUPPORTED_OPERATION;
  error = same(file, error == MPI_SUCCESS ? size : 0, error);
  if (error != MPI_SUCCESS)
    return fail(file, error);
  error = publish(file, false, false, MPI_SUCCESS);
  if (error == MPI_SUCCESS && file->rank == 0)
    error = class_of(change(file->io, (uint64_t)size));
  return fail(file, new_epoch(file, error));
}

int our_File_set_size(MPI_File handle, MPI_Offset size)
{
  struct file *file = file_of(handle);
  return file == NULL ? REAL(File_set_size)(handle, size) : change_size(file, size, tio_set_size);
}

int our_File_preallocate(MPI_File handle, MPI_Offset size)
{
  struct file *file = file_of(handle);
  return file == NULL ? REAL(File_preallocate)(handle, size) : change_size(file, size, tio_preallocate);
}

int our_File_get_size(MPI_File handle, MPI_Offset *size)
{
  struct file *file = file_of(handle);
  uint64_t bytes = 0;
  if (file == NULL)
    return REAL(File_get_size)(handle, size);
  if (size == NULL)
    return fail(file, MPI_ERR_ARG);
  int error = class_of(tio_size(file->io, &bytes));
  if (error == MPI_SUCCESS)
    *size = (MPI_Offset)bytes;
  return fail(file, error);
}

int our_File_set_atomicity(MPI_File handle, int atomic)
{
  struct file *file = file_of(handle);
  if (file == NULL)
    return REAL(File_set_atomicity)(handle, atomic);
  int error = same(file, atomic != 0, MPI_SUCCESS);
  if (error != MPI_SUCCESS || file->atomic == (atomic != 0))
    return fail(file, error);
  error = new_epoch(file, publish(file, false, false, MPI_SUCCESS));
  if (error == MPI_SUCCESS)
    error = class_of(tio_set_atomic(file->io, atomic != 0));
  error = agree(file, error);
  if (error == MPI_SUCCESS)
    file->atomic = atomic != 0;
  return fail(file, error);
}

int our_File_get_atomicity(MPI_File handle, int *atomic)
{
  struct file *file = file_of(handle);
  if (file == NULL)
    return REAL(File_get_atomicity)(handle, atomic);
  if (atomic == NULL)
    return fail(file, MPI_ERR_ARG);
  *atomic = file->atomic;
  return MPI_SUCCESS;
}
