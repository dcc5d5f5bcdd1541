/* A wall clock that is off, for all processes of a host of a test bed: see TestHost::set_clock.
 *
 * The dynamic linker loads this before every program of that host (/etc/ld.so.preload). Programs
 * ask for the time by functions that the kernel maps into each process (vdso(7)), whether they call
 * the C library or not. The code of these functions is replaced, so all callers see the same clock.
 * /etc/clock has the seconds by which the host is ahead, at the start of each program.
 *
 * Only programs see that clock: the kernel's times of local files are right. */

#define _GNU_SOURCE
#include <elf.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long ahead;

/* Without the C library: its errno is no part of these calls. */
static long get_time(long clock, struct timespec *at) {
  long result;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"((long)SYS_clock_gettime), "D"(clock), "S"(at)
                   : "rcx", "r11", "memory");
  return result;
}

static long shifted_clock_gettime(int clock, struct timespec *at) {
  long result = get_time(clock, at);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) at->tv_sec += ahead;
  return result;
}

static long shifted_gettimeofday(struct timeval *at, struct timezone *zone) {
  struct timespec now;
  get_time(CLOCK_REALTIME, &now);
  if (at) *at = (struct timeval){now.tv_sec + ahead, now.tv_nsec / 1000};
  if (zone) memset(zone, 0, sizeof *zone);
  return 0;
}

static time_t shifted_time(time_t *at) {
  struct timespec now;
  get_time(CLOCK_REALTIME, &now);
  if (at) *at = now.tv_sec + ahead;
  return now.tv_sec + ahead;
}

/* Makes the function at `code` a jump to `target`: mov rax, target; jmp rax. */
static void replace(char *code, void *target) {
  uintptr_t page = (uintptr_t)code & ~4095UL;
  if (mprotect((void *)page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC) != 0 &&
      mprotect((void *)page, 4096, PROT_READ | PROT_WRITE | PROT_EXEC) != 0) {
    perror("the clock of this host cannot be set");
    _exit(99);
  }
  uint64_t address = (uint64_t)target;
  memcpy(code, "\x48\xb8", 2);
  memcpy(code + 2, &address, 8);
  memcpy(code + 10, "\xff\xe0", 2);
}

__attribute__((constructor)) static void set_clock(void) {
  FILE *file = fopen("/etc/clock", "re");
  if (!file) return;
  int known = fscanf(file, "%ld", &ahead);
  fclose(file);
  char *base = (char *)getauxval(AT_SYSINFO_EHDR);
  if (known != 1 || !base) return;
  Elf64_Ehdr *head = (Elf64_Ehdr *)base;
  Elf64_Shdr *sections = (Elf64_Shdr *)(base + head->e_shoff);
  for (int at = 0; at < head->e_shnum; at++) {
    if (sections[at].sh_type != SHT_DYNSYM) continue;
    Elf64_Sym *symbols = (Elf64_Sym *)(base + sections[at].sh_offset);
    const char *names = base + sections[sections[at].sh_link].sh_offset;
    for (size_t nth = 0; nth < sections[at].sh_size / sizeof *symbols; nth++) {
      const char *name = names + symbols[nth].st_name;
      char *code = base + symbols[nth].st_value;
      if (!strcmp(name, "__vdso_clock_gettime")) replace(code, shifted_clock_gettime);
      if (!strcmp(name, "__vdso_gettimeofday")) replace(code, shifted_gettimeofday);
      if (!strcmp(name, "__vdso_time")) replace(code, shifted_time);
    }
  }
}
