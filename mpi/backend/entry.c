/* The table of a backend's functions, and that of the MPI library's own. */
#include "backend.h"

#include "ours.h"

const tatami_function *tatami_real;

__attribute__((visibility("default"))) int tatami_backend_start(const tatami_function *real, tatami_function *ours)
{
  if (tio_version() != TIO_VERSION || real[CALL_File_open] == NULL)
    return -1;
  tatami_real = real;
#define OURS(name) ours[CALL_##name] = (tatami_function)our_##name;
#define OURS_BOTH(name) OURS(name) OURS(name##_c)
  TATAMI_PLAIN_CALLS(OURS)
  TATAMI_COUNT_CALLS(OURS_BOTH)
  return 0;
}
