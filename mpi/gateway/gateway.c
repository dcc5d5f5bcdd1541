/* Files of an I/O process through the MPI-IO of one MPI library: gateway.h has the interface. */
#include "gateway.h"

#include <errno.h>
#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ranges up to this number are moved one by one; more of them by one call through a view. */
enum { FEW = 4 };

struct gateway_file {
  MPI_File file;
  bool has_view; /* another one than all bytes */
};

static char explanation[MPI_MAX_ERROR_STRING + 64];

static int errno_of_class(int class)
{
  static const struct {
    int class, error;
  } pairs[] = {{MPI_ERR_NO_SUCH_FILE, ENOENT}, {MPI_ERR_FILE_EXISTS, EEXIST}, {MPI_ERR_ACCESS, EACCES},
               {MPI_ERR_READ_ONLY, EROFS},     {MPI_ERR_NO_SPACE, ENOSPC},    {MPI_ERR_QUOTA, EDQUOT},
               {MPI_ERR_BAD_FILE, EINVAL},     {MPI_ERR_FILE_IN_USE, EBUSY},  {MPI_ERR_AMODE, EINVAL},
               {MPI_ERR_NO_MEM, ENOMEM},       {MPI_ERR_FILE, EBADF},         {MPI_ERR_UNSUPPORTED_OPERATION, EOPNOTSUPP}};
  for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
    if (pairs[i].class == class)
      return pairs[i].error;
  return EIO;
}

/* Keeps MPI's words for a failed call; returns its negative errno, or 0. */
static int64_t result_of(int code)
{
  if (code == MPI_SUCCESS)
    return 0;
  int class = MPI_ERR_OTHER, length = 0;
  MPI_Error_class(code, &class);
  if (MPI_Error_string(code, explanation, &length) != MPI_SUCCESS)
    snprintf(explanation, sizeof explanation, "an error of class %d", class);
  return -errno_of_class(class);
}

static int64_t refuse(int error, const char *why)
{
  snprintf(explanation, sizeof explanation, "%s", why);
  return -error;
}

static const char *explain(void)
{
  return explanation;
}

static int64_t start(void)
{
  int is_started = 0, provided = 0;
  MPI_Initialized(&is_started);
  int code = is_started ? MPI_SUCCESS : MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided);
  if (code == MPI_SUCCESS)
    code = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (code == MPI_SUCCESS)
    code = MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
  if (code == MPI_SUCCESS)
    code = MPI_File_set_errhandler(MPI_FILE_NULL, MPI_ERRORS_RETURN);
  return result_of(code);
}

static int64_t finish(void)
{
  return result_of(MPI_Finalize());
}

/* Writes through gaps must not read and write back the gaps, which belong to other ranks. */
static MPI_Info make_hints(void)
{
  MPI_Info info = MPI_INFO_NULL;
  if (MPI_Info_create(&info) != MPI_SUCCESS)
    return MPI_INFO_NULL;
  MPI_Info_set(info, "romio_ds_write", "disable");
  MPI_Info_set(info, "romio_cb_write", "disable");
  return info;
}

/* MPI libraries take the text before a colon for the name of a driver. Frees nothing: the caller
 * frees the result. */
static char *driver_path(const char *path)
{
  char *result = malloc(strlen(path) + sizeof "ufs:");
  if (result != NULL)
    sprintf(result, "%s%s", strchr(path, ':') != NULL ? "ufs:" : "", path);
  return result;
}

static int64_t open_file(const char *path, int64_t access, void **result)
{
  static const int modes[] = {0, MPI_MODE_RDONLY, MPI_MODE_WRONLY, MPI_MODE_RDWR};
  if (access < 1 || access > 3)
    return refuse(EINVAL, "no access is asked for");
  struct gateway_file *file = calloc(1, sizeof *file);
  char *named = driver_path(path);
  if (file == NULL || named == NULL) {
    free(file);
    free(named);
    return refuse(ENOMEM, "no memory");
  }
  MPI_Info info = make_hints();
  int64_t opened = result_of(MPI_File_open(MPI_COMM_SELF, named, modes[access], info, &file->file));
  if (info != MPI_INFO_NULL)
    MPI_Info_free(&info);
  free(named);
  if (opened < 0) {
    free(file);
    return opened;
  }
  MPI_File_set_errhandler(file->file, MPI_ERRORS_RETURN);
  *result = file;
  return 0;
}

static int64_t close_file(void *handle)
{
  struct gateway_file *file = handle;
  int64_t closed = result_of(MPI_File_close(&file->file));
  free(file);
  return closed;
}

