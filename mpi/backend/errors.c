/* Error classes: from errno, to the file's error handler. */
#include "backend.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static int class_of_errno(int error)
{
  switch (error) {
  case EACCES:
  case EPERM:
    return MPI_ERR_ACCESS;
  case EROFS:
    return MPI_ERR_READ_ONLY;
  case ENOENT:
    return MPI_ERR_NO_SUCH_FILE;
  case EEXIST:
    return MPI_ERR_FILE_EXISTS;
  case ENAMETOOLONG:
  case EISDIR:
  case ENOTDIR:
  case ELOOP:
    return MPI_ERR_BAD_FILE;
  case ENOSPC:
    return MPI_ERR_NO_SPACE;
  case EDQUOT:
    return MPI_ERR_QUOTA;
  case ENOMEM:
    return MPI_ERR_NO_MEM;
  case EBUSY:
  case ETXTBSY:
    return MPI_ERR_FILE_IN_USE;
  case EINVAL:
  case EOVERFLOW:
    return MPI_ERR_ARG;
  case EOPNOTSUPP:
  case ENOSYS:
    return MPI_ERR_UNSUPPORTED_OPERATION;
  default:
    return MPI_ERR_IO;
  }
}

/* MPI's error strings name the class only. The explaining sentence is optional. */
static bool is_verbose(void)
{
  static atomic_int wanted = -1;
  if (wanted < 0) {
    const char *value = getenv("TATAMI_MPI_VERBOSE");
    wanted = value != NULL && value[0] != '\0' && value[0] != '0';
  }
  return wanted;
}

/* Whether a failure is printed even if nobody asked for it: another machine is not reached, or has no
 * such back end, and the class of the MPI error cannot say which and why. */
static int is_news(int64_t result)
{
  const char *value = getenv("TATAMI_MPI_VERBOSE");
  int is_silent = value != NULL && value[0] == '0';
  return !is_silent && (result == -EHOSTDOWN || result == -EPROTO || result == -ENODEV);
}

int class_of(int64_t result)
{
  if (result >= 0)
    return MPI_SUCCESS;
  if (is_verbose() || is_news(result))
    fprintf(stderr, "tatami: %s\n", tio_error());
  return class_of_errno((int)-result);
}

int refuse(int error, const char *format, ...)
{
  va_list arguments;
  if (is_verbose()) {
    char why[256];
    va_start(arguments, format);
    vsnprintf(why, sizeof why, format, arguments);
    va_end(arguments);
    fprintf(stderr, "tatami: %s\n", why);
  }
  return error;
}

/* Calls the error handler of a handle, but not the one by which MPICH's C++ functions throw. For MPICH a
 * call of that one is an error of MPI_COMM_WORLD, which ends the program. The C++ function throws when it
 * sees the returned error. */
static void call_handler(MPI_File shadow, MPI_Errhandler handler, int error)
{
#ifdef MPIR_ERRORS_THROW_EXCEPTIONS
  if (handler == MPIR_ERRORS_THROW_EXCEPTIONS)
    return;
#else
  (void)handler;
#endif
  PMPI_File_call_errhandler(shadow, error);
}

int fail(struct file *file, int error)
{
  MPI_Errhandler handler;
  if (error == MPI_SUCCESS || PMPI_File_get_errhandler(file->shadow, &handler) != MPI_SUCCESS)
    return error;
  call_handler(file->shadow, handler, error);
  PMPI_Errhandler_free(&handler);
  return error;
}

int fail_no_file(int error)
{
  MPI_Errhandler handler;
  if (error == MPI_SUCCESS || PMPI_File_get_errhandler(MPI_FILE_NULL, &handler) != MPI_SUCCESS)
    return error;
  /* Open MPI 4 ends the program when PMPI_File_call_errhandler gets MPI_FILE_NULL, and MPICH 4.0
   * counts its references wrongly. A new handle has the same error handler. */
  MPI_File shadow;
  if (handler != MPI_ERRORS_RETURN && shadow_open(&shadow) == MPI_SUCCESS) {
    call_handler(shadow, handler, error);
    REAL(File_close)(&shadow);
  }
  PMPI_Errhandler_free(&handler);
  return error;
}
