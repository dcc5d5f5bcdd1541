/*
 * Finds the MPI library that the process has loaded, its own MPI_File_* functions, and the backend
 * that was compiled for it. RTLD_NEXT alone does not suffice: Python loads libmpi with RTLD_LOCAL.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "front.h"

static tatami_function real[TATAMI_CALL_COUNT];
static int (*backend_look)(const char *, int, uintptr_t);

static const char *const names[TATAMI_CALL_COUNT] = {
#define NAME(name) [CALL_##name] = "MPI_" #name,
#define NAME_BOTH(name) [CALL_##name] = "MPI_" #name, [CALL_##name##_c] = "MPI_" #name "_c",
    TATAMI_PLAIN_CALLS(NAME) TATAMI_COUNT_CALLS(NAME_BOTH)};

/* ISO C has no cast between object and function pointers; POSIX has dlsym. */
static tatami_function symbol(void *handle, const char *name)
{
  tatami_function function;
  void *address = dlsym(handle, name);
  memcpy(&function, &address, sizeof function);
  return function;
}

/* A process without MPI, or an MPI-4 call under a library that has none. */
static int missing(void)
{
  fputs("tatami: this MPI library has no such MPI_File function\n", stderr);
  abort();
}

static int is_mpi_library(const char *path)
{
  const char *base = strrchr(path, '/');
  base = base != NULL ? base + 1 : path;
  return strncmp(base, "libmpi.so", 9) == 0 || strncmp(base, "libmpich.so", 11) == 0 ||
         strncmp(base, "libmpi_abi.so", 13) == 0 || strncmp(base, "libpmpi.so", 10) == 0;
}

/* Paths of libraries that may be the MPI library, in load order. */
struct candidates {
  int count;
  char path[4][PATH_MAX];
};

static int consider(struct dl_phdr_info *info, size_t size, void *result)
{
  struct candidates *candidates = result;
  (void)size;
  if (info->dlpi_name != NULL && is_mpi_library(info->dlpi_name) && candidates->count < 4 &&
      strlen(info->dlpi_name) < PATH_MAX)
    strcpy(candidates->path[candidates->count++], info->dlpi_name);
  return 0;
}

static void *find_library(void)
{
  static struct candidates candidates;
  dl_iterate_phdr(consider, &candidates);
  for (int i = 0; i < candidates.count; i++) {
    /* The backend finds its MPI functions in the global scope: a library loaded locally is moved
     * there. */
    void *handle = dlopen(candidates.path[i], RTLD_NOLOAD | RTLD_LAZY | RTLD_GLOBAL);
    if (handle != NULL && dlsym(handle, "PMPI_File_open") != NULL)
      return handle;
  }
  return NULL;
}

/* Returns the family of the MPI library, as its backend is named; NULL for an unknown one. */
static const char *family(void *handle)
{
  int (*version)(char *, int *) = (int (*)(char *, int *))symbol(handle, "PMPI_Get_library_version");
  static char text[8192 + 1]; /* MPICH's MPI_MAX_LIBRARY_VERSION_STRING, the largest */
  int length = 0;
  if (version == NULL || version(text, &length) != 0)
    return NULL;
  if (strstr(text, "Open MPI") != NULL)
    return "openmpi";
  if (strstr(text, "MPICH") != NULL || strstr(text, "MVAPICH") != NULL || strstr(text, "Intel(R) MPI") != NULL)
    return "mpich";
  return NULL;
}