static int64_t show_all_bytes(struct gateway_file *file)
{
  if (!file->has_view)
    return 0;
  int64_t set = result_of(MPI_File_set_view(file->file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
  file->has_view = set < 0;
  return set;
}

/* Sets a view that shows the ranges and nothing else. */
static int64_t show_ranges(struct gateway_file *file, uint64_t count, const uint64_t *offsets, const uint64_t *lengths)
{
  int *blocks = calloc(count, sizeof *blocks);
  MPI_Aint *places = calloc(count, sizeof *places);
  MPI_Datatype type = MPI_DATATYPE_NULL;
  int code = blocks == NULL || places == NULL ? MPI_ERR_NO_MEM : MPI_SUCCESS;
  for (uint64_t i = 0; code == MPI_SUCCESS && i < count; i++) {
    blocks[i] = (int)lengths[i];
    places[i] = (MPI_Aint)(offsets[i] - offsets[0]);
  }
  if (code == MPI_SUCCESS)
    code = MPI_Type_create_hindexed((int)count, blocks, places, MPI_BYTE, &type);
  if (code == MPI_SUCCESS)
    code = MPI_Type_commit(&type);
  file->has_view = true;
  if (code == MPI_SUCCESS)
    code = MPI_File_set_view(file->file, (MPI_Offset)offsets[0], MPI_BYTE, type, "native", MPI_INFO_NULL);
  int64_t result = result_of(code);
  if (type != MPI_DATATYPE_NULL)
    MPI_Type_free(&type);
  free(blocks);
  free(places);
  return result;
}

static int64_t total_of(uint64_t count, const uint64_t *lengths)
{
  uint64_t total = 0;
  for (uint64_t i = 0; i < count; i++)
    total += lengths[i];
  return (int64_t)total;
}

/* Moves bytes at one offset of the view in force; returns the number. */
static int64_t move_range(MPI_File file, bool writes, uint64_t offset, void *bytes, int64_t length)
{
  MPI_Status status;
  int moved = 0;
  int code = writes ? MPI_File_write_at(file, (MPI_Offset)offset, bytes, (int)length, MPI_BYTE, &status)
                    : MPI_File_read_at(file, (MPI_Offset)offset, bytes, (int)length, MPI_BYTE, &status);
  if (code == MPI_SUCCESS)
    code = MPI_Get_count(&status, MPI_BYTE, &moved);
  if (code != MPI_SUCCESS)
    return result_of(code);
  if (writes && moved != length)
    return refuse(ENOSPC, "the MPI library wrote fewer bytes than asked");
  return moved < 0 ? 0 : moved;
}

static int64_t move_ranges(struct gateway_file *file, bool writes, uint64_t count, const uint64_t *offsets,
                           const uint64_t *lengths, char *bytes)
{
  if (count > FEW) {
    int64_t shown = show_ranges(file, count, offsets, lengths);
    return shown < 0 ? shown : move_range(file->file, writes, 0, bytes, total_of(count, lengths));
  }
  int64_t done = show_all_bytes(file);
  for (uint64_t i = 0; done >= 0 && i < count; i++) {
    int64_t moved = move_range(file->file, writes, offsets[i], bytes + done, (int64_t)lengths[i]);
    done = moved < 0 ? moved : done + moved;
    if (moved >= 0 && (uint64_t)moved < lengths[i])
      break;
  }
  return done;
}

static int64_t write_ranges(void *handle, uint64_t count, const uint64_t *offsets, const uint64_t *lengths,
                            const void *bytes)
{
  /* MPI-2 libraries take a pointer to bytes that may be changed, and do not change them. */
  return move_ranges(handle, true, count, offsets, lengths, (char *)(uintptr_t)bytes);
}

static int64_t read_ranges(void *handle, uint64_t count, const uint64_t *offsets, const uint64_t *lengths, void *bytes)
{
  return move_ranges(handle, false, count, offsets, lengths, bytes);
}

static int64_t find_size(void *handle)
{
  struct gateway_file *file = handle;
  MPI_Offset size = 0;
  int64_t found = result_of(MPI_File_get_size(file->file, &size));
  return found < 0 ? found : (int64_t)size;
}

static int64_t set_size(void *handle, uint64_t size)
{
  struct gateway_file *file = handle;
  return result_of(MPI_File_set_size(file->file, (MPI_Offset)size));
}

static int64_t sync_file(void *handle)
{
  struct gateway_file *file = handle;
  return result_of(MPI_File_sync(file->file));
}

static int64_t remove_file(const char *path)
{
  char *named = driver_path(path);
  if (named == NULL)
    return refuse(ENOMEM, "no memory");
  int64_t removed = result_of(MPI_File_delete(named, MPI_INFO_NULL));
  free(named);
  return removed;
}

__attribute__((visibility("default"))) const struct tatami_gateway tatami_gateway = {
    .version = TATAMI_GATEWAY_VERSION,
    .start = start,
    .finish = finish,
    .open_file = open_file,
    .close_file = close_file,
    .write_ranges = write_ranges,
    .read_ranges = read_ranges,
    .find_size = find_size,
    .set_size = set_size,
    .sync_file = sync_file,
    .remove_file = remove_file,
    .explain = explain,
};
