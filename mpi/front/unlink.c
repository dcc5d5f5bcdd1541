/*
 * unlink(2), unlinkat(2) and remove(3) of a container. To the program it is a file, to the system a
 * directory, for which unlink(2) returns EISDIR. Only then these functions check for a container,
 * and load the library that knows containers. Nothing else is different.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "front.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT int unlink(const char *path);
EXPORT int unlinkat(int directory, const char *path, int flags);
EXPORT int remove(const char *path);

/* Removes a container; -EISDIR for any other directory. */
static int remove_container(const char *path)
{
  int (*delete)(const char *) = NULL;
  void *library = tatami_front_disabled() ? NULL : tatami_front_load("libtatami_io.so");
  void *address = library != NULL ? dlsym(library, "tio_delete") : NULL;
  memcpy(&delete, &address, sizeof delete);
  return delete != NULL ? delete(path) : -EISDIR;
}

/* Returns `result`, the result of a call, except for a container. */
static int settle(int result, const char *path)
{
  if (result == 0 || errno != EISDIR)
    return result;
  int removed = remove_container(path);
  errno = removed < 0 ? -removed : 0;
  return removed < 0 ? -1 : 0;
}

int unlinkat(int directory, const char *path, int flags)
{
  static int (*next)(int, const char *, int);
  if (next == NULL) {
    void *address = dlsym(RTLD_NEXT, "unlinkat");
    memcpy(&next, &address, sizeof next);
  }
  int result = next(directory, path, flags);
  if (result == 0 || (flags & AT_REMOVEDIR) != 0 || errno != EISDIR)
    return result;
  if (directory == AT_FDCWD || path[0] == '/')
    return settle(result, path);
  char at[PATH_MAX];
  int length = snprintf(at, sizeof at, "/proc/self/fd/%d/%s", directory, path);
  errno = EISDIR;
  return length > 0 && (size_t)length < sizeof at ? settle(result, at) : result;
}

int unlink(const char *path)
{
  return unlinkat(AT_FDCWD, path, 0);
}

/* The C library's own remove would continue with rmdir(2), which returns ENOTEMPTY for a
 * container. */
int remove(const char *path)
{
  int result = unlink(path);
  return result != 0 && errno == EISDIR ? rmdir(path) : result;
}
