/* Between the front's files. */
#ifndef TATAMI_FRONT_H
#define TATAMI_FRONT_H

#include "../calls.h"

/* Where each call goes; filled by tatami_front_find, once. */
extern tatami_function tatami_target[TATAMI_CALL_COUNT];
/* Finds the MPI library of this process and the backend for it. */
void tatami_front_find(void);
/* Loads a library from beside the front; NULL: dlerror tells. */
void *tatami_front_load(const char *name);
/* The environment says that all is left to the MPI library. */
int tatami_front_disabled(void);

#endif
