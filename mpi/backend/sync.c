/* The calls that begin a view epoch: sync, and changes of size and atomicity. All of them are
 * collective. */
#include "ours.h"

#include <stdlib.h>
#include <string.h>

/* One message has at most this many bytes. */
enum { MESSAGE_MAX = 1 << 30 };

/* The message of each rank to rank 0, of a fixed size, in which the tiles of a regular job fit. */
struct report {
  uint64_t length; /* of its tiles; if they do not fit, they follow in further messages */
  int error;
  unsigned char bytes[244];
};

/* The message of rank 0 to all: the worst error, the result of the publication, and the stamp of
 * the epoch that begins then. */
struct verdict {
  int error, result;
  uint64_t stamp;
};

/* The tiles of all ranks at rank 0. */
struct gathered {
  struct report *reports;
  const void **parts;
  size_t *sizes;
};

static void gathered_free(const struct file *file, struct gathered *all)
{
  for (int rank = 0; all->parts != NULL && rank < file->ranks; rank++)
    if (all->sizes[rank] > sizeof all->reports[rank].bytes)
      free((void *)all->parts[rank]);
  free(all->reports);
  free(all->parts);
  free(all->sizes);
}

static int send_tiles(struct file *file, const char *bytes, uint64_t length)
{
  for (uint64_t done = 0; done < length; done += MESSAGE_MAX) {
    MPI_Request request = MPI_REQUEST_NULL;
    int now = length - done < MESSAGE_MAX ? (int)(length - done) : MESSAGE_MAX;
    if (finish(PMPI_Isend(bytes + done, now, MPI_BYTE, 0, 0, file->comm, &request), &request) != MPI_SUCCESS)
      return MPI_ERR_OTHER;
  }
  return MPI_SUCCESS;
}

static int receive_tiles(struct file *file, int rank, char *bytes, uint64_t length)
{
  for (uint64_t done = 0; done < length; done += MESSAGE_MAX) {
    MPI_Request request = MPI_REQUEST_NULL;
    int now = length - done < MESSAGE_MAX ? (int)(length - done) : MESSAGE_MAX;
    if (finish(PMPI_Irecv(bytes + done, now, MPI_BYTE, rank, 0, file->comm, &request), &request) != MPI_SUCCESS)
      return MPI_ERR_OTHER;
  }
  return MPI_SUCCESS;
}

/* Takes the tiles of one rank at rank 0, from its report or from messages. A rank without memory
 * can't report that, so it ends the job. The files stay whole by their journals. */
static int take_tiles(struct file *file, struct gathered *all, int rank, const void *own)
{
  struct report *report = &all->reports[rank];
  all->sizes[rank] = (size_t)report->length;
  all->parts[rank] = report->bytes;
  if (report->length <= sizeof report->bytes)
    return MPI_SUCCESS;
  char *bytes = malloc(report->length);
  if (bytes == NULL)
    PMPI_Abort(file->comm, MPI_ERR_NO_MEM);
  all->parts[rank] = bytes;
  if (rank != 0)
    return receive_tiles(file, rank, bytes, report->length);
  memcpy(bytes, own, report->length);
  return MPI_SUCCESS;
}

/* Returns the worst error of all ranks at rank 0, the own error at the others. */
static int gather(struct file *file, const void *bytes, uint64_t length, int error, struct gathered *all)
{
  struct report own = {.length = length, .error = error};
  bool fits = length <= sizeof own.bytes;
  if (fits && length > 0)
    memcpy(own.bytes, bytes, length);
  if (file->rank == 0) {
    all->reports = calloc((unsigned)file->ranks, sizeof *all->reports);
    all->parts = calloc((unsigned)file->ranks, sizeof *all->parts);
    all->sizes = calloc((unsigned)file->ranks, sizeof *all->sizes);
    if (all->reports == NULL || all->parts == NULL || all->sizes == NULL)
      PMPI_Abort(file->comm, MPI_ERR_NO_MEM);
    all->reports[0] = own;
  }
  int gathering = file->ranks > 1 ? collect(file, &own, sizeof own, all->reports) : MPI_SUCCESS;
  if (gathering == MPI_SUCCESS && file->rank != 0 && !fits)
    gathering = send_tiles(file, bytes, length);
  for (int rank = 0; gathering == MPI_SUCCESS && file->rank == 0 && rank < file->ranks; rank++) {
    if (all->reports[rank].error > error)
      error = all->reports[rank].error;
    gathering = take_tiles(file, all, rank, bytes);
  }
  return error != MPI_SUCCESS ? error : gathering;
}

int publish(struct file *file, enum publication what, int error)
{
  const void *bytes = NULL;
  size_t length = 0;
  struct gathered all = {0};
  struct verdict verdict = {0};
  int sealed = tio_seal(file->io, what == SYNC, &bytes, &length);
  if (sealed < 0)
    length = 0;
  if (error == MPI_SUCCESS)
    error = class_of(sealed);
  error = gather(file, bytes, length, error, &all);
  if (file->rank == 0) {
    verdict.result = tio_publish(file->io, (uint32_t)file->ranks, all.parts, all.sizes, what == SYNC, what == CLOSE);
    verdict.error = error != MPI_SUCCESS ? error : class_of(verdict.result);
    if (what == SYNC)
      verdict.stamp = tio_stamp(file->io);
  }
  gathered_free(file, &all);
  if (file->ranks > 1 && broadcast(file->comm, &verdict, sizeof verdict, 0) != MPI_SUCCESS)
    return MPI_ERR_OTHER;
  int settled = class_of(tio_sealed(file->io, verdict.result));
  if (what == SYNC && settled == MPI_SUCCESS)
    settled = class_of(tio_epoch(file->io, verdict.stamp));
  if (verdict.error != MPI_SUCCESS)
    error = verdict.error;
  return error != MPI_SUCCESS ? error : settled;
}

int new_epoch(struct file *file, int error)
{
  int64_t own[2] = {error, 0}, all[2];
  if (file->rank == 0)
    own[1] = (int64_t)tio_stamp(file->io);
  if (maxima(file, own, all, 2) != MPI_SUCCESS)
    return MPI_ERR_OTHER;
  int begun = class_of(tio_epoch(file->io, (uint64_t)all[1]));
  return all[0] != MPI_SUCCESS ? (int)all[0] : begun;
}

int our_File_sync(MPI_File handle)
{
  struct file *file = file_of(handle);
  if (file == NULL)
    return REAL(File_sync)(handle);
  return fail(file, publish(file, SYNC, MPI_SUCCESS));
}

/* Collective. Checks that all ranks have the same number. */
static int same(struct file *file, int64_t value, int error)
{
  int64_t own[3] = {value, -value, error}, all[3];
  if (maxima(file, own, all, 3) != MPI_SUCCESS)
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
  error = publish(file, CHANGE, MPI_SUCCESS);
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
  error = new_epoch(file, publish(file, CHANGE, MPI_SUCCESS));
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
