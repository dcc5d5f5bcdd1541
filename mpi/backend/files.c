/*
 * Our files by the handles that programs have. A handle is a true one of the MPI library, of an empty file in memory:
 * so error handlers, conversion to Fortran and back, and comparison with MPI_FILE_NULL are the library's own.
 */
#define _GNU_SOURCE
#include "backend.h"

#include "wordmap.h"

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

int shadow_open(MPI_File *shadow)
{
  char path[64];
  int fd = memfd_create("tatami", MFD_CLOEXEC);
  if (fd < 0)
    return MPI_ERR_NO_MEM;
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  int error = REAL(File_open)(MPI_COMM_SELF, path, MPI_MODE_RDWR, MPI_INFO_NULL, shadow);
  close(fd);
  return error == MPI_SUCCESS ? MPI_SUCCESS : MPI_ERR_OTHER;
}
