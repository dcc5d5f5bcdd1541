/* MPI_File_set_view and MPI_File_get_view. */
#include "ours.h"

#include <stdlib.h>
#include <string.h>

/* A view before all ranks have agreed on it. */
struct proposal {
  int64_t displacement;
  int64_t etype_size, filetype_size;
  enum representation rep;
  MPI_Datatype etype, filetype;
  tio_shape *shape;
};

/* The fields of one reduction over all ranks, which takes the largest of each. */
enum { ERROR, REP, REP_NEGATED, ETYPE, ETYPE_NEGATED, STAMP, SHARED_USED, FIELDS };

static int representation_of(const char *name, enum representation *rep)
{
  static const char *const names[] = {[NATIVE] = "native", [INTERNAL] = "internal", [EXTERNAL32] = "external32"};
  for (int i = 0; name != NULL && i < 3; i++)
    if (strcmp(name, names[i]) == 0) {
      *rep = (enum representation)i;
      return MPI_SUCCESS;
    }
  if (name == NULL)
    return refuse(MPI_ERR_ARG, "MPI_File_set_view: datarep is NULL");
  return refuse(MPI_ERR_UNSUPPORTED_DATAREP,
                "MPI_File_set_view: datarep \"%s\" is none of \"native\", \"internal\" and \"external32\"", name);
}

/* Makes a handle of the layer for the same type: the program may free its own. */
static int keep(MPI_Datatype datatype, MPI_Datatype *kept)
{
  *kept = datatype;
  if (type_is_predefined(datatype))
    return MPI_SUCCESS;
  return PMPI_Type_dup(datatype, kept) == MPI_SUCCESS ? MPI_SUCCESS : MPI_ERR_TYPE;
}

static void drop(MPI_Datatype *datatype)
{
  if (*datatype != MPI_DATATYPE_NULL && !type_is_predefined(*datatype))
    PMPI_Type_free(datatype);
  *datatype = MPI_DATATYPE_NULL;
}

static void withdraw(struct proposal *p)
{
  drop(&p->etype);
  drop(&p->filetype);
  tio_shape_release(p->shape);
}

static int propose_types(struct proposal *p, MPI_Datatype etype, MPI_Datatype filetype)
{
  tio_shape *element = NULL;
  if (etype == MPI_DATATYPE_NULL || filetype == MPI_DATATYPE_NULL)
    return refuse(MPI_ERR_TYPE, "MPI_File_set_view: %s is MPI_DATATYPE_NULL",
                  etype == MPI_DATATYPE_NULL ? "etype" : "filetype");
  int error = flatten(etype, p->rep, &element);
  if (error != MPI_SUCCESS)
    return refuse(error, "MPI_File_set_view: etype has parts that datarep has no size for, or is no datatype");
  p->etype_size = (int64_t)tio_shape_size(element);
  tio_shape_release(element);
  error = flatten(filetype, p->rep, &p->shape);
  if (error != MPI_SUCCESS)
    return refuse(error, "MPI_File_set_view: filetype has parts that datarep has no size for, or is no datatype");
  error = keep(etype, &p->etype);
  if (error == MPI_SUCCESS)
    error = keep(filetype, &p->filetype);
  if (error != MPI_SUCCESS)
    return error;
  p->filetype_size = (int64_t)tio_shape_size(p->shape);
  if (p->etype_size == 0)
    return refuse(MPI_ERR_ARG, "MPI_File_set_view: etype has no bytes");
  if (p->filetype_size % p->etype_size != 0)
    return refuse(MPI_ERR_ARG, "MPI_File_set_view: filetype has %lld bytes, which is no multiple of etype's %lld",
                  (long long)p->filetype_size, (long long)p->etype_size);
  return MPI_SUCCESS;
}

static int check_displacement(const struct file *file, MPI_Offset displacement)
{
  bool sequential = (file->amode & MPI_MODE_SEQUENTIAL) != 0;
  if (sequential ? displacement == MPI_DISPLACEMENT_CURRENT || displacement == 0 : displacement >= 0)
    return MPI_SUCCESS;
  return refuse(MPI_ERR_ARG, "MPI_File_set_view: disp is %lld; %s", (long long)displacement,
                sequential ? "a file with MPI_MODE_SEQUENTIAL takes MPI_DISPLACEMENT_CURRENT or 0"
                           : "it must be 0 or more, MPI_DISPLACEMENT_CURRENT is for MPI_MODE_SEQUENTIAL");
}

static int propose(const struct file *file, struct proposal *p, MPI_Offset displacement, MPI_Datatype etype,
                   MPI_Datatype filetype, const char *datarep)
{
  int error = representation_of(datarep, &p->rep);
  if (error == MPI_SUCCESS)
    error = propose_types(p, etype, filetype);
  if (error == MPI_SUCCESS)
    error = check_displacement(file, displacement);
  p->displacement = displacement;
  if (error == MPI_SUCCESS)
    error = class_of(tio_view_check(displacement > 0 ? (uint64_t)displacement : 0, (uint64_t)p->etype_size, p->shape));
  return error;
}

/* Collective. Decides the stamp of the new epoch, and whether any rank has used the shared
 * pointer. */
