/* MPI_File_open, MPI_File_close, MPI_File_delete, and the calls that return the parameters of
 * the open. */
#define _GNU_SOURCE
#include "ours.h"

#include <stdlib.h>
#include <string.h>

/* The message of rank 0 to all ranks. */
struct invitation {
  int error;
  int amode;
  size_t token_len;
  unsigned char token[TIO_TOKEN_MAX];
};

static int flags_of(int amode)
{
  static const struct {
    int mode, flag;
  } pairs[] = {{MPI_MODE_RDONLY, TIO_RDONLY}, {MPI_MODE_RDWR, TIO_RDWR},     {MPI_MODE_WRONLY, TIO_WRONLY},
               {MPI_MODE_CREATE, TIO_CREATE}, {MPI_MODE_EXCL, TIO_EXCL},     {MPI_MODE_APPEND, TIO_APPEND},
               {MPI_MODE_UNIQUE_OPEN, TIO_UNIQUE}, {MPI_MODE_SEQUENTIAL, TIO_SEQUENTIAL},
               {MPI_MODE_DELETE_ON_CLOSE, TIO_DELETE_ON_CLOSE}};
  int flags = 0;
  for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
    if (amode & pairs[i].mode)
      flags |= pairs[i].flag;
  return flags;
}

static int check_amode(int amode)
{
  int how = !!(amode & MPI_MODE_RDONLY) + !!(amode & MPI_MODE_RDWR) + !!(amode & MPI_MODE_WRONLY);
  if (how != 1 || ((amode & MPI_MODE_RDONLY) && (amode & (MPI_MODE_CREATE | MPI_MODE_EXCL))) ||
      ((amode & MPI_MODE_RDWR) && (amode & MPI_MODE_SEQUENTIAL)))
    return MPI_ERR_AMODE;
  return MPI_SUCCESS;
}

/* Collective on the program's communicator: rank 0 decides whether the layer takes this file. */
static int claimed(MPI_Comm comm, const char *path, int amode, MPI_Info info, int *answer)
{
  int rank, ranks;
  if (PMPI_Comm_rank(comm, &rank) != MPI_SUCCESS || PMPI_Comm_size(comm, &ranks) != MPI_SUCCESS)
    return MPI_ERR_COMM;
  *answer = 0;
  if (rank == 0 && path != NULL) {
    const char **hints = hints_of(info);
    *answer = tio_claims(path, flags_of(amode), hints);
    hints_free(hints);
  }
  if (ranks > 1 && broadcast(comm, answer, sizeof *answer, 0) != MPI_SUCCESS)
    return MPI_ERR_COMM;
  return MPI_SUCCESS;
}

/* The message of each rank to all ranks. */
struct arrival {
  int error;
  uint32_t node;
  uint64_t inbox;
};

/* Rank 0 creates or finds the file for the ranks in `arrivals`. */
static void invite(struct file *file, const char *const *hints, const struct arrival *arrivals,
                   struct invitation *invitation)
{
  uint32_t *nodes = calloc((size_t)file->ranks, sizeof *nodes);
  invitation->amode = file->amode;
  invitation->error = nodes == NULL ? MPI_ERR_NO_MEM : MPI_SUCCESS;
  for (int rank = 0; rank < file->ranks; rank++) {
    if (arrivals[rank].error > invitation->error)
      invitation->error = arrivals[rank].error;
    if (nodes != NULL)
      nodes[rank] = arrivals[rank].node;
  }
  if (invitation->error == MPI_SUCCESS)
    invitation->error = class_of(tio_begin(file->path, file->flags, 0666, hints, (uint32_t)file->ranks, nodes,
                                           invitation->token, &invitation->token_len));
  free(nodes);
}

/* Rank 0 creates or finds the file for all ranks, whose inboxes are known by then. This rank
 * opens it. */
