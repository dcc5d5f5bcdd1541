/*
 * Maps from machine words (MPI handles) to pointers, for many look-ups and few changes: a look-up
 * that repeats one of a thread's last few is an atomic load and a comparison.
 */
#ifndef TATAMI_WORDMAP_H
#define TATAMI_WORDMAP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

struct wordmap_slot {
  uintptr_t key; /* 0: free */
  void *value;
};

/* Zero-initialised but for the lock and `id`, which distinguishes the maps of a program (0 or
 * 1). */
struct wordmap {
  pthread_rwlock_t lock;
  unsigned id;
  atomic_uint_fast64_t generation; /* changes whenever a key is removed or replaced */
  size_t used, room;               /* room: 0 or a power of two */
  struct wordmap_slot *slots;
};

#define WORDMAP(number) {.lock = PTHREAD_RWLOCK_INITIALIZER, .id = (number), .generation = 1}

/* Returns the value of a key, NULL if there is none. Key 0 has none. */
void *wordmap_get(struct wordmap *map, uintptr_t key);
/* Returns 0, or -1 without memory. Replaces an existing value. */
int wordmap_put(struct wordmap *map, uintptr_t key, void *value);
/* Removes a key and returns its value. */
void *wordmap_take(struct wordmap *map, uintptr_t key);

#endif
