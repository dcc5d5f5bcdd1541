#include "common.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The eight bytes at 8 * word, lowest first: the finaliser of SplitMix64
 * (Steele, Lea, Flood: Fast splittable pseudorandom number generators). */
static inline uint64_t contents_word(uint64_t word, uint64_t seed) {
  uint64_t x = (word + 1) * UINT64_C(0x9e3779b97f4a7c15) ^ seed * UINT64_C(0xd1342543de82ef95);
  x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
  return x ^ (x >> 31);
}

static inline uint64_t little_endian(uint64_t x) {
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  return __builtin_bswap64(x);
#else
  return x;
#endif
}

static inline unsigned char contents_byte(uint64_t offset, uint64_t seed) {
  return (unsigned char)(contents_word(offset / 8, seed) >> (8 * (offset % 8)));
}

void contents_fill(void *to, uint64_t offset, size_t len, uint64_t seed) {
  unsigned char *out = to;
  size_t at = 0;
  while (at < len && (offset + at) % 8 != 0) {
    out[at] = contents_byte(offset + at, seed);
    at++;
  }
  for (; len - at >= 8; at += 8) {
    uint64_t word = little_endian(contents_word((offset + at) / 8, seed));
    memcpy(out + at, &word, 8);
  }
  for (; at < len; at++)
    out[at] = contents_byte(offset + at, seed);
}

size_t contents_check(const void *bytes, uint64_t offset, size_t len, uint64_t seed) {
  const unsigned char *in = bytes;
  size_t at = 0;
  while (at < len && (offset + at) % 8 != 0) {
    if (in[at] != contents_byte(offset + at, seed))
      return at;
    at++;
  }
  for (; len - at >= 8; at += 8) {
    uint64_t word = little_endian(contents_word((offset + at) / 8, seed));
    if (memcmp(in + at, &word, 8) != 0)
      break;
  }
  for (; at < len; at++)
    if (in[at] != contents_byte(offset + at, seed))
      return at;
  return len;
}

size_t pattern_check(const void *bytes, uint64_t offset, size_t len, const struct pattern *p) {
  const unsigned char *in = bytes;
  if (p->data == p->period)
    return contents_check(bytes, offset, len, p->seed);
  for (size_t at = 0; at < len;) {
    uint64_t phase = (offset + at) % p->period;
    bool data = phase < p->data;
    uint64_t here = (data ? p->data : p->period) - phase;
    size_t n = here < len - at ? (size_t)here : len - at;
    size_t good = 0;
    if (data)
      good = contents_check(in + at, offset + at, n, p->seed);
    else if (p->any_holes)
      good = n;
    else
      while (good < n && in[at + good] == 0)
        good++;
    if (good < n)
      return at + good;
    at += n;
  }
  return len;
}

static bool size_read(const char *text, uint64_t *to) {
  char *end;
  errno = 0;
  unsigned long long number = strtoull(text, &end, 10);
  unsigned shift = 0;
  if (end == text || errno != 0 || text[0] == '-')
    return false;
  if (*end != 0) {
    shift = *end == 'k' ? 10 : *end == 'm' ? 20 : *end == 'g' ? 30 : 64;
    end++;
  }
  if (*end != 0 || shift == 64 || number > (UINT64_MAX >> 1) >> shift)
    return false;
  *to = (uint64_t)number << shift;
  return true;
}

const char *options_read(int argc, char **argv, const struct option_spec *specs) {
  static char problem[300];
  for (int i = 1; i < argc; i++) {
    const struct option_spec *spec = specs;
    while (spec->kind != OPTION_END &&
           (strncmp(argv[i], "--", 2) != 0 || strcmp(argv[i] + 2, spec->name) != 0))
      spec++;
    if (spec->kind == OPTION_END) {
      snprintf(problem, sizeof problem, "'%s' is no option", argv[i]);
      return problem;
    }
    if (spec->kind == OPTION_FLAG) {
      *(bool *)spec->to = true;
      continue;
    }
    if (++i == argc) {
      snprintf(problem, sizeof problem, "--%s needs a value", spec->name);
      return problem;
    }
    if (spec->kind == OPTION_TEXT) {
      *(const char **)spec->to = argv[i];
    } else if (!size_read(argv[i], spec->to)) {
      snprintf(problem, sizeof problem, "--%s: '%s' is no number", spec->name, argv[i]);
      return problem;
    }
  }
  return NULL;
}

void options_help(const char *program, const struct option_spec *specs) {
  fprintf(stderr, "%s:\n", program);
  for (; specs->kind != OPTION_END; specs++)
    fprintf(stderr, "  --%-18s %s\n", specs->name, specs->help);
}
