/*
 * PnetCDF looks at the first bytes of a file by open(2) and read(2) before it opens the file by
 * MPI-IO. A file on another site has no such path here. So while ncmpi_open or ncmpi_inq_file_format
 * runs, open(2) of that file for reading returns a file in memory with its first bytes. Nothing else
 * is different.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

#include "front.h"

#define EXPORT __attribute__((visibility("default")))
/* PnetCDF's NC_ENOTNC: a caller gets it where PnetCDF itself is missing. */
#define NOT_A_FILE_OF_IT (-51)

/* The file at which PnetCDF looks in this thread; NULL: at none. */
static __thread const char *looked_at;
static __thread int has_info;
static __thread uintptr_t info_word;

EXPORT int open(const char *path, int flags, ...);
EXPORT int open64(const char *path, int flags, ...);
EXPORT int ncmpi_open(uintptr_t comm, const char *path, int mode, uintptr_t info, int *file);
EXPORT int ncmpi_inq_file_format(const char *path, int *format);

static void find_next(void *to, const char *name)
{
  void *address = dlsym(RTLD_NEXT, name);
  memcpy(to, &address, sizeof address);
}

/* Whether PnetCDF opens the file at which it looks. It removes a prefix like "ufs:". */
static int is_looked_at(const char *path)
{
  size_t all = strlen(looked_at), len = strlen(path);
  return len > 0 && len <= all && strcmp(looked_at + all - len, path) == 0;
}

/* Returns the descriptor of a file in memory, or -1 for a file of this site. */
static int look(const char *path, int flags)
{
  if (looked_at == NULL || (flags & O_ACCMODE) != O_RDONLY || !is_looked_at(path))
    return -1;
  const char *of = looked_at;
  /* The library that looks opens files, too. */
  looked_at = NULL;
  int found = tatami_front_look(of, has_info, info_word);
  looked_at = of;
  return found >= 0 ? found : -1;
}

/* The mode is an argument only where the call may make a file. */
static mode_t mode_of(int flags, va_list arguments)
{
  return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(arguments, mode_t) : 0;
}

/* The C library has both names, for programs with and without large files. */
#define LOOKING_OPEN(name)                                                                                             \
  int name(const char *path, int flags, ...)                                                                           \
  {                                                                                                                    \
    static int (*next)(const char *, int, ...);                                                                        \
    if (next == NULL)                                                                                                  \
      find_next(&next, #name);                                                                                         \
    va_list arguments;                                                                                                 \
    va_start(arguments, flags);                                                                                        \
    mode_t mode = mode_of(flags, arguments);                                                                           \
    va_end(arguments);                                                                                                 \
    int found = look(path, flags);                                                                                     \
    return found >= 0 ? found : next(path, flags, mode);                                                               \
  }

LOOKING_OPEN(open)
LOOKING_OPEN(open64)

int ncmpi_open(uintptr_t comm, const char *path, int mode, uintptr_t info, int *file)
{
  static int (*next)(uintptr_t, const char *, int, uintptr_t, int *);
  if (next == NULL)
    find_next(&next, "ncmpi_open");
  if (next == NULL)
    return NOT_A_FILE_OF_IT;
  looked_at = path;
  has_info = 1;
  info_word = info;
  int result = next(comm, path, mode, info, file);
  looked_at = NULL;
  return result;
}

int ncmpi_inq_file_format(const char *path, int *format)
{
  static int (*next)(const char *, int *);
  if (next == NULL)
    find_next(&next, "ncmpi_inq_file_format");
  if (next == NULL)
    return NOT_A_FILE_OF_IT;
  /* Within ncmpi_open the info of that call counts. */
  const char *before = looked_at;
  if (before == NULL) {
    looked_at = path;
    has_info = 0;
  }
  int result = next(path, format);
  looked_at = before;
  return result;
}