static int decide(struct file *file, const struct proposal *p, int error, int64_t all[FIELDS])
{
  int64_t own[FIELDS] = {[ERROR] = error};
  if (error == MPI_SUCCESS) {
    own[REP] = p->rep;
    own[REP_NEGATED] = -(int64_t)p->rep;
    own[ETYPE] = p->etype_size;
    own[ETYPE_NEGATED] = -p->etype_size;
  }
  own[SHARED_USED] = atomic_load(&file->shared_used);
  own[STAMP] = file->rank == 0 ? (int64_t)tio_stamp(file->io) : INT64_MIN;
  if (maxima(file, own, all, FIELDS) != MPI_SUCCESS)
    return MPI_ERR_OTHER;
  if (all[ERROR] != MPI_SUCCESS)
    return (int)all[ERROR];
  if (all[REP] != -all[REP_NEGATED])
    return refuse(MPI_ERR_NOT_SAME, "MPI_File_set_view: datarep is not the same on all ranks");
  if (all[ETYPE] != -all[ETYPE_NEGATED])
    return refuse(MPI_ERR_NOT_SAME, "MPI_File_set_view: etype has %lld bytes on one rank and %lld on another",
                  (long long)all[ETYPE], -(long long)all[ETYPE_NEGATED]);
  return MPI_SUCCESS;
}

/* Collective, after all ranks have arrived and so no longer use the old view. Resets the shared
 * pointer before any rank goes on. Returns its old position. */
static int reset_pointer(struct file *file, int64_t *before)
{
  int64_t told[2] = {0, 0};
  if (file->rank == 0) {
    told[0] = class_of(tio_shared_add(file->io, 0, &told[1]));
    if (told[0] == MPI_SUCCESS)
      told[0] = class_of(tio_shared_set(file->io, 0));
  }
  if (file->ranks > 1 && broadcast(file->comm, told, sizeof told, 0) != MPI_SUCCESS)
    return MPI_ERR_OTHER;
  *before = told[1];
  atomic_store(&file->shared_used, false);
  return (int)told[0];
}

/* MPI_DISPLACEMENT_CURRENT: returns the byte of this rank's present view to which the shared
 * pointer points. */
static int resolve_displacement(struct file *file, struct proposal *p, int64_t shared)
{
  uint64_t byte = 0;
  if (p->displacement != MPI_DISPLACEMENT_CURRENT)
    return MPI_SUCCESS;
  int error = class_of(tio_offset_of(file->io, (uint64_t)(shared * file->etype_size), &byte));
  p->displacement = (int64_t)byte;
  return error;
}

static int adopt(struct file *file, struct proposal *p, int64_t stamp)
{
  int error = class_of(tio_epoch(file->io, (uint64_t)stamp));
  if (error == MPI_SUCCESS)
    error = class_of(tio_view(file->io, (uint64_t)p->displacement, (uint64_t)p->etype_size, p->shape));
  if (error != MPI_SUCCESS)
    return error;
  MPI_Datatype etype = file->etype, filetype = file->filetype;
  file->displacement = p->displacement;
  file->etype = p->etype;
  file->filetype = p->filetype;
  file->etype_size = p->etype_size;
  file->rep = p->rep;
  atomic_store(&file->position, 0);
  p->etype = etype; /* freed with the proposal */
  p->filetype = filetype;
  return MPI_SUCCESS;
}

int our_File_set_view(MPI_File handle, MPI_Offset displacement, MPI_Datatype etype, MPI_Datatype filetype,
                      const char *datarep, MPI_Info info)
{
  struct file *file = file_of(handle);
  struct proposal p = {.etype = MPI_DATATYPE_NULL, .filetype = MPI_DATATYPE_NULL};
  int64_t all[FIELDS], shared = 0;
  if (file == NULL)
    return REAL(File_set_view)(handle, displacement, etype, filetype, datarep, info);
  int error = propose(file, &p, displacement, etype, filetype, datarep);
  error = decide(file, &p, error, all);
  /* An unused pointer is already at its place. */
  if (error == MPI_SUCCESS && all[SHARED_USED])
    error = reset_pointer(file, &shared);
  if (error == MPI_SUCCESS)
    error = resolve_displacement(file, &p, shared);
  if (error == MPI_SUCCESS)
    error = adopt(file, &p, all[STAMP]);
  if (error == MPI_SUCCESS && info != MPI_INFO_NULL)
    hints_merge(file->hints, info);
  withdraw(&p);
  return fail(file, error);
}

int our_File_get_view(MPI_File handle, MPI_Offset *displacement, MPI_Datatype *etype, MPI_Datatype *filetype,
                      char *datarep)
{
  static const char *const names[] = {[NATIVE] = "native", [INTERNAL] = "internal", [EXTERNAL32] = "external32"};
  struct file *file = file_of(handle);
  if (file == NULL)
    return REAL(File_get_view)(handle, displacement, etype, filetype, datarep);
  if (displacement == NULL || etype == NULL || filetype == NULL || datarep == NULL)
    return fail(file, MPI_ERR_ARG);
  int error = keep(file->etype, etype);
  if (error == MPI_SUCCESS)
    error = keep(file->filetype, filetype);
  *displacement = file->displacement;
  strcpy(datarep, names[file->rep]);
  return fail(file, error);
}
