/* See wordmap.h. Open addressing with linear probing; removal closes the gap. */
#include "wordmap.h"

#include <stdlib.h>

enum { MAPS = 2, RECENT = 4 };

struct recent {
  uint_fast64_t generation;
  uintptr_t key;
  void *value;
};

static _Thread_local struct recent recents[MAPS][RECENT];

static size_t home(const struct wordmap *map, uintptr_t key)
{
  return (size_t)(((uint64_t)key * UINT64_C(0x9e3779b97f4a7c15)) >> 20) & (map->room - 1);
}

/* Returns the slot of a key, or the free slot for it. */
static size_t find(const struct wordmap *map, uintptr_t key)
{
  size_t at = home(map, key);
  while (map->slots[at].key != 0 && map->slots[at].key != key)
    at = (at + 1) & (map->room - 1);
  return at;
}

static int grow(struct wordmap *map)
{
  struct wordmap bigger = {.room = map->room != 0 ? map->room * 2 : 16};
  bigger.slots = calloc(bigger.room, sizeof *bigger.slots);
  if (bigger.slots == NULL)
    return -1;
  for (size_t i = 0; i < map->room; i++)
    if (map->slots[i].key != 0)
      bigger.slots[find(&bigger, map->slots[i].key)] = map->slots[i];
  free(map->slots);
  map->slots = bigger.slots;
  map->room = bigger.room;
  return 0;
}

void *wordmap_get(struct wordmap *map, uintptr_t key)
{
  struct recent *recent = &recents[map->id][(key >> 4 ^ key >> 9) % RECENT];
  uint_fast64_t generation = atomic_load_explicit(&map->generation, memory_order_acquire);
  if (recent->key == key && recent->generation == generation)
    return recent->value;
  if (key == 0)
    return NULL;
  void *value = NULL;
  pthread_rwlock_rdlock(&map->lock);
  if (map->used != 0)
    value = map->slots[find(map, key)].value;
  pthread_rwlock_unlock(&map->lock);
  if (value != NULL)
    *recent = (struct recent){generation, key, value};
  return value;
}

int wordmap_put(struct wordmap *map, uintptr_t key, void *value)
{
  int result = 0;
  pthread_rwlock_wrlock(&map->lock);
  if (map->used * 2 >= map->room)
    result = grow(map);
  if (result == 0) {
    struct wordmap_slot *slot = &map->slots[find(map, key)];
    map->used += slot->key == 0;
    *slot = (struct wordmap_slot){key, value};
    atomic_fetch_add_explicit(&map->generation, 1, memory_order_release);
  }
  pthread_rwlock_unlock(&map->lock);
  return result;
}

/* Moves later slots of the probe sequence into the gap at `gap`. */
static void close_gap(struct wordmap *map, size_t gap)
{
  size_t mask = map->room - 1;
  for (size_t at = (gap + 1) & mask; map->slots[at].key != 0; at = (at + 1) & mask) {
    size_t wanted = home(map, map->slots[at].key);
    if (((at - wanted) & mask) >= ((at - gap) & mask)) {
      map->slots[gap] = map->slots[at];
      gap = at;
    }
  }
  map->slots[gap] = (struct wordmap_slot){0, NULL};
}

void *wordmap_take(struct wordmap *map, uintptr_t key)
{
  void *value = NULL;
  pthread_rwlock_wrlock(&map->lock);
  if (map->used != 0) {
    size_t at = find(map, key);
    if (map->slots[at].key != 0) {
      value = map->slots[at].value;
      close_gap(map, at);
      map->used--;
      atomic_fetch_add_explicit(&map->generation, 1, memory_order_release);
    }
  }
  pthread_rwlock_unlock(&map->lock);
  return value;
}