static int open_invited(struct file *file, const char *const *hints, const struct arrival *all)
{
  struct invitation invitation = {.token_len = TIO_TOKEN_MAX};
  if (file->rank == 0)
    invite(file, hints, all, &invitation);
  int told = broadcast(file->comm, &invitation, sizeof invitation, 0);
  if (told != MPI_SUCCESS || invitation.error != MPI_SUCCESS)
    return told != MPI_SUCCESS ? told : invitation.error;
  if (invitation.amode != file->amode)
    return MPI_ERR_NOT_SAME;
  uint64_t *inboxes = file->ranks > 1 ? calloc((size_t)file->ranks, sizeof *inboxes) : NULL;
  for (int rank = 0; inboxes != NULL && rank < file->ranks; rank++)
    inboxes[rank] = all[rank].inbox;
  int error = class_of(tio_open(file->path, file->flags, hints, (uint32_t)file->rank, invitation.token,
                                invitation.token_len, inboxes, &file->io));
  free(inboxes);
  return error;
}

/* All ranks exchange their nodes and inboxes; then all open the file. */
static int open_together(struct file *file, const char *const *hints, int claim, int error)
{
  struct arrival own = {.error = error};
  struct arrival *all = calloc((size_t)file->ranks, sizeof *all);
  if (all == NULL)
    PMPI_Abort(file->comm, MPI_ERR_NO_MEM);
  if (tio_node(file->path, claim, &own.node, file->ranks > 1 ? &own.inbox : NULL) < 0)
    own.node = 0;
  error = collect_everywhere(file, &own, sizeof own, all);
  if (error == MPI_SUCCESS)
    error = open_invited(file, hints, all);
  free(all);
  if (error == MPI_SUCCESS)
    error = file_register(file);
  int worst = agree(file, error);
  if (worst != MPI_SUCCESS && file->io != NULL) {
    tio_close(file->io);
    file->io = NULL;
  }
  return worst;
}

/* Sets the pointers to the end of a file that is opened for appending. */
static int start_at_end(struct file *file)
{
  uint64_t end = 0;
  int error = class_of(tio_stream_at_end(file->io, &end));
  atomic_store(&file->position, (int64_t)end);
  atomic_store(&file->shared_used, true);
  if (error == MPI_SUCCESS && file->rank == 0)
    error = class_of(tio_shared_set(file->io, (int64_t)end));
  return agree(file, error);
}

static void file_free(struct file *file)
{
  if (file->io != NULL)
    tio_close(file->io);
  if (file->shadow != MPI_FILE_NULL)
    shadow_close(&file->shadow);
  if (file->hints != MPI_INFO_NULL)
    PMPI_Info_free(&file->hints);
  if (file->comm != MPI_COMM_NULL)
    PMPI_Comm_free(&file->comm);
  free(file->path);
  free(file);
}

static struct file *file_new(const char *path, int amode)
{
  struct file *file = calloc(1, sizeof *file);
  if (file == NULL)
    return NULL;
  file->shadow = MPI_FILE_NULL;
  file->comm = MPI_COMM_NULL;
  file->hints = MPI_INFO_NULL;
  file->amode = amode;
  file->flags = flags_of(amode);
  file->etype = file->filetype = MPI_BYTE;
  file->etype_size = 1;
  file->path = strdup(path != NULL ? path : "");
  if (file->path == NULL) {
    free(file);
    return NULL;
  }
  return file;
}

/* Does the parts that need no other rank. */
static int prepare(struct file *file, const char *path, MPI_Info info)
{
  if (path == NULL || path[0] == '\0')
    return MPI_ERR_BAD_FILE;
  if (PMPI_Info_create(&file->hints) != MPI_SUCCESS)
    return MPI_ERR_NO_MEM;
  if (info != MPI_INFO_NULL)
    hints_merge(file->hints, info);
  int error = shadow_open(&file->shadow);
  return error != MPI_SUCCESS ? error : check_amode(file->amode);
}

