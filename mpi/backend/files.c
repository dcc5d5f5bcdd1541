/*
 * The layer's files by the programs' handles. A handle is a true one of the MPI library, of an
 * empty file in memory. So error handlers, conversion to Fortran and back, and comparison with
 * MPI_FILE_NULL are the library's own.
 */
#define _GNU_SOURCE
#include "backend.h"

#include "wordmap.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

static struct wordmap files = WORDMAP(1);

struct file *file_of(MPI_File handle)
{
  return wordmap_get(&files, (uintptr_t)handle);
}

int file_register(struct file *file)
{
  return wordmap_put(&files, (uintptr_t)file->shadow, file) == 0 ? MPI_SUCCESS : MPI_ERR_NO_MEM;
}

void file_forget(struct file *file)
{
  wordmap_take(&files, (uintptr_t)file->shadow);
}

/*
 * Shadows of closed files, kept for the next opens: opening and closing a shadow takes a large part
 * of the time of a close. They end with MPI_COMM_SELF. MPI_Finalize deletes its attributes first,
 * the latest first, so the layer's before the one by which ROMIO ends.
 */
enum { SPARES = 8 };
static struct {
  pthread_mutex_t lock;
  bool known, over; /* the attribute is set; MPI_Finalize has begun */
  int count;
  MPI_File handles[SPARES];
} spares = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int end_spares(MPI_Comm comm, int key, void *value, void *extra)
{
  (void)comm;
  (void)key;
  (void)value;
  (void)extra;
  pthread_mutex_lock(&spares.lock);
  spares.over = true;
  while (spares.count > 0)
    REAL(File_close)(&spares.handles[--spares.count]);
  pthread_mutex_unlock(&spares.lock);
  return MPI_SUCCESS;
}

static bool will_be_told(void)
{
  int key;
  if (!spares.known && PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, end_spares, &key, NULL) == MPI_SUCCESS)
    spares.known = PMPI_Comm_set_attr(MPI_COMM_SELF, key, &spares) == MPI_SUCCESS;
  return spares.known && !spares.over;
}

/* Returns whether the program uses the default error handler of new files, which a spare shadow
 * has. */
static bool by_default(void)
{
  MPI_Errhandler handler;
  if (PMPI_File_get_errhandler(MPI_FILE_NULL, &handler) != MPI_SUCCESS)
    return false;
  bool is = handler == MPI_ERRORS_RETURN;
  if (!is)
    PMPI_Errhandler_free(&handler);
  return is;
}

static int shadow_new(MPI_File *shadow)
{
  char path[64];
  int fd = memfd_create("tatami", MFD_CLOEXEC);
  if (fd < 0)
    return MPI_ERR_NO_MEM;
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  int error = REAL(File_open)(MPI_COMM_SELF, path, MPI_MODE_RDWR, MPI_INFO_NULL, shadow);
  close(fd);
#ifdef MPICH
  /* MPICH gives a new file the error handler of MPI_FILE_NULL without counting a reference, but
   * its close releases one. This call takes a reference to make up for that: the program may
   * have freed its own. */
  MPI_Errhandler counted;
  if (error == MPI_SUCCESS)
    PMPI_File_get_errhandler(MPI_FILE_NULL, &counted);
#endif
  return error == MPI_SUCCESS ? MPI_SUCCESS : MPI_ERR_OTHER;
}

int shadow_open(MPI_File *shadow)
{
  bool found = false;
  pthread_mutex_lock(&spares.lock);
  if (spares.count > 0 && by_default()) {
    *shadow = spares.handles[--spares.count];
    found = true;
  }
  pthread_mutex_unlock(&spares.lock);
  return found ? MPI_SUCCESS : shadow_new(shadow);
}

void shadow_close(MPI_File *shadow)
{
  bool kept = false;
  pthread_mutex_lock(&spares.lock);
  if (spares.count < SPARES && will_be_told() &&
      PMPI_File_set_errhandler(*shadow, MPI_ERRORS_RETURN) == MPI_SUCCESS) {
    spares.handles[spares.count++] = *shadow;
    kept = true;
  }
  pthread_mutex_unlock(&spares.lock);
  if (!kept)
    REAL(File_close)(shadow);
  *shadow = MPI_FILE_NULL;
}