void *tatami_front_load(const char *name)
{
  Dl_info self;
  char path[PATH_MAX];
  if (dladdr((void *)real, &self) == 0 || self.dli_fname == NULL)
    return NULL;
  const char *slash = strrchr(self.dli_fname, '/');
  int directory = slash != NULL ? (int)(slash - self.dli_fname + 1) : 0;
  int length = snprintf(path, sizeof path, "%.*s%s", directory, self.dli_fname, name);
  if (length < 0 || (size_t)length >= sizeof path)
    return NULL;
  return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static void *load_backend(const char *which)
{
  char name[64];
  snprintf(name, sizeof name, "libtatami_mpi_%s.so", which);
  void *backend = tatami_front_load(name);
  if (backend == NULL)
    fprintf(stderr, "tatami: MPI-IO goes to the MPI library, because the backend was not loaded: %s\n", dlerror());
  return backend;
}

/* Returns the backend's table if it is of the same interface as the front. Otherwise prints one
 * sentence and returns NULL: a call number means another function in a table of another build, so
 * no entry of it may be used. */
static const struct tatami_backend *check_backend(void *handle)
{
  const struct tatami_backend *backend = dlsym(handle, TATAMI_BACKEND);
  bool has_numbers = backend != NULL && backend->magic == TATAMI_BACKEND_MAGIC;
  if (has_numbers && backend->version == TATAMI_BACKEND_VERSION && backend->count == TATAMI_CALL_COUNT)
    return backend;
  char theirs[64] = "no version";
  if (has_numbers)
    snprintf(theirs, sizeof theirs, "version %u, %u functions", (unsigned)backend->version, (unsigned)backend->count);
  Dl_info self = {0};
  struct link_map *other = NULL;
  bool has_names = dladdr((void *)real, &self) != 0 && self.dli_fname != NULL &&
                   dlinfo(handle, RTLD_DI_LINKMAP, &other) == 0;
  fprintf(stderr,
          "tatami: MPI-IO goes to the MPI library, because %s (version %u, %u functions) and %s (%s) are not of one "
          "build: install both from the same build\n",
          has_names ? self.dli_fname : "the front", (unsigned)TATAMI_BACKEND_VERSION, (unsigned)TATAMI_CALL_COUNT,
          has_names ? other->l_name : "its backend", theirs);
  return NULL;
}

int tatami_front_disabled(void)
{
  const char *value = getenv("TATAMI_MPI");
  return value != NULL && (strcmp(value, "0") == 0 || strcmp(value, "off") == 0);
}

static void report(const char *what)
{
  const char *value = getenv("TATAMI_MPI_CHECK");
  if (value != NULL && value[0] != '\0')
    fprintf(stderr, "tatami-mpi: %s\n", what);
}

static void find_backend(void *library)
{
  const char *which = family(library);
  if (tatami_front_disabled()) {
    report("off: TATAMI_MPI says so");
    return;
  }
  if (which == NULL) {
    report("off: neither Open MPI nor MPICH");
    return;
  }
  void *handle = load_backend(which);
  if (handle == NULL) {
    report("off: backend not loaded");
    return;
  }
  const struct tatami_backend *backend = check_backend(handle);
  if (backend == NULL) {
    report("off: backend of another build");
    return;
  }
  if (backend->start(real) != 0) {
    fprintf(stderr, "tatami: MPI-IO goes to the MPI library, because the backend for %s does not fit it\n", which);
    report("off: backend does not fit");
    return;
  }
  memcpy(tatami_target, backend->ours, sizeof tatami_target);
  backend_look = backend->look;
  report(strcmp(which, "openmpi") == 0 ? "active with Open MPI" : "active with MPICH");
}

int tatami_front_look(const char *path, int has_info, uintptr_t info)
{
  tatami_front_ready();
  return backend_look != NULL ? backend_look(path, has_info, info) : -1;
}

void tatami_front_find(void)
{
  void *library = find_library();
  void *where = library != NULL ? library : RTLD_NEXT;
  for (int call = 0; call < TATAMI_CALL_COUNT; call++) {
    real[call] = symbol(where, names[call]);
    tatami_target[call] = real[call] != NULL ? real[call] : (tatami_function)missing;
  }
  if (library != NULL)
    find_backend(library);
  else
    report("off: no MPI library is loaded in this process, or it is linked statically");
}
