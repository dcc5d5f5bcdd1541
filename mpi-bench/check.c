/* Checks a file with read(2) alone: its size, and the contents that the other programs of this
 * folder write. No MPI. */
#define _POSIX_C_SOURCE 200809L
#include "common.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

int main(int argc, char **argv) {
  const char *file = NULL;
  uint64_t size = 0, seed = 1, data = 1, period = 0;
  bool any_holes = false;
  const struct option_spec specs[] = {
      {"file", OPTION_TEXT, &file, "the file"},
      {"size", OPTION_SIZE, &size, "bytes that it should have"},
      {"any-holes", OPTION_FLAG, &any_holes, "or anything"},
      {"seed", OPTION_SIZE, &seed, "of its contents (1)"},
      {"data", OPTION_SIZE, &data, "of every --period bytes, this many are data"},
      {"period", OPTION_SIZE, &period, "and the rest are zeros; without: all is data"},
      {NULL, OPTION_END, NULL, NULL}};
  const char *problem = options_read(argc, argv, specs);
  if (problem != NULL || file == NULL) {
    fprintf(stderr, "check: %s\n", problem != NULL ? problem : "which --file?");
    options_help("check", specs);
    return 2;
  }
  struct pattern p = {seed, period == 0 ? 1 : data, period == 0 ? 1 : period, any_holes};
  struct stat about;
  int fd = open(file, O_RDONLY);
  if (fd < 0 || fstat(fd, &about) != 0) {
    perror(file);
    return 2;
  }
  if ((uint64_t)about.st_size != size) {
    fprintf(stderr, "%s: %lld bytes instead of %llu\n", file, (long long)about.st_size,
            (unsigned long long)size);
    return 1;
  }
  static unsigned char buffer[1 << 20];
  uint64_t at = 0;
  for (;;) {
    ssize_t n = read(fd, buffer, sizeof buffer);
    if (n < 0) {
      perror(file);
      return 2;
    }
    if (n == 0)
      break;
    size_t good = pattern_check(buffer, at, (size_t)n, &p);
    if (good < (size_t)n) {
      fprintf(stderr, "%s: byte %llu is wrong\n", file, (unsigned long long)(at + good));
      return 1;
    }
    at += (uint64_t)n;
  }
  if (at != size) {
    fprintf(stderr, "%s: ends at %llu\n", file, (unsigned long long)at);
    return 1;
  }
  printf("%llu bytes are right\n", (unsigned long long)size);
  return 0;
}
