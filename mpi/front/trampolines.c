/*
 * The MPI_File_* and PMPI_File_* symbols of the front.
 *
 * They need no mpi.h. All parameters of these functions are integers or pointers, six at most, so
 * each fits a machine word and is passed on as one. (The calling conventions of x86-64, AArch64,
 * RISC-V and POWER pass the first six words in registers, for all types.) Both names are
 * needed: Fortran bindings call one or the other.
 */
#include <pthread.h>
#include <stdint.h>

#include "front.h"

tatami_function tatami_target[TATAMI_CALL_COUNT];

typedef int (*six_words)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t);

static pthread_once_t found = PTHREAD_ONCE_INIT;

void tatami_front_ready(void)
{
  pthread_once(&found, tatami_front_find);
}

static six_words target(enum tatami_call call)
{
  tatami_front_ready();
  return (six_words)tatami_target[call];
}

#define EXPORT __attribute__((visibility("default")))

#define TRAMPOLINE(name)                                                                                               \
  EXPORT int MPI_##name(uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e, uintptr_t f);                 \
  EXPORT int PMPI_##name(uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e, uintptr_t f);                \
  int MPI_##name(uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e, uintptr_t f)                         \
  {                                                                                                                    \
    return target(CALL_##name)(a, b, c, d, e, f);                                                                      \
  }                                                                                                                    \
  int PMPI_##name(uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e, uintptr_t f)                        \
  {                                                                                                                    \
    return target(CALL_##name)(a, b, c, d, e, f);                                                                      \
  }
#define TRAMPOLINE_BOTH(name) TRAMPOLINE(name) TRAMPOLINE(name##_c)

TATAMI_PLAIN_CALLS(TRAMPOLINE)
TATAMI_COUNT_CALLS(TRAMPOLINE_BOTH)