static int open_ours(MPI_Comm comm, const char *path, int claim, int amode, MPI_Info info, MPI_File *handle)
{
  struct file *file = file_new(path, amode);
  /* Without memory for this, the rank cannot send the error to the others, and they would wait
   * for ever. So it ends the job. */
  MPI_Request request = MPI_REQUEST_NULL;
  if (file == NULL || finish(PMPI_Comm_idup(comm, &file->comm, &request), &request) != MPI_SUCCESS)
    PMPI_Abort(comm, MPI_ERR_NO_MEM);
  PMPI_Comm_set_errhandler(file->comm, MPI_ERRORS_RETURN);
  PMPI_Comm_rank(file->comm, &file->rank);
  PMPI_Comm_size(file->comm, &file->ranks);
  const char **hints = hints_of(info);
  int error = prepare(file, path, info);
  error = open_together(file, hints, claim, hints == NULL ? MPI_ERR_NO_MEM : error);
  hints_free(hints);
  if (error == MPI_SUCCESS && (amode & MPI_MODE_APPEND))
    error = start_at_end(file);
  if (error != MPI_SUCCESS) {
    file_forget(file);
    file_free(file);
    return error;
  }
  *handle = file->shadow;
  return MPI_SUCCESS;
}

int our_File_open(MPI_Comm comm, const char *path, int amode, MPI_Info info, MPI_File *handle)
{
  int inter = 0, answer = 0;
  if (comm == MPI_COMM_NULL || handle == NULL || PMPI_Comm_test_inter(comm, &inter) != MPI_SUCCESS || inter)
    return REAL(File_open)(comm, path, amode, info, handle);
  int error = claimed(comm, path, amode, info, &answer);
  if (error != MPI_SUCCESS || answer == 0)
    return REAL(File_open)(comm, path, amode, info, handle);
  *handle = MPI_FILE_NULL;
  return fail_no_file(answer < 0 ? class_of(answer) : open_ours(comm, path, answer, amode, info, handle));
}

int our_File_close(MPI_File *handle)
{
  struct file *file = handle != NULL ? file_of(*handle) : NULL;
  if (file == NULL)
    return REAL(File_close)(handle);
  int error = publish(file, CLOSE, file->split.end != 0 ? MPI_ERR_OTHER : MPI_SUCCESS);
  int closed = class_of(tio_close(file->io));
  file->io = NULL;
  if (error == MPI_SUCCESS)
    error = closed;
  file_forget(file);
  if (file->etype != MPI_BYTE && !type_is_predefined(file->etype))
    PMPI_Type_free(&file->etype);
  if (file->filetype != MPI_BYTE && !type_is_predefined(file->filetype))
    PMPI_Type_free(&file->filetype);
  fail(file, error);
  file_free(file);
  *handle = MPI_FILE_NULL;
  return error;
}

int our_File_delete(const char *path, MPI_Info info)
{
  if (path == NULL)
    return REAL(File_delete)(path, info);
  const char **hints = hints_of(info);
  int answer = tio_claims(path, TIO_WRONLY, hints);
  hints_free(hints);
  if (answer == 0)
    return REAL(File_delete)(path, info);
  return fail_no_file(class_of(answer < 0 ? answer : tio_delete(path)));
}

int our_File_get_group(MPI_File handle, MPI_Group *group)
{
  struct file *file = file_of(handle);
  if (file == NULL)
    return REAL(File_get_group)(handle, group);
  if (group == NULL)
    return fail(file, MPI_ERR_ARG);
  return fail(file, PMPI_Comm_group(file->comm, group) == MPI_SUCCESS ? MPI_SUCCESS : MPI_ERR_OTHER);
}

int our_File_get_amode(MPI_File handle, int *amode)
{
  struct file *file = file_of(handle);
  if (file == NULL)
    return REAL(File_get_amode)(handle, amode);
  if (amode == NULL)
    return fail(file, MPI_ERR_ARG);
  *amode = file->amode;
  return MPI_SUCCESS;
}
