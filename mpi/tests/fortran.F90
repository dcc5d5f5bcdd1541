! One program for the three Fortran bindings: compiled with -DUSE_MPIF, -DUSE_MPI or -DUSE_F08.
! Each rank writes every RANKS-th block of the file through a view, reads its neighbour's, and checks all of it. Then
! each writes its part of one copy of a type whose bounds are not those of its data.
#if defined(USE_F08)
#define FILE_TYPE type(MPI_File)
#define DATATYPE_TYPE type(MPI_Datatype)
#define REQUEST_TYPE type(MPI_Request)
#define STATUS_TYPE type(MPI_Status)
#else
#define FILE_TYPE integer
#define DATATYPE_TYPE integer
#define REQUEST_TYPE integer
#define STATUS_TYPE integer, dimension(MPI_STATUS_SIZE)
#endif

program fortran_test
#if defined(USE_F08)
  use mpi_f08
#elif defined(USE_MPI)
  use mpi
#endif
  implicit none
#if defined(USE_MPIF)
  include 'mpif.h'
#endif
  integer, parameter :: block = 5, blocks = 40
  FILE_TYPE :: file
  DATATYPE_TYPE :: filetype, spread, parts(2)
  REQUEST_TYPE :: request
  STATUS_TYPE :: status
  integer :: rank, ranks, ierr, i, j, got, neighbour, wrong, lengths(2)
  integer(kind=MPI_OFFSET_KIND) :: size, zero, offset
  integer(kind=MPI_ADDRESS_KIND) :: lb, extent, places(2)
  integer :: values(block * blocks), back(block * blocks)
  character(len=1024) :: path

  zero = 0
  wrong = 0
  call MPI_Init(ierr)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierr)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, ierr)
  call get_command_argument(1, path)
  do i = 1, block * blocks
    values(i) = 1000 * rank + i
  end do

  call MPI_File_open(MPI_COMM_WORLD, trim(path), MPI_MODE_CREATE + MPI_MODE_RDWR, MPI_INFO_NULL, file, ierr)
  call check(ierr == MPI_SUCCESS, 1)
  call MPI_Type_contiguous(block, MPI_INTEGER, filetype, ierr)
  lb = 0
  extent = 4 * block * ranks
  call MPI_Type_create_resized(filetype, lb, extent, spread, ierr)
  call MPI_Type_commit(spread, ierr)
  offset = 4 * block * rank
  call MPI_File_set_view(file, offset, MPI_INTEGER, spread, 'native', MPI_INFO_NULL, ierr)
  call check(ierr == MPI_SUCCESS, 2)
  call MPI_File_write_all(file, values, block * blocks / 2, MPI_INTEGER, status, ierr)
  call check(ierr == MPI_SUCCESS, 3)
  call MPI_Get_count(status, MPI_INTEGER, got, ierr)
  call check(got == block * blocks / 2, 4)
  call MPI_File_iwrite(file, values(block * blocks / 2 + 1), block * blocks / 2, MPI_INTEGER, request, ierr)
  call MPI_Wait(request, status, ierr)
  call check(ierr == MPI_SUCCESS, 5)
  call MPI_File_get_position(file, offset, ierr)
  call check(offset == block * blocks, 6)

  call MPI_File_sync(file, ierr)
  call MPI_Barrier(MPI_COMM_WORLD, ierr)
  call MPI_File_sync(file, ierr)
  call MPI_File_get_size(file, size, ierr)
  call check(size == 4_MPI_OFFSET_KIND * block * blocks * ranks, 7)

  neighbour = mod(rank + 1, ranks)
  offset = 4 * block * neighbour
  call MPI_File_set_view(file, offset, MPI_INTEGER, spread, 'native', MPI_INFO_NULL, ierr)
  call MPI_File_read_at_all(file, zero, back, block * blocks, MPI_INTEGER, status, ierr)
  call MPI_Get_count(status, MPI_INTEGER, got, ierr)
  call check(got == block * blocks, 8)
  do i = 1, block * blocks
    call check(back(i) == 1000 * neighbour + i, 9)
  end do
  call MPI_File_close(file, ierr)
  call check(ierr == MPI_SUCCESS, 10)

  call MPI_File_open(MPI_COMM_WORLD, trim(path), MPI_MODE_RDONLY, MPI_INFO_NULL, file, ierr)
  do j = 0, blocks - 1
    do i = 0, ranks - 1
      offset = 4_MPI_OFFSET_KIND * block * (j * ranks + i)
      call MPI_File_read_at(file, offset, back, block, MPI_INTEGER, status, ierr)
      call check(back(1) == 1000 * i + block * j + 1 .and. back(block) == 1000 * i + block * j + block, 11)
    end do
  end do
  call MPI_File_close(file, ierr)
  call MPI_Type_free(spread, ierr)

  ! A header, and a variable with bounds of its own after it: with Open MPI the lower bound lies above the header.
  lb = 0
  extent = 4 * block
  call MPI_Type_create_resized(filetype, lb, extent, parts(2), ierr)
  parts(1) = MPI_INTEGER
  lengths = [2 * block, 1]
  places = [0, 4 * 3 * block]
  call MPI_Type_create_struct(2, lengths, places, parts, spread, ierr)
  call MPI_Type_commit(spread, ierr)
  call MPI_File_open(MPI_COMM_WORLD, trim(path), MPI_MODE_RDWR, MPI_INFO_NULL, file, ierr)
  offset = 4 * 4 * block * rank
  call MPI_File_set_view(file, offset, MPI_INTEGER, spread, 'native', MPI_INFO_NULL, ierr)
  call check(ierr == MPI_SUCCESS, 12)
  do i = 1, 3 * block
    values(i) = -1000 * (rank + 1) - i
  end do
  call MPI_File_write_at_all(file, zero, values, 3 * block, MPI_INTEGER, status, ierr)
  call check(ierr == MPI_SUCCESS, 13)
  call MPI_File_read_at_all(file, zero, back, 3 * block, MPI_INTEGER, status, ierr)
  do i = 1, 3 * block
    call check(back(i) == values(i), 14)
  end do
  call MPI_File_sync(file, ierr)
  call MPI_Barrier(MPI_COMM_WORLD, ierr)
  call MPI_File_sync(file, ierr)
  call MPI_File_set_view(file, zero, MPI_INTEGER, MPI_INTEGER, 'native', MPI_INFO_NULL, ierr)
  do i = 0, ranks - 1
    offset = 4 * block * i
    call MPI_File_read_at(file, offset, back, 4 * block, MPI_INTEGER, status, ierr)
    call check(back(1) == -1000 * (i + 1) - 1 .and. back(2 * block) == -1000 * (i + 1) - 2 * block, 15)
    call check(back(2 * block + 1) > 0 .and. back(3 * block) > 0, 16)
    call check(back(3 * block + 1) == -1000 * (i + 1) - 2 * block - 1 .and. back(4 * block) == -1000 * (i + 1) - 3 * block, 17)
  end do
  call MPI_File_close(file, ierr)
  call MPI_Type_free(spread, ierr)
  call MPI_Type_free(parts(2), ierr)
  call MPI_Type_free(filetype, ierr)
  if (wrong == 0 .and. rank == 0) print *, 'all values right'
  call MPI_Finalize(ierr)
  if (wrong /= 0) stop 1

contains
  subroutine check(good, number)
    logical, intent(in) :: good
    integer, intent(in) :: number
    if (good) return
    wrong = wrong + 1
    if (wrong <= 5) print *, 'rank', rank, 'check', number, 'failed'
  end subroutine check
end program fortran_test
