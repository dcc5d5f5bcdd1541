/* The table of a backend's functions, and that of the MPI library's own. */
#include "backend.h"

#include "ours.h"

#include <stdio.h>
#include <stdlib.h>

const tatami_function *tatami_real;

/* A job that hangs says why in its log. */
static void print_wait(const char *why)
{
  fprintf(stderr, "tatami: %s\n", why);
}

static int start(const tatami_function *real)
{
  if (tio_version() != TIO_VERSION || real[CALL_File_open] == NULL)
    return -1;
  tatami_real = real;
  const char *verbose = getenv("TATAMI_MPI_VERBOSE");
  if (verbose == NULL || verbose[0] != '0')
    tio_report_waits(print_wait);
  return 0;
}

static int look(const char *path, int has_info, uintptr_t info)
{
  const char **hints = hints_of(has_info ? (MPI_Info)info : MPI_INFO_NULL);
  int found = tio_look(path, hints);
  hints_free(hints);
  return found;
}

static const tatami_function ours[] = {
#define OURS(name) [CALL_##name] = (tatami_function)our_##name,
#define OURS_BOTH(name) OURS(name) OURS(name##_c)
    TATAMI_PLAIN_CALLS(OURS) TATAMI_COUNT_CALLS(OURS_BOTH)};
#define COUNT (sizeof ours / sizeof *ours)
_Static_assert(COUNT == TATAMI_CALL_COUNT, "the backend has one function for each call of calls.h");

__attribute__((visibility("default"))) extern const struct tatami_backend tatami_backend;
const struct tatami_backend tatami_backend = {
    .magic = TATAMI_BACKEND_MAGIC,
    .version = TATAMI_BACKEND_VERSION,
    .count = COUNT,
    .start = start,
    .ours = ours,
    .look = look,
};
