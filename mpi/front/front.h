/* Between the front's files. */
#ifndef TATAMI_FRONT_H
#define TATAMI_FRONT_H

#include "../calls.h"

/* The target of each call; tatami_front_find fills it once. */
extern tatami_function tatami_target[TATAMI_CALL_COUNT];
/* Finds the MPI library of this process and the backend for it. */
void tatami_front_find(void);
/* Calls tatami_front_find if nobody has. */
void tatami_front_ready(void);
/* Loads a library from beside the front; NULL on failure, with the reason in dlerror. */
void *tatami_front_load(const char *name);
/* Whether the environment leaves all files to the MPI library. */
int tatami_front_disabled(void);

/* Returns a descriptor of a file in memory with the first bytes of a file of another site; -1 for any
 * other file. `info` is the MPI_Info of the open, if there is one. */
int tatami_front_look(const char *path, int has_info, uintptr_t info);

#endif
