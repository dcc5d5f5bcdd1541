/* Between the front's files. */
#ifndef TATAMI_FRONT_H
#define TATAMI_FRONT_H

#include "../calls.h"

/* The target of each call; tatami_front_find fills it once. */
extern tatami_function tatami_target[TATAMI_CALL_COUNT];
/* Finds the MPI library of this process and the backend for it. */
void tatami_front_find(void);
/* Loads a library from beside the front; NULL on failure, with the reason in dlerror. */
void *tatami_front_load(const char *name);
/* Whether the environment leaves all files to the MPI library. */
int tatami_front_disabled(void);

#endif
