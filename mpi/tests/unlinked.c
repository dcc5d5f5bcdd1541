/*
 * Removes containers as programs remove files: unlink(2), remove(3) and unlinkat(2). Directories
 * stay directories.
 * Usage: unlinked DIRECTORY
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static int failures;

#define CHECK(condition)                                                                                               \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      failures++;                                                                                                      \
      printf("line %d: %s: errno %d\n", __LINE__, #condition, errno);                                                  \
    }                                                                                                                  \
  } while (0)

static void make(const char *path)
{
  MPI_File file;
  CHECK(MPI_File_open(MPI_COMM_SELF, path, MPI_MODE_RDWR | MPI_MODE_CREATE, MPI_INFO_NULL, &file) == MPI_SUCCESS);
  CHECK(MPI_File_write(file, "bytes", 5, MPI_BYTE, MPI_STATUS_IGNORE) == MPI_SUCCESS);
  CHECK(MPI_File_close(&file) == MPI_SUCCESS);
}

static int is_there(const char *path)
{
  struct stat state;
  return lstat(path, &state) == 0;
}

int main(int argc, char **argv)
{
  MPI_Init(&argc, &argv);
  CHECK(chdir(argv[1]) == 0);
  make("container");
  CHECK(is_there("container") && unlink("container") == 0 && !is_there("container"));
  make("container");
  CHECK(remove("container") == 0 && !is_there("container"));
  make("container");
  int here = open(argv[1], O_RDONLY | O_DIRECTORY);
  CHECK(unlinkat(here, "container", 0) == 0 && !is_there("container"));
  CHECK(unlink("container") == -1 && errno == ENOENT);
  CHECK(mkdir("folder", 0755) == 0 && mkdir("folder/inner", 0755) == 0);
  CHECK(unlink("folder") == -1 && errno == EISDIR);
  CHECK(unlinkat(here, "folder", 0) == -1 && errno == EISDIR);
  CHECK(remove("folder") == -1 && errno == ENOTEMPTY);
  CHECK(unlinkat(here, "folder/inner", AT_REMOVEDIR) == 0 && remove("folder") == 0 && !is_there("folder"));
  close(here);
  if (failures == 0)
    printf("all values right\n");
  MPI_Finalize();
  return failures != 0;
}
