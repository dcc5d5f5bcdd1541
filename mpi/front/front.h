/* Between the front's two files. */
#ifndef TATAMI_FRONT_H
#define TATAMI_FRONT_H

#include "../calls.h"

/* Where each call goes; filled by tatami_front_find, once. */
extern tatami_function tatami_target[TATAMI_CALL_COUNT];
/* Finds the MPI library of this process and the backend for it. */
void tatami_front_find(void);

#endif
